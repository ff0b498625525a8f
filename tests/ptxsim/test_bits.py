"""Logic, shifts, bit fields, counts and permutations."""

import numpy as np
import pytest

from tests.ptxsim.formats import Array
from tests.ptxsim.snippets import elementwise
from tests.ptxsim.test_integer import DTYPES, exact, operands, wrap


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_logic(bits: int) -> None:
    kind = f"u{bits}"
    a, b = operands(kind, seed=1), operands(kind, seed=2)
    cases = {
        f"and.b{bits} %d, %a, %b;": a & b,
        f"or.b{bits} %d, %a, %b;": a | b,
        f"xor.b{bits} %d, %a, %b;": a ^ b,
        f"not.b{bits} %d, %a;": ~a,
        f"cnot.b{bits} %d, %a;": (a == 0).astype(a.dtype),
    }
    for body, expected in cases.items():
        np.testing.assert_array_equal(elementwise(body, [(kind, a), (kind, b)], kind, a.dtype), expected, body)


@pytest.mark.parametrize("kind", DTYPES)
def test_shifts_past_the_width(kind: str) -> None:
    bits = np.iinfo(DTYPES[kind]).bits
    a = operands(kind)
    for amount in (0, 1, 7, bits - 1, bits, bits + 1, 255, 2**31):
        pair = [(kind, a), ("u32", np.uint32(amount))]
        got = elementwise(f"shl.b{bits} %d, %a, %b;", pair, kind, DTYPES[kind])
        np.testing.assert_array_equal(got, wrap(exact(a) << min(amount, bits), kind))
        got = elementwise(f"shr.{kind} %d, %a, %b;", pair, kind, DTYPES[kind])
        np.testing.assert_array_equal(got, wrap(exact(a) >> min(amount, bits), kind))


def test_funnel_shifts() -> None:
    low, high = operands("u32", seed=1), operands("u32", seed=2)
    amount = np.random.default_rng(3).integers(0, 70, low.size).astype(np.uint32)
    both = exact(high) << 32 | exact(low)
    for mode, shift in {"wrap": amount % 32, "clamp": np.minimum(amount, 32)}.items():
        inputs = [("u32", low), ("u32", high), ("u32", amount)]
        n = exact(shift)
        got = elementwise(f"shf.l.{mode}.b32 %d, %a, %b, %c;", inputs, "u32", np.uint32)
        np.testing.assert_array_equal(got, wrap((both << n) >> 32, "u32"))
        got = elementwise(f"shf.r.{mode}.b32 %d, %a, %b, %c;", inputs, "u32", np.uint32)
        np.testing.assert_array_equal(got, wrap(both >> n, "u32"))


def field(value: int, start: int, size: int, bits: int, signed: bool) -> int:
    """bfe by the PTX ISA's own words, bit by bit."""
    sign = (value >> min(start + size - 1, bits - 1)) & 1 if signed and size else 0
    result = 0
    for i in range(bits):
        bit = (value >> (start + i)) & 1 if i < size and start + i < bits else sign
        result |= bit << i
    return result


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bit_fields(kind: str) -> None:
    bits = np.iinfo(DTYPES[kind]).bits
    a, b = operands(kind, seed=1), operands(kind, seed=2)
    rng = np.random.default_rng(3)
    start, size = (rng.integers(0, 80, a.size).astype(np.uint32) for _ in range(2))
    columns = list(zip(exact(a), exact(b), exact(start), exact(size), strict=True))
    expected = np.array([field(x % 2**bits, s, n, bits, kind[0] == "s") for x, _, s, n in columns], object)
    got = elementwise(f"bfe.{kind} %d, %a, %b, %c;", [(kind, a), ("u32", start), ("u32", size)], kind, DTYPES[kind])
    np.testing.assert_array_equal(got, wrap(expected, kind))
    inserted = []
    for x, y, s, n in columns:
        mask = (((1 << n) - 1) << s) % 2**bits
        inserted.append((y % 2**bits & ~mask) | ((x % 2**bits << s) & mask))
    inputs = [(kind, a), (kind, b), ("u32", start), ("u32", size)]
    got = elementwise(f"bfi.b{bits} %d, %a, %b, %c, %e;", inputs, kind, DTYPES[kind])
    np.testing.assert_array_equal(got, wrap(np.array(inserted, object), kind))


@pytest.mark.parametrize("bits", [32, 64])
def test_counts_and_reversal(bits: int) -> None:
    kind = f"u{bits}"
    a = operands(kind)
    x = [int(v) for v in a]
    cases = {
        f"popc.b{bits} %d, %a;": [v.bit_count() for v in x],
        f"clz.b{bits} %d, %a;": [bits - v.bit_length() for v in x],
        f"bfind.u{bits} %d, %a;": [v.bit_length() - 1 if v else 2**32 - 1 for v in x],
        f"bfind.shiftamt.u{bits} %d, %a;": [bits - v.bit_length() if v else 2**32 - 1 for v in x],
    }
    for body, expected in cases.items():
        np.testing.assert_array_equal(
            elementwise(body, [(kind, a)], "u32", np.uint32), np.array(expected, np.uint32), body
        )
    reversed_bits = np.array([int(f"{v:0{bits}b}"[::-1], 2) for v in x], object)
    got = elementwise(f"brev.b{bits} %d, %a;", [(kind, a)], kind, DTYPES[kind])
    np.testing.assert_array_equal(got, wrap(reversed_bits, kind))


