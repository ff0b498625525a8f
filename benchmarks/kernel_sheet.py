"""The sheet of every CUDA kernel: resources on each architecture, traffic against the least possible, roofline times.

    python benchmarks/kernel_sheet.py [--json FILE] [--op NAME ...]

Needs nvcc and cuobjdump, no GPU. Without --op it writes docs/kernels/sheet.md. The exit status is 1 if a kernel misses
what tests/cuda/ptxas_gate.py asks of it on any architecture, or the traffic that its case promises.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# As a script, this file sees its own folder only; what it shares with the tests lies in the checkout's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import kernel_model, kernel_sheet_text
from benchmarks.kernel_cases import CASES, DTYPE, RecordingGpu, SheetCase
from benchmarks.kernel_model import SECTOR_BYTES, Counts, LaunchModel, model
from dflash_ops import _host
from tests.cases.traffic import Traffic
from tests.cuda.machine_code import OPS, KernelCode, architectures_of, machine_code
from tests.cuda.occupancy import occupancy
from tests.cuda.ptxas_gate import GPU_OF, promise_of, violations

ROOT = Path(__file__).resolve().parents[1]
SHEET = ROOT / "docs" / "kernels" / "sheet.md"
ARCHITECTURE_OF = {"A100": "80", "H100": "90a", "H200": "90a", "B200": "100a", "RTX 4090": "89"}


@dataclass(frozen=True)
class CaseOnGpu:
    """A case with the plan made for one GPU."""

    gpu: str
    counts: Counts
    launches: list[LaunchModel]
    least_bandwidth_us: float  # the least bytes at the peak bandwidth

    @property
    def busy_us(self) -> float:
        return sum(launch.busy_us for launch in self.launches)

    @property
    def with_launches_us(self) -> float:
        return self.busy_us + len(self.launches) * 1e6 * kernel_model.LAUNCH_SECONDS


@dataclass(frozen=True)
class CaseResult:
    case: SheetCase
    least: Traffic
    gpus: list[CaseOnGpu]

    def misses(self) -> list[str]:
        """Where the traffic is more than the case promises."""
        problems = []
        for one in self.gpus:
            ratios = {"bytes": one.counts.bytes, "bytes of sectors": SECTOR_BYTES * one.counts.sectors}
            for name, moved in ratios.items():
                if self.case.most is not None and moved > self.case.most * self.least.total:
                    problems.append(
                        f"{self.case.op}, {self.case.shape}, {one.gpu}: {name} {moved}, the least is {self.least.total}"
                    )
        return problems


def run_case(case: SheetCase, gpu_name: str) -> tuple[Traffic, CaseOnGpu]:
    """The case on the interpreter, its plans made for that GPU."""
    device = _host.known_device(gpu_name)
    gpu = RecordingGpu(gpu_name)
    least = case.run(gpu)
    arch = ARCHITECTURE_OF[gpu_name]
    launches = [model(launch, machine_code(launch.op, arch)[launch.plan.entry], device) for launch in gpu.launches]
    counts = Counts.of([launch.report for launch in gpu.launches])
    return least, CaseOnGpu(gpu_name, counts, launches, 1e6 * least.total / device.memory_bandwidth)


def run_all(ops: Sequence[str]) -> list[CaseResult]:
    """All cases of these ops on all GPUs of the sheet."""
    results = []
    for case in CASES:
        if case.op in ops:
            print(f"{case.op}: {case.shape}", flush=True)
            runs = [run_case(case, gpu) for gpu in ARCHITECTURE_OF]
            results.append(CaseResult(case, runs[0][0], [on_gpu for _, on_gpu in runs]))
    return results


def kernel_record(code: KernelCode) -> dict[str, Any]:
    """A kernel on one architecture as JSON holds it. Blocks: with the most dynamic shared memory its plan asks for."""
    device = _host.known_device(GPU_OF[code.arch])
    promise = promise_of(code.name, device)
    fit = occupancy(device, promise.threads, code.registers, code.shared_bytes + promise.shared_bytes)
    return {
        "kernel": code.name,
        "arch": code.arch,
        "threads": promise.threads,
        "registers": code.registers,
        "static_shared_bytes": code.shared_bytes,
        "most_dynamic_shared_bytes": promise.shared_bytes,
        "blocks_per_multiprocessor": fit.blocks,
        "blocks_promised": promise.blocks,
        "spill_bytes": code.spill_bytes,
        "stack_bytes": code.stack_bytes,
        "local_accesses": code.local_accesses,
        "loads_of_16_bytes": code.global_accesses("LDG", 16),
        "stores_of_16_bytes": code.global_accesses("STG", 16),
        "load_bytes_in_flight": code.load_bytes_in_flight,
        "tensor_instructions": code.tensor_instructions,
        "instructions": len(code.instructions),
    }


def case_record(result: CaseResult) -> dict[str, Any]:
    """A case as JSON holds it."""
    return {
        "op": result.case.op,
        "shape": result.case.shape,
        "dtype": str(DTYPE).removeprefix("torch."),
        "least": asdict(result.least),
        "gpus": [
            asdict(one) | {"busy_us": one.busy_us, "with_launches_us": one.with_launches_us} for one in result.gpus
        ],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes the sheet; returns the exit status."""
    parser = argparse.ArgumentParser(description="Resources, traffic and roofline times of the CUDA kernels.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--op", action="append", choices=OPS, help="only this op (may be repeated); prints the sheet")
    options = parser.parse_args(arguments)
    ops = options.op or OPS
    kernels = [
        kernel_record(code) for op in ops for arch in architectures_of(op) for code in machine_code(op, arch).values()
    ]
    results = run_all(ops)
    text = kernel_sheet_text.sheet(kernels, results)
    if options.op:
        print(text)
    else:
        SHEET.write_text(text)
        print(f"wrote {SHEET.relative_to(ROOT)}")
    if options.json is not None:
        facts = {
            "note": kernel_sheet_text.NOTE,
            "launch_seconds_assumed": kernel_model.LAUNCH_SECONDS,
            "latency_seconds_assumed": kernel_model.LATENCY_SECONDS,
            "kernels": kernels,
            "cases": [case_record(result) for result in results],
        }
        options.json.write_text(json.dumps(facts, indent=1) + "\n")
        print(f"wrote {options.json}")
    problems = [line for op in ops for arch in architectures_of(op) for line in violations(op, arch)]
    problems += [line for result in results for line in result.misses()]
    print(*problems, sep="\n", file=sys.stderr, end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
