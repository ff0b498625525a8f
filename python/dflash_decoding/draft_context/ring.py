"""Rings of pages: a fixed number of pages per request, used over and over, for caches that keep a window only."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_decoding.cache import UNUSED_PAGE, PagePool


class RingPages:
    """Maps each page of a pool to one of a few pages of a smaller storage.

    Page i of a request is page i % ring of the request's ring, so what is written takes the place of what was written
    `ring` pages before. Tables and slots of the pool are translated on the device, without a host read.

    Args:
        pool: whose page ids are translated; the rings follow its allocations from now on.
        window_tokens: the newest tokens of a request that must be there at any time.
        ahead_tokens: tokens that may be written past a request's length before it grows.

    Attributes:
        num_pages: pages of the storage: rings for all rows of the pool, never more than the pool's own pages.
        capacity: tokens that a ring holds.
    """

    def __init__(self, pool: PagePool, window_tokens: int, ahead_tokens: int) -> None:
        # One page more: that in which the window begins keeps its older tokens, too. Attention may read them before it
        # masks them, so no rejected row must come to lie there.
        ring = pool.pages_for(window_tokens + ahead_tokens) + 1
        self._ring = min(ring, pool.max_pages_per_request)
        self.num_pages = min(pool.max_batch * self._ring, pool.num_pages)
        self.page_size = pool.page_size
        self.capacity = ring * pool.page_size
        # The last entry stands for every page that the pool does not have.
        self._page_map = torch.full((pool.num_pages + 1,), UNUSED_PAGE, dtype=torch.int32, device=pool.device)
        self._free = list(range(self.num_pages - 1, -1, -1))
        self._owned: list[list[int]] = [[] for _ in range(pool.max_batch)]
        pool.follow(self)

    def table(self, page_table: Tensor) -> Tensor:
        """The same table int32 [b, pages] over the storage's pages. Entries older than a ring name newer pages."""
        last = self._page_map.shape[0] - 1
        pages = torch.where((page_table < 0) | (page_table > last), last, page_table).flatten()
        return self._page_map.index_select(0, pages).view(page_table.shape)

    def slots(self, slot_mapping: Tensor) -> Tensor:
        """Slots int64 [n] of the storage for slots of the pool; -1 stays -1."""
        pages = slot_mapping.clamp(min=0).div(self.page_size, rounding_mode="floor")
        slots = self._page_map.index_select(0, pages).long() * self.page_size + slot_mapping % self.page_size
        return torch.where(slot_mapping < 0, -1, slots)

    def allocated(self, row: int, first: int, pages: list[int]) -> None:
        """The pool has given row `row` the pages `pages` as its pages `first`, `first` + 1, ..."""
        owned = self._owned[row]
        while len(owned) < min(self._ring, first + len(pages)):
            owned.append(self._free.pop())
        mapped = [owned[index % self._ring] for index in range(first, first + len(pages))]
        device = self._page_map.device
        self._page_map[torch.tensor(pages, device=device)] = torch.tensor(mapped, dtype=torch.int32, device=device)

    def released(self, row: int) -> None:
        """The pool has taken all pages of row `row` back."""
        self._free.extend(reversed(self._owned[row]))
        self._owned[row] = []

    def moved(self, source: int, destination: int) -> None:
        """The pages of row `source` belong to row `destination` now, which had none."""
        self._owned[source], self._owned[destination] = [], self._owned[source]
