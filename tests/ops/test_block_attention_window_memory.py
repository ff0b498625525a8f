"""A window's attention touches the window's pages only: all others of the cache lie in memory that no one may read."""

from __future__ import annotations

import ctypes
import os
from functools import partial

import pytest
import torch

import dflash_ops
from tests.ops.forbidden_memory import with_forbidden_pages

PAGE_SIZE, HEADS, DIM = 16, 2, 32  # a page of K is one page of memory in float32


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1, 16, 40])
@pytest.mark.parametrize("num_splits", [0, 3])
def test_pages_before_the_window_are_never_touched(window: int, causal: bool, num_splits: int) -> None:
    generator = torch.Generator().manual_seed(window)
    lens, max_pages, block = [500, 37, 0, 256], 32, 5
    k, v = torch.randn(2, len(lens) * max_pages, PAGE_SIZE, HEADS, DIM, generator=generator)
    table = torch.randperm(len(k), generator=generator, dtype=torch.int32).view(len(lens), max_pages)
    # A row at position p sees positions above p - window, and the first row of a block stands at the context's end.
    seen = [
        page
        for row, length in enumerate(lens)
        for page in table[row, max(0, length - window + 1) // PAGE_SIZE : -(-length // PAGE_SIZE)].tolist()
    ]
    q = torch.randn(len(lens) * block, 2 * HEADS, DIM, generator=generator)
    k_block, v_block = torch.randn(2, len(lens) * block, HEADS, DIM, generator=generator)
    context_lens = torch.tensor(lens, dtype=torch.int32)
    attention = partial(dflash_ops.block_attention, causal=causal, window=window, num_splits=num_splits)
    expected = attention(q, k_block, v_block, k, v, table, context_lens)
    got = attention(
        q,
        k_block,
        v_block,
        with_forbidden_pages(k, seen),
        with_forbidden_pages(v, seen),
        table,
        context_lens,
    )
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[1])


def test_helper_forbids() -> None:
    """The kernel refuses to read what the process itself may not."""
    cache = with_forbidden_pages(torch.zeros(4, PAGE_SIZE, HEADS, DIM), [1])
    libc = ctypes.CDLL(None, use_errno=True)
    reader, writer = os.pipe()
    try:
        for page in range(4):
            written = libc.write(writer, ctypes.c_void_p(cache[page].data_ptr()), ctypes.c_size_t(8))
            assert written == (8 if page == 1 else -1)
    finally:
        os.close(reader)
        os.close(writer)
