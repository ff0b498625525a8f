"""The drafters' own maths against dense, cache-free twins, over rounds of ragged acceptance."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from dflash_decoding import DFlashDrafter, DraftConfig, WindowContext
from dflash_decoding.baselines import autoregressive_drafter, parallel_heads, without_injection
from dflash_decoding.baselines.autoregressive_drafter import AutoregressiveDrafter, TrainableAutoregressive
from dflash_decoding.baselines.denoising_drafter import DenoisingDrafter
from dflash_decoding.baselines.parallel_heads import ParallelHeadsDrafter, TrainableParallelHeads
from dflash_decoding.baselines.storage import load_baseline, save_baseline
from dflash_decoding.baselines.without_injection import DFlashWithoutInjection
from dflash_decoding.checkpoint import draft_tensor_specs
from dflash_decoding.training.data import make_batch, make_chats
from dflash_decoding.training.model import BlockPredictor, TrainableDrafter, block_shape
from torch import Tensor

from tests.baselines.world import (
    BLOCK,
    HIDDEN,
    LAYERS,
    MASK,
    VOCAB,
    Requests,
    make_config,
    random_tensors,
    shared_weights,
)
from tests.decoding.dense_drafter import DenseDrafter
from tests.decoding.drafters import one_thread

EMBEDDING, HEAD = shared_weights()
SLIDING = {"layer_types": ("sliding_attention",), "sliding_window": 6}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def dense(config: DraftConfig, weights: dict[str, Tensor]) -> DenseDrafter:
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    return DenseDrafter(
        weights=weights,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        windows=list(config.windows),
        causal=list(config.causal),
        embedding=EMBEDDING,
        lm_head=HEAD,
        frequencies=10000.0**-exponents,
    )


class DenseAutoregressive:
    """The autoregressive drafter, one row after the other over the whole text."""

    def __init__(self, config: DraftConfig, weights: dict[str, Tensor]) -> None:
        self.config, self.parts = config, dense(config, weights)

    def __call__(self, taps: dict[int, Tensor], tokens: Tensor, drafted: int) -> list[int]:
        parts, layers = self.parts, self.config.target_layer_ids
        fused = torch.cat([taps[layer].double() for layer in layers], dim=1) @ parts.weight("fc.weight").T
        context = len(tokens) - 1
        rows = [
            self.layer_input(int(token), fused[i - 1] if i else torch.zeros(HIDDEN, dtype=torch.float64))
            for i, token in enumerate(tokens)
        ]
        drafts: list[int] = []
        for _ in range(drafted):
            out = self.last_output(torch.stack(rows))
            drafts.append(int((parts.norm(out, "norm") @ HEAD.double().T).argmax()))
            rows.append(self.layer_input(drafts[-1], out))
        assert len(rows) == context + 1 + drafted
        return drafts

    def layer_input(self, token: int, feature: Tensor) -> Tensor:
        embedded = self.parts.norm(EMBEDDING[token].double(), "embed_norm")
        return self.parts.weight("input_fc.weight") @ torch.cat([embedded, self.parts.norm(feature, "hidden_norm")])

    def last_output(self, x: Tensor) -> Tensor:
        """Output of the layer at the last row of x [n, H], whose rows are consecutive positions from 0."""
        parts, config, at = self.parts, self.config, "layers.0."
        rows = parts.norm(x, at + "input_layernorm")
        positions = torch.arange(len(x))

        def heads(part: str, normed: bool) -> Tensor:
            y = parts.linear(rows, f"{at}self_attn.{part}_proj").view(len(x), -1, config.head_dim)
            return parts.rotate(parts.norm(y, f"{at}self_attn.{part}_norm"), positions) if normed else y

        group = config.num_attention_heads // config.num_key_value_heads
        q = heads("q", True)[-1]
        k, v = (heads(part, part == "k").repeat_interleave(group, dim=1) for part in "kv")
        scores = torch.einsum("hd,khd->hk", q, k) / math.sqrt(config.head_dim)
        if config.windows[0]:
            scores[:, : max(0, len(x) - config.windows[0])] = -math.inf
        attended = torch.einsum("hk,khd->hd", scores.softmax(-1), v).flatten()
        out = x[-1] + parts.linear(attended, at + "self_attn.o_proj")
        rows = parts.norm(out, at + "post_attention_layernorm")
        gated = parts.activation(parts.linear(rows, at + "mlp.gate_proj")) * parts.linear(rows, at + "mlp.up_proj")
        return out + parts.linear(gated, at + "mlp.down_proj")


@pytest.mark.parametrize("page_size", [1, 4, 32])
@pytest.mark.parametrize("changes", [{}, SLIDING], ids=["full", "sliding"])
def test_autoregressive(changes: dict[str, object], page_size: int) -> None:
    config = make_config(**changes)
    weights = random_tensors(autoregressive_drafter.tensor_specs(config))
    drafter = AutoregressiveDrafter(config, weights, EMBEDDING, HEAD)
    requests = Requests(drafter, DenseAutoregressive(config, weights), [1, 9, 20], page_size)
    for block in (BLOCK, BLOCK, 2, 3, BLOCK, BLOCK):
        requests.round(block)


@pytest.mark.parametrize("page_size", [1, 4, 32])
def test_parallel_heads(page_size: int) -> None:
    config = make_config(target_layer_ids=(LAYERS - 1,))
    weights = random_tensors(parallel_heads.tensor_specs(config))

    def twin(taps: dict[int, Tensor], tokens: Tensor, drafted: int) -> list[int]:
        last = taps[LAYERS - 1][-1].double()
        state = last / (last.square().mean() + config.rms_norm_eps).sqrt() * weights["norm.weight"].double()
        drafts = []
        for head in range(drafted):
            up, down = (weights[f"heads.{head}.{part}_proj.weight"].double() for part in ("up", "down"))
            inner = up @ state
            drafts.append(int((HEAD.double() @ (state + down @ (inner * inner.sigmoid()))).argmax()))
        return drafts

    requests = Requests(ParallelHeadsDrafter(config, weights, HEAD), twin, [1, 9, 20], page_size)
    for block in (BLOCK, BLOCK, 2, BLOCK):
        requests.round(block)


def test_without_injection() -> None:
    config = make_config(
        target_layer_ids=(0,),
        num_hidden_layers=2,
        layer_types=("sliding_attention", "full_attention"),
        sliding_window=6,
    )
    weights = random_tensors(without_injection.tensor_specs(config))
    parts = dense(config, weights)

    def twin(taps: dict[int, Tensor], tokens: Tensor, drafted: int) -> list[int]:
        block = torch.tensor([int(tokens[-1])] + [MASK] * drafted)
        drafts: list[int] = parts.logits([EMBEDDING[tokens[:-1]]], block).argmax(-1).tolist()
        return drafts

    requests = Requests(DFlashWithoutInjection(config, weights, EMBEDDING, HEAD), twin, [1, 9, 20], 4)
    for block in (BLOCK, 3, BLOCK):
        requests.round(block)


@pytest.mark.parametrize("steps", [1, 2, 3, 9])
@pytest.mark.parametrize("from_anchor", [False, True])
def test_denoising(steps: int, from_anchor: bool) -> None:
    config = make_config(sample_from_anchor=from_anchor)
    weights = random_tensors(draft_tensor_specs(config))
    parts = dataclasses.replace(dense(config, weights), sample_from_anchor=from_anchor)

    def twin(taps: dict[int, Tensor], tokens: Tensor, drafted: int) -> list[int]:
        rows = drafted if from_anchor else drafted + 1
        block = [int(tokens[-1])] + [MASK] * (rows - 1)
        drafts: list[int | None] = [None] * drafted
        for step in range(steps):
            logits = parts.logits([taps[layer] for layer in config.target_layer_ids], torch.tensor(block))
            logits[:, MASK] = -math.inf
            confidence, choice = logits.softmax(-1).max(-1)
            still_open = [i for i in range(drafted) if drafts[i] is None]
            until_now = drafted * (step + 1) // steps
            still_open.sort(key=lambda i: -float(confidence[i]))
            for i in still_open[: until_now - (drafted - len(still_open))]:
                drafts[i] = int(choice[i])
            for i in range(rows - 1):
                block[i + 1] = MASK if drafts[i] is None else int(drafts[i] or 0)
        return [-1 if token is None else token for token in drafts]

    drafter = DenoisingDrafter(DFlashDrafter.from_weights(config, weights, EMBEDDING, HEAD), steps)
    requests = Requests(drafter, twin, [1, 9, 20], 4)
    for block in (BLOCK, 3, BLOCK):
        requests.round(block)


def model_of(kind: type[BlockPredictor], config: DraftConfig, weights: dict[str, Tensor]) -> BlockPredictor:
    model = kind(config, EMBEDDING, max_positions=64)  # type: ignore[call-arg, arg-type]
    model.load_state_dict(weights)
    return model


@pytest.mark.parametrize("changes", [{}, SLIDING], ids=["full", "sliding"])
def test_autoregressive_training_takes_the_steps_of_decoding(changes: dict[str, object]) -> None:
    """Fed its own drafts as the true tokens, the unrolled training forward gives those drafts again."""
    config = make_config(**changes)
    weights = random_tensors(autoregressive_drafter.tensor_specs(config))
    twin = DenseAutoregressive(config, weights)
    generator = torch.Generator().manual_seed(2)
    lengths, anchors = [18, 25], [[4, 11], [1, 9, 17]]
    texts = [torch.randint(VOCAB - 1, (length,), generator=generator) for length in lengths]
    taps = [{layer: torch.randn(length, HIDDEN, generator=generator) for layer in (0, 2)} for length in lengths]
    expected = [
        twin({layer: tap[:at] for layer, tap in taps[i].items()}, texts[i][: at + 1], BLOCK - 1)
        for i in range(2)
        for at in anchors[i]
    ]
    chats = make_chats(torch.cat(texts).numpy(), np.array(lengths), np.array([1, 1]), VOCAB)
    batch = make_batch(chats, [0, 1], [np.array(at) for at in anchors], block_shape(config))
    batch = dataclasses.replace(batch, targets=torch.tensor(expected))
    packed = torch.cat([torch.stack([EMBEDDING[x], t[0], t[2]], dim=1) for t, x in zip(taps, texts, strict=True)])
    model = model_of(TrainableAutoregressive, config, weights)
    rows = model(packed, batch)
    assert rows.shape == (5, BLOCK - 1, HIDDEN)
    with pytest.raises(ValueError, match="taps: expected 3 per token, got 2"):
        model(packed[:, 1:], batch)
    assert (rows @ HEAD.T).argmax(-1).tolist() == expected
    rows.square().sum().backward()
    assert all(parameter.grad is not None and bool(parameter.grad.abs().sum() > 0) for parameter in model.parameters())


def test_parallel_heads_train_on_the_state_that_chose_the_anchor() -> None:
    config = make_config(target_layer_ids=(LAYERS - 1,))
    weights = random_tensors(parallel_heads.tensor_specs(config))
    drafter = ParallelHeadsDrafter(config, weights, HEAD)
    tokens, taps = np.arange(14) % VOCAB, torch.randn(14, 1, HIDDEN, generator=torch.Generator().manual_seed(3))
    chats = make_chats(tokens, np.array([6, 8]), np.array([1, 2]), VOCAB)
    batch = make_batch(chats, [0, 1], [np.array([1, 3]), np.array([2])], block_shape(config))
    rows = model_of(TrainableParallelHeads, config, weights)(taps, batch)
    for block, state in enumerate((0, 2, 7)):

        class Newest:
            def newest(self, page_table: Tensor, context_lens: Tensor, state: int = state) -> Tensor:
                return taps[state]

        drafts = drafter.draft(torch.zeros(1, BLOCK, dtype=torch.int64), *(None, Newest(), None, None))  # type: ignore[arg-type]
        assert (rows[block] @ HEAD.T).argmax(-1).tolist() == drafts[0].tolist()


@pytest.mark.parametrize(
    ("kind", "module", "config"),
    [
        (TrainableAutoregressive, autoregressive_drafter, make_config()),
        (TrainableParallelHeads, parallel_heads, make_config(target_layer_ids=(3,))),
        (without_injection.TrainableWithoutInjection, without_injection, make_config(target_layer_ids=(0,))),
    ],
    ids=["autoregressive", "parallel_heads", "without_injection"],
)
def test_checkpoint(kind: type[BlockPredictor], module: object, config: DraftConfig, tmp_path: Path) -> None:
    specs, model_type = module.tensor_specs, module.MODEL_TYPE  # type: ignore[attr-defined]
    weights = random_tensors(specs(config))
    model = model_of(kind, config, weights)
    model.save(tmp_path, model.checkpoint_weights())
    read_config, read = load_baseline(tmp_path, model_type, specs)
    assert read_config == config
    assert read.keys() == weights.keys()
    assert all(torch.equal(read[name], weights[name].bfloat16()) for name in weights)
    with pytest.raises(ValueError, match=f"model_type: expected a DFlash drafter, got {model_type}"):
        DFlashDrafter.from_pretrained(tmp_path, EMBEDDING, HEAD)
    with pytest.raises(ValueError, match="model_type: expected other, got"):
        load_baseline(tmp_path, "other", specs)
    weights.pop("norm.weight")
    with pytest.raises(ValueError, match=r"missing norm\.weight"):
        save_baseline(tmp_path, model_type, config, weights, specs)


def test_refusals() -> None:
    two_layers = make_config(num_hidden_layers=2, layer_types=("full_attention",) * 2)
    with pytest.raises(ValueError, match="num_hidden_layers: expected 1"):
        AutoregressiveDrafter(two_layers, {}, EMBEDDING, HEAD)
    with pytest.raises(ValueError, match="target_layer_ids: expected one tap"):
        ParallelHeadsDrafter(make_config(), {}, HEAD)
    with pytest.raises(ValueError, match=r"target_layer_ids: expected \[0\]"):
        DFlashWithoutInjection(make_config(), {}, EMBEDDING, HEAD)
    heads = make_config(target_layer_ids=(3,))
    weights = random_tensors(parallel_heads.tensor_specs(heads))
    with pytest.raises(ValueError, match=rf"block_size: expected 2\.\.{BLOCK} \(the trained block size\), got 6"):
        ParallelHeadsDrafter(heads, weights, HEAD, block_size=6)
    drafter = DFlashDrafter.from_weights(
        make_config(), random_tensors(draft_tensor_specs(make_config())), EMBEDDING, HEAD
    )
    one_layer = random_tensors(autoregressive_drafter.tensor_specs(make_config()))
    with pytest.raises(ValueError, match="expected full for a drafter with a context of its own kind"):
        WindowContext().check(AutoregressiveDrafter(make_config(), one_layer, EMBEDDING, HEAD))
    with pytest.raises(ValueError, match="steps: expected at least 1, got 0"):
        DenoisingDrafter(drafter, 0)
    with pytest.raises(ValueError, match="num_hidden_layers: expected 1"):
        TrainableAutoregressive(two_layers, EMBEDDING, max_positions=8)
    assert isinstance(TrainableAutoregressive(make_config(), EMBEDDING, max_positions=8), TrainableDrafter)
