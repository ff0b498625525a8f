"""The target on paged caches against the plain Hugging Face forward of the same model, for tiny models of many kinds.

The oracle recomputes every request from scratch, unpacked and without any cache, with transformers' eager attention: in
float64 as the reference, in float32 as the plain computation whose error bounds ours.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from dflash_decoding.attention import UnsupportedTarget
from dflash_decoding.cache import PagedKVCache, PagePool
from dflash_decoding.target import Target, TargetOutput
from torch import Tensor, nn

from tests.ops.harness import assert_as_accurate

VOCAB = 97
WINDOW = 6
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.2,
    "attn_implementation": "eager",
}
ALTERNATING = ["sliding_attention", "full_attention"] * 2
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {}),
    "qwen3_moe": ("Qwen3MoeConfig", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}),
    "mistral": ("MistralConfig", {"sliding_window": WINDOW}),
    "gemma2": (
        "Gemma2Config",
        {
            "layer_types": ALTERNATING,
            "sliding_window": WINDOW,
            "attn_logit_softcapping": 5.0,
            "query_pre_attn_scalar": 9,
        },
    ),
    "gemma3": ("Gemma3TextConfig", {"layer_types": ALTERNATING, "sliding_window": WINDOW}),
    "gemma4": (
        "Gemma4TextConfig",
        {
            "layer_types": ALTERNATING,
            "sliding_window": WINDOW,
            "global_head_dim": 32,
            "num_global_key_value_heads": 1,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCAB,
        },
    ),
    "gpt_oss": (
        "GptOssConfig",
        {"layer_types": ALTERNATING, "sliding_window": WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "granite": ("GraniteConfig", {"logits_scaling": 3.0, "attention_multiplier": 0.3, "residual_multiplier": 0.7}),
    "cohere2": ("Cohere2Config", {"layer_types": ALTERNATING, "sliding_window": WINDOW, "logit_scale": 0.25}),
    "gpt2": ("GPT2Config", {"n_positions": 256, "head_dim": None, "num_key_value_heads": None}),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The tensors are so small that threads would spend their time waiting for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_model(family: str, **changes: Any) -> nn.Module:
    torch.manual_seed(sum(map(ord, family)))
    name, extra = FAMILIES[family]
    sizes = {key: value for key, value in {**SIZES, **extra, **changes}.items() if value is not None}
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, name)(**sizes)).eval()
    for parameter in model.parameters():  # norms, biases and sinks start at 0 or 1, which would hide a missing one
        if parameter.ndim == 1:
            parameter.data += 0.3 * torch.randn_like(parameter)
    return model


@dataclass
class Oracle:
    """Plain forwards of whole sequences."""

    plain: nn.Module
    reference: nn.Module

    @classmethod
    def of(cls, model: nn.Module) -> Oracle:
        reference = copy.deepcopy(model).double()
        reference.set_experts_implementation("eager")  # the grouped product of mixtures of experts lacks float64
        return cls(copy.deepcopy(model), reference)

    def forward(self, model: nn.Module, ids: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        """Logits [n, V] and each layer's output [n, H] (the last one after the final norm)."""
        with torch.no_grad():
            output = model(input_ids=torch.tensor([ids]), use_cache=False, output_hidden_states=True)
        return output.logits[0], [hidden[0] for hidden in output.hidden_states[1:]]

    def check(self, target: Target, output: TargetOutput, rows: slice, ids: Sequence[int], count: int) -> None:
        """`rows` of a forward with all layers tapped belong to the last `count` tokens of a request with `ids`."""
        plain_logits, plain_hidden = self.forward(self.plain, ids)
        logits, hidden = self.forward(self.reference, ids)
        assert output.logits is not None
        assert_as_accurate(output.logits[rows], logits[-count:], plain_logits[-count:])
        norm = final_norm(self.reference)
        for layer, tap in enumerate(output.taps):
            ours = tap[rows]
            if layer == target.num_layers - 1:  # the tap is taken before the final norm
                ours = norm(ours.double())
            assert_as_accurate(ours, hidden[layer][-count:], plain_hidden[layer][-count:])


def final_norm(model: nn.Module) -> nn.Module:
    decoder = model.get_decoder()
    return decoder.norm if hasattr(decoder, "norm") else decoder.ln_f


