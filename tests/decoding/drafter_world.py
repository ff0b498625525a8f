"""Checkpoint variants, and a little world that runs a drafter beside its dense twin: for `test_drafter.py`."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from dflash_decoding.cache import PagePool
from dflash_decoding.checkpoint import draft_tensor_specs
from dflash_decoding.config import DraftConfig
from dflash_decoding.draft_context import DraftContext, FullContext
from dflash_decoding.drafter import DFlashDrafter
from torch import Tensor

from tests.decoding.dense_drafter import DenseDrafter
from tests.ops.harness import assert_as_accurate

FULL_CONTEXT = FullContext()
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

    def __init__(
        self,
        world: World,
        prompt_lens: Sequence[int],
        *,
        page_size: int,
        capacity: int,
        draft_context: DraftContext = FULL_CONTEXT,
    ) -> None:
        self.world = world
        batch = len(prompt_lens)
        pages = -(-capacity // page_size)
        self.pool = PagePool(batch * pages, page_size, batch, pages)
        self.cache = draft_context.new_cache(world.drafter, self.pool)
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
