"""cvt: every pair of families, roundings, saturation, registers wider than the type."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.ptxsim.formats import bf16, bf16_to_float, f16_to_float
from tests.ptxsim.snippets import elementwise
from tests.ptxsim.test_float import SPECIAL, floats, nearest_half, rounded_f32, same, to_fraction
from tests.ptxsim.test_integer import DTYPES, exact, operands, wrap


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_integer_to_integer(source: str, target: str) -> None:
    a = operands(source)
    got = elementwise(f"cvt.{target}.{source} %d, %a;", [(source, a)], target, DTYPES[target])
    np.testing.assert_array_equal(got, wrap(exact(a), target))
    got = elementwise(f"cvt.sat.{target}.{source} %d, %a;", [(source, a)], target, DTYPES[target])
    limits = np.iinfo(DTYPES[target])
    assert got.tolist() == [min(max(int(v), limits.min), limits.max) for v in a]


def test_bytes_in_wider_registers() -> None:
    a = operands("u32")
    got = elementwise("cvt.s32.s8 %d, %a;", [("u32", a)], "s32", np.int32)
    np.testing.assert_array_equal(got, a.astype(np.int8))
    got = elementwise("cvt.u32.u8 %d, %a;", [("u32", a)], "u32", np.uint32)
    np.testing.assert_array_equal(got, a & 255)
    got = elementwise("cvt.s8.s32 %d, %a;", [("u32", a)], "s32", np.int32)
    np.testing.assert_array_equal(got, a.astype(np.int8))
    got = elementwise("cvt.sat.s8.s32 %d, %a;", [("s32", a.view(np.int32))], "s32", np.int32)
    np.testing.assert_array_equal(got, np.clip(a.view(np.int32), -128, 127))


@pytest.mark.parametrize("kind", DTYPES)
def test_float_to_integer_clamps_and_nan_is_zero(kind: str) -> None:
    a = np.concatenate(
        [floats(1), np.array([0.5, 1.5, 2.5, -0.5, -1.5, 3e9, -3e9, 1e19, 2.0**31, -(2.0**31)], np.float32)]
    )
    limits = np.iinfo(DTYPES[kind])
    pick: dict[str, Callable[[Any], int]] = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}
    for mode, rounding in pick.items():
        expected = []
        for value in a.tolist():
            if math.isnan(value):
                expected.append(0)
            elif math.isinf(value):
                expected.append(limits.max if value > 0 else limits.min)
            else:
                expected.append(min(max(rounding(Fraction(value)), limits.min), limits.max))
        got = elementwise(f"cvt.{mode}.{kind}.f32 %d, %a;", [("f32", a)], kind, DTYPES[kind])
        assert got.tolist() == expected, mode


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_integer_to_f32(kind: str, mode: str) -> None:
    a = operands(kind)
    got = elementwise(f"cvt.{mode}.f32.{kind} %d, %a;", [(kind, a)], "f32", np.float32)
    np.testing.assert_array_equal(got, np.array([rounded_f32(Fraction(int(v)), mode) for v in a], np.float32))


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_f32_to_half_and_back(kind: str) -> None:
    a = np.concatenate([floats(1), np.random.default_rng(0).uniform(-70000, 70000, 200).astype(np.float32)])
    read = f16_to_float if kind == "f16" else bf16_to_float
    got = elementwise(f"cvt.rn.{kind}.f32 %d, %a;", [("f32", a)], kind, np.uint16)
    finite = np.isfinite(a)
    for value, bits in zip(a[finite].tolist(), got[finite].tolist(), strict=True):
        assert to_fraction(bits, kind) == nearest_half(Fraction(value), kind)
    same(read(got)[~finite], a[~finite])
    halves = np.arange(2**16, dtype=np.uint16)
    same(elementwise(f"cvt.f32.{kind} %d, %a;", [(kind, halves)], "f32", np.float32), read(halves))
    zero = elementwise(f"cvt.rz.{kind}.f32 %d, %a;", [("f32", a[finite])], kind, np.uint16)
    assert (np.abs(read(zero)) <= np.abs(a[finite])).all()
    relu = elementwise(f"cvt.rn.relu.{kind}.f32 %d, %a;", [("f32", a)], kind, np.uint16)
    np.testing.assert_array_equal(read(relu)[finite], np.maximum(read(got)[finite], 0))


def test_packed_conversion_puts_the_first_operand_in_the_upper_half() -> None:
    a, b = floats(1), floats(2)
    got = elementwise("cvt.rn.bf16x2.f32 %d, %a, %b;", [("f32", a), ("f32", b)], "bf16x2", np.uint32)
    np.testing.assert_array_equal(got, bf16(a).astype(np.uint32) << 16 | bf16(b))
    got = elementwise("cvt.rn.f16x2.f32 %d, %a, %b;", [("f32", a), ("f32", b)], "f16x2", np.uint32)
    with np.errstate(over="ignore"):
        halves = [v.astype(np.float16) for v in (a, b)]
    same((got >> 16).astype(np.uint16).view(np.float16), halves[0])
    same((got & 0xFFFF).astype(np.uint16).view(np.float16), halves[1])


def test_tf32_rounds_half_away() -> None:
    a = np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-12, -1 - 2.0**-11, math.inf], np.float32)
    got = elementwise("cvt.rna.tf32.f32 %d, %a;", [("f32", a)], "f32", np.float32)
    np.testing.assert_array_equal(
        got, np.array([1 + 2.0**-10, 1 + 2 * 2.0**-10, 1, -1 - 2.0**-10, math.inf], np.float32)
    )


def test_between_f32_and_f64() -> None:
    rng = np.random.default_rng(0)
    wide = np.concatenate([rng.standard_normal(200), np.array([*SPECIAL, 1e300, -1e300, 1e-46])])
    with np.errstate(all="ignore"):
        same(elementwise("cvt.rn.f32.f64 %d, %a;", [("f64", wide)], "f32", np.float32), wide.astype(np.float32))
    down = elementwise("cvt.rm.f32.f64 %d, %a;", [("f64", wide[:200])], "f32", np.float32)
    np.testing.assert_array_equal(down, np.array([rounded_f32(Fraction(v), "rm") for v in wide[:200]], np.float32))
    a = floats(1)
    with np.errstate(invalid="ignore"):  # signalling NaN among the bit patterns
        same(elementwise("cvt.f64.f32 %d, %a;", [("f32", a)], "f64", np.float64), a.astype(np.float64))
    flushed = elementwise("cvt.ftz.f64.f32 %d, %a;", [("f32", np.float32(1e-45))], "f64", np.float64)
    assert flushed[0] == 0


def test_integral_roundings_and_saturation_of_f32() -> None:
    a = np.array([0.5, 1.5, -0.5, -1.5, 2.7, -2.7, math.nan, math.inf, 1e30], np.float32)
    for mode, function in {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}.items():
        same(elementwise(f"cvt.{mode}.f32.f32 %d, %a;", [("f32", a)], "f32", np.float32), function(a))
    got = elementwise("cvt.sat.f32.f32 %d, %a;", [("f32", a)], "f32", np.float32)
    np.testing.assert_array_equal(got, np.where(np.isnan(a), 0, np.clip(a, 0, 1)))
