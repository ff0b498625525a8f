"""Tensor maps for kernels on the interpreter: the twin of cuTensorMapEncodeTiled, with the same rules for its arguments."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

MAGIC = 0x50414D54
# In the order of kTypes in core/tensor_map.cpp; bytes of an element.
TYPES = {"u8": 1, "u16": 2, "u32": 4, "s32": 4, "u64": 8, "s64": 8, "f16": 2, "f32": 4, "f64": 8, "bf16": 2}
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}


@dataclass(frozen=True)
class TensorMap:
    """A tensor of 1 to 5 dimensions in global memory, and the box of it a copy moves.

    `sizes` and `box` are elements, innermost dimension first; `strides` are bytes of all dimensions but the innermost
    (default: packed). `swizzle` is 0, 32, 64 or 128 bytes. `fill`: what lies outside reads as zero or NaN.
    """

    dtype: str
    address: int
    sizes: Sequence[int]
    box: Sequence[int]
    strides: Sequence[int] | None = None
    swizzle: int = 0
    fill: str = "zero"
    element_strides: Sequence[int] = field(default_factory=lambda: (1, 1, 1, 1, 1))

    def __bytes__(self) -> bytes:
        """The 128-byte object to pass as a kernel parameter; raises ValueError where the driver refuses."""
        rank, size = len(self.sizes), TYPES[self.dtype]
        strides = self._packed_strides() if self.strides is None else list(self.strides)
        inner = self.box[0] * size
        rules = [
            (1 <= rank <= 5 and len(self.box) == rank and len(strides) == rank - 1, "1 to 5 dimensions, box alike"),
            (self.address % 16 == 0, "an address that is a multiple of 16"),
            (all(0 < n <= 2**32 for n in self.sizes), "sizes from 1 to 2^32"),
            (all(n % 16 == 0 and 0 < n < 2**40 for n in strides), "strides that are multiples of 16 below 2^40"),
            (all(0 < n <= 256 for n in self.box), "box sizes from 1 to 256"),
            (all(0 < n <= 8 for n in self.element_strides), "element strides from 1 to 8"),
            (inner % 16 == 0, "an inner box size of a multiple of 16 bytes"),
            # The driver takes a narrower box too, but how its rows lie in shared memory is not modelled.
            (self.swizzle == 0 or inner == self.swizzle, "an inner box as wide as the swizzle"),
            (self.fill == "zero" or self.dtype in ("f16", "f32", "f64", "bf16"), "a float type for NaN fill"),
        ]
        for holds, expected in rules:
            if not holds:
                raise ValueError(f"tensor map: expected {expected}, got {self}")
        kind = list(TYPES).index(self.dtype)
        head = struct.pack("<IBBBBQ", MAGIC, kind, rank, SWIZZLES[self.swizzle], self.fill == "nan", self.address)
        body = struct.pack("<5Q4Q", *_five(self.sizes, 1), *_five(strides, 0)[:4])
        tail = struct.pack("<5H5B", *_five(self.box, 1), *_five(self.element_strides, 1))
        return (head + body + tail).ljust(128, b"\0")

    def _packed_strides(self) -> list[int]:
        strides, stride = [], TYPES[self.dtype]
        for size in self.sizes[:-1]:
            stride *= size
            strides.append(stride)
        return strides


def _five(values: Sequence[int], otherwise: int) -> list[int]:
    return [*values, *[otherwise] * (5 - len(values))]
