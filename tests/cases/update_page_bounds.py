"""Cases of update_page_bounds, shared by tests and benchmarks."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.cases.traffic import Traffic


@dataclass(frozen=True)
class Case:
    """Rows `first` .. `first + rows - 1` of each request were just written; those before them lie in the cache."""

    first: tuple[int, ...]
    rows: tuple[int, ...]
    layers: int = 2
    kv_heads: int = 2
    head_dim: int = 64
    page_size: int = 16
    skips: bool = False  # every other entry is -1
    slack_rows: int = 0  # entries past row_count: garbage
    layout: str = "plain"

    @property
    def pages(self) -> int:
        used = (-(-(first + rows) // self.page_size) for first, rows in zip(self.first, self.rows, strict=True))
        return sum(used) + 2

    def arguments(self, dtype: torch.dtype) -> dict[str, Any]:
        """Cache rows past a request's last are NaN, as is every page no request owns. The bounds start as 7."""
        generator = torch.Generator().manual_seed(0)
        order = torch.randperm(self.pages, generator=generator)
        written, valid = [], []
        for first, rows in zip(self.first, self.rows, strict=True):
            positions = torch.arange(first + rows)
            mine, order = order[: -(-(first + rows) // self.page_size)], order[-(-(first + rows) // self.page_size) :]
            slots = mine[positions // self.page_size] * self.page_size + positions % self.page_size
            valid.append(slots)
            written.append(slots[first:])
        slots = torch.cat(written)[torch.randperm(sum(self.rows), generator=generator)]
        if self.skips:
            slots = slots.repeat_interleave(2)
            slots[1::2] = -1
        slack = torch.full((self.slack_rows,), 2147480000)
        count = torch.tensor([slots.numel()], dtype=torch.int32) if self.slack_rows else None
        k_caches = [self._cache(dtype) for _ in range(self.layers)]
        for cache in k_caches:
            rows_of = torch.cat(valid)
            keys = torch.randn(rows_of.numel(), self.kv_heads, self.head_dim, generator=generator)
            cache[rows_of // self.page_size, rows_of % self.page_size] = keys.to(dtype)
        return {
            "k_caches": k_caches,
            "slot_mapping": torch.cat([slots, slack]),
            "row_count": count,
            "k_bounds": [self.bounds(dtype) for _ in range(self.layers)],
        }

    def least_traffic(self, dtype: torch.dtype) -> Traffic:
        """The valid rows of the pages written to, and two rows of bounds a page; of one request without skips."""
        assert len(self.first) == 1
        assert not self.skips
        row_bytes = self.layers * self.kv_heads * self.head_dim * dtype.itemsize
        first, end = self.first[0], self.first[0] + self.rows[0]
        pages = -(-end // self.page_size) - first // self.page_size
        loads = row_bytes * (end - first // self.page_size * self.page_size) + 8 * self.rows[0]
        return Traffic(loads, 2 * row_bytes * pages)

    def bounds(self, dtype: torch.dtype, fill: float = 7.0) -> Tensor:
        shape = (self.pages, self.kv_heads, 2, self.head_dim)
        if self.layout == "plain":
            return torch.full(shape, fill, dtype=dtype)
        storage = torch.full((2, self.kv_heads, self.pages, self.head_dim + 3), fill, dtype=dtype)
        return storage.permute(2, 1, 0, 3)[..., : self.head_dim]

    def _cache(self, dtype: torch.dtype) -> Tensor:
        if self.layout == "plain":
            return torch.full((self.pages, self.page_size, self.kv_heads, self.head_dim), torch.nan, dtype=dtype)
        storage = torch.full((self.pages, 2, self.kv_heads, self.page_size, self.head_dim + 1), torch.nan, dtype=dtype)
        return storage[:, 1, :, :, : self.head_dim].transpose(1, 2)


CASES = [
    Case((0,), (0,)),
    Case((0,), (1,), head_dim=8, page_size=1),
    Case((0, 5, 30), (3, 1, 20)),
    Case((15, 16, 17), (1, 16, 1), layers=1, kv_heads=3),
    Case((100, 3), (16, 9), layers=5, kv_heads=8, head_dim=128, slack_rows=3),
    Case((7, 0), (9, 30), page_size=4, head_dim=80, skips=True, layout="heads first"),
    Case((7,), (9,), page_size=1, head_dim=40, layout="heads first"),
    Case((250, 1), (10, 300), page_size=256, head_dim=17, layers=1),
    Case((0,), (700,), page_size=16, kv_heads=1, head_dim=33, skips=True, slack_rows=9),
]
