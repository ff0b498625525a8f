"""The arithmetic behind the borders of csrc/plan/cuda/product_ways.h: `python -m benchmarks.product_ways` prints the table
of docs/kernels/weight_streaming.md. A model from data sheets; no GPU takes part in it."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.kernel_model import LAUNCH_SECONDS
from dflash_ops import _host

PASS_ROWS = 128
UNIT_BYTES = 16 * 1024
# Cycles a multiprocessor needs for a unit of 128 rows: of shared memory (32 KiB in, 80 KiB out, at 128 bytes), or of an
# A100's matrix instructions (128 x 128 x 64 at 1024 a cycle).
UNIT_CYCLES = {"A100": 1024, "H100": 896, "H200": 896}
# Dense 16-bit peaks of the data sheets, and how much of it torch's GEMM is taken to reach.
PEAK_FLOPS = {"A100": 312e12, "H100": 989e12, "H200": 989e12}
LIBRARY_SHARE = 0.75


@dataclass(frozen=True)
class Weight:
    """`parts`: products of a row that the library leaves in memory, each of all columns."""

    name: str
    columns: int
    inner: int
    parts: int

    @property
    def bytes(self) -> int:
        return 2 * self.columns * self.inner


WEIGHTS = [
    Weight("fc of the 8B drafter", 4096, 5 * 4096, 5),
    Weight("K/V of its 5 layers", 5 * 2048, 4096, 1),
]


def passes_seconds(weight: Weight, rows: int, gpu: str) -> float:
    """Of the streaming kernel, every pass as long as a full one where it is not memory that limits it."""
    device = _host.known_device(gpu)
    memory = weight.bytes / device.memory_bandwidth
    busy = weight.bytes / UNIT_BYTES / device.multiprocessors * UNIT_CYCLES[gpu] / device.clock
    full, rest = divmod(rows, PASS_ROWS)
    return full * max(memory, busy) + (max(memory, busy * rest / PASS_ROWS) if rest else 0.0)


def library_seconds(weight: Weight, rows: int, gpu: str) -> float:
    """Of torch's GEMM, with the launches and the float32 products, written and read, that the streaming kernel saves."""
    device = _host.known_device(gpu)
    arithmetic = 2.0 * rows * weight.columns * weight.inner / (LIBRARY_SHARE * PEAK_FLOPS[gpu])
    products = 2 * 4 * weight.parts * rows * weight.columns / device.memory_bandwidth
    launches = LAUNCH_SECONDS * (weight.parts if weight.parts == 1 else weight.parts - 1)
    return max(weight.bytes / device.memory_bandwidth, arithmetic) + products + launches


def main() -> None:
    print("| | rows |" + "".join(f" {gpu} |" for gpu in PEAK_FLOPS))
    print("|" + "---|" * (2 + len(PEAK_FLOPS)))
    for weight in WEIGHTS:
        for rows in (129, 256, 512):
            times = [
                f"{1e6 * passes_seconds(weight, rows, gpu):.0f}, {1e6 * library_seconds(weight, rows, gpu):.0f}"
                for gpu in PEAK_FLOPS
            ]
            print(f"| {weight.name} | {rows} | " + " | ".join(times) + " |")


if __name__ == "__main__":
    main()
