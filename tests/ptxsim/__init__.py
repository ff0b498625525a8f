"""A PTX interpreter: runs the project's CUDA kernels on a CPU, checks every access, finds races and counts traffic."""

from tests.ptxsim.compiler import compile_ptx, find_nvcc
from tests.ptxsim.formats import bf16, bf16_to_float, f16, f16_to_float
from tests.ptxsim.simulator import DeviceMemory, Finding, Module, Report, SimulationError
from tests.ptxsim.tensor_map import TensorMap

__all__ = [
    "DeviceMemory",
    "Finding",
    "Module",
    "Report",
    "SimulationError",
    "TensorMap",
    "bf16",
    "bf16_to_float",
    "compile_ptx",
    "f16",
    "f16_to_float",
    "find_nvcc",
]
