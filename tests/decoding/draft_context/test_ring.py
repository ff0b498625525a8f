"""Rings of pages against a plain record of who wrote what where."""

from __future__ import annotations

import random

import pytest
import torch
from dflash_decoding import PagePool
from dflash_decoding.cache import UNUSED_PAGE
from dflash_decoding.draft_context.ring import RingPages


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("page_size", [1, 4])
def test_newest_tokens_are_there_whatever_becomes_of_the_rows(seed: int, page_size: int) -> None:
    chance = random.Random(seed)
    window, ahead, rows = chance.randint(1, 17), chance.randint(1, 5), 3
    pool = PagePool(60, page_size, rows, 40)
    rings = RingPages(pool, window, ahead)
    assert rings.num_pages <= rows * (-(-(window + ahead) // page_size) + 1)
    storage = torch.full((rings.num_pages * page_size,), -1)
    lengths = [0] * rows
    stamp = [0] * rows  # whose tokens: a request's number times 1000
    requests = 0
    for _ in range(100):
        row = chance.randrange(rows)
        if not pool.capacity(row):
            tokens = chance.randint(1, 20 * page_size)
            if pool.pages_for(tokens) <= pool.num_free_pages:
                pool.allocate(row, tokens)
                requests += 1
                lengths[row], stamp[row] = 0, 1000 * requests
        elif chance.random() < 0.1:
            pool.release(row)
            lengths[row] = 0
        elif chance.random() < 0.2 and pool.capacity((row + 1) % rows) == 0:
            pool.move(row, (row + 1) % rows)
            lengths[(row + 1) % rows], lengths[row] = lengths[row], 0
            stamp[(row + 1) % rows] = stamp[row]
        else:
            # Rows past the new length are rejected ones, and written nevertheless.
            stop = min(pool.capacity(row), lengths[row] + ahead)
            written = torch.arange(lengths[row], stop)
            slots = rings.slots(pool.slot_mapping(row, lengths[row], stop))
            storage[slots] = stamp[row] + written
            lengths[row] += chance.randint(0, len(written))
        table = rings.table(pool.page_table)
        for other in range(rows):
            begin = max(0, lengths[other] - window) // page_size * page_size  # its whole page
            places = torch.arange(begin, lengths[other])
            slots = table[other, places // page_size].long() * page_size + places % page_size
            assert torch.equal(storage[slots], stamp[other] + places)


def test_skipped_rows_and_unused_entries_stay_what_they_are() -> None:
    pool = PagePool(8, 4, 2, 6)
    rings = RingPages(pool, 4, 2)
    pool.allocate(1, 24)
    slots = pool.slot_mapping(1, 0, 24)
    slots[3] = -1
    assert (rings.slots(slots) == -1).nonzero().flatten().tolist() == [3]
    table = rings.table(pool.page_table)
    assert (table[0] == UNUSED_PAGE).all()
    assert table[1].tolist() == [table[1, 0], table[1, 1], table[1, 2]] * 2
    assert len(set(table[1].tolist())) == 3


def test_follows_a_pool_that_is_in_use() -> None:
    pool = PagePool(8, 4, 2, 6)
    pool.allocate(0, 10)
    before = RingPages(pool, 40, 2).table(pool.page_table)
    assert sorted(before[0, :3].tolist()) == [0, 1, 2]
