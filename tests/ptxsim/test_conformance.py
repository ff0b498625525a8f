"""The interpreter against PTX of other authors (Triton, CUTLASS), values by numpy: a shared misreading of PTX would show.

conformance/make_ptx.py made the PTX and cases.json, conformance/collective_gemm.cu says how its own was made.
"""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ptxsim import DeviceMemory, Module, Report, TensorMap, bf16, bf16_to_float, f16, f16_to_float
from tests.ptxsim.formats import Array

FOLDER = Path(__file__).parent / "conformance"
CASES: dict[str, dict[str, Any]] = json.loads((FOLDER / "cases.json").read_text())
MODES: list[dict[str, Any]] = [
    {"completion": "early"},
    {"completion": "late", "schedule": "greedy"},
    {"completion": "random", "schedule": "random", "seed": 3},
]
modes = pytest.mark.parametrize("mode", MODES, ids=lambda mode: str(mode["completion"]))


def run(name: str, grid: int | tuple[int, ...], arguments: list[Any], mode: dict[str, Any]) -> Report:
    """Launches a case, which must have no findings; Triton adds two pointers to scratch memory."""
    case = CASES[name]
    module = Module.from_ptx((FOLDER / f"{name}.ptx").read_text())
    return module.launch(case["entry"], grid, case["block"], [*arguments, 0, 0], shared=case["shared"], **mode).check()


@modes
def test_vector_add(mode: dict[str, Any]) -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 1100)).astype(np.float32)
    out = np.zeros(1100, np.float32)
    run("vector_add_80", 3, [x, y, out, 1100], mode)
    np.testing.assert_array_equal(out, x + y)


@modes
def test_row_softmax(mode: dict[str, Any]) -> None:
    x = bf16(np.random.default_rng(0).standard_normal((3, 777)) * 4)
    out = np.zeros((3, 777), np.float32)
    run("row_softmax_80", 3, [x, out, 777], mode)
    weights = np.exp(bf16_to_float(x).astype(np.float64))
    np.testing.assert_allclose(out, weights / weights.sum(1, keepdims=True), rtol=1e-5)


@modes
def test_row_argmax(mode: dict[str, Any]) -> None:
    x = f16(np.random.default_rng(0).integers(-50, 50, (4, 1501)))
    value, index = np.zeros(4, np.float32), np.zeros(4, np.int32)
    run("row_argmax_80", 4, [x, value, index, 1501], mode)
    np.testing.assert_array_equal(value, f16_to_float(x).max(1))
    np.testing.assert_array_equal(index, f16_to_float(x).argmax(1))


@modes
def test_histogram(mode: dict[str, Any]) -> None:
    x = np.random.default_rng(0).integers(0, 10, 600).astype(np.int32)
    bins = np.zeros(10, np.int32)
    run("histogram_80", 3, [x, bins, 600], mode)
    np.testing.assert_array_equal(bins, np.bincount(x, minlength=10))


@modes
def test_running_sum(mode: dict[str, Any]) -> None:
    x = np.random.default_rng(0).integers(-9, 9, (2, 512)).astype(np.float32)
    out = np.zeros((2, 512), np.float32)
    run("running_sum_80", 2, [x, out, 512], mode)
    np.testing.assert_array_equal(out, np.cumsum(x, 1))


def operand(kind: str, shape: tuple[int, ...], seed: int) -> tuple[Array, Array]:
    """Small integers, so that sums are exact: the bits to pass and their values."""
    values = np.random.default_rng(seed).integers(-4, 5, shape)
    if kind == "bf16":
        return bf16(values), values
    return values.astype({"fp16": np.float16, "tf32": np.float32, "fp32": np.float32, "i8": np.int8}[kind]), values


MATMULS = [name for name in CASES if name.startswith("matmul")]


@modes
@pytest.mark.parametrize("name", MATMULS)
def test_matmul(name: str, mode: dict[str, Any]) -> None:
    # One whole tile and a part of one in every direction, and more k steps than stages.
    _, kind, layout, _ = name.split("_")
    blocks = CASES[name]["blocks"]
    m, n = blocks["block_m"] + 16, blocks["block_n"] + 16
    k = 4 * blocks["block_k"] + 16
    (a, x), (b, y) = operand(kind, (m, k), 1), operand(kind, (k, n), 2)
    strides = []
    if layout[0] == "r":
        strides.append(k)
    else:
        a = np.ascontiguousarray(a.T)
        strides.append(m)
    if layout[1] == "r":
        strides.append(n)
    else:
        b = np.ascontiguousarray(b.T)
        strides.append(k)
    c = np.full((m, n), -1, np.int32) if kind == "i8" else np.full((m, n), np.nan, np.float32)
    report = run(name, (2, 2), [a, b, c, m, n, k, *strides], mode)
    np.testing.assert_array_equal(c, x @ y)
    assert report.count("cp.async.c") > 0
    assert report.count("mma.sync" if name.endswith("80") else "wgmma.mma_async") > 0


