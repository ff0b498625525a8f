"""The kernel sheet as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.kernel_model import LATENCY_SECONDS, LAUNCH_SECONDS, SECTOR_BYTES
from tests.cuda.machine_code import ARCHITECTURES

if TYPE_CHECKING:
    from benchmarks.kernel_sheet import CaseOnGpu, CaseResult

NOTE = "Times here are a model until a GPU run sits beside it: no GPU took part in any figure of this page."

_HEAD = f"""# Kernel sheet

{NOTE} Made by `make kernel-sheet` (`benchmarks/kernel_sheet.py`); do not edit.
"""

_RESOURCES = """
## Resources
From ptxas and the disassembled binary, for each architecture. Blocks: resident on a multiprocessor, by registers, threads
and the most shared memory the plan asks for; in brackets what the plan counts on. In flight: bytes of global loads that a
lane has requested before it needs the first of them. Wide: 16-byte global loads and stores in the code; "-": none.
"""

_TRAFFIC = f"""
## Traffic
Counted by the PTX interpreter, bfloat16, the plan of an H200. Least: every input byte the result depends on and every
output byte once (`least_traffic` of `tests/cases/<op>.py`), no workspace. Bytes: as lanes request them, so a value that
all lanes of a warp read counts 32 times; sectors: the {SECTOR_BYTES}-byte pieces that memory moves, over the least;
coalescing: sectors over the fewest that each access could touch; wavefronts: passes over shared memory over the fewest
possible. Instructions: PTX, issued by warps, for each KiB of the least. mma: executed by warps.
"""

_LATENCY, _LAUNCH = f"{LATENCY_SECONDS * 1e6:.1f} us", f"{LAUNCH_SECONDS * 1e6:.0f} us"
_TIMES = f"""
## Roofline
{NOTE}

For each launch, in microseconds: bandwidth: all sectors at the peak bandwidth of memory (what lies in the L2 cache is
faster); latency: {_LATENCY} (assumed) as often as the bytes in flight go into the bytes loaded; issue: warp instructions of
the multiprocessor with the most blocks, four a cycle at the boost clock (PTX instructions, each counted as one). A launch
takes at least the largest of the three; what waits on it in a chain (the meeting of a row's blocks, barriers) is not in
the model. Total: launches one after the other, {_LAUNCH} each (assumed: replayed in a CUDA graph). Share: of the time
without launches, what the least bytes take at the peak bandwidth. Per SM: blocks that fit on a multiprocessor. Waves: the
grid over all blocks that fit at once; below 1 some multiprocessors have room left. In flight: the most that the resident
lanes have requested at a time, at most everything the launch loads.
"""


def _table(header: Sequence[str], rows: Iterator[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _over(value: float, ideal: float) -> str:
    return f"{value / ideal:.3f}" if ideal else "-"


def _resources(kernels: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    by_name: dict[str, dict[str, dict[str, Any]]] = {}
    for record in kernels:
        by_name.setdefault(record["kernel"], {})[record["arch"]] = record
    for name, of_arch in by_name.items():
        records = [of_arch[arch] for arch in ARCHITECTURES if arch in of_arch]

        def each(key: str, records: list[dict[str, Any]] = records) -> str:
            values = [str(record[key]) for record in records]
            return values[0] if len(set(values)) == 1 else " / ".join(values)

        wide = [
            letter
            for letter, key in (("L", "loads_of_16_bytes"), ("S", "stores_of_16_bytes"))
            if all(record[key] for record in records)
        ]
        dynamic = each("most_dynamic_shared_bytes")
        yield [
            f"`{name}`",
            each("threads"),
            each("registers"),
            each("static_shared_bytes") + (f" + {dynamic}" if dynamic != "0" else ""),
            f"{each('blocks_per_multiprocessor')} ({each('blocks_promised')})",
            each("spill_bytes"),
            each("local_accesses"),
            " ".join(wide) or "-",
            each("load_bytes_in_flight"),
            each("tensor_instructions"),
        ]


def _traffic(results: Sequence[CaseResult]) -> Iterator[list[str]]:
    for result in results:
        counts = next(one.counts for one in result.gpus if one.gpu == "H200")
        promise = "-" if result.case.most is None else f"{result.case.most:.2f}"
        yield [
            result.case.op,
            result.case.shape,
            f"{result.least.total}",
            _over(counts.bytes, result.least.total),
            _over(SECTOR_BYTES * counts.sectors, result.least.total),
            promise,
            _over(counts.accessed_sectors, counts.coalesced_sectors),
            _over(counts.wavefronts, counts.ideal_wavefronts),
            f"{1024 * counts.warp_instructions / result.least.total:.0f}",
            f"{counts.tensor_instructions}",
        ]


def _times(result: CaseResult, one: CaseOnGpu) -> list[str]:
    def each(values: Sequence[Any], form: str) -> str:
        return " + ".join(form.format(value) for value in values)

    launches = one.launches
    return [
        result.case.op,
        result.case.shape,
        one.gpu,
        each([launch.blocks for launch in launches], "{}"),
        each([launch.blocks_per_multiprocessor for launch in launches], "{}"),
        each([launch.waves for launch in launches], "{:.2f}"),
        each([launch.bytes_in_flight / 1024 for launch in launches], "{:.0f}"),
        each([launch.bandwidth_us for launch in launches], "{:.2f}"),
        each([launch.latency_us for launch in launches], "{:.2f}"),
        each([launch.issue_us for launch in launches], "{:.2f}"),
        f"{one.with_launches_us:.1f}",
        f"{100 * one.least_bandwidth_us / one.busy_us:.0f}%",
    ]


def sheet(kernels: Sequence[dict[str, Any]], results: Sequence[CaseResult]) -> str:
    """The whole page. `kernels`: records of `kernel_sheet.kernel_record`, every kernel on every architecture."""
    architectures = " / ".join(ARCHITECTURES)
    resources = _table(
        [
            f"kernel ({architectures})",
            "threads",
            "registers",
            "shared bytes",
            "blocks",
            "spills",
            "LDL/STL",
            "wide",
            "in flight",
            "mma",
        ],
        _resources(kernels),
    )
    traffic = _table(
        [
            "op",
            "shape",
            "least bytes",
            "bytes / least",
            "sectors / least",
            "promised",
            "coalescing",
            "wavefronts",
            "instructions / KiB",
            "mma",
        ],
        _traffic(results),
    )
    times = _table(
        [
            "op",
            "shape",
            "GPU",
            "blocks",
            "per SM",
            "waves",
            "KiB in flight",
            "bandwidth",
            "latency",
            "issue",
            "total us",
            "share",
        ],
        (_times(result, one) for result in results for one in result.gpus),
    )
    return "".join([_HEAD, _RESOURCES, "\n", resources, _TRAFFIC, "\n", traffic, _TIMES, "\n", times])
