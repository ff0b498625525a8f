"""Order of the cold clock's calls, graph capture that is refused, choice of the device, inputs on a device."""

import types
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from benchmarks import baselines, device
from benchmarks.compare import Comparison, median_seconds
from benchmarks.cpu_ops import bench_ops, makers
from benchmarks.cuda_timing import LEAST_FLUSH_BYTES, ColdClock, capture_all, flush_bytes
from benchmarks.device import InputsOn, choose_device, copy_bandwidth, op_runs_on
from tests.cases import block_attention

CPU, CUDA, META = (torch.device(name) for name in ("cpu", "cuda", "meta"))


class FakeStream:
    """A stream whose calls take the milliseconds they say; events are stamps of its time."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.milliseconds = 0.0

    def work(self, name: str, milliseconds: float) -> None:
        self.log.append(name)
        self.milliseconds += milliseconds

    def event(self) -> "FakeEvent":
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, stream: FakeStream) -> None:
        self.stream = stream

    def record(self) -> None:
        self.stream.log.append("event")
        self.at = self.stream.milliseconds

    def elapsed_time(self, end_event: "FakeEvent") -> float:
        assert self.stream.log[-1] == "wait", "events have no time before the stream is done"
        return end_event.at - self.at


def cold_clock(stream: FakeStream) -> ColdClock:
    return ColdClock(partial(stream.work, "flush", 50.0), stream.event, lambda: stream.log.append("wait"))


def test_cold_clock_flushes_before_the_first_event_and_times_the_call_alone() -> None:
    stream = FakeStream()
    clock = cold_clock(stream)
    assert clock(partial(stream.work, "op", 3.0)) == pytest.approx(3e-3)
    assert stream.log == ["flush", "event", "op", "event", "wait"]


def test_every_timed_call_is_cold_and_candidates_take_turns() -> None:
    stream = FakeStream()
    runs: dict[str, Callable[[], object]] = {
        "ours": partial(stream.work, "ours", 2.0),
        "plain": partial(stream.work, "plain", 5.0),
    }
    median = median_seconds(runs, seconds=60, max_rounds=3, clock=cold_clock(stream))
    assert median == pytest.approx({"ours": 2e-3, "plain": 5e-3})
    calls = [name for name in stream.log if name not in ("event", "wait")]
    assert calls == ["ours", "plain"] + 3 * ["flush", "ours", "flush", "plain"]


def test_flush_is_larger_than_the_cache() -> None:
    assert flush_bytes(50 << 20) == 100 << 20
    assert flush_bytes(1 << 20) == LEAST_FLUSH_BYTES


def test_what_cannot_be_captured_is_named() -> None:
    def capture(run: Callable[[], object]) -> Callable[[], object]:
        run()
        return run

    def waits() -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    graphs, refused = capture_all({"ours": lambda: 1, "waits": waits}, capture)
    assert list(graphs) == ["ours"]
    assert refused == {"waits": "operation not permitted when stream is capturing"}


def test_cuda_is_chosen_where_torch_and_the_build_have_it() -> None:
    built: dict[str, list[str]] = {"cuda_ops": ["row_argmax"]}
    none: dict[str, list[str]] = {"cuda_ops": []}
    assert choose_device(built, cuda_available=True).type == "cuda"
    assert choose_device(built, cuda_available=False).type == "cpu"
    assert choose_device(none, cuda_available=True).type == "cpu"
    assert op_runs_on("row_argmax", CUDA, built)
    assert not op_runs_on("select_pages", CUDA, built)
    assert op_runs_on("select_pages", CPU, none)


def test_copy_bandwidth_counts_reads_and_writes() -> None:
    assert copy_bandwidth(CPU, clock=lambda _: 0.5, megabytes=1, rounds=3) == 2 * 2**20 / 0.5


def test_machine_names_what_the_numbers_depend_on() -> None:
    facts = device.machine(CPU)
    assert {"date", "device", "cpu", "isa", "threads", "torch"} <= set(facts)


def test_inputs_have_the_same_values_on_every_device() -> None:
    generator = torch.Generator().manual_seed(1)
    plain = torch.randn(3, generator=generator)
    with InputsOn(CPU):
        assert torch.equal(torch.randn(3, generator=torch.Generator().manual_seed(1)), plain)
    with InputsOn(META):
        assert torch.randn(3, generator=torch.Generator()).device == META
        assert torch.arange(3, device="cpu").device == CPU


def tensors_in(value: object, seen: set[int]) -> Iterator[Tensor]:
    """Every tensor that a callable holds: closures, defaults, partials, containers."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(part, seen)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part, seen)
    elif isinstance(value, partial):
        yield from tensors_in([value.func, value.args, value.keywords], seen)
    elif isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        yield from tensors_in([cells, value.__defaults__ or ()], seen)


# Its composition asks for the distinct pages, whose number the meta device does not know.
@pytest.mark.parametrize("op", [op for op in bench_ops() if op != "update_page_bounds"])
def test_cases_of_every_op_lie_on_the_device_and_run_there(op: str) -> None:
    make = makers(op)[0]
    with InputsOn(META):
        comparison = make()
    held = list(tensors_in([comparison.ours, comparison.plain], set()))
    assert held
    assert {tensor.device for tensor in held} == {META}
    comparison.ours()  # outside: what compositions make as they run names its device
    for name, run in comparison.plain.items():
        if name not in comparison.compiled:
            run()
    assert comparison.bytes > 0


def test_baselines_say_why_they_are_absent() -> None:
    assert baselines.absent(CPU) == dict.fromkeys(baselines.NEEDS_CUDA, "has no CPU kernels")
    found = baselines.absent(CUDA, lambda name: name == "triton" or None)
    assert found == {"flash_attn": "is not installed", "flashinfer": "is not installed"}


def test_triton_compiles_plain_compositions_alone() -> None:
    runs: dict[str, Callable[[], object]] = {"sdpa": lambda: 1, "flex": lambda: 2, "flashinfer": lambda: 3}
    comparison = Comparison("op", "", "", lambda: 1, runs, other_results={"sdpa": "why"}, compiled=frozenset({"flex"}))
    baselines.add_triton(comparison)
    assert list(comparison.plain) == ["sdpa", "flex", "flashinfer", "sdpa_triton"]
    assert comparison.other_results == {"sdpa": "why", "sdpa_triton": "why"}


def test_block_rows_in_pages_of_their_own() -> None:
    """What FlashInfer gets: walking a request's pages gives its context, then its block."""
    contexts, block, page = (32, 16), 20, 16
    inputs = block_attention.Case(contexts, block, page_size=page).inputs(torch.float32)
    k_cache, _, pages = baselines.with_block_pages(inputs, contexts, block)
    begin = 0
    for request, context in enumerate(contexts):
        count = context // page + 2
        rows = k_cache[pages[begin : begin + count].long()].flatten(0, 1)
        table = inputs["page_table"][request, : context // page].long()
        assert torch.equal(rows[:context], inputs["k_cache"][table].flatten(0, 1))
        assert torch.equal(rows[context : context + block], inputs["k_block"].view(2, block, 2, 64)[request])
        begin += count
    assert begin == len(pages)
