"""ldmatrix, stmatrix, movmatrix and mma.sync against numpy: each shape and type, each fragment layout."""

from typing import Any

import numpy as np
import pytest

from tests.ptxsim.formats import Array, bf16, bf16_to_float
from tests.ptxsim.snippets import launch

LANE = np.arange(32)
GROUP, PLACE = LANE // 4, LANE % 4

# type -> (numpy type of an element, elements in a 32-bit register)
ELEMENTS: dict[str, tuple[Any, int]] = {
    "f16": (np.float16, 2),
    "bf16": (np.uint16, 2),
    "tf32": (np.float32, 1),
    "s8": (np.int8, 4),
    "u8": (np.uint8, 4),
}


def random_matrix(kind: str, shape: tuple[int, int], seed: int) -> Array:
    """Small integers, so that sums are exact in every type."""
    values = np.random.default_rng(seed).integers(0 if kind == "u8" else -8, 8, shape)
    return bf16(values) if kind == "bf16" else values.astype(ELEMENTS[kind][0])


def fragments_a(matrix: Array, kind: str) -> Array:
    """Registers [32, n] of the 16 x k operand, by the PTX ISA's formulas for row and column."""
    e = ELEMENTS[kind][1]
    registers = []
    for r in range(matrix.shape[1] // (4 * e) * 2):
        columns = (PLACE * e + 4 * e * (r // 2))[:, None] + np.arange(e)
        registers.append(np.ascontiguousarray(matrix[(GROUP + 8 * (r % 2))[:, None], columns]).view(np.uint32).ravel())
    return np.stack(registers, 1)


def fragments_b(matrix: Array, kind: str) -> Array:
    """Registers [32, n] of the k x 8 operand."""
    e = ELEMENTS[kind][1]
    registers = []
    for r in range(matrix.shape[0] // (4 * e)):
        rows = (PLACE * e + 4 * e * r)[:, None] + np.arange(e)
        registers.append(np.ascontiguousarray(matrix[rows, GROUP[:, None]]).view(np.uint32).ravel())
    return np.stack(registers, 1)


def accumulator_index() -> tuple[Array, Array]:
    """Rows and columns [32, 4] of the accumulator's registers."""
    r = np.arange(4)
    return GROUP[:, None] + 8 * (r // 2), PLACE[:, None] * 2 + r % 2


def run_mma(shape: str, types: str, a: Array, b: Array, c: Array) -> Array:
    """One mma on register arrays [32, n]; returns the result's registers."""
    out = np.zeros_like(c)
    lines = []
    names: dict[str, list[str]] = {}
    register = 10
    for index, (name, array) in enumerate((("a", a), ("b", b), ("c", c)), 1):
        names[name] = [f"%r{register + j}" for j in range(array.shape[1])]
        register += array.shape[1]
        lines.append(f"mul.wide.u32 %rd10, %r0, {4 * array.shape[1]}; add.u64 %rd10, %rd{index}, %rd10;")
        lines += [f"ld.global.b32 {reg}, [%rd10+{4 * j}];" for j, reg in enumerate(names[name])]
    if types.startswith("f32"):
        floats = [f"%f{j}" for j in range(4)]
        lines += [f"mov.b32 {f}, {reg};" for f, reg in zip(floats, names["c"], strict=True)]
        names["c"] = floats
    result = names["c"]
    braces = {key: "{" + ", ".join(value) + "}" for key, value in names.items()}
    lines.append(
        f"mma.sync.aligned.{shape}.row.col.{types} {braces['c']}, {braces['a']}, {braces['b']}, {braces['c']};"
    )
    lines.append(f"mul.wide.u32 %rd10, %r0, {4 * c.shape[1]}; add.u64 %rd10, %rd0, %rd10;")
    lines += [f"st.global.b32 [%rd10+{4 * j}], {reg};" for j, reg in enumerate(result)]
    report = launch("\n".join(lines), [out, *(np.ascontiguousarray(v) for v in (a, b, c))]).check()
    assert report.count("mma") == 1
    return out


@pytest.mark.parametrize(
    ("k", "kind", "accumulator"),
    [
        (16, "f16", "f32"),
        (8, "f16", "f32"),
        (16, "f16", "f16"),
        (8, "f16", "f16"),
        (16, "bf16", "f32"),
        (8, "bf16", "f32"),
        (8, "tf32", "f32"),
        (4, "tf32", "f32"),
        (32, "s8", "s32"),
        (16, "s8", "s32"),
        (32, "u8", "s32"),
    ],
)
def test_mma(k: int, kind: str, accumulator: str) -> None:
    a, b = random_matrix(kind, (16, k), 1), random_matrix(kind, (k, 8), 2)
    x, y = (bf16_to_float(v) if kind == "bf16" else v for v in (a, b))
    dtype = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[accumulator]
    c = np.random.default_rng(3).integers(-20, 20, (16, 8)).astype(dtype)
    rows, columns = accumulator_index()
    registers = np.ascontiguousarray(c[rows, columns]).view(np.uint32)
    types = f"{accumulator}.{kind}.{kind}.{accumulator}"
    got = run_mma(f"m16n8k{k}", types, fragments_a(a, kind), fragments_b(b, kind), registers)
    expected = x.astype(np.int64) @ y.astype(np.int64) + c.astype(np.int64)
    np.testing.assert_array_equal(got.view(dtype), expected[rows, columns])


def test_tf32_ignores_the_low_mantissa_bits() -> None:
    a = np.full((16, 8), np.float32(1 + 2.0**-20))
    registers = np.zeros((32, 4), np.uint32)
    b = np.eye(8, dtype=np.float32)
    got = run_mma("m16n8k8", "f32.tf32.tf32.f32", fragments_a(a, "tf32"), fragments_b(b, "tf32"), registers)
    np.testing.assert_array_equal(got.view(np.float32), np.ones((32, 4), np.float32))


def test_saturating_integer_mma() -> None:
    a, b = np.full((16, 32), 127, np.int8), np.full((32, 8), 127, np.int8)
    registers = np.full((32, 4), 2**31 - 10, np.uint32)
    plain = run_mma("m16n8k32", "s32.s8.s8.s32", fragments_a(a, "s8"), fragments_b(b, "s8"), registers)
    assert (plain.view(np.int32) < 0).all()
    clamped = run_mma("m16n8k32", "satfinite.s32.s8.s8.s32", fragments_a(a, "s8"), fragments_b(b, "s8"), registers)
    assert (clamped == 2**31 - 1).all()


TILE = ".shared .align 16 .b8 tile[512];"
FILL = """
mul.wide.u32 %rd10, %r0, 16; add.u64 %rd11, %rd1, %rd10; ld.global.v4.b32 {%r20, %r21, %r22, %r23}, [%rd11];
shl.b32 %r10, %r0, 4; mov.u32 %r11, tile; add.u32 %r11, %r11, %r10; add.u64 %rd12, %rd0, %rd10;
"""


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix(count: int, trans: bool) -> None:
    matrices = np.random.default_rng(0).integers(0, 2**16, (4, 8, 8)).astype(np.uint16)
    out = np.zeros((32, 4), np.uint32)
    registers = ", ".join(f"%r{30 + i}" for i in range(count))
    dot = ".trans" if trans else ""
    body = f"""{FILL} st.shared.v4.b32 [%r11], {{%r20, %r21, %r22, %r23}}; bar.warp.sync 0xffffffff;
    mov.u32 %r30, 0; mov.u32 %r31, 0; mov.u32 %r32, 0; mov.u32 %r33, 0;
    ldmatrix.sync.aligned.m8n8.x{count}{dot}.shared.b16 {{{registers}}}, [%r11];
    st.global.v4.b32 [%rd12], {{%r30, %r31, %r32, %r33}};"""
    report = launch(body, [out, matrices], extra=TILE).check()
    for m in range(count):
        matrix = matrices[m].T if trans else matrices[m]
        low, high = matrix[GROUP, 2 * PLACE].astype(np.uint32), matrix[GROUP, 2 * PLACE + 1].astype(np.uint32)
        np.testing.assert_array_equal(out[:, m], high << 16 | low)
    assert report.count("ldmatrix") == 1


@pytest.mark.parametrize("trans", [False, True])
def test_stmatrix_undoes_ldmatrix(trans: bool) -> None:
    matrices = np.random.default_rng(0).integers(0, 2**16, (4, 8, 8)).astype(np.uint16)
    out = np.zeros_like(matrices)
    dot = ".trans" if trans else ""
    body = f"""{FILL} st.shared.v4.b32 [%r11], {{%r20, %r21, %r22, %r23}}; bar.warp.sync 0xffffffff;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r30, %r31, %r32, %r33}}, [%r11]; bar.warp.sync 0xffffffff;
    stmatrix.sync.aligned.m8n8.x4{dot}.shared.b16 [%r11], {{%r30, %r31, %r32, %r33}}; bar.warp.sync 0xffffffff;
    ld.shared.v4.b32 {{%r20, %r21, %r22, %r23}}, [%r11]; st.global.v4.b32 [%rd12], {{%r20, %r21, %r22, %r23}};"""
    launch(body, [out, matrices], extra=TILE).check()
    np.testing.assert_array_equal(out, matrices.transpose(0, 2, 1) if trans else matrices)


def test_movmatrix_transposes() -> None:
    matrix = np.random.default_rng(0).integers(0, 2**16, (8, 8)).astype(np.uint16)
    out = np.zeros(32, np.uint32)
    body = """mul.wide.u32 %rd10, %r0, 4; add.u64 %rd11, %rd1, %rd10; add.u64 %rd12, %rd0, %rd10;
    ld.global.b32 %r10, [%rd11];
    movmatrix.sync.aligned.m8n8.trans.b16 %r11, %r10; st.global.b32 [%rd12], %r11;"""
    launch(body, [out, matrix]).check()
    np.testing.assert_array_equal(out.view(np.uint16).reshape(8, 8), matrix.T)


def test_bank_conflicts_are_counted() -> None:
    source, out = np.zeros(128, np.uint32), np.zeros(128, np.uint32)
    body = "shl.b32 %r10, %r0, {}; mov.u32 %r11, wide; add.u32 %r11, %r11, %r10; st.shared.b32 [%r11], %r0;"
    for shift, expected in {2: 1, 3: 2, 5: 8, 7: 32}.items():
        report = launch(body.format(shift), [out, source], extra=".shared .align 16 .b8 wide[4096];").check()
        assert (report.total("wavefronts"), report.total("ideal_wavefronts")) == (expected, 1)


def test_sectors_of_strided_and_repeated_loads() -> None:
    source = np.zeros(4096, np.uint32)
    for stride, sectors, ideal in ((4, 4, 4), (8, 8, 4), (32, 32, 4), (0, 1, 1)):
        body = f"mul.wide.u32 %rd10, %r0, {stride}; add.u64 %rd10, %rd0, %rd10; ld.global.u32 %r10, [%rd10];"
        report = launch(body, [source]).check()
        assert (report.total("sectors"), report.total("ideal_sectors")) == (sectors, ideal)


def test_traffic_of_lanes_that_go_to_different_buffers() -> None:
    body = """setp.lt.u32 %p1, %r0, 8; selp.b64 %rd10, %rd0, %rd1, %p1; mul.wide.u32 %rd11, %r0, 4;
    add.u64 %rd10, %rd10, %rd11; ld.global.u32 %r10, [%rd10];"""
    report = launch(body, [np.zeros(32, np.uint32), np.zeros(32, np.uint32)]).check()
    assert (report.buffers["arg0"].load_bytes, report.buffers["arg1"].load_bytes) == (32, 96)
    assert (report.buffers["arg0"].load_sectors, report.buffers["arg1"].load_sectors) == (1, 3)


def test_tensor_instructions_need_a_whole_warp() -> None:
    body = "setp.lt.u32 %p1, %r0, 16; @%p1 movmatrix.sync.aligned.m8n8.trans.b16 %r11, %r0;"
    assert launch(body, [np.zeros(1, np.uint32)]).kinds() == {"divergent_collective"}
