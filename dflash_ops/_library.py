"""Loads the compiled libraries and says what they hold."""

import ctypes
from pathlib import Path
from typing import Any

import torch

_FOLDER = Path(__file__).parent


def _load() -> None:
    library = _FOLDER / "_ops.so"
    if not library.exists():
        raise ImportError(
            f"dflash_ops is not built: expected {library.name} beside {Path(__file__).name}. "
            "Run `pip install --no-build-isolation -e .` (or `make dev`) in the source folder."
        )
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < (2, 10):
        raise ImportError(f"dflash_ops: torch: expected version 2.10 or newer, got {torch.__version__}")
    if hasattr(torch.ops.dflash_ops, "cpu_isa") and str(library) not in torch.ops.loaded_libraries:
        # Registered twice, they would end the process.
        raise ImportError(
            f"dflash_ops: expected one copy in a process, got the ops of another when {library} was to be loaded"
        )
    torch.ops.load_library(str(library))


def _version() -> str:
    from dflash_ops._host import build_info as host_build_info

    return host_build_info()["version"]


_load()
__version__ = _version()


def cpu_isa() -> str:
    """The instruction set the CPU kernels use: portable, avx2, avx512 or avx512_bf16."""
    return torch.ops.dflash_ops.cpu_isa()


def set_cpu_isa(name: str) -> None:
    """Chooses the CPU kernels' instruction set; the environment variable DFLASH_OPS_CPU_ISA does so at start.

    Raises:
        RuntimeError: the name is unknown or this machine lacks the instructions.
    """
    torch.ops.dflash_ops.set_cpu_isa(name)


def cuda_status(device: int = 0) -> str:
    """One sentence: whether the CUDA library is built and carries code for the given GPU."""
    library = _FOLDER / "_cuda.so"
    if not library.exists():
        return "the CUDA library is not built: no nvcc was found when dflash_ops was installed"
    message = ctypes.create_string_buffer(512)
    ctypes.CDLL(str(library)).dflash_cuda_image_status(ctypes.c_int(device), message, ctypes.c_int(512))
    return message.value.decode()


def build_info() -> dict[str, Any]:
    """How this installation was built.

    Returns:
        version, compiler, torch_built_with, torch_stable_abi, torch (running), cpu_isa (in use),
        cuda: {built, toolkit, archs, status} and cuda_ops: names of the ops with CUDA kernels.
    """
    from dflash_ops._host import build_info as host_build_info

    info = host_build_info()
    toolkit = info.pop("cuda_toolkit")
    archs = [arch for arch in info.pop("cuda_archs").split(",") if arch]
    info["torch"] = torch.__version__
    info["cpu_isa"] = cpu_isa()
    info["cuda"] = {"built": bool(toolkit), "toolkit": toolkit or None, "archs": archs, "status": cuda_status()}
    info["cuda_ops"] = sorted(op for op in torch.ops.dflash_ops.cuda_ops().split(",") if op)
    return info
