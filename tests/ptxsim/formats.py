"""16-bit floats as numpy uint16 arrays, which is how kernels' half-precision buffers are passed to the interpreter."""

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray


def bf16(values: Any) -> Array:
    """Rounds to bfloat16 (nearest even); NaN stays NaN."""
    single = np.asarray(values, np.float32)
    bits = single.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(single), np.uint16(0x7FFF), rounded)


def bf16_to_float(bits: Array) -> Array:
    """float32 values of bfloat16 bits."""
    return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32)


def f16(values: Any) -> Array:
    """Rounds to IEEE half precision (nearest even)."""
    with np.errstate(over="ignore"):
        return np.asarray(values, np.float32).astype(np.float16).view(np.uint16)


def f16_to_float(bits: Array) -> Array:
    """float32 values of half-precision bits."""
    return np.asarray(bits, np.uint16).view(np.float16).astype(np.float32)
