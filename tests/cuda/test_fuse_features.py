"""fuse_features' kernels on the PTX interpreter."""

from typing import Any

import pytest
import torch
from torch import Tensor

from dflash_ops import _host, reference
from tests.cases.fuse_features import CASES, Case
from tests.cuda.gpu import COUNTER_BYTES, GPUS, Gpu
from tests.cuda.simulated_stream_ops import fuse_features
from tests.ops.harness import assert_as_accurate
from tests.ptxsim import assert_count

HALF_DTYPES = [torch.bfloat16, torch.float16]


def run(gpu: Gpu, arguments: dict[str, Any], **changes: Any) -> Tensor:
    rows, columns = arguments["hidden_states"][0].shape[0], arguments["weight"].shape[0]
    out = torch.full((rows, columns), 7.0, dtype=arguments["weight"].dtype)
    fuse_features(gpu, **arguments, out=out, **changes)
    return out


def definition(arguments: dict[str, Any], dtype: torch.dtype) -> Tensor:
    norm_weight = arguments["norm_weight"]
    cast = {
        "hidden_states": [states.to(dtype) for states in arguments["hidden_states"]],
        "weight": arguments["weight"].to(dtype),
        "norm_weight": None if norm_weight is None else norm_weight.to(dtype),
    }
    return reference.fuse_features(**(arguments | cast))


def check(case: Case, dtype: torch.dtype, gpu: Gpu) -> None:
    """Rows past row_count, and what lies between rows, keep what they held."""
    arguments = case.arguments(dtype)
    storage = torch.full((case.rows + case.slack_rows, case.columns + 2), 7.0, dtype=dtype)
    out = storage[:, 1:-1]
    fuse_features(gpu, **arguments, out=out)
    assert (storage[case.rows :] == 7.0).all()
    assert (storage[:, [0, -1]] == 7.0).all()
    assert_as_accurate(out[: case.rows], definition(arguments, torch.float64), definition(arguments, dtype))


@pytest.mark.parametrize("gpu", GPUS, ids=str)
@pytest.mark.parametrize("dtype", HALF_DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_the_definition(case: Case, dtype: torch.dtype, gpu: Gpu) -> None:
    check(case, dtype, gpu)


@pytest.mark.parametrize("gpu", GPUS, ids=str)
@pytest.mark.parametrize("taps", [1, 2, 3, 4, 5, 6])
def test_units_end_with_a_tap(taps: int, gpu: Gpu) -> None:
    """Taps of no whole number of units, shares of several taps, tiles of several shares; with and without a norm."""
    check(Case(7 * taps, taps, 72, 264, norm=taps % 2 == 0, tap_slack=8), torch.bfloat16, gpu)


@pytest.mark.parametrize("rows", [1, 16, 17, 64, 128])
def test_numbers_of_rows(rows: int) -> None:
    arguments = Case(rows, 3, 136, 264, tap_slack=8).arguments(torch.float16)
    actual = run(Gpu(), arguments)
    assert_as_accurate(actual, definition(arguments, torch.float64), definition(arguments, torch.float16))


def test_each_tap_meets_its_own_columns() -> None:
    states = [torch.zeros(2, 24, dtype=torch.bfloat16) for _ in range(3)]
    states[1][0, 2] = 1.0
    weight = torch.arange(2 * 72.0).view(2, 72).bfloat16()
    out = torch.zeros(2, 2, dtype=torch.bfloat16)
    fuse_features(Gpu(), states, weight, out=out)
    assert out.tolist() == [[26.0, 98.0], [0.0, 0.0]]


@pytest.mark.parametrize("columns", [8, 136])
def test_float16_does_not_overflow_before_the_norm(columns: int) -> None:
    """Sums near 12,800, as checkpoints in use make them, and near 80,000, where float16 ends at 65,504."""
    for state, weight in ((40.0, 10.0), (250.0, 10.0)):
        arguments = Case(3, 2, 16, columns).arguments(torch.float16)
        arguments["hidden_states"] = [torch.full((3, 16), state).half() for _ in range(2)]
        arguments["weight"] = torch.full((columns, 32), weight).half()
        expected = definition(arguments, torch.float64)
        assert_as_accurate(run(Gpu(), arguments), expected, arguments["norm_weight"].expand(3, columns))


def test_a_row_is_the_same_bits_whatever_comes_with_it() -> None:
    case = Case(128, 2, 520, 264, tap_slack=8)
    arguments = case.arguments(torch.bfloat16)
    whole = run(Gpu(), arguments)
    for rows in (1, 7, 16, 17, 64):
        for chosen in (slice(0, rows), slice(128 - rows, 128)):
            some = arguments | {"hidden_states": [states[chosen] for states in arguments["hidden_states"]]}
            assert torch.equal(run(Gpu(), some), whole[chosen])


@pytest.mark.parametrize("row_count", [-3, 0, 1, 16, 40, 41, 1000])
def test_row_count_is_read_on_the_device(row_count: int) -> None:
    """Counts outside 0..n, which no one could check before the launch, count as the nearest of the two."""
    arguments = Case(40, 2, 72, 136).arguments(torch.bfloat16)
    whole = run(Gpu(), arguments)
    counted = run(Gpu(), arguments | {"row_count": torch.tensor([row_count], dtype=torch.int32)})
    rows = min(max(row_count, 0), 40)
    assert torch.equal(counted[:rows], whole[:rows])
    assert (counted[rows:] == 7.0).all()


def test_eps_counts() -> None:
    arguments = Case(3, 2, 16, 40).arguments(torch.bfloat16) | {"eps": 2.0}
    assert_as_accurate(
        run(Gpu(), arguments), definition(arguments, torch.float64), definition(arguments, torch.bfloat16)
    )


def test_the_workspace_serves_call_after_call() -> None:
    size = _host.fuse_features_cuda_workspace_size(5, 2, 520, 264)
    workspace = torch.zeros(size, dtype=torch.uint8)
    for seed in range(3):
        arguments = Case(5, 2, 520, 264).arguments(torch.bfloat16, seed)
        actual = run(Gpu(), arguments, workspace=workspace)
        assert_as_accurate(actual, definition(arguments, torch.float64), definition(arguments, torch.bfloat16))
        assert (workspace[:COUNTER_BYTES] == 0).all()


@pytest.mark.parametrize(("rows", "share"), [(16, 0.2), (64, 0.6)])
def test_every_weight_is_read_once(rows: int, share: float) -> None:
    gpu = Gpu()
    arguments = Case(rows, 5, 256, 1024, tap_slack=8).arguments(torch.bfloat16)
    steps = fuse_features(gpu, **arguments, out=torch.empty(rows, 1024, dtype=torch.bfloat16))
    assert [step.launch.entry for step in steps] == ["fuse_features_bfloat16", "normalise_features_bfloat16"]
    gpu.assert_stores("out", 2 * rows * 1024)
    gpu.reports.pop()
    weight = arguments["weight"]
    gpu.assert_loads("weight", weight.nbytes, slack=1.0)
    read = sum(gpu.traffic(f"tap{tap}").load_bytes for tap in range(5))
    assert_count("activations read", read, rows * 1280 * 2, share * 1024 / rows)
    kept = gpu.traffic("workspace")
    assert_count("sectors of sums stored, in bytes", 32 * kept.store_sectors, kept.store_bytes, 1.05)
    assert_count("wavefronts", gpu.report.total("wavefronts"), gpu.report.total("ideal_wavefronts"), 1.05)
    assert_count("sectors", gpu.report.total("sectors"), gpu.report.total("ideal_sectors"), 1.05)
