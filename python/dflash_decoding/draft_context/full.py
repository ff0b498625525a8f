"""Every draft layer reads the whole context, as far as its own window goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from dflash_decoding.cache import PagedKVCache, PagePool
from dflash_decoding.drafter_weights import BlockBuffers

from .base import ContextAttention, DraftCache, DraftContext
from .layers import ContextLayers


class FullCache(PagedKVCache, DraftCache):
    """K/V of all context tokens, at the slots where the target has them."""

    def __init__(self, layers: ContextLayers, pool: PagePool) -> None:
        config = layers.config
        super().__init__(pool, config.num_hidden_layers, config.num_key_value_heads, config.head_dim, layers.dtype)
        self._layers = layers

    def write(self, features: Tensor, positions: Tensor, slot_mapping: Tensor) -> None:
        self._layers.project(features, positions, slot_mapping, self.k, self.v)

    def begin(self, page_table: Tensor, context_lens: Tensor) -> ContextAttention:
        def attend(layer: int, block: BlockBuffers) -> None:
            self._layers.attend(layer, block, self.k[layer], self.v[layer], page_table, context_lens)

        return attend


@dataclass(frozen=True)
class FullContext(DraftContext):
    """All of the context. The only policy for drafters whose context is of their own kind."""

    name: ClassVar[str] = "full"

    def new_cache(self, drafter: Any, pool: PagePool) -> Any:
        return drafter.new_cache(pool)

    def check(self, drafter: Any) -> None:
        """Fits every drafter."""

    def set_budget(self, cache: Any, budget_tokens: int | None) -> None:
        """There is none."""
