"""DFlashDrafter against the dense re-implementation in `dense_drafter`, round by round, for every variant."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from dflash_decoding.cache import PagedKVCache, PagePool
from dflash_decoding.checkpoint import draft_tensor_specs, save_draft_checkpoint
from dflash_decoding.config import DraftConfig
from dflash_decoding.drafter import DFlashDrafter
from safetensors.torch import save_file
from torch import Tensor

from tests.decoding.dense_drafter import DenseDrafter
from tests.ops.harness import assert_as_accurate

HIDDEN, DIM, VOCAB, BLOCK, MASK = 48, 16, 64, 6, 63
FULL, SLIDING = "full_attention", "sliding_attention"
HALF = 10000.0 ** (-torch.arange(0, DIM, 2, dtype=torch.float64) / DIM)
QUARTER = 10000.0 ** (-torch.arange(0, DIM // 2, 2, dtype=torch.float64) / (DIM // 2))


@dataclasses.dataclass
class Variant:
    """A config.json, and what it means in the words of `DenseDrafter`."""

    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    heads: int = 4
    kv_heads: int = 2
    windows: tuple[int, ...] = (0, 0)
    causal: tuple[bool, ...] = (False, False)
    taps: tuple[int, ...] = (1, 3)
    dense: dict[str, Any] = dataclasses.field(default_factory=dict)

    def raw(self) -> dict[str, Any]:
        raw = {
            "block_size": BLOCK,
            "dflash_config": {"mask_token_id": MASK, "target_layer_ids": list(self.taps)},
            "head_dim": DIM,
            "hidden_size": HIDDEN,
            "intermediate_size": 80,
            "max_position_embeddings": 8192,
            "num_attention_heads": self.heads,
            "num_hidden_layers": len(self.windows),
            "num_key_value_heads": self.kv_heads,
            "num_target_layers": 8,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "vocab_size": VOCAB,
        }
        raw.update(self.changes)
        return {name: value for name, value in raw.items() if value is not ...}


def _nested(**fields: Any) -> dict[str, Any]:
    return {"dflash_config": {"mask_token_id": MASK, "target_layer_ids": [1, 3], **fields}}


def _yarn_frequencies() -> Tensor:
    """YaRN (arXiv 2309.00071) with factor 4 over 1024 positions: slow channels stretched, fast ones kept."""

    def channel(rotations: float) -> float:
        return DIM * torch.log(torch.tensor(1024 / (rotations * 2 * torch.pi))).item() / (2 * 9.210340371976184)

    low, high = max(int(channel(32.0)), 0), min(-int(-channel(1.0) // 1), DIM - 1)
    ramp = ((torch.arange(DIM // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
    return HALF / 4.0 * ramp + HALF * (1 - ramp)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "attention_factor": 1.1}

SPECULATORS: dict[str, Any] = {
    **dict.fromkeys(("dflash_config", "num_target_layers", "head_dim", "hidden_size", "intermediate_size"), ...),
    **dict.fromkeys(
        ("max_position_embeddings", "num_attention_heads", "num_hidden_layers", "num_key_value_heads"), ...
    ),
    **dict.fromkeys(("rms_norm_eps", "rope_theta", "vocab_size"), ...),
    "speculators_model_type": "dflash",
    "aux_hidden_state_layer_ids": [2, 4],
    "mask_token_id": MASK,
    "draft_vocab_size": 40,
    "transformer_layer_config": {
        "head_dim": DIM,
        "hidden_size": HIDDEN,
        "intermediate_size": 80,
        "layer_types": [SLIDING, FULL],
        "max_position_embeddings": 8192,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "sliding_window": 9,
        "vocab_size": VOCAB,
    },
}

MIXED = {"layer_types": [SLIDING, FULL], "sliding_window": 9, "use_sliding_window": True}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The matrices here are too small to share between threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


VARIANTS: dict[str, Variant] = {
    "full": Variant(),
    "all_causal": Variant({"is_causal": True}, causal=(True, True)),
    "sliding_causal": Variant(MIXED, windows=(9, 0), causal=(True, False)),
    "sliding_non_causal": Variant({**MIXED, "is_causal": False}, windows=(9, 0)),
    "nested_causal": Variant(_nested(causal=True, block_size=BLOCK), causal=(True, True)),
    "all_sliding_non_causal": Variant(_nested(use_swa=True, swa_window_size=11), windows=(11, 11)),
    "window_below_block": Variant({**MIXED, "sliding_window": 3}, windows=(3, 0), causal=(True, False)),
    "window_below_block_non_causal": Variant(_nested(use_swa=True, swa_window_size=3), windows=(3, 3)),
    "more_taps_than_layers": Variant(taps=(0, 2, 3, 6)),
    "fewer_taps_than_layers": Variant(taps=(7,), windows=(0, 0, 0), causal=(False,) * 3),
    "last_layer_tap": Variant(taps=(1, 7)),
    "wider_target": Variant({"target_hidden_size": 80}),
    "yarn": Variant({"rope_scaling": YARN}, dense={"frequencies": _yarn_frequencies(), "rope_scale": 1.1}),
    "interleaved": Variant({"is_neox_style": False}, dense={"interleaved": True}),
    "partial": Variant({"partial_rotary_factor": 0.5}, dense={"frequencies": QUARTER}),
    "partial_interleaved": Variant(
        {"partial_rotary_factor": 0.5, "is_neox_style": False}, dense={"frequencies": QUARTER, "interleaved": True}
    ),
    "bias": Variant({"attention_bias": True}),
    "eps": Variant({"rms_norm_eps": 0.1}, dense={"eps": 0.1}),
    "gelu": Variant({"hidden_act": "gelu"}, dense={"activation": torch.nn.functional.gelu}),
    "embedding_scale": Variant({"input_embedding_scale": 3.0}, dense={"embedding_scale": 3.0}),
    "gqa_5": Variant(heads=5, kv_heads=1),
    "gqa_6": Variant(heads=12, kv_heads=2),
    "gqa_7": Variant(heads=7, kv_heads=1),
    "gqa_8": Variant(heads=8, kv_heads=1),
    "gqa_16": Variant({**MIXED}, heads=16, kv_heads=1, windows=(9, 0), causal=(True, False)),
    "gqa_4": Variant(heads=8, kv_heads=2),
    "multi_head": Variant({"num_key_value_heads": ...}, heads=3, kv_heads=3),
    "speculators": Variant(SPECULATORS, windows=(9, 0), causal=(True, False)),
    "speculators_non_causal": Variant({**SPECULATORS, "sliding_window_non_causal": True}, windows=(9, 0)),
    "speculators_anchor": Variant(
        {**SPECULATORS, "sample_from_anchor": True},
        windows=(9, 0),
        causal=(True, False),
        dense={"sample_from_anchor": True},
    ),
}


def random_weights(config: DraftConfig, generator: torch.Generator, own_embedding: bool = False) -> dict[str, Tensor]:
    """Weights that keep activations near 1, norm weights that are not all alike."""
    weights: dict[str, Tensor] = {}
    for name, spec in draft_tensor_specs(config).items():
        if name == "d2t" or not (spec.required or (name == "embed_tokens.weight" and own_embedding)):
            continue
        values = torch.randn(spec.shape, generator=generator)
        weights[name] = 1 + 0.3 * values if name.endswith("norm.weight") else values / spec.shape[-1] ** 0.5
    if config.reduced_vocabulary:
        targets = torch.randperm(VOCAB, generator=generator)[: config.draft_vocab_size].sort().values
        weights["d2t"] = targets - torch.arange(targets.numel())
    return weights


class World:
    """A drafter, its dense twin, and requests whose taps are random: the target's role is played by the test."""

    def __init__(self, variant: Variant, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.config = DraftConfig.from_dict(variant.raw())
        self.dtype = dtype
        weights = random_weights(self.config, self.generator)
        self.weights = {name: w if name == "d2t" else w.to(dtype) for name, w in weights.items()}
        self.embedding = self.random(VOCAB, HIDDEN)
        self.head = self.random(VOCAB, HIDDEN)
        self.drafter = DFlashDrafter.from_weights(self.config, self.weights, self.embedding, self.head)
        assert self.drafter.tap_layers == variant.taps
        offsets = self.weights.get("d2t")
        meaning: dict[str, Any] = {
            "weights": self.weights,
            "layers": len(variant.windows),
            "heads": variant.heads,
            "kv_heads": variant.kv_heads,
            "head_dim": DIM,
            "windows": list(variant.windows),
            "causal": list(variant.causal),
            "embedding": self.embedding,
            "lm_head": self.weights.get("lm_head.weight", self.head),
            "frequencies": HALF,
            "draft_to_target": offsets,
            **variant.dense,
        }
        self.exact = DenseDrafter(**meaning)
        self.plain = DenseDrafter(**meaning, dtype=dtype)

    def random(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(self.dtype)

    def integers(self, low: int, high: int, count: int) -> list[int]:
        return torch.randint(low, high, (count,), generator=self.generator).tolist()

    def taps(self, rows: int) -> list[Tensor]:
        width = self.config.target_hidden_size
        assert width is not None
        return [self.random(rows, width) for _ in self.config.target_layer_ids]


class Requests:
    """A batch over one pool. The cache starts full of NaN; page ids are scrambled between the requests."""

    def __init__(self, world: World, prompt_lens: Sequence[int], *, page_size: int, capacity: int) -> None:
        self.world = world
        batch = len(prompt_lens)
        pages = -(-capacity // page_size)
        self.pool = PagePool(batch * pages, page_size, batch, pages)
        self.cache: PagedKVCache = world.drafter.new_cache(self.pool)
        for tensor in (*self.cache.k, *self.cache.v):
            tensor.fill_(torch.nan)
        for tokens in range(1, capacity + 1, max(1, capacity // 7)):
            for row in range(batch):
                self.pool.allocate(row, min(tokens, max(prompt_lens) + 1))
        self.start(prompt_lens)

    def start(self, prompt_lens: Sequence[int]) -> None:
        """Prefill: all prompts in one ragged injection."""
        self.history = [self.world.taps(length) for length in prompt_lens]
        self._inject([(row, 0, taps, taps[0].shape[0]) for row, taps in enumerate(self.history)])
        self.pool.context_lens.copy_(torch.tensor(prompt_lens))

    def _inject(self, parts: list[tuple[int, int, list[Tensor], int]], garbage: bool = False) -> None:
        """parts: (row, first position, taps, number of rows to keep); other rows are skipped or written as garbage."""
        positions, slots = [], []
        for row, first, taps, keep in parts:
            rows = taps[0].shape[0]
            self.pool.allocate(row, first + rows)
            mapping = self.pool.slot_mapping(row, first, first + rows)
            if not garbage:
                mapping[keep:] = -1
            slots.append(mapping)
            positions.append(torch.arange(first, first + rows))
        merged = [torch.cat([part[2][tap] for part in parts]) for tap in range(len(parts[0][2]))]
        self.world.drafter.inject(merged, torch.cat(positions), torch.cat(slots), self.cache)

    def round(self, block: int, number: int) -> None:
        """Drafts, compares with the dense twin, then commits a part of the block."""
        world = self.world
        batch = len(self.history)
        lens = self.pool.context_lens
        ids = torch.full((batch, block), MASK)
        ids[:, 0] = torch.tensor(world.integers(0, VOCAB, batch))
        positions = lens.long()[:, None] + torch.arange(block)
        arguments = (ids, positions, self.cache, self.pool.page_table, lens)
        hidden = world.drafter.hidden_states(*arguments).clone()
        tokens = world.drafter.draft(*arguments)
        first = 0 if world.exact.sample_from_anchor else 1
        assert tokens.shape == (batch, block - first)
        assert tokens.dtype == torch.int64
        for row in range(batch):
            exact, plain = (twin.hidden(self.history[row], ids[row])[first:] for twin in (world.exact, world.plain))
            assert_as_accurate(hidden[row], exact, plain)
            logits = world.exact.logits(self.history[row], ids[row])
            chosen = world.exact.to_target_ids(torch.arange(logits.shape[1]))[None] == tokens[row][:, None]
            assert chosen.sum(1).eq(1).all(), "a drafted id is not one the head can say"
            slack = 3 * (world.plain.logits(self.history[row], ids[row]).double() - logits).abs().max() + 1e-5
            assert (logits.amax(1) - logits[chosen] <= slack).all()
        accepted = world.integers(0, block, batch)
        parts = []
        for row in range(batch):
            taps = world.taps(block)
            keep = accepted[row] + 1
            # Odd rounds write the rejected rows too (stale cache content); even rounds skip them, and NaN stays out.
            for tap in taps:
                if number % 2 == 0:
                    tap[keep:] = torch.nan
            parts.append((row, int(lens[row]), taps, keep))
            self.history[row] = [torch.cat([old, new[:keep]]) for old, new in zip(self.history[row], taps, strict=True)]
        self._inject(parts, garbage=number % 2 == 1)
        lens += torch.tensor(accepted, dtype=torch.int32) + 1


@pytest.mark.parametrize("name", VARIANTS)
def test_matches_dense_drafter_over_rounds(name: str) -> None:
    requests = Requests(World(VARIANTS[name]), [1, 17, 40], page_size=4, capacity=80)
    for number in range(4):
        requests.round(BLOCK, number)


@pytest.mark.parametrize("name", ["full", "sliding_causal", "sliding_non_causal", "yarn"])
def test_prompt_of_more_than_4096_tokens(name: str) -> None:
    requests = Requests(World(VARIANTS[name]), [4123], page_size=16, capacity=4200)
    for number in range(2):
        requests.round(BLOCK, number)


def test_prefix_much_longer_than_window_at_every_page_size() -> None:
    for page_size in (1, 2, 64, 256):
        requests = Requests(World(VARIANTS["sliding_causal"]), [300, 5], page_size=page_size, capacity=330)
        requests.round(BLOCK, 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["sliding_causal", "speculators_anchor"])
def test_low_precision(name: str, dtype: torch.dtype) -> None:
    requests = Requests(World(VARIANTS[name], dtype=dtype), [3, 70], page_size=8, capacity=100)
    for number in range(2):
        requests.round(BLOCK, number)


def test_smaller_block_than_trained() -> None:
    requests = Requests(World(VARIANTS["sliding_causal"]), [9, 2], page_size=4, capacity=60)
    for number, block in enumerate((2, 4, BLOCK, 3)):
        requests.round(block, number)


def test_nothing_is_left_over_from_the_previous_request() -> None:
    requests = Requests(World(VARIANTS["full"]), [30, 12], page_size=4, capacity=60)
    requests.round(BLOCK, 1)
    for row in range(2):
        requests.pool.release(row)
    requests.start([5, 21])
    requests.round(BLOCK, 1)


def test_batch_of_none() -> None:
    world = World(VARIANTS["full"])
    requests = Requests(world, [3], page_size=4, capacity=20)
    empty = torch.empty(0, BLOCK, dtype=torch.int64)
    tokens = world.drafter.draft(
        empty, empty, requests.cache, requests.pool.page_table[:0], requests.pool.context_lens[:0]
    )
    assert tokens.shape == (0, BLOCK - 1)
    world.drafter.inject(world.taps(0), empty[:, 0], empty[:, 0], requests.cache)


def test_float16_survives_large_fc_and_residual() -> None:
    """fc outputs and a residual stream beyond the float16 range (65504) leave the normed results finite and right."""
    world = World(VARIANTS["full"], dtype=torch.float16)
    drafter_weights = dict(world.weights)
    drafter_weights["fc.weight"] = drafter_weights["fc.weight"] * 60000
    for layer in range(2):
        name = f"layers.{layer}.mlp.down_proj.weight"
        drafter_weights[name] = drafter_weights[name] * 20000
    world.weights.update(drafter_weights)
    world.drafter = DFlashDrafter.from_weights(world.config, world.weights, world.embedding, world.head)
    requests = Requests(world, [20], page_size=4, capacity=40)
    ids = torch.tensor([[5] + [MASK] * (BLOCK - 1)])
    positions = torch.arange(20, 20 + BLOCK)[None]
    hidden = world.drafter.hidden_states(
        ids, positions, requests.cache, requests.pool.page_table, requests.pool.context_lens
    )
    exact = world.exact.hidden(requests.history[0], ids[0])
    assert hidden.isfinite().all()
    torch.testing.assert_close(hidden[0].double(), exact[1:], rtol=0, atol=2e-2)


def test_target_tensors_are_held_by_reference_and_buffers_are_reused() -> None:
    world = World(VARIANTS["full"])
    assert world.drafter.embedding.data_ptr() == world.embedding.data_ptr()
    assert world.drafter.lm_head.data_ptr() == world.head.data_ptr()
    requests = Requests(world, [7, 3], page_size=4, capacity=40)
    ids = torch.full((2, BLOCK), 1)
    arguments = (ids, ids, requests.cache, requests.pool.page_table, requests.pool.context_lens)
    assert world.drafter.hidden_states(*arguments).data_ptr() == world.drafter.hidden_states(*arguments).data_ptr()
    first, second = world.drafter.draft(*arguments), world.drafter.draft(*arguments)
    assert first.data_ptr() != second.data_ptr()
    assert torch.equal(first, second)


def test_parameters_that_require_grad() -> None:
    world = World(VARIANTS["bias"])
    weights = {name: torch.nn.Parameter(weight) for name, weight in world.weights.items()}
    embedding, head = torch.nn.Parameter(world.embedding), torch.nn.Parameter(world.head)
    world.drafter = DFlashDrafter.from_weights(world.config, weights, embedding, head)
    Requests(world, [4], page_size=4, capacity=20).round(BLOCK, 0)


def test_head_in_another_dtype_than_the_drafter() -> None:
    world = World(VARIANTS["full"])
    drafter = DFlashDrafter.from_weights(
        world.config, world.weights, world.embedding.bfloat16(), world.head.bfloat16(), dtype=torch.float32
    )
    requests = Requests(world, [7], page_size=4, capacity=40)
    ids = torch.full((1, BLOCK), 1)
    positions = torch.arange(7, 7 + BLOCK)[None]
    tokens = drafter.draft(ids, positions, requests.cache, requests.pool.page_table, requests.pool.context_lens)
    assert drafter.dtype == torch.float32
    assert tokens.shape == (1, BLOCK - 1)


def test_own_embedding_replaces_the_targets() -> None:
    world = World(VARIANTS["speculators"])
    own = torch.randn(VOCAB, HIDDEN, generator=world.generator)
    drafter = DFlashDrafter.from_weights(
        world.config, {**world.weights, "embed_tokens.weight": own}, world.embedding, world.head
    )
    assert drafter.embedding.data_ptr() == own.data_ptr()
    world.drafter, world.exact.embedding, world.plain.embedding = drafter, own, own
    Requests(world, [4], page_size=4, capacity=20).round(BLOCK, 0)


@pytest.mark.parametrize("name", ["sliding_causal", "speculators"])
def test_from_pretrained(tmp_path: Path, name: str) -> None:
    world = World(VARIANTS[name])
    save_draft_checkpoint(tmp_path / "written", world.config, world.weights)
    (tmp_path / "given").mkdir()
    save_file(world.weights, tmp_path / "given" / "model.safetensors")
    (tmp_path / "given" / "config.json").write_text(json.dumps(VARIANTS[name].raw()))
    for folder in ("written", "given"):
        world.drafter = DFlashDrafter.from_pretrained(tmp_path / folder, world.embedding, world.head)
        assert world.drafter.num_draft_tokens == BLOCK - 1
        Requests(world, [9], page_size=4, capacity=30).round(BLOCK, 0)


def test_refusals() -> None:
    world = World(VARIANTS["full"])

    def build(**options: Any) -> DFlashDrafter:
        arguments = {"target_embedding": world.embedding, "target_lm_head": world.head, "weights": world.weights}
        return DFlashDrafter.from_weights(world.config, **{**arguments, **options})

    assert build(block_size=3).num_draft_tokens == 2
    for block in (1, BLOCK + 1):
        with pytest.raises(
            ValueError, match=rf"block_size: expected 2\.\.{BLOCK} \(the trained block size\), got {block}"
        ):
            build(block_size=block)
    with pytest.raises(ValueError, match=r"target_embedding: expected \[64, 48\] .* got \[64, 40\]"):
        build(target_embedding=world.embedding[:, :40])
    with pytest.raises(ValueError, match=r"target_lm_head: expected \[64, 48\] .* got \[60, 48\]"):
        build(target_lm_head=world.head[:60])
    with pytest.raises(ValueError, match=r"weights: expected norm\.weight"):
        build(weights={name: w for name, w in world.weights.items() if name != "norm.weight"})
    reduced = World(VARIANTS["speculators"])
    with pytest.raises(ValueError, match=r"expected lm_head\.weight"):
        DFlashDrafter.from_weights(reduced.config, world.weights, world.embedding, world.head)


def test_bad_calls() -> None:
    world = World(VARIANTS["full"])
    requests = Requests(world, [3], page_size=4, capacity=20)
    pool = requests.pool
    rows = torch.arange(2)
    with pytest.raises(ValueError, match=r"taps: expected 2 tensors of \[2, 48\]"):
        world.drafter.inject(world.taps(2)[:1], rows, rows, requests.cache)
    with pytest.raises(ValueError, match=r"taps: expected 2 tensors of \[2, 48\]"):
        world.drafter.inject(world.taps(3), rows, rows, requests.cache)
    with pytest.raises(ValueError, match=r"positions: expected 0\.\.8191 .* got 8192"):
        world.drafter.inject(world.taps(2), rows + 8191, rows, requests.cache)
    with pytest.raises(ValueError, match=r"positions: expected 0\.\.8191 .* got -1"):
        world.drafter.inject(world.taps(2), rows - 1, rows, requests.cache)
    ids = torch.zeros(1, BLOCK + 1, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"block_size: expected 2\.\.6"):
        world.drafter.draft(ids, ids, requests.cache, pool.page_table, pool.context_lens)
    with pytest.raises(ValueError, match="positions: expected"):
        world.drafter.draft(ids[:, :3], ids[:, :4], requests.cache, pool.page_table, pool.context_lens)
    with pytest.raises(ValueError, match=r"positions: expected 0\.\.8191"):
        world.drafter.draft(ids[:, :3], ids[:, :3] + 8192, requests.cache, pool.page_table, pool.context_lens)
    with pytest.raises((IndexError, RuntimeError)):  # a token id outside the embedding
        world.drafter.draft(ids[:, :3] + VOCAB, ids[:, :3], requests.cache, pool.page_table, pool.context_lens)


def test_positions_past_the_trained_length_are_refused_unless_asked_for() -> None:
    world = World(VARIANTS["full"])
    assert world.drafter.max_positions == 8192
    longer = DFlashDrafter.from_weights(world.config, world.weights, world.embedding, world.head, max_positions=9000)
    requests = Requests(world, [3], page_size=4, capacity=20)
    longer.inject(world.taps(1), torch.tensor([8999]), torch.tensor([-1]), requests.cache)
