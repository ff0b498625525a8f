"""Our occupancy arithmetic against the header of CUDA's own calculator, which needs no GPU."""

import itertools
import subprocess
from pathlib import Path

import pytest

from dflash_ops import _host
from tests.cuda.occupancy import occupancy
from tests.ptxsim import find_nvcc

# Reads "major minor threads_per_sm shared_per_sm shared_per_block threads registers shared"; prints blocks.
PROGRAM = """
#include <cuda_occupancy.h>
#include <iostream>
int main() {
  int major, minor, sm_threads, sm_shared, block_shared, threads, registers, shared;
  while (std::cin >> major >> minor >> sm_threads >> sm_shared >> block_shared >> threads >> registers >> shared) {
    cudaOccDeviceProp device{};
    device.computeMajor = major;
    device.computeMinor = minor;
    device.maxThreadsPerBlock = 1024;
    device.maxThreadsPerMultiprocessor = sm_threads;
    device.regsPerBlock = device.regsPerMultiprocessor = 65536;
    device.warpSize = 32;
    device.sharedMemPerBlock = 49152;
    device.sharedMemPerMultiprocessor = sm_shared;
    device.sharedMemPerBlockOptin = block_shared;
    device.reservedSharedMemPerBlock = 1024;
    device.numSms = 100;
    cudaOccFuncAttributes kernel{};
    kernel.maxThreadsPerBlock = 1024;
    kernel.numRegs = registers;
    kernel.sharedSizeBytes = 0;
    kernel.partitionedGCConfig = PARTITIONED_GC_OFF;
    kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    kernel.maxDynamicSharedSizeBytes = block_shared;
    cudaOccDeviceState state{};
    cudaOccResult result{};
    if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, shared)) return 1;
    std::cout << result.activeBlocksPerMultiprocessor << "\\n";
  }
}
"""


def test_agrees_with_the_toolkits_calculator(tmp_path: Path) -> None:
    nvcc = find_nvcc()
    if nvcc is None:
        pytest.skip("no nvcc")
    (tmp_path / "main.cpp").write_text(PROGRAM)  # nvcc knows where the header is
    subprocess.run([nvcc, "-o", "calculator", "main.cpp"], cwd=tmp_path, check=True)
    kernels = list(
        itertools.product(
            [1, 32, 96, 128, 160, 256, 384, 512, 1000, 1024],
            [16, 24, 32, 33, 40, 64, 65, 80, 96, 128, 168, 255],
            [0, 1, 72, 3072, 16384, 48000, 99 * 1024, 200 * 1024],
        )
    )
    questions, ours = [], []
    for device in _host.known_devices():
        major, minor = divmod(device.compute_capability, 10)
        for threads, registers, shared in kernels:
            if shared > device.shared_bytes_per_block:
                continue
            sizes = (device.threads_per_multiprocessor, device.shared_bytes_per_multiprocessor)
            questions.append(f"{major} {minor} {sizes[0]} {sizes[1]} {device.shared_bytes_per_block}")
            questions[-1] += f" {threads} {registers} {shared}"
            ours.append(occupancy(device, threads, registers, shared).blocks)
    answers = subprocess.run(
        [str(tmp_path / "calculator")], input="\n".join(questions), capture_output=True, text=True, check=True
    )
    assert ours == [int(line) for line in answers.stdout.split()]


def test_more_shared_memory_than_a_block_may_have() -> None:
    assert occupancy(_host.known_device("A100"), 128, 32, 163 * 1024).blocks == 1
    assert occupancy(_host.known_device("A100"), 128, 32, 163 * 1024 + 1).blocks == 0
