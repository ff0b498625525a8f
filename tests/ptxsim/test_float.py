"""f32, f64, f16 and bf16 arithmetic: values, roundings, NaN, infinities, subnormals, flushing."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.ptxsim.formats import Array, bf16_to_float, f16_to_float
from tests.ptxsim.snippets import elementwise

SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    math.inf,
    -math.inf,
    math.nan,
    1e-45,
    -1e-45,
    1e-38,
    1.1754944e-38,
    3.4e38,
    -3.4e38,
    0.5,
    2.0,
]


def floats(seed: int, count: int = 400) -> Array:
    """f32 operands: random bit patterns, numbers of moderate size, and every pair of special values."""
    rng = np.random.default_rng(seed)
    grid = np.array(SPECIAL, np.float32)
    pairs = np.repeat(grid, grid.size) if seed % 2 else np.tile(grid, grid.size)
    bits = rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    return np.concatenate([pairs, bits, rng.standard_normal(count).astype(np.float32)])


def same(got: Array, expected: Array, note: str = "") -> None:
    """Equal values, equal signs of zeros, NaN where NaN."""
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(got), nan, note)
    np.testing.assert_array_equal(np.where(nan, 0, got), np.where(nan, 0, expected), note)
    np.testing.assert_array_equal(np.signbit(got)[~nan], np.signbit(expected)[~nan], note)


def flush(values: Array) -> Array:
    """Subnormals become zeros of their sign."""
    return np.where(np.abs(values) < np.float32(2.0**-126), np.copysign(np.float32(0), values), values)


@pytest.mark.parametrize("ftz", [False, True])
def test_f32_sums_products_quotients(ftz: bool) -> None:
    a, b = floats(1), floats(2)
    dot = ".ftz" if ftz else ""
    maybe: Callable[[Array], Array] = flush if ftz else lambda v: v
    x, y = maybe(a), maybe(b)
    with np.errstate(all="ignore"):
        cases = {
            f"add.rn{dot}.f32": x + y,
            f"sub{dot}.f32": x - y,
            f"mul.rn{dot}.f32": x * y,
            f"div.rn{dot}.f32": x / y,
        }
    for opcode, expected in cases.items():
        got = elementwise(f"{opcode} %d, %a, %b;", [("f32", a), ("f32", b)], "f32", np.float32)
        same(got, maybe(expected), opcode)
        assert set(got.view(np.uint32)[np.isnan(got)]) <= {0x7FFFFFFF}


def rounded_f32(value: Fraction, mode: str) -> float:
    """The f32 nearest to an exact value in a direction (no overflow, no subnormals)."""
    if value == 0:
        return 0.0
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length() - 24
    scaled = value / Fraction(2) ** exponent
    while abs(scaled) >= 2**24:
        exponent += 1
        scaled = value / Fraction(2) ** exponent
    roundings: dict[str, Callable[[Any], int]] = {"rn": round, "rz": math.trunc, "rm": math.floor, "rp": math.ceil}
    return float(Fraction(roundings[mode](scaled)) * Fraction(2) ** exponent)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_f32_directed_roundings(mode: str) -> None:
    rng = np.random.default_rng(5)
    a, b, c = (rng.standard_normal(300).astype(np.float32) for _ in range(3))
    x, y, z = ([Fraction(float(v)) for v in values] for values in (a, b, c))
    exact = {
        "add": [p + q for p, q in zip(x, y, strict=True)],
        "mul": [p * q for p, q in zip(x, y, strict=True)],
        "div": [p / q for p, q in zip(x, y, strict=True)],
    }
    for opcode, values in exact.items():
        got = elementwise(f"{opcode}.{mode}.f32 %d, %a, %b;", [("f32", a), ("f32", b)], "f32", np.float32)
        np.testing.assert_array_equal(got, np.array([rounded_f32(v, mode) for v in values], np.float32), opcode)
    sums = [p * q + r for p, q, r in zip(x, y, z, strict=True)]
    got = elementwise(f"fma.{mode}.f32 %d, %a, %b, %c;", [("f32", v) for v in (a, b, c)], "f32", np.float32)
    np.testing.assert_array_equal(got, np.array([rounded_f32(v, mode) for v in sums], np.float32))


def test_a_product_and_a_sum_are_not_contracted() -> None:
    a = np.float32(1 + 2.0**-12)
    got = elementwise("mul.f32 %d, %a, %a; sub.f32 %d, %d, %b;", [("f32", a), ("f32", a * a)], "f32", np.float32)
    assert got[0] == 0


def test_saturation_takes_nan_to_zero() -> None:
    a = np.array([math.nan, -1, 0.25, 2, math.inf, -math.inf], np.float32)
    got = elementwise("add.sat.f32 %d, %a, 0f00000000;", [("f32", a)], "f32", np.float32)
    np.testing.assert_array_equal(got, np.array([0, 0, 0.25, 1, 1, 0], np.float32))


def test_extrema() -> None:
    a, b = floats(1), floats(2)
    inputs = [("f32", a), ("f32", b)]
    nan = np.isnan(a) | np.isnan(b)
    larger = np.where(a == b, np.where(np.signbit(a), b, a), np.fmax(a, b))
    smaller = np.where(a == b, np.where(np.signbit(a), a, b), np.fmin(a, b))
    same(elementwise("max.f32 %d, %a, %b;", inputs, "f32", np.float32), larger)
    same(elementwise("min.f32 %d, %a, %b;", inputs, "f32", np.float32), smaller)
    same(elementwise("max.NaN.f32 %d, %a, %b;", inputs, "f32", np.float32), np.where(nan, np.float32("nan"), larger))
    same(elementwise("max.ftz.f32 %d, %a, %b;", inputs, "f32", np.float32), flush(larger))
    xorsign = elementwise("min.xorsign.abs.f32 %d, %a, %b;", inputs, "f32", np.float32)
    magnitude = np.fmin(np.abs(a), np.abs(b))
    sign = np.where(np.signbit(a) != np.signbit(b), np.float32(-1), np.float32(1))
    same(xorsign, np.copysign(magnitude, sign))


def test_sign_operations() -> None:
    a, b = floats(1), floats(2)
    same(elementwise("neg.f32 %d, %a;", [("f32", a)], "f32", np.float32), -a)
    same(elementwise("abs.f32 %d, %a;", [("f32", a)], "f32", np.float32), np.abs(a))
    same(elementwise("abs.ftz.f32 %d, %a;", [("f32", a)], "f32", np.float32), np.abs(flush(a)))
    same(elementwise("copysign.f32 %d, %a, %b;", [("f32", a), ("f32", b)], "f32", np.float32), np.copysign(b, a))


@pytest.mark.parametrize(
    ("opcode", "function"),
    [
        ("ex2.approx", np.exp2),
        ("lg2.approx", np.log2),
        ("rcp.approx", lambda v: 1 / v),
        ("rsqrt.approx", lambda v: 1 / np.sqrt(v)),
        ("sqrt.approx", np.sqrt),
        ("sqrt.rn", np.sqrt),
        ("rcp.rn", lambda v: 1 / v),
        ("sin.approx", np.sin),
        ("cos.approx", np.cos),
        ("tanh.approx", np.tanh),
    ],
)
def test_functions_of_one_number(opcode: str, function: Callable[[Any], Any]) -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([np.array([*SPECIAL, 127.5, -126.5, -149.0, 128.0]), rng.uniform(-6, 6, 300)])
    a = values.astype(np.float32)
    got = elementwise(f"{opcode}.f32 %d, %a;", [("f32", a)], "f32", np.float32)
    with np.errstate(all="ignore"):
        expected = function(a.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(got, expected, rtol=3e-7, atol=1e-44)


def test_f64() -> None:
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(100) for _ in range(3))
    pair = [("f64", a), ("f64", b)]
    np.testing.assert_array_equal(elementwise("add.f64 %d, %a, %b;", pair, "f64", np.float64), a + b)
    np.testing.assert_array_equal(elementwise("div.rn.f64 %d, %a, %b;", pair, "f64", np.float64), a / b)
    np.testing.assert_array_equal(elementwise("max.f64 %d, %a, %b;", pair, "f64", np.float64), np.maximum(a, b))
    got = elementwise("fma.rn.f64 %d, %a, %b, %c;", [*pair, ("f64", c)], "f64", np.float64)
    exact = [float(Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in zip(a, b, c, strict=True)]
    np.testing.assert_array_equal(got, exact)
    np.testing.assert_array_equal(
        elementwise("mul.f64 %d, %a, 0d4000000000000000;", [("f64", a)], "f64", np.float64), 2 * a
    )


# ---- Halves: all roundings go through exact fractions


def to_fraction(bits: int, kind: str) -> Fraction | float:
    """The exact value of a half, or a float for infinities and NaN."""
    exponent_bits, mantissa = (5, 10) if kind == "f16" else (8, 7)
    exponent = bits >> mantissa & (2**exponent_bits - 1)
    rest = bits & (2**mantissa - 1)
    sign = -1 if bits >> 15 else 1
    if exponent == 2**exponent_bits - 1:
        return math.nan if rest else sign * math.inf
    bias = 2 ** (exponent_bits - 1) - 1
    if exponent == 0:
        return sign * Fraction(rest) * Fraction(2) ** (1 - bias - mantissa)
    return sign * Fraction(rest + 2**mantissa) * Fraction(2) ** (exponent - bias - mantissa)


def nearest_half(value: Fraction, kind: str) -> Fraction | float:
    """Round to nearest even, from the exact value."""
    exponent_bits, mantissa = (5, 10) if kind == "f16" else (8, 7)
    bias = 2 ** (exponent_bits - 1) - 1
    if value == 0:
        return Fraction(0)
    exponent = max(abs(value.numerator).bit_length() - value.denominator.bit_length() - 1, 1 - bias)
    while abs(value) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** (exponent - mantissa)
    result = round(value / unit) * unit
    if abs(result) >= Fraction(2) ** (bias + 1):
        return math.copysign(math.inf, result)
    return result


def half_operands(kind: str, seed: int, count: int = 600) -> Array:
    """Bit patterns: random ones, numbers near one, zeros, infinities, NaN, subnormals."""
    rng = np.random.default_rng(seed)
    one = 0x3C00 if kind == "f16" else 0x3F80
    infinity = 0x7C00 if kind == "f16" else 0x7F80
    edges = np.array(
        [0, 0x8000, one, one | 0x8000, infinity, infinity | 0x8000, 0x7FFF, 1, 0x8001, infinity - 1], np.uint16
    )
    edges = np.repeat(edges, edges.size) if seed % 2 else np.tile(edges, edges.size)
    near = (one + rng.integers(-300, 300, count)).astype(np.uint16)
    return np.concatenate([edges, rng.integers(0, 2**16, count).astype(np.uint16), near])


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_half_arithmetic_rounds_once(kind: str) -> None:
    a, b, c = (half_operands(kind, seed) for seed in (1, 2, 3))
    operations: dict[str, Callable[[Any, Any, Any], Any]] = {
        "add.rn": lambda x, y, z: x + y,
        "sub.rn": lambda x, y, z: x - y,
        "mul.rn": lambda x, y, z: x * y,
        "fma.rn": lambda x, y, z: x * y + z,
    }
    read = f16_to_float if kind == "f16" else bf16_to_float
    for opcode, operation in operations.items():
        inputs = [(kind, a), (kind, b), (kind, c)]
        sources = "%a, %b, %c" if opcode == "fma.rn" else "%a, %b"
        got = elementwise(f"{opcode}.{kind} %d, {sources};", inputs, kind, np.uint16)
        third = c if opcode == "fma.rn" else np.zeros_like(c)
        for bits, x, y, z in zip(got, a, b, third, strict=True):
            values = [to_fraction(int(v), kind) for v in (x, y, z)]
            if all(isinstance(v, Fraction) for v in values):
                assert to_fraction(int(bits), kind) == nearest_half(operation(*values), kind), (opcode, x, y, z)
            else:
                with np.errstate(all="ignore"):
                    expected = operation(*(np.float64(float(v)) for v in values))
                same(read(np.array([bits])), np.array([expected], np.float32))
        packed = elementwise(
            f".reg .b32 %x, %y, %z; mov.b32 %x, {{%a, %b}}; mov.b32 %y, {{%b, %c}}; mov.b32 %z, {{%c, %a}};"
            f"{opcode}.{kind}x2 %d, {sources.replace('a', 'x').replace('b', 'y').replace('c', 'z')};",
            inputs,
            f"{kind}x2",
            np.uint32,
        )
        np.testing.assert_array_equal(packed & 0xFFFF, got)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_half_extrema(kind: str) -> None:
    a, b = half_operands(kind, 1), half_operands(kind, 2)
    read = f16_to_float if kind == "f16" else bf16_to_float
    x, y = read(a), read(b)
    larger = np.where(x == y, np.where(np.signbit(x), y, x), np.fmax(x, y))
    pair = [(kind, a), (kind, b)]
    same(read(elementwise(f"max.{kind} %d, %a, %b;", pair, kind, np.uint16)), larger)
    nan = np.where(np.isnan(x) | np.isnan(y), np.float32("nan"), larger)
    same(read(elementwise(f"max.NaN.{kind} %d, %a, %b;", pair, kind, np.uint16)), nan)
    same(read(elementwise(f"neg.{kind} %d, %a;", pair, kind, np.uint16)), -x)
    same(read(elementwise(f"abs.{kind} %d, %a;", pair, kind, np.uint16)), np.abs(x))


def test_f16_fma_relu_and_sat() -> None:
    a = np.array([0x3C00, 0xBC00, 0x7E00, 0x4000], np.uint16)  # 1, -1, NaN, 2
    inputs = [("f16", a), ("f16", np.uint16(0x3C00)), ("f16", np.uint16(0))]
    got = elementwise("fma.rn.relu.f16 %d, %a, %b, %c;", inputs, "f16", np.uint16)
    np.testing.assert_array_equal(got, np.array([0x3C00, 0, 0x7FFF, 0x4000], np.uint16))
    got = elementwise("fma.rn.sat.f16 %d, %a, %b, %c;", inputs, "f16", np.uint16)
    np.testing.assert_array_equal(got, np.array([0x3C00, 0, 0, 0x3C00], np.uint16))