class Requests:
    """Token lists of several requests, their pool and cache, and forwards of ragged blocks."""

    def __init__(self, target: Target, batch: int, page_size: int = 4) -> None:
        self.target = target
        self.tokens: list[list[int]] = [[] for _ in range(batch)]
        self.pool = PagePool(64 * batch // page_size + 3, page_size, batch, 64 // page_size)
        self.cache = target.new_cache(self.pool)
        poison(self.cache)

    def forward(self, blocks: Sequence[Sequence[int]], uniform: bool = False) -> TargetOutput:
        """Runs one block per request on top of its committed tokens; commits nothing."""
        positions, slots = [], []
        ids: list[int] = []
        for row, block in enumerate(blocks):
            start, stop = len(self.tokens[row]), len(self.tokens[row]) + len(block)
            self.pool.allocate(row, stop)
            positions.append(torch.arange(start, stop))
            slots.append(self.pool.slot_mapping(row, start, stop))
            ids += block
        lengths = torch.tensor([0, *map(len, blocks)])
        return self.target.forward(
            torch.tensor(ids, dtype=torch.int64),
            torch.cat(positions),
            torch.cat(slots),
            self.cache,
            self.pool.page_table,
            self.pool.context_lens,
            None if uniform else lengths.cumsum(0).int(),
            tap_layers=range(self.target.num_layers),
        )

    def commit(self, row: int, ids: Sequence[int]) -> None:
        self.tokens[row] += ids
        self.pool.context_lens[row] = len(self.tokens[row])


def poison(cache: PagedKVCache) -> None:
    for tensor in (*cache.k, *cache.v):
        tensor.fill_(float("nan"))


def random_ids(count: int) -> list[int]:
    return torch.randint(3, VOCAB, (count,)).tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_blocks_and_rejections(family: str) -> None:
    model = make_model(family)
    oracle = Oracle.of(model)
    target = Target(model)
    requests = Requests(target, 3)
    prompts = [random_ids(1), random_ids(9), random_ids(17)]
    for start in range(0, 17, 7):  # chunked prefill: requests run out of prompt at different times
        chunks = [prompt[start : start + 7] for prompt in prompts]
        check_round(oracle, requests, chunks, accepted=[len(chunk) for chunk in chunks])
    for accepted in ([1, 4, 2], [4, 1, 0], [2, 2, 3], [4, 4, 4]):
        check_round(oracle, requests, [random_ids(4) for _ in range(3)], accepted, uniform=True)
    check_round(oracle, requests, [random_ids(3), [], random_ids(1)], accepted=[1, 0, 1])


def check_round(
    oracle: Oracle, requests: Requests, blocks: list[list[int]], accepted: list[int], uniform: bool = False
) -> None:
    output = requests.forward(blocks, uniform)
    row = 0
    for request, block in enumerate(blocks):
        if block:
            rows = slice(row, row + len(block))
            oracle.check(requests.target, output, rows, requests.tokens[request] + block, len(block))
        row += len(block)
        requests.commit(request, block[: accepted[request]])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    model = make_model("llama").to(dtype)
    oracle = Oracle.of(model)
    requests = Requests(Target(model), 2)
    assert requests.cache.dtype == requests.target.dtype == dtype
    for accepted in ([9, 3], [2, 3]):
        check_round(oracle, requests, [random_ids(9), random_ids(3)], accepted)


def test_context_far_beyond_one_page_and_chunk() -> None:
    model = make_model("qwen3", max_position_embeddings=2048)
    oracle = Oracle.of(model)
    target = Target(model)
    pool = PagePool(40, 32, 1, 40)
    cache = target.new_cache(pool)
    poison(cache)
    ids = random_ids(1100)
    for start in range(0, 1100, 512):
        stop = min(start + 512, 1100)
        pool.allocate(0, stop)
        output = target.forward(
            torch.tensor(ids[start:stop]),
            torch.arange(start, stop),
            pool.slot_mapping(0, start, stop),
            cache,
            pool.page_table,
            pool.context_lens,
            tap_layers=range(target.num_layers),
        )
        oracle.check(target, output, slice(0, stop - start), ids[:stop], stop - start)
        pool.context_lens[0] = stop


def run_once(target: Target, **arguments: Any) -> TargetOutput:
    requests = Requests(target, 1)
    requests.pool.allocate(0, 5)
    defaults = {
        "input_ids": torch.arange(3, 8),
        "positions": torch.arange(5),
        "slot_mapping": requests.pool.slot_mapping(0, 0, 5),
        "cache": requests.cache,
        "page_table": requests.pool.page_table,
        "context_lens": requests.pool.context_lens,
    }
    return target.forward(**{**defaults, **arguments})


def test_logit_rows() -> None:
    target = Target(make_model("gemma2"))
    every = run_once(target).logits
    assert every is not None
    assert every.shape == (5, VOCAB)
    some = run_once(target, logit_rows=torch.tensor([4, 0, 4])).logits
    torch.testing.assert_close(some, every[[4, 0, 4]])
    assert run_once(target, logit_rows=None).logits is None
    none = run_once(target, logit_rows=torch.empty(0, dtype=torch.int64)).logits
    assert none is not None
    assert none.shape == (0, VOCAB)


def test_taps_come_in_the_order_asked_for_and_leave_no_hooks() -> None:
    target = Target(make_model("llama"))
    every = run_once(target, tap_layers=[0, 1, 2, 3]).taps
    picked = run_once(target, tap_layers=[3, 1, 3]).taps
    assert [tap.shape for tap in picked] == [(5, 48)] * 3
    for tap, layer in zip(picked, [3, 1, 3], strict=True):
        assert torch.equal(tap, every[layer])
    assert run_once(target).taps == []
    assert not any(module._forward_hooks for module in target.model.modules())


def test_slot_minus_one_is_not_cached() -> None:
    target = Target(make_model("llama"))
    requests = Requests(target, 1)
    run_once(target, cache=requests.cache, slot_mapping=torch.tensor([-1, 5, -1, 6, -1]))
    for tensor in (*requests.cache.k, *requests.cache.v):
        written = ~tensor.flatten(0, 1).isnan().flatten(1).any(1)
        assert written.nonzero().flatten().tolist() == [5, 6]


def test_no_tokens() -> None:
    target = Target(make_model("llama"))
    empty = torch.empty(0, dtype=torch.int64)
    nothing = {"input_ids": empty, "positions": empty, "slot_mapping": empty}
    output = run_once(target, **nothing, tap_layers=[1])
    assert output.logits is not None
    assert output.logits.shape == (0, VOCAB)
    assert [tap.shape for tap in output.taps] == [(0, 48)]


def test_attributes() -> None:
    target = Target(make_model("qwen3", tie_word_embeddings=False, eos_token_id=[2, 5]))
    assert (target.num_layers, target.hidden_size, target.vocab_size) == (4, 48, VOCAB)
    assert target.embed_weight.shape == target.lm_head_weight.shape == (VOCAB, 48)
    assert target.embed_weight.data_ptr() != target.lm_head_weight.data_ptr()
    assert target.eos_token_ids == (2, 5)
    assert Target(make_model("llama")).eos_token_ids == (2,)
    assert not any(parameter.requires_grad for parameter in target.model.parameters())
    with pytest.raises(ValueError, match="tokenizer: expected a target loaded by name"):
        _ = target.tokenizer


def test_from_a_local_folder(tmp_path: Path) -> None:
    model = make_model("qwen2", tie_word_embeddings=False)
    model.save_pretrained(tmp_path)
    assert Target.from_pretrained(tmp_path, dtype=torch.bfloat16).dtype == torch.bfloat16
    target = Target.from_pretrained(str(tmp_path))
    assert (target.dtype, target.device.type) == (torch.float32, "cpu")
    expected = run_once(Target(model), tap_layers=[3])
    actual = run_once(target, tap_layers=[3])
    assert torch.equal(actual.taps[0], expected.taps[0])
    assert actual.logits is not None
    assert torch.equal(actual.logits, expected.logits)
    with pytest.raises(ValueError, match=r"tokenizer: expected tokenizer files in .*, got none"):
        _ = target.tokenizer


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_ids": torch.ones(1, 5, dtype=torch.int64)}, r"input_ids: expected \[tokens\]"),
        ({"positions": torch.arange(4)}, r"positions: expected \(5,\) like input_ids, got \(4,\)"),
        ({"slot_mapping": torch.arange(6)}, r"slot_mapping: expected \(5,\)"),
        ({"page_table": torch.ones(2, 4, dtype=torch.int32)}, r"page_table: expected \[1, max_pages\], got \(2, 4\)"),
        ({"context_lens": torch.zeros(1, 1, dtype=torch.int32)}, r"context_lens: expected \[b\]"),
        ({"cu_block_lens": torch.tensor([0, 2, 5], dtype=torch.int32)}, r"cu_block_lens: expected \[2\], got \(3,\)"),
        (
            {"context_lens": torch.zeros(2, dtype=torch.int32), "page_table": torch.ones(2, 4, dtype=torch.int32)},
            "input_ids: expected a multiple of 2 tokens, got 5",
        ),
        ({"tap_layers": [4]}, r"tap_layers: expected layers in 0..3 or -1 \(embedding\), got 4"),
        ({"tap_layers": [-2]}, r"tap_layers: expected layers in 0..3 or -1 \(embedding\), got -2"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run_once(Target(make_model("llama")), **arguments)


def unsupported_config(kind: str) -> Any:
    small = {key: value for key, value in SIZES.items() if key != "attn_implementation"}
    if kind == "hybrid":
        return transformers.Qwen3NextConfig(**small, num_experts=4)
    if kind == "state space":
        return transformers.MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2)
    if kind == "alibi":
        return transformers.BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=2)
    assert kind == "dynamic rope"
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    return transformers.LlamaConfig(**small, rope_parameters=rope)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("hybrid", "expected full or sliding attention, got linear_attention"),
        ("state space", "expected full or sliding attention, got linear_attention"),
        ("alibi", "expected a model on transformers' attention interface"),
        ("dynamic rope", "rope_type: expected angles fixed per position, got dynamic"),
    ],
)
def test_unsupported_models_are_refused_at_once(kind: str, message: str) -> None:
    model = transformers.AutoModelForCausalLM.from_config(unsupported_config(kind))
    with pytest.raises(UnsupportedTarget, match=message):
        Target(model)


def test_windows_that_layers_do_not_apply_are_refused() -> None:
    target = Target(make_model("llama"))
    target._windows = (0, 0, WINDOW, 0)
    with pytest.raises(UnsupportedTarget, match=r"layer 2: sliding_window: expected 6 by the config .*, got None"):
        run_once(target)


def test_attention_outside_a_target_forward_is_refused() -> None:
    target = Target(make_model("llama"))
    with pytest.raises(RuntimeError, match=r"expected to run inside Target.forward"):
        target.model(input_ids=torch.ones(1, 3, dtype=torch.int64))
