"""Operands that end where the process's memory ends: a read past them, even one whose result is dropped, is fatal."""

import ctypes
import mmap
from collections.abc import Sequence

from torch import Tensor, frombuffer


def before_forbidden_memory(values: Tensor) -> Tensor:
    """A copy whose last element is followed by a page that the process may not touch."""
    size = values.numel() * values.element_size()
    pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, pages + mmap.PAGESIZE)
    forbidden = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + pages
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(forbidden), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    copy = frombuffer(memory, dtype=values.dtype, count=values.numel(), offset=pages - size).view(values.shape)
    return copy.copy_(values)


def with_forbidden_pages(cache: Tensor, allowed: Sequence[int]) -> Tensor:
    """A copy [pages, ...] of which only the pages `allowed` may be touched; a page fills whole pages of memory."""
    size = cache[0].numel() * cache.element_size()
    assert size % mmap.PAGESIZE == 0
    memory = mmap.mmap(-1, size * len(cache))
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    copy = frombuffer(memory, dtype=cache.dtype, count=cache.numel()).view(cache.shape)
    copy.copy_(cache)
    for page in set(range(len(cache))) - set(allowed):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + page * size), ctypes.c_size_t(size), 0) == 0
    return copy
