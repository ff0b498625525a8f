"""Times of CUDA work with a cold L2 cache, launched as it is or as a CUDA graph.

The event calls are torch.cuda's; tests give a stand-in of the same calls, so that their order is tested without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from benchmarks.compare import Run

LEAST_FLUSH_BYTES = 64 << 20
WARM_UPS = 3  # calls before capture: they compile, allocate and choose algorithms


class Event(Protocol):
    def record(self) -> None: ...

    def elapsed_time(self, end_event: Any) -> float: ...


def flush_bytes(l2_bytes: int) -> int:
    """Twice the cache: replacement is not least-recently-used, so that one pass of its size leaves some lines."""
    return max(2 * l2_bytes, LEAST_FLUSH_BYTES)


class ColdClock:
    """Seconds of a call on the current stream, between two events, after a write over more than the L2 cache holds.

    The write takes longer than the host needs to launch a few kernels, so that short calls are not measured by their
    launches; a composition of many kernels may still be. Its CUDA graph is not.
    """

    def __init__(self, flush: Run, make_event: Callable[[], Event], synchronize: Callable[[], object]) -> None:
        self._flush = flush
        self._make_event = make_event
        self._synchronize = synchronize

    @classmethod
    def of(cls, device: torch.device) -> ColdClock:
        size = flush_bytes(torch.cuda.get_device_properties(device).L2_cache_size)
        buffer = torch.empty(size, dtype=torch.uint8, device=device)
        return cls(buffer.zero_, lambda: torch.cuda.Event(enable_timing=True), torch.cuda.synchronize)

    def flush(self) -> None:
        """Leaves nothing of a call's data in the L2 cache, once the stream gets there."""
        self._flush()

    def __call__(self, run: Run) -> float:
        begin, end = self._make_event(), self._make_event()
        self.flush()
        begin.record()
        run()
        end.record()
        self._synchronize()
        return begin.elapsed_time(end) / 1e3


def captured(run: Run) -> Run:
    """`run` as a CUDA graph, whose replay is the call. RuntimeError if it cannot be captured (it waits for a result, or
    allocates pinned memory)."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def capture_all(
    candidates: dict[str, Run], capture: Callable[[Run], Run] = captured
) -> tuple[dict[str, Run], dict[str, str]]:
    """(graphs of those that can be captured, why the others cannot)."""
    graphs: dict[str, Run] = {}
    refused: dict[str, str] = {}
    for name, run in candidates.items():
        try:
            graphs[name] = capture(run)
        except RuntimeError as error:
            refused[name] = str(error).partition("\n")[0]
    return graphs, refused
