"""Operands that end where the process's memory ends: a read past them, even one whose result is dropped, is fatal."""

import ctypes
import mmap

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
