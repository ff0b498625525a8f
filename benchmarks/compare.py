"""Side-by-side timing: our op and the best plain-torch compositions, interleaved in one run on the same inputs."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Comparison:
    """One op on one shape. `plain` maps the name of a composition to a callable that computes the same result."""

    op: str
    shape: str
    dtype: str
    ours: Callable[[], object]
    plain: dict[str, Callable[[], object]]
    flops: float = 0.0
    bytes: float = 0.0
    targets: dict[str, float] = field(default_factory=dict)  # composition -> ratio we want to reach


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


def measure(comparison: Comparison, *, seconds: float = 1.0, max_rounds: int = 50) -> Result:
    """Median times; the candidates take turns so that drift of the machine hits all of them alike.

    At least three rounds, unless they take more than ten times `seconds`.
    """
    candidates = {"ours": comparison.ours, **comparison.plain}
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    for run in candidates.values():
        run()
    start = time.perf_counter()
    rounds = 0
    elapsed = 0.0
    while rounds < max_rounds and (elapsed < seconds or (rounds < 3 and elapsed < 10 * seconds)):
        for name, run in candidates.items():
            begin = time.perf_counter()
            run()
            samples[name].append(time.perf_counter() - begin)
        rounds += 1
        elapsed = time.perf_counter() - start
    median = {name: sorted(values)[len(values) // 2] for name, values in samples.items()}
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
