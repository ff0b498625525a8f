"""The page allocator against a plain bookkeeping of its own: no page shared, none lost, nothing changed on failure."""

from __future__ import annotations

import pytest
import torch
from dflash_decoding.cache import UNUSED_PAGE, OutOfPages, PagedKVCache, PagePool
from hypothesis import given, settings
from hypothesis import strategies as st


def used_pages(pool: PagePool, row: int) -> list[int]:
    return [page for page in pool.page_table[row].tolist() if page != UNUSED_PAGE]


def test_allocate_fills_the_table_from_the_left() -> None:
    pool = PagePool(num_pages=8, page_size=4, max_batch=2, max_pages_per_request=5)
    pool.allocate(0, 9)
    pool.allocate(1, 1)
    assert len(used_pages(pool, 0)) == 3
    assert len(used_pages(pool, 1)) == 1
    assert (pool.page_table[0, 3:] == UNUSED_PAGE).all()
    assert pool.capacity(0) == 12
    assert pool.num_free_pages == 4
    before = pool.page_table.clone()
    pool.allocate(0, 12)  # still fits
    pool.allocate(0, 3)  # never shrinks
    pool.allocate(0, 0)
    assert torch.equal(pool.page_table, before)


def test_out_of_pages_changes_nothing() -> None:
    pool = PagePool(num_pages=4, page_size=2, max_batch=2, max_pages_per_request=3)
    pool.allocate(0, 4)
    before = pool.page_table.clone()
    with pytest.raises(OutOfPages, match="at most 6 tokens per request, got 7"):
        pool.allocate(0, 7)
    with pytest.raises(OutOfPages, match="expected 3 free pages for 6 tokens, got 2 of 4"):
        pool.allocate(1, 6)
    assert torch.equal(pool.page_table, before)
    assert pool.num_free_pages == 2
    assert pool.capacity(1) == 0
    pool.allocate(1, 4)
    assert pool.num_free_pages == 0


def test_release_resets_the_row() -> None:
    pool = PagePool(num_pages=4, page_size=2, max_batch=2, max_pages_per_request=4)
    pool.allocate(0, 8)
    pool.context_lens[0] = 7
    pool.release(0)
    pool.release(0)
    assert pool.num_free_pages == 4
    assert pool.context_lens[0] == 0
    assert used_pages(pool, 0) == []
    pool.allocate(1, 8)
    assert sorted(used_pages(pool, 1)) == [0, 1, 2, 3]


def test_slot_mapping_follows_the_table() -> None:
    pool = PagePool(num_pages=6, page_size=4, max_batch=2, max_pages_per_request=4)
    pool.allocate(1, 4)
    pool.allocate(0, 4)
    pool.allocate(1, 10)
    table = used_pages(pool, 1)
    expected = [table[position // 4] * 4 + position % 4 for position in range(3, 11)]
    slots = pool.slot_mapping(1, 3, 11)
    assert slots.dtype == torch.int64
    assert slots.tolist() == expected
    assert pool.slot_mapping(1, 12, 12).numel() == 0
    for start, stop in ((0, 13), (-1, 2), (5, 4)):
        with pytest.raises(IndexError, match="positions: expected"):
            pool.slot_mapping(1, start, stop)


@settings(max_examples=50, deadline=None)
@given(
    page_size=st.sampled_from([1, 2, 16]),
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 40)), max_size=30),
)
def test_no_page_is_shared_or_lost(page_size: int, steps: list[tuple[int, int]]) -> None:
    pool = PagePool(num_pages=20, page_size=page_size, max_batch=4, max_pages_per_request=12)
    for row, num_tokens in steps:
        if num_tokens < 0:
            pool.release(row)
            continue
        held = used_pages(pool, row)
        try:
            pool.allocate(row, num_tokens)
            assert pool.capacity(row) >= num_tokens
            assert used_pages(pool, row)[: len(held)] == held  # pages in use never move
        except OutOfPages:
            assert used_pages(pool, row) == held
        owned = [page for request in range(4) for page in used_pages(pool, request)]
        assert len(set(owned)) == len(owned)
        assert len(owned) + pool.num_free_pages == 20


@pytest.mark.parametrize("page_size", [0, 3, 512, -1])
def test_bad_page_size(page_size: int) -> None:
    with pytest.raises(ValueError, match="page_size: expected a power of two"):
        PagePool(4, page_size, 1, 1)


def test_bad_sizes_and_rows() -> None:
    with pytest.raises(ValueError, match="num_pages: expected a positive number, got 0"):
        PagePool(0, 16, 1, 1)
    pool = PagePool(2, 16, 1, 1)
    for call in (lambda: pool.allocate(1, 1), lambda: pool.release(-1), lambda: pool.capacity(5)):
        with pytest.raises(IndexError, match=r"row: expected 0..0"):
            call()
    with pytest.raises(ValueError, match="num_layers: expected a positive number, got 0"):
        PagedKVCache(pool, 0, 1, 8)


def test_cache_storage() -> None:
    pool = PagePool(num_pages=5, page_size=8, max_batch=1, max_pages_per_request=2)
    cache = PagedKVCache(pool, num_layers=3, num_kv_heads=2, head_dim=16, dtype=torch.bfloat16)
    assert len(cache.k) == len(cache.v) == 3
    assert {tuple(tensor.shape) for tensor in (*cache.k, *cache.v)} == {(5, 8, 2, 16)}
    assert len({tensor.data_ptr() for tensor in (*cache.k, *cache.v)}) == 6
    assert cache.num_bytes == 6 * 5 * 8 * 2 * 16 * 2
