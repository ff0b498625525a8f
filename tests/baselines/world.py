"""Requests with known texts and taps, decoded by a drafter under test round by round beside a dense twin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from dflash_decoding import DraftConfig, Drafter, PagePool
from dflash_decoding.checkpoint import TensorSpec
from torch import Tensor

HIDDEN, VOCAB, MASK, BLOCK, LAYERS = 32, 50, 49, 5, 4
EMBEDDING_TAP = -1

# Of one request: (tap of layer -> [context, H], token ids of the context and the newest one, drafted) -> draft tokens.
Twin = Callable[[dict[int, Tensor], Tensor, int], list[int]]


def make_config(**changes: Any) -> DraftConfig:
    """One full-attention layer, block 5, GQA 2."""
    fields: dict[str, Any] = {
        "block_size": BLOCK,
        "mask_token_id": MASK,
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": VOCAB,
        "target_layer_ids": (0, 2),
        "layer_types": ("full_attention",),
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "max_position_embeddings": 256,
    }
    return DraftConfig(**{**fields, **changes})


def random_tensors(specs: dict[str, TensorSpec], seed: int = 0, std: float = 0.3) -> dict[str, Tensor]:
    """Weights of all tensors; norms are around one."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(spec.shape, generator=generator) * std + (1.0 if len(spec.shape) == 1 else 0.0)
        for name, spec in specs.items()
        if spec.required
    }


def shared_weights(seed: int = 5) -> tuple[Tensor, Tensor]:
    """(embedding, head) of a target, [VOCAB, HIDDEN] each."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(VOCAB, HIDDEN, generator=generator), torch.randn(VOCAB, HIDDEN, generator=generator)


class Requests:
    """Requests of the given prompt lengths; every round accepts another number of drafts of each.

    Pages of the requests lie between each other, rejected rows bring NaN taps, and slots without a token hold NaN.
    """

    def __init__(
        self, drafter: Drafter, twin: Twin, lengths: Sequence[int], page_size: int, capacity: int = 60
    ) -> None:
        self.drafter, self.twin = drafter, twin
        generator = torch.Generator().manual_seed(1)
        self.embedding = shared_weights()[0]
        self.texts = torch.randint(VOCAB - 1, (len(lengths), capacity), generator=generator)
        layers = [layer for layer in drafter.tap_layers if layer != EMBEDDING_TAP]
        self.taps = {layer: torch.randn(len(lengths), capacity, HIDDEN, generator=generator) for layer in layers}
        if EMBEDDING_TAP in drafter.tap_layers:
            self.taps[EMBEDDING_TAP] = self.embedding[self.texts]
        pages = -(-capacity // page_size)
        self.pool = PagePool(pages * len(lengths), page_size, len(lengths), pages)
        for count in range(1, capacity + 1, page_size):
            for row in reversed(range(len(lengths))):
                self.pool.allocate(row, count)
        self.cache = drafter.new_cache(self.pool)
        for tensor in (*getattr(self.cache, "k", ()), *getattr(self.cache, "v", ())):
            tensor.fill_(float("nan"))
        for row, length in enumerate(lengths):
            for start in range(0, length, 3):  # in chunks, as a prefill
                stop = min(start + 3, length)
                self._inject(row, torch.arange(start, stop), self.pool.slot_mapping(row, start, stop))
            self.pool.context_lens[row] = length
        self.rounds = 0

    def _inject(self, row: int, positions: Tensor, slots: Tensor) -> None:
        taps = [self.taps[layer][row, positions] for layer in self.drafter.tap_layers]
        self.drafter.inject(taps, positions, slots, self.cache)

    def round(self, block: int = BLOCK) -> None:
        """Drafts a block of each request, compares with the twin, and accepts some of it."""
        pool, rows = self.pool, len(self.texts)
        lengths = pool.context_lens.clone().long()
        positions = lengths[:, None] + torch.arange(block)
        input_ids = torch.full((rows, block), MASK)
        input_ids[:, 0] = self.texts[torch.arange(rows), lengths]
        drafts = self.drafter.draft(input_ids, positions, self.cache, pool.page_table, pool.context_lens)
        for row, length in enumerate(lengths.tolist()):
            taps = {layer: tap[row, :length] for layer, tap in self.taps.items()}
            expected = self.twin(taps, self.texts[row, : length + 1], drafts.shape[1])
            assert drafts[row].tolist() == expected, f"request {row}, round {self.rounds}"
        accepted = torch.tensor([(self.rounds + 2 * row) % block for row in range(rows)])
        kept = torch.arange(block) <= accepted[:, None]
        slots = torch.stack([pool.slot_mapping(row, int(at), int(at) + block) for row, at in enumerate(lengths)])
        round_taps = [
            torch.stack([self.taps[layer][row, positions[row]] for row in range(rows)]).masked_fill(
                ~kept[:, :, None], float("nan")
            )
            for layer in self.drafter.tap_layers
        ]
        self.drafter.inject(
            [tap.flatten(0, 1) for tap in round_taps],
            positions.flatten(),
            slots.masked_fill(~kept, -1).flatten(),
            self.cache,
        )
        pool.context_lens += (accepted + 1).int()
        self.rounds += 1
