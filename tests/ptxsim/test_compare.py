"""setp, set and testp."""

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.ptxsim.formats import bf16_to_float, f16_to_float
from tests.ptxsim.snippets import elementwise
from tests.ptxsim.test_float import floats, half_operands
from tests.ptxsim.test_integer import DTYPES, operands

ORDERED: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


@pytest.mark.parametrize("kind", DTYPES)
def test_integers(kind: str) -> None:
    a, b = operands(kind, seed=1), operands(kind, seed=2)
    b[::3] = a[::3]
    names = {**ORDERED, "ne": operator.ne}
    if kind[0] == "u":
        names |= {"lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge}
    for name, function in names.items():
        body = f"setp.{name}.{kind} %p, %a, %b; selp.u32 %d, 1, 0, %p;"
        got = elementwise(body, [(kind, a), (kind, b)], "u32", np.uint32)
        np.testing.assert_array_equal(got, function(a, b), name)


@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "bf16"])
def test_floats_ordered_and_unordered(kind: str) -> None:
    if kind in ("f32", "f64"):
        a, b = floats(1), floats(2)
        with np.errstate(invalid="ignore"):  # signalling NaN among the bit patterns
            x, y = a.astype(np.float64), b.astype(np.float64)
        if kind == "f64":
            a, b = x, y
    else:
        a, b = half_operands(kind, 1), half_operands(kind, 2)
        read = f16_to_float if kind == "f16" else bf16_to_float
        x, y = read(a), read(b)
    unordered = np.isnan(x) | np.isnan(y)
    cases = {name: function(x, y) for name, function in ORDERED.items()}
    cases["ne"] = (x != y) & ~unordered
    cases |= {f"{name}u": value | unordered for name, value in list(cases.items())}
    cases |= {"num": ~unordered, "nan": unordered}
    for name, expected in cases.items():
        body = f"setp.{name}.{kind} %p, %a, %b; selp.u32 %d, 1, 0, %p;"
        got = elementwise(body, [(kind, a), (kind, b)], "u32", np.uint32)
        np.testing.assert_array_equal(got, expected, name)


def test_flushing_makes_subnormals_equal_zero() -> None:
    a = np.array([1e-45, -1e-45, 1e-30], np.float32)
    got = elementwise("setp.eq.ftz.f32 %p, %a, 0f00000000; selp.u32 %d, 1, 0, %p;", [("f32", a)], "u32", np.uint32)
    np.testing.assert_array_equal(got, [1, 1, 0])


@pytest.mark.parametrize("combine", ["and", "or", "xor"])
def test_combination_and_second_predicate(combine: str) -> None:
    a, b = operands("s32", seed=1), operands("s32", seed=2)
    function = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}[combine]
    body = (
        ".reg .pred %r; .reg .b32 %x, %y; setp.gt.s32 %r, %a, 0;"
        f"setp.lt.{combine}.s32 %p|%q, %a, %b, !%r; selp.u32 %x, 1, 0, %p; selp.u32 %y, 2, 0, %q; or.b32 %d, %x, %y;"
    )
    got = elementwise(body, [("s32", a), ("s32", b)], "u32", np.uint32)
    np.testing.assert_array_equal(got & 1, function(a < b, a <= 0))
    np.testing.assert_array_equal(got >> 1, function(a >= b, a <= 0))


def test_set_gives_ones_or_one() -> None:
    a = np.array([1, 2, math.nan], np.float32)
    got = elementwise("set.lt.u32.f32 %d, %a, 0f40000000;", [("f32", a)], "u32", np.uint32)
    np.testing.assert_array_equal(got, [0xFFFFFFFF, 0, 0])
    values = elementwise("set.ltu.f32.f32 %d, %a, 0f40000000;", [("f32", a)], "f32", np.float32)
    np.testing.assert_array_equal(values, [1, 0, 1])
    packed = np.array([0x3C004000], np.uint32)  # halves 1.0 (upper) and 2.0
    got = elementwise(
        "set.gt.f16x2.f16x2 %d, %a, %b;", [("f16x2", packed), ("f16x2", np.uint32(0x3E003E00))], "f16x2", np.uint32
    )
    assert got[0] == 0x00003C00


def test_classes() -> None:
    a = np.array([math.nan, math.inf, 0, 1e-45, 1, -2], np.float32)
    cases = {
        "finite": [0, 0, 1, 1, 1, 1],
        "infinite": [0, 1, 0, 0, 0, 0],
        "number": [0, 1, 1, 1, 1, 1],
        "notanumber": [1, 0, 0, 0, 0, 0],
        "normal": [0, 0, 0, 0, 1, 1],
        "subnormal": [0, 0, 0, 1, 0, 0],
    }
    for name, expected in cases.items():
        body = f"testp.{name}.f32 %p, %a; selp.u32 %d, 1, 0, %p;"
        np.testing.assert_array_equal(elementwise(body, [("f32", a)], "u32", np.uint32), expected, name)
