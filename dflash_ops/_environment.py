"""What a bug report needs to know about the machine and the installation."""

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from dflash_ops._library import build_info

# Packages whose version changes what the library does or what it is compared with.
_PACKAGES = ("dflash-ops", "torch", "numpy", "triton", "transformers", "safetensors", "gguf", "accelerate", "pybind11")

_TOOLS = ("nvcc", "c++", "cmake", "ninja")

# Variables that change how the library is built or runs; nothing else of the environment is reported.
_VARIABLES = ("DFLASH_OPS_", "OMP_", "MKL_NUM_", "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "MAX_JOBS")


def collect_env() -> dict[str, Any]:
    """Versions, build and devices, for a bug report; `python -m dflash_ops.collect_env` prints it as JSON.

    It names no user, host or folder, and calls nothing that changes a setting. What cannot be found out is None.

    Returns:
        build: ``build_info()``; python, platform, packages, tools; cpu: {model, cores, threads}; cuda: {driver, torch,
        devices}; variables: the environment variables that the library or its build reads.
    """
    return {
        "build": build_info(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": {
            "system": platform.system(),
            "release": platform.release(),
            "machine": platform.machine(),
            "libc": " ".join(platform.libc_ver()).strip() or None,
        },
        "packages": {name: _package_version(name) for name in _PACKAGES},
        "tools": {name: _tool_version(name) for name in _TOOLS},
        "cpu": {"model": _cpu_model(), "cores": os.cpu_count(), "threads": torch.get_num_threads()},
        "cuda": {"driver": _cuda_driver(), "torch": torch.version.cuda, "devices": _cuda_devices()},
        "variables": {name: value for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLES)},
    }


def _package_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _output(command: list[str]) -> str | None:
    """What a command prints; None where it is missing, fails or does not end."""
    if shutil.which(command[0]) is None:
        return None
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None


def _tool_version(name: str) -> str | None:
    version = re.search(r"\d+\.\d+[.\d]*", _output([name, "--version"]) or "")
    return None if version is None else version[0]


def _cpu_model(info: Path = Path("/proc/cpuinfo")) -> str | None:
    if sys.platform != "linux" or not info.exists():
        return platform.processor() or None
    for line in info.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Processor", "cpu model"):
            return value.strip()
    return None


def _cuda_driver() -> str | None:
    output = _output(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    return None if output is None else output.splitlines()[0]


def _cuda_devices() -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        return []
    devices = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        devices.append(
            {
                "name": properties.name,
                "compute_capability": f"{properties.major}.{properties.minor}",
                "multiprocessors": properties.multi_processor_count,
                "memory_bytes": properties.total_memory,
            }
        )
    return devices