@modes
@pytest.mark.parametrize("name", ["attention_bf16_80", "attention_bf16_90"])
def test_attention(name: str, mode: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (bf16(rng.standard_normal((2, 100, 64))) for _ in range(3))
    out = np.full((2, 100, 64), np.nan, np.float32)
    run(name, (2, 2), [q, k, v, out, 100, 0.125 * np.log2(np.e).item()], mode)
    x, y, z = (bf16_to_float(array).astype(np.float64) for array in (q, k, v))
    scores = np.where(np.tri(100, dtype=bool), x @ y.transpose(0, 2, 1) * 0.125, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(out, weights @ z / weights.sum(-1, keepdims=True), atol=4e-3)


def tensor_map(memory: DeviceMemory, name: str, array: Array, meta: dict[str, Any], dtype: str) -> list[Any]:
    """The parameters of one tensor descriptor: the map, sizes and strides in elements."""
    address = memory.add(name, array)
    rows, columns = array.shape
    swizzle = {0: 0, 1: 32, 2: 64, 3: 128}[meta["swizzle"]]
    made = TensorMap(dtype, address, (columns, rows), meta["block_size"][::-1], swizzle=swizzle)
    return [bytes(made), rows, columns, columns, 1]


@modes
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("tensor_map")])
def test_matmul_through_tensor_maps(name: str, mode: dict[str, Any]) -> None:
    maps = CASES[name]["tensor_maps"]
    kind = "fp16" if "fp16" in name else "bf16"
    dtype = {"fp16": "f16", "bf16": "bf16"}[kind]
    m, n, k = 96, 96, 4 * CASES[name]["blocks"]["block_k"] + 16
    (a, x), (b, y) = operand(kind, (m, k), 1), operand(kind, (n, k), 2)
    half = "bf16_90" in name
    c = np.full((m, n), 3, np.uint16) if half else np.full((m, n), 3, np.float32)
    memory = DeviceMemory()
    arguments = [
        *tensor_map(memory, "a", a, maps[0], dtype),
        *tensor_map(memory, "b", b, maps[1], dtype),
        *tensor_map(memory, "c", c, maps[2], "bf16" if half else "f32"),
        k,
    ]
    grid = tuple(-(-size // block) for size, block in zip((m, n), maps[2]["block_size"], strict=True))
    report = run(name, grid, arguments, mode | {"memory": memory})
    expected = x @ y.T + (3 if "add" in name else 0)
    np.testing.assert_array_equal(bf16_to_float(c) if half else c, bf16_to_float(bf16(expected)) if half else expected)
    assert report.count("mbarrier.try_wait") > 0


def collective_parameters(memory: DeviceMemory, a: Array, b: Array, d: Array) -> bytes:
    """The parameters of conformance/collective_gemm.cu, as its host code packs them for alpha 1 and beta 0: the sizes,
    the two tensor maps, the bytes that a stage's copies bring (of both, of A, of B), alpha, D."""
    (m, k), n = a.shape, b.shape[0]
    packed = bytearray(896)
    struct.pack_into("<4i", packed, 0, m, n, k, 1)
    for offset, name, array in ((128, "a", a), (384, "b", b)):
        sizes, strides = (k, len(array), 1), (2 * k, 2 * k * len(array))
        made = TensorMap("bf16", memory.add(name, array), sizes, (64, 64, 1), strides=strides, swizzle=128)
        packed[offset : offset + 128] = bytes(made)
    struct.pack_into("<3i", packed, 640, 16384, 8192, 8192)
    struct.pack_into("<f", packed, 768, 1.0)
    struct.pack_into("<2Q", packed, 832, memory.add("d", d), n)
    return bytes(packed)


@modes
def test_cutlass_collective(mode: dict[str, Any]) -> None:
    """Parts of tiles in every direction, and more k steps than stages."""
    (a, x), (b, y) = operand("bf16", (96, 264), 1), operand("bf16", (80, 264), 2)
    d = np.full((96, 80), np.nan, np.float32)
    memory = DeviceMemory()
    parameters = collective_parameters(memory, a, b, d)
    module = Module.from_ptx((FOLDER / "collective_gemm_90.ptx").read_text())
    report = module.launch("collective_gemm", (2, 2), 256, [parameters], shared=49280, memory=memory, **mode).check()
    np.testing.assert_array_equal(d, x @ y.T)
    assert report.count("wgmma.mma_async") == 4 * 4 * 4 * 5  # blocks, warps, wgmma of a tile, tiles of k
    assert report.count("cp.async.bulk.tensor") == 4 * 2 * 5
