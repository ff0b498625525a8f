"""Every draft layer reads the newest tokens only, and no others are kept."""

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


class WindowCache(DraftCache):
    """K/V of the newest tokens of each request, in a ring of pages: it does not grow with the context.

    Args:
        window: tokens that a row sees; the layers' own windows hold beside it.

    Attributes:
        k, v: one tensor per layer, [pages of the rings, page_size, kv heads, head_dim].
    """

    def __init__(self, layers: ContextLayers, pool: PagePool, window: int) -> None:
        config = layers.config
        self.pool = pool
        self.budget_tokens = window
        self._layers = layers
        self._rings = RingPages(pool, window, config.block_size)
        self.max_write_rows = self._rings.capacity
        shape = (self._rings.num_pages, pool.page_size, config.num_key_value_heads, config.head_dim)
        count = config.num_hidden_layers
        self.k = [torch.empty(shape, dtype=layers.dtype, device=pool.device) for _ in range(count)]
        self.v = [torch.empty(shape, dtype=layers.dtype, device=pool.device) for _ in range(count)]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.k, *self.v))

    def write(self, features: Tensor, positions: Tensor, slot_mapping: Tensor) -> None:
        self._layers.project(features, positions, self._rings.slots(slot_mapping), self.k, self.v)

    def begin(self, page_table: Tensor, context_lens: Tensor) -> ContextAttention:
        table, window = self._rings.table(page_table), self.budget_tokens or 0

        def attend(layer: int, block: BlockBuffers) -> None:
            self._layers.attend(layer, block, self.k[layer], self.v[layer], table, context_lens, window=window)

        return attend


@dataclass(frozen=True)
class WindowContext(BudgetedContext):
    """The last `budget_tokens` tokens up to each row, the block's own among them, as sliding-window attention has it."""

    name: ClassVar[str] = "window"

    def new_cache(self, drafter: Any, pool: PagePool) -> WindowCache:
        return WindowCache(layers_of(drafter, self.name), pool, self.budget_tokens)
