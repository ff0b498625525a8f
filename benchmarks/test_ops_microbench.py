"""pytest-benchmark over every op and case, on whichever device there is:

    pytest -o addopts= benchmarks/test_ops_microbench.py [-k OP] [--benchmark-json FILE] [--benchmark-compare]

The fixture times ours; `extra_info` holds what `make bench` reports (GB/s, share of the copy bandwidth, every baseline
timed in turns with ours). On CUDA the fixture's seconds are those of launch and wait, with a cold L2 cache; the events'
and the graph's are in `extra_info`.
"""

from typing import Any

import pytest
import torch

from benchmarks.agreement import AGREES
from benchmarks.compare import Maker
from benchmarks.cpu_ops import bench_ops
from benchmarks.cuda_timing import ColdClock
from benchmarks.device import InputsOn, op_runs_on
from benchmarks.measure_ops import Settings, in_turns, measure_row

CASES = [pytest.param(op, make, id=f"{op}-{number}") for op, number, make in in_turns(bench_ops())]


@pytest.fixture(scope="module")
def settings() -> Settings:
    return Settings.here(quick=True)


@pytest.mark.parametrize(("op", "make"), CASES)
def test_op(op: str, make: Maker, settings: Settings, benchmark: Any) -> None:
    if not op_runs_on(op, settings.device):
        pytest.skip(f"{op} has no {settings.device.type} kernel in this build")
    row = measure_row(make, settings)
    assert all(verdict == AGREES for verdict in row.verdicts.values()), row.verdicts
    benchmark.group = op
    benchmark.extra_info.update(row.to_dict())
    with InputsOn(settings.device):
        ours = make().ours
    ours()
    if isinstance(settings.clock, ColdClock):

        def launched_and_done() -> None:
            ours()
            torch.cuda.synchronize()

        benchmark.pedantic(launched_and_done, setup=settings.clock.flush, rounds=settings.max_rounds)
    else:
        benchmark.pedantic(ours, rounds=settings.max_rounds)
