"""Cases of write_context_kv, shared by tests and benchmarks."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.cases.rope import rope_table
from tests.cases.traffic import Traffic


@dataclass(frozen=True)
class Case:
    rows: int
    layers: int
    kv_heads: int
    head_dim: int
    page_size: int = 16
    rotary_dim: int | None = None  # head_dim when None, no rotation when 0
    interleaved: bool = False
    norm: bool = True
    skip_every: int = 0  # every so many rows have slot -1 (and NaN data and a position outside the table)
    slack_rows: int = 0  # rows past row_count: NaN data, garbage slots and positions
    cache_layout: str = "plain"
    max_positions: int = 5000

    @property
    def pages(self) -> int:
        return (self.rows + self.slack_rows) // self.page_size + 3

    def caches(self, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
        """L pairs of caches full of NaN, laid out as engines do."""
        k_caches, v_caches = [], []
        for _ in range(self.layers):
            k, v = _cache_pair(self.cache_layout, self.pages, self.page_size, self.kv_heads, self.head_dim, dtype)
            k_caches.append(k)
            v_caches.append(v)
        return k_caches, v_caches

    def bounds(self, dtype: torch.dtype) -> list[Tensor]:
        """L bounds full of 7, with strides of their own where the caches have."""
        shape = (self.pages, self.kv_heads, 2, self.head_dim)
        if self.cache_layout != "padded":
            return [torch.full(shape, 7.0, dtype=dtype) for _ in range(self.layers)]
        storage = torch.full((self.layers, 2, self.kv_heads, self.pages, self.head_dim + 1), 7.0, dtype=dtype)
        return [layer.permute(2, 1, 0, 3)[..., : self.head_dim] for layer in storage.unbind(0)]

    def arguments(
        self, dtype: torch.dtype, *, table_dtype: torch.dtype = torch.float32, seed: int = 0
    ) -> dict[str, Any]:
        """Everything but the caches. Slots are shuffled: they do not follow from positions."""
        generator = torch.Generator().manual_seed(seed)
        total = self.rows + self.slack_rows
        kv = torch.randn(total, self.layers, 2, self.kv_heads, self.head_dim, generator=generator).to(dtype)
        weight = 1 + 0.3 * torch.randn(self.layers, self.head_dim, generator=generator)
        rotary_dim = self.head_dim if self.rotary_dim is None else self.rotary_dim
        slots = torch.randperm(self.pages * self.page_size, generator=generator)[:total]
        positions = torch.randint(0, self.max_positions, (total,), generator=generator)
        if self.rows > 1:
            positions[1] = self.max_positions - 1
        if self.skip_every:
            kv[:: self.skip_every] = torch.nan
            slots[:: self.skip_every] = -1
            positions[:: self.skip_every] = 2147480000
        kv[self.rows :] = torch.nan
        slots[self.rows :] = 2147480000
        positions[self.rows :] = -2147480000
        return {
            "kv": kv,
            "k_norm_weight": weight.to(dtype) if self.norm else None,
            "cos_sin": rope_table(self.max_positions, rotary_dim).to(table_dtype) if rotary_dim else None,
            "positions": positions if rotary_dim else None,
            "slot_mapping": slots,
            "row_count": torch.tensor([self.rows], dtype=torch.int32) if self.slack_rows else None,
            "eps": 1e-6,
            "interleaved": self.interleaved,
        }

    def least_traffic(
        self, dtype: torch.dtype, cache_dtype: torch.dtype | None = None, *, table_dtype: torch.dtype = torch.float32
    ) -> Traffic:
        """Rows that are not skipped, all layers' norm weights, a row of the table and a position for each row."""
        written = self.rows - (len(range(0, self.rows, self.skip_every)) if self.skip_every else 0)
        elements = written * self.layers * 2 * self.kv_heads * self.head_dim
        rotary_dim = self.head_dim if self.rotary_dim is None else self.rotary_dim
        rotation = written * (rotary_dim * table_dtype.itemsize + 8) if rotary_dim else 0
        weights = self.layers * self.head_dim * dtype.itemsize if self.norm else 0
        slots = 8 * self.rows + (4 if self.slack_rows else 0)
        loads = elements * dtype.itemsize + rotation + weights + slots
        return Traffic(loads, elements * (cache_dtype or dtype).itemsize)


def _cache_pair(
    layout: str, pages: int, page_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """[pages, page_size, kv_heads, head_dim] views of a layout in use."""
    if layout == "plain":
        shape: tuple[int, ...] = (pages, page_size, kv_heads, head_dim)
        return torch.full(shape, torch.nan, dtype=dtype), torch.full(shape, torch.nan, dtype=dtype)
    if layout == "halves":  # keys and values are the halves of one tensor
        k, v = torch.full((2, pages, page_size, kv_heads, head_dim), torch.nan, dtype=dtype).unbind(0)
        return k, v
    if layout == "interleaved heads first":  # [pages, 2, kv_heads, page_size, head_dim]
        storage = torch.full((pages, 2, kv_heads, page_size, head_dim), torch.nan, dtype=dtype)
        return storage[:, 0].transpose(1, 2), storage[:, 1].transpose(1, 2)
    assert layout == "padded"  # K and V with different strides
    storage = torch.full((pages, page_size + 1, kv_heads, head_dim + 3), torch.nan, dtype=dtype)
    values = torch.full((pages, page_size, kv_heads + 2, head_dim + 5), torch.nan, dtype=dtype)
    return storage[:, 1:, :, 3:], values[:, :, 1:-1, :head_dim]


CASES = [
    Case(0, 2, 2, 64),
    Case(1, 1, 1, 8, page_size=1),
    Case(3, 2, 3, 64, skip_every=2, cache_layout="halves"),
    Case(16, 5, 8, 128, slack_rows=3),
    Case(7, 3, 2, 80, page_size=4, skip_every=3, slack_rows=2, cache_layout="interleaved heads first"),
    Case(5, 2, 5, 72, rotary_dim=24, interleaved=True, cache_layout="padded"),
    Case(5, 2, 1, 96, rotary_dim=36, page_size=256, cache_layout="padded"),
    Case(9, 2, 2, 33, rotary_dim=30, interleaved=True, page_size=2, slack_rows=1),
    Case(9, 1, 2, 64, interleaved=True, norm=False),
    Case(4, 2, 2, 64, rotary_dim=0),
    Case(4, 2, 2, 17, rotary_dim=0, norm=False, skip_every=4),
    Case(40, 1, 16, 128, page_size=64),
]
