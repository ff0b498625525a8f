"""A Hopper kernel from nvcc (TMA, mbarrier ring, wgmma, TMA store): values, counts, and planted faults."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ptxsim import DeviceMemory, Module, Report, TensorMap, bf16, bf16_to_float, find_nvcc

pytestmark = pytest.mark.skipif(find_nvcc() is None, reason="needs nvcc to make PTX")
SOURCE = Path(__file__).parent / "kernels" / "warpgroup_matmul.cu"
MODES: list[dict[str, Any]] = [
    {"completion": "early"},
    {"completion": "late"},
    {"completion": "late", "schedule": "greedy"},
    {"completion": "random", "schedule": "random", "seed": 1, "threads": 2},
    {"completion": "random", "schedule": "random", "seed": 2},
]


def run(m: int, n: int, k: int, bug: str | None = None, **options: Any) -> tuple[Report, float]:
    """Launches the kernel; returns its report and the largest error against float64."""
    rng = np.random.default_rng(0)
    a, b = bf16(rng.standard_normal((m, k))), bf16(rng.standard_normal((n, k)))
    c = np.full((m, n), np.nan, np.float32)
    memory = DeviceMemory()
    maps = [
        TensorMap("bf16", memory.add("a", a, read_only=False), (k, m), (64, 64), swizzle=128),
        TensorMap("bf16", memory.add("b", b, read_only=False), (k, n), (64, 64), swizzle=128),
        TensorMap("f32", memory.add("c", c), (n, m), (64, 64)),
    ]
    module = Module.compile(SOURCE, "sm_90a", defines={bug: None} if bug else None)
    grid = ((m + 63) // 64, (n + 63) // 64)
    arguments = [*(bytes(made) for made in maps), k]
    shared = 4 * 8192 + 64 * 64 * 4
    report = module.launch("warpgroup_matmul", grid, 256, arguments, shared=shared, memory=memory, **options)
    expected = bf16_to_float(a).astype(np.float64) @ bf16_to_float(b).astype(np.float64).T
    return report, float(np.abs(c - expected).max()) if not np.isnan(c).any() else np.inf


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("shape", [(64, 64, 320), (100, 72, 200)])
def test_values_and_no_findings(shape: tuple[int, int, int], mode: dict[str, Any]) -> None:
    report, error = run(*shape, **mode)
    report.check()
    assert error < 1e-4


def test_counts_are_exact() -> None:
    report, _ = run(128, 64, 256)
    blocks, steps = 2, 4
    assert report.count("wgmma.mma_async") == blocks * steps * 4 * 4
    assert report.count("cp.async.bulk.tensor") == blocks * (2 * steps + 1)
    assert report.buffers["a"].load_bytes == 128 * 256 * 2
    assert report.buffers["b"].load_bytes == 2 * 64 * 256 * 2
    assert report.buffers["c"].store_bytes == 128 * 64 * 4
    assert report.total("sectors") == report.total("ideal_sectors")


@pytest.mark.parametrize("completion", ["early", "late", "random"])
@pytest.mark.parametrize(
    ("bug", "kinds"),
    [
        ("BUG_NO_FULL_WAIT", {"race"}),
        ("BUG_NO_EMPTY_WAIT", {"race", "mbarrier", "async"}),
        ("BUG_WRONG_PHASE", {"race", "deadlock"}),
        ("BUG_FEW_BYTES", {"async", "race", "deadlock"}),
        ("BUG_EARLY_RELEASE", {"race"}),
        ("BUG_NO_WGMMA_FENCE", {"wgmma_registers"}),
        ("BUG_NO_WGMMA_WAIT", {"wgmma_registers"}),
        ("BUG_NO_PROXY_FENCE", {"missing_proxy_fence"}),
        ("BUG_NO_EPILOGUE_BARRIER", {"race"}),
        ("BUG_NO_STORE_WAIT", {"async"}),
    ],
)
def test_planted_faults_are_found(bug: str, kinds: set[str], completion: str) -> None:
    report, _ = run(64, 64, 320, bug, completion=completion)
    assert report.kinds() & kinds


def test_a_missing_swizzle_shows_in_the_values() -> None:
    report, error = run(64, 64, 64, "BUG_NO_SWIZZLE")
    assert report.kinds() <= {"race", "uninitialised_read"}
    assert error > 1
