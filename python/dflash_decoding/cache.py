"""Paged K/V storage shared by target and draft: one page allocator, one page table, one set of lengths.

Context token i of a request lies at the same page and offset in every cache over a pool, so one `page_table` and one
`slot_mapping` describe the target's and the drafter's cache alike. A cache shrinks when `context_lens` is set back;
no K/V row is ever moved, and what a rejected draft left behind is overwritten before it can be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

# What a page-table entry holds while no page stands behind it. No kernel may read such an entry; one that does crashes
# instead of quietly reading page 0.
UNUSED_PAGE = 2147480000

MAX_PAGE_SIZE = 256


class OutOfPages(RuntimeError):
    """The pool has too few free pages, or a request outgrew its page-table row. Nothing was changed."""


class PageFollower(Protocol):
    """What is told of every change of a pool's pages, after it has happened."""

    def allocated(self, row: int, first: int, pages: list[int]) -> None:
        """Row `row` owns `pages` now as its pages `first`, `first` + 1, ..."""

    def released(self, row: int) -> None:
        """Row `row` owns no page any more."""

    def moved(self, source: int, destination: int) -> None:
        """What row `source` owned belongs to `destination` now."""


class PagePool:
    """Pages, page table and lengths of up to `max_batch` requests.

    Attributes:
        page_table: int32 [max_batch, max_pages_per_request] on `device`; entries past a request's pages hold
            `UNUSED_PAGE`.
        context_lens: int32 [max_batch] on `device`; number of valid tokens of each request. Owned by the caller of the
            pool (the decoder's `commit_block` adds to it); the pool only zeroes it on `release`.
        generation: number of changes so far of who owns which page in which row.

    Raises:
        ValueError: a size is not positive, or `page_size` is not a power of two in 1..256.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        max_batch: int,
        max_pages_per_request: int,
        device: torch.device | str = "cpu",
    ) -> None:
        if page_size < 1 or page_size > MAX_PAGE_SIZE or page_size & (page_size - 1):
            raise ValueError(f"page_size: expected a power of two in 1..{MAX_PAGE_SIZE}, got {page_size}")
        sizes = {"num_pages": num_pages, "max_batch": max_batch, "max_pages_per_request": max_pages_per_request}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name}: expected a positive number, got {size}")
        if num_pages >= UNUSED_PAGE:
            raise ValueError(f"num_pages: expected less than {UNUSED_PAGE}, got {num_pages}")
        self.num_pages = num_pages
        self.page_size = page_size
        self.max_batch = max_batch
        self.max_pages_per_request = max_pages_per_request
        self.device = torch.device(device)
        table_shape = (max_batch, max_pages_per_request)
        self.page_table = torch.full(table_shape, UNUSED_PAGE, dtype=torch.int32, device=self.device)
        self.context_lens = torch.zeros(max_batch, dtype=torch.int32, device=self.device)
        # Host mirrors: which pages are free (the last one is handed out first) and which a request owns, in order.
        self._free_pages = list(range(num_pages - 1, -1, -1))
        self._owned_pages: list[list[int]] = [[] for _ in range(max_batch)]
        self._followers: list[PageFollower] = []
        self.generation = 0

    def follow(self, follower: PageFollower) -> None:
        """Tells `follower` what every row owns, and from now on of every change."""
        for row, owned in enumerate(self._owned_pages):
            if owned:
                follower.allocated(row, 0, list(owned))
        self._followers.append(follower)

    @property
    def num_free_pages(self) -> int:
        """Pages that no request owns."""
        return len(self._free_pages)

    def pages_for(self, num_tokens: int) -> int:
        """Number of pages that hold `num_tokens` tokens."""
        return -(-num_tokens // self.page_size)

    def capacity(self, row: int) -> int:
        """Number of tokens the pages owned by request `row` hold."""
        return len(self._owned_pages[self._checked(row)]) * self.page_size

    def allocate(self, row: int, num_tokens: int) -> None:
        """Makes sure that request `row` owns pages for `num_tokens` tokens in total; never takes pages away.

        Raises:
            IndexError: `row` is not in 0..max_batch-1.
            OutOfPages: before anything is changed.
        """
        owned = self._owned_pages[self._checked(row)]
        needed = self.pages_for(num_tokens) - len(owned)
        if needed <= 0:
            return
        if len(owned) + needed > self.max_pages_per_request:
            limit = self.max_pages_per_request * self.page_size
            raise OutOfPages(f"num_tokens: expected at most {limit} tokens per request, got {num_tokens}")
        if needed > len(self._free_pages):
            raise OutOfPages(
                f"request {row}: expected {needed} free pages for {num_tokens} tokens, got {len(self._free_pages)} "
                f"of {self.num_pages}"
            )
        pages = [self._free_pages.pop() for _ in range(needed)]
        self.page_table[row, len(owned) : len(owned) + needed] = torch.tensor(pages, dtype=torch.int32)
        owned.extend(pages)
        self.generation += 1
        for follower in self._followers:
            follower.allocated(row, len(owned) - needed, pages)

    def release(self, row: int) -> None:
        """Gives all pages of request `row` back and sets its length to 0. Legal on a row that owns nothing.

        Raises:
            IndexError: `row` is not in 0..max_batch-1.
        """
        owned = self._owned_pages[self._checked(row)]
        self.page_table[row].fill_(UNUSED_PAGE)
        self.context_lens[row].zero_()
        self._free_pages.extend(reversed(owned))
        owned.clear()
        self.generation += 1
        for follower in self._followers:
            follower.released(row)

    def move(self, source: int, destination: int) -> None:
        """Hands the pages and the length of request `source` over to row `destination`, leaving `source` empty.

        Raises:
            IndexError: a row is not in 0..max_batch-1.
            ValueError: `destination` owns pages (or is `source`).
        """
        owned = self._owned_pages[self._checked(source)]
        if self._owned_pages[self._checked(destination)] or source == destination:
            raise ValueError(f"destination: expected an empty row other than {source}, got {destination}")
        self.page_table[destination].copy_(self.page_table[source])
        self.context_lens[destination].copy_(self.context_lens[source])
        self._owned_pages[source], self._owned_pages[destination] = [], owned
        for follower in self._followers:
            follower.moved(source, destination)
        self.release(source)

    def slot_mapping(self, row: int, start: int, stop: int) -> Tensor:
        """Slots (page * page_size + offset) of positions start..stop-1 of request `row`.

        Returns:
            int64 [stop - start] on the pool's device, computed there without a host read.

        Raises:
            IndexError: `row` or the range lies outside what the request owns (see `allocate`).
        """
        capacity = self.capacity(row)
        if not 0 <= start <= stop <= capacity:
            raise IndexError(f"positions: expected a range within 0..{capacity} of request {row}, got {start}..{stop}")
        positions = torch.arange(start, stop, device=self.device)
        pages = self.page_table[row].index_select(0, positions // self.page_size).long()
        return pages * self.page_size + positions % self.page_size

    def _checked(self, row: int) -> int:
        if not 0 <= row < self.max_batch:
            raise IndexError(f"row: expected 0..{self.max_batch - 1}, got {row}")
        return row


class PagedKVCache:
    """K and V of `num_layers` layers over the pages of one pool.

    Args:
        num_kv_heads, head_dim: one number for all layers, or one per layer.

    Attributes:
        k, v: one tensor per layer, each [num_pages, page_size, num_kv_heads, head_dim] of `dtype` on the pool's device.
            Never initialised: a slot is written before the lengths make it readable.

    Raises:
        ValueError: a size is not positive, or there is not one per layer.
    """

    def __init__(
        self,
        pool: PagePool,
        num_layers: int,
        num_kv_heads: int | Sequence[int],
        head_dim: int | Sequence[int],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if num_layers < 1:
            raise ValueError(f"num_layers: expected a positive number, got {num_layers}")
        self.pool = pool
        self.num_layers = num_layers
        self.num_kv_heads = _per_layer("num_kv_heads", num_kv_heads, num_layers)
        self.head_dim = _per_layer("head_dim", head_dim, num_layers)
        self.dtype = dtype
        shapes = [
            (pool.num_pages, pool.page_size, *sizes) for sizes in zip(self.num_kv_heads, self.head_dim, strict=True)
        ]
        self.k = [torch.empty(shape, dtype=dtype, device=pool.device) for shape in shapes]
        self.v = [torch.empty(shape, dtype=dtype, device=pool.device) for shape in shapes]

    @property
    def num_bytes(self) -> int:
        """Size of the storage in bytes."""
        return sum(tensor.nbytes for tensor in (*self.k, *self.v))


def _per_layer(name: str, sizes: int | Sequence[int], num_layers: int) -> tuple[int, ...]:
    per_layer = (sizes,) * num_layers if isinstance(sizes, int) else tuple(sizes)
    if len(per_layer) != num_layers:
        raise ValueError(f"{name}: expected one number or {num_layers}, got {len(per_layer)}")
    for size in per_layer:
        if size < 1:
            raise ValueError(f"{name}: expected a positive number, got {size}")
    return per_layer
