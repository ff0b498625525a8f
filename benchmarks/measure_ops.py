"""Rows of the benchmark report: an op on a case, its time, traffic and baselines, on whichever device there is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any

import torch

from benchmarks import baselines, device
from benchmarks.agreement import check
from benchmarks.compare import Clock, Maker, Run, measure, median_seconds, wall_clock
from benchmarks.cpu_ops import makers
from benchmarks.cuda_timing import ColdClock, capture_all


@dataclass(frozen=True)
class Settings:
    """How long each case is measured, where, and against which bandwidth (bytes per second)."""

    device: torch.device
    bandwidth: float
    away: dict[str, str]  # absent baselines and why
    clock: Clock = wall_clock
    seconds: float = 0.5
    max_rounds: int = 50
    compile_baselines: bool = True
    capture: Callable[[dict[str, Run]], tuple[dict[str, Run], dict[str, str]]] | None = None

    @classmethod
    def here(cls, *, quick: bool) -> Settings:
        """For this machine."""
        place = device.choose_device()
        on_cuda = place.type == "cuda"
        clock: Clock = ColdClock.of(place) if on_cuda else wall_clock
        return cls(
            device=place,
            bandwidth=device.copy_bandwidth(place, clock=clock, megabytes=1024 if on_cuda else 256),
            clock=clock,
            seconds=0.05 if quick else 0.5,
            max_rounds=5 if quick else 50,
            compile_baselines=not quick,
            away=baselines.absent(place),
            capture=capture_all if on_cuda else None,
        )


@dataclass
class Row:
    """One op on one case. Milliseconds and ratios by composition; a ratio is its time over ours."""

    op: str
    shape: str
    dtype: str
    milliseconds: float
    plain_milliseconds: dict[str, float]
    ratios: dict[str, float]
    least_bytes: float
    gbytes_per_s: float
    copy_share: float
    verdicts: dict[str, str]  # of compositions that mean to compute the same
    other_results: dict[str, str]  # why the others do not
    skipped: dict[str, str]
    graph_milliseconds: dict[str, float] = field(default_factory=dict)  # "ours" and compositions, on CUDA

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure_row(make: Maker, settings: Settings) -> Row:
    """Makes the case on the device, checks every composition against our result, then times all of them in turns."""
    with device.InputsOn(settings.device):
        comparison = make()
    skipped: dict[str, str] = {}
    if not settings.compile_baselines:
        skipped = {name: "compiles for too long" for name in comparison.compiled if name in comparison.plain}
    elif "triton" not in settings.away:
        baselines.add_triton(comparison)
    comparison.plain = {name: run for name, run in comparison.plain.items() if name not in skipped}
    verdicts, failed = check(comparison)
    comparison.plain = {name: run for name, run in comparison.plain.items() if name not in failed}
    skipped |= failed
    result = measure(comparison, seconds=settings.seconds, max_rounds=settings.max_rounds, clock=settings.clock)
    row = Row(
        op=result.op,
        shape=result.shape,
        dtype=result.dtype,
        milliseconds=result.ours_ms,
        plain_milliseconds=result.plain_ms,
        ratios=result.speedup,
        least_bytes=comparison.bytes,
        gbytes_per_s=result.gbytes,
        copy_share=1e9 * result.gbytes / settings.bandwidth,
        verdicts=verdicts,
        other_results={name: why for name, why in comparison.other_results.items() if name in comparison.plain},
        skipped=skipped,
    )
    if settings.capture is not None:
        graphs, refused = settings.capture({"ours": comparison.ours, **comparison.plain})
        times = median_seconds(graphs, seconds=settings.seconds, max_rounds=settings.max_rounds, clock=settings.clock)
        row.graph_milliseconds = {name: 1e3 * seconds for name, seconds in times.items()}
        row.skipped |= {f"{name} as a graph": why for name, why in refused.items()}
    return row


def in_turns(ops: Sequence[str]) -> Iterator[tuple[str, int, Maker]]:
    """(op, number of the case, its maker): the first case of every op, then the second of every one, so that a budget
    that ends early has seen all ops."""
    for number, line in enumerate(zip_longest(*(makers(op) for op in ops))):
        for op, make in zip(ops, line, strict=True):
            if make is not None:
                yield op, number, make


def measure_ops(
    cases: Iterator[tuple[str, int, Maker]],
    settings: Settings,
    *,
    budget_seconds: float,
    show: Callable[[Row], None] = lambda _: None,
    now: Callable[[], float] = time.monotonic,
) -> tuple[list[Row], dict[str, str]]:
    """(rows, what was skipped and why). Begins no case after the budget."""
    begin = now()
    rows: list[Row] = []
    skipped: dict[str, str] = {}
    late: dict[str, int] = {}
    for op, _, make in cases:
        if not device.op_runs_on(op, settings.device):
            skipped[op] = f"has no {settings.device.type} kernel in this build"
        elif now() - begin > budget_seconds:
            late[op] = late.get(op, 0) + 1
        else:
            rows.append(measure_row(make, settings))
            show(rows[-1])
    skipped |= {f"{op}, {count} of its cases": "the time budget was spent" for op, count in late.items()}
    return sorted(rows, key=lambda row: row.op), skipped
