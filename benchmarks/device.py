"""Where benchmarks run: the device, what it is, and inputs of the shared cases on it."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import dflash_ops
from benchmarks.compare import Clock, median_seconds, wall_clock

_CONSTRUCTORS = frozenset(
    {
        torch.arange,
        torch.empty,
        torch.full,
        torch.ones,
        torch.rand,
        torch.randint,
        torch.randn,
        torch.randperm,
        torch.tensor,
        torch.zeros,
    }
)


class InputsOn(TorchFunctionMode):
    """Tensors that are made inside, on no device by name, lie on `device`. They are made on the CPU and moved, so that
    the cases' CPU generators give the same values everywhere."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        made = func(*args, **options)
        if func in _CONSTRUCTORS and options.get("device") is None and isinstance(made, Tensor):
            return made.to(self.device)
        return made


def choose_device(info: Mapping[str, Any] | None = None, *, cuda_available: bool | None = None) -> torch.device:
    """CUDA where torch sees a card and this build has kernels for it, else the CPU."""
    built = dflash_ops.build_info() if info is None else info
    available = torch.cuda.is_available() if cuda_available is None else cuda_available
    return torch.device("cuda" if available and built["cuda_ops"] else "cpu")


def op_runs_on(op: str, device: torch.device, info: Mapping[str, Any] | None = None) -> bool:
    """Whether this build has a kernel of the op there."""
    built = dflash_ops.build_info() if info is None else info
    return device.type == "cpu" or op in built["cuda_ops"]


def copy_bandwidth(device: torch.device, *, clock: Clock = wall_clock, megabytes: int = 256, rounds: int = 9) -> float:
    """Bytes per second, read and written, of torch's copy between two buffers that no cache holds."""
    source = torch.zeros(megabytes << 20, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copies: dict[str, Callable[[], object]] = {"copy": lambda: target.copy_(source)}
    seconds = median_seconds(copies, seconds=60, max_rounds=rounds, clock=clock)["copy"]
    return 2 * source.nbytes / seconds


def machine(device: torch.device) -> dict[str, Any]:
    """What the numbers depend on."""
    environment = dflash_ops.collect_env()
    facts = {
        "date": datetime.date.today().isoformat(),
        "device": device.type,
        "cpu": environment["cpu"]["model"],
        "isa": dflash_ops.cpu_isa(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "dflash_ops": environment["build"]["version"],
    }
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        facts |= {"card": card.name, "l2_bytes": card.L2_cache_size, "cuda": torch.version.cuda}
    return facts
