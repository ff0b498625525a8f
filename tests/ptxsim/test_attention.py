"""A whole tensor-core kernel from nvcc: values, counts, and planted faults."""

from typing import Any

import numpy as np
import pytest

from tests.ptxsim import Module, Report, assert_count, bf16, bf16_to_float, find_nvcc, source_root

pytestmark = pytest.mark.skipif(find_nvcc() is None, reason="needs nvcc to make PTX")
SOURCE = "tests/ptxsim/kernels/attention.cu"
MODES: list[dict[str, Any]] = [
    {"completion": "early"},
    {"completion": "late"},
    {"completion": "late", "schedule": "greedy"},
    {"completion": "random", "schedule": "random", "seed": 1, "threads": 2},
]


def run(heads: int, q_len: int, kv_len: int, bug: str | None = None, **options: Any) -> tuple[Report, float]:
    """Launches attention; returns its report and the largest error against float64."""
    rng = np.random.default_rng(0)
    q, k, v = (bf16(rng.standard_normal((heads, n, 64))) for n in (q_len, kv_len, kv_len))
    for array in (q, k, v):
        array.flags.writeable = False
    out = np.full((heads, q_len, 64), np.nan, np.float32)
    module = Module.compile(source_root() / SOURCE, defines={bug: None} if bug else None)
    grid = ((q_len + 63) // 64, heads)
    arguments = [q, k, v, out, q_len, kv_len, 0.125 * 1.4426950408889634]
    report = module.launch("attention", grid, 128, arguments, shared=5 * 8192, **options)
    x, y, z = (bf16_to_float(a).astype(np.float64) for a in (q, k, v))
    scores = x @ y.transpose(0, 2, 1) * 0.125
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights @ z / weights.sum(-1, keepdims=True)
    return report, float(np.nanmax(np.abs(out - expected), initial=0)) if not np.isnan(out).any() else np.inf


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("lengths", [(64, 64), (100, 200), (1, 129), (5, 3)])
def test_values_and_no_findings(mode: dict[str, Any], lengths: tuple[int, int]) -> None:
    report, error = run(2, *lengths, **mode)
    report.check()
    assert error < 4e-3


def test_counts_are_exact() -> None:
    report, _ = run(2, 128, 192)
    blocks, tiles = 4, 3
    assert_count("mma", report.count("mma"), blocks * 4 * tiles * 64)
    assert_count("ldmatrix", report.count("ldmatrix"), blocks * 4 * (4 + tiles * 32))
    assert_count("barriers", report.barriers, blocks * tiles * 2)
    assert_count("bytes of q", report.buffers["arg0"].load_bytes, 2 * 128 * 64 * 2)
    for name in ("arg1", "arg2"):
        assert_count(f"bytes of {name}", report.buffers[name].load_bytes, blocks * 192 * 64 * 2)
    assert_count("bytes stored", report.buffers["arg3"].store_bytes, 2 * 128 * 64 * 4)
    assert_count("sectors", report.total("sectors"), report.total("ideal_sectors"))
    assert_count("wavefronts", report.total("wavefronts"), report.total("ideal_wavefronts"))
    assert any(line.split(":")[0].endswith("attention.cu") for line in report.by_line())


@pytest.mark.parametrize("bug", ["BUG_NO_WAIT", "BUG_NO_FIRST_BARRIER", "BUG_NO_LAST_BARRIER", "BUG_WRONG_STAGE"])
@pytest.mark.parametrize("completion", ["early", "late"])
def test_missing_order_is_a_race_in_every_mode(bug: str, completion: str) -> None:
    report, _ = run(1, 64, 256, bug, completion=completion)
    assert "race" in report.kinds()
    race = next(finding for finding in report.findings if finding.kind == "race")
    assert race.other is not None
    assert race.place.file.endswith("attention.cu")


def test_a_missing_wait_gives_wrong_values_only_late() -> None:
    assert run(1, 64, 64, "BUG_NO_WAIT", completion="early")[1] < 4e-3
    assert run(1, 64, 64, "BUG_NO_WAIT", completion="late")[1] > 1


def test_a_missing_row_guard_is_out_of_bounds() -> None:
    report, _ = run(1, 100, 64, "BUG_NO_ROW_GUARD")
    assert report.kinds() == {"out_of_bounds"}
    assert not report.completed


def test_missing_swizzle_shows_only_in_the_counts() -> None:
    report, error = run(1, 64, 64, "BUG_NO_SWIZZLE")
    report.check()
    assert error < 4e-3
    assert report.total("wavefronts") > 4 * report.total("ideal_wavefronts")
