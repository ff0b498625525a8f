"""What a launch has to cost at least on a GPU, from exact counts and the GPU's data sheet. No GPU takes part in it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.kernel_cases import Launch
from dflash_ops import _host
from tests.cuda.machine_code import KernelCode
from tests.cuda.occupancy import occupancy
from tests.ptxsim import Report

SECTOR_BYTES = 32
SCHEDULERS = 4  # of a multiprocessor, each issuing one warp instruction a cycle
# Assumptions, not measured here.
LAUNCH_SECONDS = 2e-6  # of a kernel in a replayed CUDA graph
LATENCY_SECONDS = 0.7e-6  # of a load from memory under load


@dataclass(frozen=True)
class Counts:
    """Sums over a launch. `bytes`: as lanes request them; `sectors`: pieces of 32 bytes that memory moves;
    `coalesced_sectors`: as few as each access could touch; wavefronts: passes over shared memory."""

    load_bytes: int
    store_bytes: int
    load_sectors: int
    store_sectors: int
    accessed_sectors: int
    coalesced_sectors: int
    wavefronts: int
    ideal_wavefronts: int
    warp_instructions: int
    tensor_instructions: int

    @property
    def bytes(self) -> int:
        return self.load_bytes + self.store_bytes

    @property
    def sectors(self) -> int:
        return self.load_sectors + self.store_sectors

    @classmethod
    def of(cls, reports: list[Report]) -> Counts:
        """The counts of several launches together."""

        def buffers(name: str) -> int:
            return sum(getattr(buffer, name) for report in reports for buffer in report.buffers.values())

        def instructions(name: str) -> int:
            return sum(report.total(name) for report in reports)

        return cls(
            load_bytes=buffers("load_bytes"),
            store_bytes=buffers("store_bytes"),
            load_sectors=buffers("load_sectors"),
            store_sectors=buffers("store_sectors"),
            accessed_sectors=instructions("sectors"),
            coalesced_sectors=instructions("ideal_sectors"),
            wavefronts=instructions("wavefronts"),
            ideal_wavefronts=instructions("ideal_wavefronts"),
            warp_instructions=sum(report.warp_instructions for report in reports),
            tensor_instructions=sum(report.count("mma") + report.count("wgmma.mma") for report in reports),
        )


@dataclass(frozen=True)
class LaunchModel:
    """One launch on one GPU. Times in microseconds; the launch takes at least the largest of the three."""

    entry: str
    blocks: int
    threads: int
    shared_bytes: int  # of a block, static and dynamic
    blocks_per_multiprocessor: int
    waves: float  # the grid over all blocks that fit on the GPU at once
    bytes_in_flight: int  # the most that the resident blocks have requested at a time, asynchronous copies included
    bandwidth_us: float  # all sectors at the peak bandwidth of memory
    latency_us: float  # as many times the latency as the bytes in flight go into the bytes loaded
    issue_us: float  # of the multiprocessor with the most blocks

    @property
    def busy_us(self) -> float:
        return max(self.bandwidth_us, self.latency_us, self.issue_us)


def model(launch: Launch, code: KernelCode, device: _host.DeviceProperties) -> LaunchModel:
    """`code`: of the launched kernel, for the GPU's architecture."""
    counts = Counts.of([launch.report])
    blocks, threads = math.prod(launch.plan.grid), math.prod(launch.plan.block)
    shared_bytes = code.shared_bytes + launch.plan.shared_bytes
    fit = occupancy(device, threads, code.registers, shared_bytes).blocks
    resident = min(blocks, fit * device.multiprocessors)
    block_in_flight = max(threads * code.load_bytes_in_flight, launch.plan.bytes_in_flight)
    in_flight = max(1, min(resident * block_in_flight, counts.load_bytes))
    busiest_share = math.ceil(blocks / device.multiprocessors) / blocks
    return LaunchModel(
        entry=launch.plan.entry,
        blocks=blocks,
        threads=threads,
        shared_bytes=shared_bytes,
        blocks_per_multiprocessor=fit,
        waves=blocks / (fit * device.multiprocessors),
        bytes_in_flight=in_flight,
        bandwidth_us=1e6 * SECTOR_BYTES * counts.sectors / device.memory_bandwidth,
        latency_us=1e6 * LATENCY_SECONDS * max(1.0, counts.load_bytes / in_flight),
        issue_us=1e6 * counts.warp_instructions * busiest_share / (SCHEDULERS * device.clock),
    )
