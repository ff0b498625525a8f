"""Features of context tokens by cache slot, for drafters that need the newest one or the one before a token."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_decoding.cache import UNUSED_PAGE, PagePool


class PagedFeatures:
    """One row per slot of a page pool. All work is on the device, without a host read.

    Attributes:
        rows: [slots + 1, width]; the last row takes what is not to be kept.
    """

    def __init__(self, pool: PagePool, width: int, dtype: torch.dtype) -> None:
        self._pool = pool
        self.rows = torch.zeros(pool.num_pages * pool.page_size + 1, width, dtype=dtype, device=pool.device)

    def write(self, features: Tensor, slot_mapping: Tensor) -> None:
        """Keeps features [n, width] at slots int64 [n]; slot -1: not kept."""
        self.rows[torch.where(slot_mapping < 0, self.rows.shape[0] - 1, slot_mapping)] = features

    def newest(self, page_table: Tensor, context_lens: Tensor) -> Tensor:
        """Features [b, width] of the last context token of each request."""
        return self.rows[slots_of(page_table, context_lens.long()[:, None] - 1, self._pool.page_size)[:, 0]]

    def preceding(self, slot_mapping: Tensor, positions: Tensor) -> Tensor:
        """Features [n, width] of the tokens one position before those at the given slots; zeros at position 0."""
        pool = self._pool
        table = pool.page_table.long()
        earlier, later = table[:, :-1], table[:, 1:]
        # Which page comes before a page in its request; the last entry takes what belongs to unused table entries.
        page_before = table.new_zeros(pool.num_pages + 1)
        page_before[torch.where(later == UNUSED_PAGE, pool.num_pages, later)] = earlier
        page, offset = slot_mapping.div(pool.page_size, rounding_mode="floor"), slot_mapping % pool.page_size
        last_of_page_before = page_before[page.clamp(min=0)] * pool.page_size + pool.page_size - 1
        slots = torch.where(offset > 0, slot_mapping - 1, last_of_page_before)
        # Neither a skipped row nor a request's first token has one; its slot is no slot then.
        first = (positions == 0) | (slot_mapping < 0)
        return self.rows[slots.masked_fill(first, 0)].masked_fill(first[:, None], 0.0)


def slots_of(page_table: Tensor, places: Tensor, page_size: int) -> Tensor:
    """Slots int64 [b, n] of context places int64 [b, n] (0-based) of the requests of `page_table` [b, pages]."""
    return page_table.long().gather(1, places // page_size) * page_size + places % page_size
