"""No draft K/V is kept: that of the newest tokens is made anew in every forward, from their fused features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from dflash_decoding.cache import PagePool
from dflash_decoding.drafter_weights import BlockBuffers

from .base import BudgetedContext, ContextAttention, DraftCache, layers_of
from .layers import ContextLayers
from .ring import RingPages

# Rows projected at once: bounds the workspace.
_PROJECTED_ROWS = 512


class FeatureCache(DraftCache):
    """Fused features of the newest tokens of each request, in a ring of pages, and scratch K/V for a single layer.

    A token costs H numbers for all layers, and two times kv heads * head_dim of scratch, instead of two times
    layers * kv heads * head_dim.

    Attributes:
        features: [slots of the rings + 1, H]; the last row takes what is not to be kept.
        k, v: [pages of the rings, page_size, kv heads, head_dim], of the layer that attends.
    """

    def __init__(self, layers: ContextLayers, pool: PagePool, window: int) -> None:
        config = layers.config
        self.pool = pool
        self.budget_tokens = window
        self._layers = layers
        self._rings = RingPages(pool, window, config.block_size)
        self.max_write_rows = self._rings.capacity
        slots = self._rings.num_pages * pool.page_size

        def new(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=layers.dtype, device=pool.device)

        self.features = new(slots + 1, config.hidden_size)
        self.k = new(self._rings.num_pages, pool.page_size, config.num_key_value_heads, config.head_dim)
        self.v = torch.empty_like(self.k)

    @property
    def num_bytes(self) -> int:
        return self.features.nbytes + self.k.nbytes + self.v.nbytes

    def write(self, features: Tensor, positions: Tensor, slot_mapping: Tensor) -> None:
        # Slot -1 is the last row.
        self.features[self._rings.slots(slot_mapping)] = features

    def begin(self, page_table: Tensor, context_lens: Tensor) -> ContextAttention:
        window = self.budget_tokens or 0
        table = self._rings.table(page_table)
        # A row at position p sees positions above p - window; the block's first row stands at the context's end.
        count = min(window - 1, table.shape[1] * self.pool.page_size)
        positions = context_lens.long()[:, None] - count + torch.arange(count, device=context_lens.device)
        missing = positions < 0
        positions.clamp_(min=0)
        page_size = self.pool.page_size
        pages = table.long().gather(1, positions // page_size)
        slots = (pages * page_size + positions % page_size).masked_fill_(missing, -1).flatten()
        positions = positions.flatten()

        def attend(layer: int, block: BlockBuffers) -> None:
            for start in range(0, slots.shape[0], _PROJECTED_ROWS):
                part = slice(start, start + _PROJECTED_ROWS)
                rows = self.features[slots[part]]
                self._layers.project(rows, positions[part], slots[part], [self.k], [self.v], first_layer=layer)
            self._layers.attend(layer, block, self.k, self.v, table, context_lens, window=window)

        return attend


@dataclass(frozen=True)
class CacheFreeContext(BudgetedContext):
    """The window of `WindowContext`, without a K/V cache: less memory, for more work per round."""

    budget_tokens: int = 256
    name: ClassVar[str] = "cache_free"

    def new_cache(self, drafter: Any, pool: PagePool) -> FeatureCache:
        return FeatureCache(layers_of(drafter, self.name), pool, self.budget_tokens)
