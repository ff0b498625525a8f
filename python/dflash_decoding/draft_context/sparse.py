"""Every full-attention draft layer reads the pages that matter most to the block, within a budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

import dflash_ops
from dflash_decoding.cache import PagePool
from dflash_decoding.drafter_weights import BlockBuffers

from .base import BudgetedContext, ContextAttention, layers_of
from .full import FullCache
from .layers import ContextLayers


class SparseCache(FullCache):
    """K/V of all context tokens, with the bounds of every page's keys, and the pages selected last.

    Bounds are made anew from the valid rows with every write, so nothing stale survives in them: see the op
    `update_page_bounds`. A selection is used again only while no request has come, gone or moved.

    Attributes:
        k_bounds: one tensor per layer, [pages, kv heads, 2, head_dim].
    """

    def __init__(self, layers: ContextLayers, pool: PagePool, policy: SparseContext) -> None:
        super().__init__(layers, pool)
        config = layers.config
        self.budget_tokens = policy.budget_tokens
        self._policy = policy
        kv_heads = config.num_key_value_heads
        shape = (pool.num_pages, kv_heads, 2, config.head_dim)
        self.k_bounds = [torch.empty(shape, dtype=layers.dtype, device=pool.device) for _ in self.k]
        full = [layer for layer, window in enumerate(config.windows) if not window]
        # Which layer's selection a layer reads; layers with a window have none.
        self._selector = {layer: full[i - i % policy.layer_interval] for i, layer in enumerate(full)}
        width = dflash_ops.select_pages_width(
            pool.max_pages_per_request,
            pool.page_size,
            policy.budget_tokens,
            policy.sink_tokens,
            policy.local_tokens,
        )

        def buffer(*sizes: int) -> Tensor:
            return torch.empty((pool.max_batch, kv_heads, *sizes), dtype=torch.int32, device=pool.device)

        self._selections = {layer: (buffer(width), buffer()) for layer in set(self._selector.values())}
        self._selected_for: tuple[int, int | None, int] | None = None
        self._age = 0
        self.selections_made = 0

    @property
    def num_bytes(self) -> int:
        return super().num_bytes + sum(bounds.nbytes for bounds in self.k_bounds)

    def write(self, features: Tensor, positions: Tensor, slot_mapping: Tensor) -> None:
        self._layers.project(features, positions, slot_mapping, self.k, self.v, k_bounds=self.k_bounds)

    def begin(self, page_table: Tensor, context_lens: Tensor) -> ContextAttention:
        dense = super().begin(page_table, context_lens)
        situation = (self.pool.generation, self.budget_tokens, context_lens.shape[0])
        self._age += 1
        renew = situation != self._selected_for or self._age >= self._policy.round_interval
        if renew:
            self._selected_for, self._age = situation, 0

        def attend(layer: int, block: BlockBuffers) -> None:
            selector = self._selector.get(layer)
            if selector is None:
                dense(layer, block)
                return
            if renew and layer == selector:
                self._select(layer, block, page_table, context_lens)
            self._attend_selected(layer, block, page_table, context_lens)

        return attend

    def _select(self, layer: int, block: BlockBuffers, page_table: Tensor, context_lens: Tensor) -> None:
        batch = context_lens.shape[0]
        pages, counts = self._selections[layer]
        size = dflash_ops.select_pages_workspace_size(batch, pages.shape[1], page_table.shape[1], device=block.q.device)
        assert self.budget_tokens is not None
        dflash_ops.select_pages(
            block.q,
            self.k_bounds[layer],
            page_table,
            context_lens,
            page_size=self.pool.page_size,
            budget_tokens=self.budget_tokens,
            sink_tokens=self._policy.sink_tokens,
            local_tokens=self._policy.local_tokens,
            selected_pages=pages[:batch],
            selected_counts=counts[:batch],
            workspace=self._layers.workspace.of(size),
        )
        self.selections_made += 1

    def _attend_selected(self, layer: int, block: BlockBuffers, page_table: Tensor, context_lens: Tensor) -> None:
        batch = context_lens.shape[0]
        config = self._layers.config
        pages, counts = (buffer[:batch] for buffer in self._selections[self._selector[layer]])
        size = dflash_ops.sparse_block_attention_workspace_size(
            block.q.shape[0],
            batch,
            block.q.shape[1],
            block.k.shape[1],
            config.head_dim,
            page_table.shape[1],
            self.pool.page_size,
            device=block.q.device,
        )
        dflash_ops.sparse_block_attention(
            block.q,
            block.k,
            block.v,
            self.k[layer],
            self.v[layer],
            page_table,
            context_lens,
            pages,
            counts,
            scale=self._layers.scale,
            causal=config.causal[layer],
            out=block.attended,
            lse=block.lse,
            workspace=self._layers.workspace.of(size),
        )


@dataclass(frozen=True)
class SparseContext(BudgetedContext):
    """The pages that matter most, `budget_tokens` of them in all; layers with a window of their own stay as they are.

    Attributes:
        sink_tokens, local_tokens: first and last tokens of a context that are always kept.
        round_interval: forwards of the drafter that use a selection, 1: each selects anew. Pages begun since then are
            seen too.
        layer_interval: full-attention layers that share a selection, that of the first of them.

    Raises:
        ValueError: a number is out of its range.
    """

    sink_tokens: int = 64
    local_tokens: int = 256
    round_interval: int = 1
    layer_interval: int = 1
    name: ClassVar[str] = "sparse"

    def __post_init__(self) -> None:
        super().__post_init__()
        least = {"sink_tokens": 0, "local_tokens": 1, "round_interval": 1, "layer_interval": 1}
        for field, lowest in least.items():
            if getattr(self, field) < lowest:
                raise ValueError(f"{field}: expected at least {lowest}, got {getattr(self, field)}")

    @property
    def least_budget(self) -> int:
        return self.sink_tokens + self.local_tokens

    def new_cache(self, drafter: Any, pool: PagePool) -> SparseCache:
        return SparseCache(layers_of(drafter, self.name), pool, self)
