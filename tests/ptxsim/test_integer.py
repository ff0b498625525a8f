"""Integer arithmetic against Python's and numpy's own."""

import numpy as np
import pytest

from tests.ptxsim.formats import Array
from tests.ptxsim.snippets import elementwise

DTYPES = {"u16": np.uint16, "s16": np.int16, "u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64}


def operands(kind: str, count: int = 300, seed: int = 0) -> Array:
    """Random values with every bit length, and the extremes."""
    rng = np.random.default_rng(seed)
    info = np.iinfo(DTYPES[kind])
    lengths = rng.integers(1, info.bits + 1, count)
    values = [int(rng.integers(0, 2**62)) * 4 + int(rng.integers(0, 4)) for _ in range(count)]
    cut = [value % 2 ** int(length) for value, length in zip(values, lengths, strict=True)]
    edges = [0, 1, 2, info.max, info.max - 1, info.min, info.min + 1]
    return wrap(np.array(edges + cut, object), kind)


def wrap(values: Array, kind: str) -> Array:
    """Python integers modulo the type."""
    info = np.iinfo(DTYPES[kind])
    return np.array([(int(v) - info.min) % 2**info.bits + info.min for v in np.atleast_1d(values)], DTYPES[kind])


def exact(array: Array) -> Array:
    """The same as Python integers, which never overflow."""
    return np.array([int(v) for v in array], object)


def truncated(a: int, b: int) -> int:
    """Division that rounds towards zero."""
    return -(-a // b) if (a < 0) != (b < 0) else a // b


@pytest.mark.parametrize("kind", DTYPES)
def test_sums_products_and_extremes(kind: str) -> None:
    a, b, c = operands(kind, seed=1), operands(kind, seed=2), operands(kind, seed=3)
    x, y, z = exact(a), exact(b), exact(c)
    bits = np.iinfo(DTYPES[kind]).bits
    two, three = [(kind, a), (kind, b)], [(kind, a), (kind, b), (kind, c)]
    cases = {
        f"add.{kind} %d, %a, %b;": x + y,
        f"sub.{kind} %d, %a, %b;": x - y,
        f"mul.lo.{kind} %d, %a, %b;": x * y,
        f"mul.hi.{kind} %d, %a, %b;": (x * y) >> bits,
        f"min.{kind} %d, %a, %b;": np.minimum(x, y),
        f"max.{kind} %d, %a, %b;": np.maximum(x, y),
    }
    for body, expected in cases.items():
        np.testing.assert_array_equal(elementwise(body, two, kind, DTYPES[kind]), wrap(expected, kind), body)
    cases = {
        f"mad.lo.{kind} %d, %a, %b, %c;": x * y + z,
        f"mad.hi.{kind} %d, %a, %b, %c;": ((x * y) >> bits) + z,
        f"sad.{kind} %d, %a, %b, %c;": abs(x - y) + z,
    }
    for body, expected in cases.items():
        np.testing.assert_array_equal(elementwise(body, three, kind, DTYPES[kind]), wrap(expected, kind), body)


@pytest.mark.parametrize("kind", DTYPES)
def test_division_truncates(kind: str) -> None:
    a, b = operands(kind, seed=1), operands(kind, seed=2)
    b[b == 0] = 7
    quotients = np.array([truncated(int(x), int(y)) for x, y in zip(a, b, strict=True)], object)
    pair = [(kind, a), (kind, b)]
    np.testing.assert_array_equal(
        elementwise(f"div.{kind} %d, %a, %b;", pair, kind, DTYPES[kind]), wrap(quotients, kind)
    )
    rest = exact(a) - quotients * exact(b)
    np.testing.assert_array_equal(elementwise(f"rem.{kind} %d, %a, %b;", pair, kind, DTYPES[kind]), wrap(rest, kind))


@pytest.mark.parametrize(("kind", "wide"), [("u16", "u32"), ("s16", "s32"), ("u32", "u64"), ("s32", "s64")])
def test_wide_products(kind: str, wide: str) -> None:
    a, b, c = operands(kind, seed=1), operands(kind, seed=2), operands(wide, seed=3)
    x, y, z = exact(a), exact(b), exact(c)
    got = elementwise(f"mul.wide.{kind} %d, %a, %b;", [(kind, a), (kind, b)], wide, DTYPES[wide])
    np.testing.assert_array_equal(got, wrap(x * y, wide))
    got = elementwise(f"mad.wide.{kind} %d, %a, %b, %c;", [(kind, a), (kind, b), (wide, c)], wide, DTYPES[wide])
    np.testing.assert_array_equal(got, wrap(x * y + z, wide))


@pytest.mark.parametrize("bits", [32, 64])
def test_carry_chains(bits: int) -> None:
    kind = f"u{bits}"
    a, b, c = operands(kind, seed=1), operands(kind, seed=2), operands(kind, seed=3)
    x, y, z = exact(a), exact(b), exact(c)
    carries = {
        f"add.cc.{kind} %d, %a, %b; addc.{kind} %d, %c, 0;": z + ((x + y) >> bits),
        f"sub.cc.{kind} %d, %a, %b; subc.{kind} %d, %c, 0;": z - (x < y),
        f"mad.lo.cc.{kind} %d, %a, %b, %c; madc.hi.{kind} %d, %a, %b, 0;": (x * y + z) >> bits,
        f"add.cc.{kind} %d, %a, %b; addc.cc.{kind} %d, %a, %b; addc.{kind} %d, 0, 0;": (x + y + ((x + y) >> bits))
        >> bits,
    }
    for body, expected in carries.items():
        got = elementwise(body, [(kind, a), (kind, b), (kind, c)], kind, DTYPES[kind])
        np.testing.assert_array_equal(got, wrap(expected, kind), body)


def test_saturating_sums() -> None:
    a, b = operands("s32", seed=1), operands("s32", seed=2)
    limits = np.iinfo(np.int32)
    for opcode, expected in {"add": exact(a) + exact(b), "sub": exact(a) - exact(b)}.items():
        got = elementwise(f"{opcode}.sat.s32 %d, %a, %b;", [("s32", a), ("s32", b)], "s32", np.int32)
        np.testing.assert_array_equal(got, np.clip(expected, limits.min, limits.max).astype(np.int64))


def test_absolute_and_negated() -> None:
    for kind in ("s16", "s32", "s64"):
        a = operands(kind)
        for opcode, expected in {"abs": abs(exact(a)), "neg": -exact(a)}.items():
            got = elementwise(f"{opcode}.{kind} %d, %a;", [(kind, a)], kind, DTYPES[kind])
            np.testing.assert_array_equal(got, wrap(expected, kind))


def test_dot_products() -> None:
    a, b, c = operands("u32", seed=1), operands("u32", seed=2), operands("s32", seed=3)
    x = a.view(np.int8).reshape(-1, 4).astype(object)
    y = b.view(np.uint8).reshape(-1, 4).astype(object)
    got = elementwise("dp4a.s32.u32 %d, %a, %b, %c;", [("u32", a), ("u32", b), ("s32", c)], "s32", np.int32)
    np.testing.assert_array_equal(got, wrap((x * y).sum(1) + exact(c), "s32"))
    halves = a.view(np.int16).reshape(-1, 2).astype(object)
    got = elementwise("dp2a.hi.s32.u32 %d, %a, %b, %c;", [("u32", a), ("u32", b), ("s32", c)], "s32", np.int32)
    np.testing.assert_array_equal(got, wrap((halves * y[:, 2:]).sum(1) + exact(c), "s32"))
