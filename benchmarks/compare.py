"""Side-by-side timing: our op and the best plain-torch compositions, interleaved in one run on the same inputs."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

Run = Callable[[], object]
Clock = Callable[[Run], float]  # seconds of one call


@dataclass
class Comparison:
    """One op on one shape. `plain` maps the name of a composition to a callable that computes the same result."""

    op: str
    shape: str
    dtype: str
    ours: Run
    plain: dict[str, Run]
    flops: float = 0.0
    bytes: float = 0.0  # that the call has to move at the least: `least_traffic` of its case
    targets: dict[str, float] = field(default_factory=dict)  # composition -> ratio we want to reach
    other_results: dict[str, str] = field(default_factory=dict)  # composition -> why its result is not ours
    compiled: frozenset[str] = frozenset()  # compositions whose first call compiles for half a minute


Maker = Callable[[], Comparison]  # makes the inputs too


@dataclass
class Result:
    op: str
    shape: str
    dtype: str
    ours_ms: float
    plain_ms: dict[str, float]
    speedup: dict[str, float]
    gflops: float
    gbytes: float
    targets: dict[str, float]


def wall_clock(run: Run) -> float:
    """Seconds of a call that has returned when it is done."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def median_seconds(
    candidates: dict[str, Run], *, seconds: float, max_rounds: int, clock: Clock = wall_clock
) -> dict[str, float]:
    """Median of each; the candidates take turns so that drift of the machine hits all of them alike.

    At least three rounds, unless they take more than ten times `seconds`.
    """
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    for run in candidates.values():
        run()
    start = time.perf_counter()
    rounds = 0
    elapsed = 0.0
    while rounds < max_rounds and (elapsed < seconds or (rounds < 3 and elapsed < 10 * seconds)):
        for name, run in candidates.items():
            samples[name].append(clock(run))
        rounds += 1
        elapsed = time.perf_counter() - start
    return {name: sorted(values)[len(values) // 2] for name, values in samples.items()}


def measure(comparison: Comparison, *, seconds: float = 1.0, max_rounds: int = 50, clock: Clock = wall_clock) -> Result:
    """Median times of ours and of every composition."""
    candidates = {"ours": comparison.ours, **comparison.plain}
    median = median_seconds(candidates, seconds=seconds, max_rounds=max_rounds, clock=clock)
    ours = median.pop("ours")
    return Result(
        op=comparison.op,
        shape=comparison.shape,
        dtype=comparison.dtype,
        ours_ms=ours * 1e3,
        plain_ms={name: value * 1e3 for name, value in median.items()},
        speedup={name: value / ours for name, value in median.items()},
        gflops=comparison.flops / ours / 1e9,
        gbytes=comparison.bytes / ours / 1e9,
        targets=comparison.targets,
    )
