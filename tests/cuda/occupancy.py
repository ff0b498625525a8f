"""How many blocks of a kernel fit on a multiprocessor at once. The rules are those of CUDA's occupancy calculator for
compute capabilities 8.0 to 12.0; test_occupancy.py compares them with the toolkit's own header."""

from dataclasses import dataclass

from dflash_ops import _host

_WARP_LANES = 32
_SCHEDULERS = 4  # each with a quarter of the registers
_REGISTERS_UNIT = 256  # registers are given to warps in such pieces
_SHARED_UNIT = 128
_SYSTEM_SHARED_BYTES = 1024  # of each block


@dataclass(frozen=True)
class Occupancy:
    """Blocks on a multiprocessor, and how many each resource alone would allow."""

    by_threads: int
    by_registers: int
    by_shared_memory: int

    @property
    def blocks(self) -> int:
        return min(self.by_threads, self.by_registers, self.by_shared_memory)


def occupancy(device: _host.DeviceProperties, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """`threads` of a block, `registers` of a thread, `shared_bytes` of a block, static and dynamic together."""
    warps = -(-threads // _WARP_LANES)
    warp_registers = -(-registers * _WARP_LANES // _REGISTERS_UNIT) * _REGISTERS_UNIT
    scheduler_warps = device.registers_per_multiprocessor // _SCHEDULERS // warp_registers
    shared = -(-(shared_bytes + _SYSTEM_SHARED_BYTES) // _SHARED_UNIT) * _SHARED_UNIT
    fits = shared_bytes <= device.shared_bytes_per_block
    return Occupancy(
        by_threads=min(device.blocks_per_multiprocessor, device.threads_per_multiprocessor // _WARP_LANES // warps),
        by_registers=scheduler_warps * _SCHEDULERS // warps,
        by_shared_memory=device.shared_bytes_per_multiprocessor // shared if fits else 0,
    )