def test_bfind_of_negative_numbers_looks_for_a_zero() -> None:
    a = np.array([-1, -2, 5, -128, 0], np.int32)
    got = elementwise("bfind.s32 %d, %a;", [("s32", a)], "u32", np.uint32)
    np.testing.assert_array_equal(got, np.array([2**32 - 1, 0, 2, 6, 2**32 - 1], np.uint32))


@pytest.mark.parametrize("table", [0xF0, 0xCC, 0xAA, 0x80, 0x96, 0x1B, 0xE8])
def test_lop3(table: int) -> None:
    a, b, c = (operands("u32", seed=s) for s in range(3))
    expected = np.zeros_like(a)
    for index in range(8):
        if table >> index & 1:
            term = [v if index >> k & 1 else ~v for k, v in ((2, a), (1, b), (0, c))]
            expected |= term[0] & term[1] & term[2]
    got = elementwise(f"lop3.b32 %d, %a, %b, %c, {table};", [("u32", v) for v in (a, b, c)], "u32", np.uint32)
    np.testing.assert_array_equal(got, expected)


def bytes_of(a: int, b: int) -> list[int]:
    """The eight bytes prmt chooses from."""
    return list((b << 32 | a).to_bytes(8, "little"))


def test_prmt() -> None:
    a, b, s = (operands("u32", seed=k) for k in range(3))
    tables = {
        "f4e": [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]],
        "b4e": [[0, 7, 6, 5], [1, 0, 7, 6], [2, 1, 0, 7], [3, 2, 1, 0]],
        "rc8": [[0] * 4, [1] * 4, [2] * 4, [3] * 4],
        "ecl": [[0, 1, 2, 3], [1, 1, 2, 3], [2, 2, 2, 3], [3, 3, 3, 3]],
        "ecr": [[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 2, 2], [0, 1, 2, 3]],
        "rc16": [[0, 1, 0, 1], [2, 3, 2, 3], [0, 1, 0, 1], [2, 3, 2, 3]],
    }
    columns = list(zip(exact(a), exact(b), exact(s), strict=True))
    inputs = [("u32", a), ("u32", b), ("u32", s)]
    for mode, table in tables.items():
        expected = [int.from_bytes(bytes(bytes_of(x, y)[i] for i in table[z & 3]), "little") for x, y, z in columns]
        got = elementwise(f"prmt.b32.{mode} %d, %a, %b, %c;", inputs, "u32", np.uint32)
        np.testing.assert_array_equal(got, np.array(expected, np.uint32), mode)

    def pick(x: int, y: int, nibble: int) -> int:
        byte = bytes_of(x, y)[nibble & 7]
        return byte if nibble < 8 else (255 if byte & 128 else 0)

    expected = [int.from_bytes(bytes(pick(x, y, z >> 4 * i & 15) for i in range(4)), "little") for x, y, z in columns]
    got = elementwise("prmt.b32 %d, %a, %b, %c;", inputs, "u32", np.uint32)
    np.testing.assert_array_equal(got, np.array(expected, np.uint32))


def test_packing_moves() -> None:
    a, b = operands("u16", seed=1), operands("u16", seed=2)
    got = elementwise("mov.b32 %d, {%a, %b};", [("u16", a), ("u16", b)], "u32", np.uint32)
    np.testing.assert_array_equal(got, a.astype(np.uint32) | b.astype(np.uint32) << 16)
    wide = operands("u64")
    halves = ".reg .b32 %lo, %hi; mov.b64 {%lo, %hi}, %a; mov.b64 %d, {%hi, %lo};"
    swapped: Array = wide.view(np.uint32).reshape(-1, 2)[:, ::-1].copy().view(np.uint64).ravel()
    np.testing.assert_array_equal(elementwise(halves, [("u64", wide)], "u64", np.uint64), swapped)
    sink = ".reg .b32 %hi; mov.b64 {_, %hi}, %a; cvt.u64.u32 %d, %hi;"
    np.testing.assert_array_equal(elementwise(sink, [("u64", wide)], "u64", np.uint64), wide >> np.uint64(32))


def test_selections() -> None:
    a, b = operands("s32", seed=1), operands("s32", seed=2)
    got = elementwise("setp.lt.s32 %p, %a, %b; selp.s32 %d, %a, %b, %p;", [("s32", a), ("s32", b)], "s32", np.int32)
    np.testing.assert_array_equal(got, np.minimum(a, b))
    got = elementwise("slct.s32.s32 %d, %a, %b, %a;", [("s32", a), ("s32", b)], "s32", np.int32)
    np.testing.assert_array_equal(got, np.where(a >= 0, a, b))
