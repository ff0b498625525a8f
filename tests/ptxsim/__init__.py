"""A PTX interpreter: runs the project's CUDA kernels on a CPU, checks every access, finds races and counts traffic."""

from tests.ptxsim.compiler import find_nvcc, ptx_file, source_root, sources_from
from tests.ptxsim.formats import bf16, bf16_to_float, f16, f16_to_float
from tests.ptxsim.simulator import (
    CountError,
    DeviceMemory,
    Finding,
    Module,
    Report,
    SimulationError,
    assert_count,
)
from tests.ptxsim.tensor_map import TensorMap

__all__ = [
    "CountError",
    "DeviceMemory",
    "Finding",
    "Module",
    "Report",
    "SimulationError",
    "TensorMap",
    "assert_count",
    "bf16",
    "bf16_to_float",
    "f16",
    "f16_to_float",
    "find_nvcc",
    "ptx_file",
    "source_root",
    "sources_from",
]
