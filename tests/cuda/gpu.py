"""A GPU for tests: plans run on the PTX interpreter, over the memory of ordinary CPU tensors."""

import functools
import mmap
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from dflash_ops import _host
from tests.ptxsim import DeviceMemory, Module, Report, TensorMap, assert_count, find_nvcc, source_root
from tests.ptxsim.simulator import BufferCount

_MAP_NORESERVE = 0x4000  # of Linux's sys/mman.h; in Python's mmap from 3.13 on
COUNTER_BYTES = 65536  # of every workspace: arrival counters, zero between calls
_SECTOR_BYTES = 32

Access = Literal["read", "write", "update"]


@dataclass(frozen=True)
class _Argument:
    name: str
    tensor: Tensor | None
    access: Access
    strided: bool
    field: bool
    settled: bool = False


class Arguments:
    """The tensors of a call, with what the kernel may do to each. Tensors may share storage."""

    def __init__(self) -> None:
        self.arguments: list[_Argument] = []

    def read(
        self, name: str, tensor: Tensor | None, *, strided: bool = True, field: bool = True, settled: bool = False
    ) -> None:
        """An input. `strided`: the parameter struct has a field `<name>_stride`, the stride of the first dimension;
        `field`: it is a field of the parameter struct; `settled`: no launch writes it, so kernels may read it before
        those before them have ended."""
        self.arguments.append(_Argument(name, tensor, "read", strided, field, settled))

    def write(self, name: str, tensor: Tensor | None, *, strided: bool = True) -> None:
        """An output, undefined before the launch."""
        self.arguments.append(_Argument(name, tensor, "write", strided, True))

    def update(self, name: str, tensor: Tensor | None, *, field: bool = True) -> None:
        """Read and written. `field`: it is a field of the parameter struct."""
        self.arguments.append(_Argument(name, tensor, "update", True, field))

    def fields(self, address: dict[str, int]) -> dict[str, int]:
        """Pointers and strides as fields of the op's parameter struct."""
        fields = {}
        for argument in self.arguments:
            if argument.field and argument.tensor is not None:
                fields[argument.name] = address[argument.name]
                if argument.strided:
                    fields[f"{argument.name}_stride"] = argument.tensor.stride(0)
        return fields


@functools.lru_cache(maxsize=16)  # a file's tests; all of a long run would fill the memory, 100 MB each
def module_of(op: str, arch: str, sources: Path) -> Module:
    """The op's kernels as PTX; those of a folder <op>_sm90a for that architecture."""
    if find_nvcc() is None:
        pytest.skip("no nvcc")
    if op.endswith("_sm90a"):
        arch = "sm_90a"
    return Module.compile(sources / "cuda" / op / "entries.cu", arch, include_dirs=[sources])


class Gpu:
    """Runs launch plans made for one GPU, in one way of scheduling warps; a finding of the interpreter fails the test."""

    def __init__(self, name: str = "H200", *, arch: str = "sm_80", **options: Any) -> None:
        self.device = _host.known_device(name)
        self.arch = arch
        self.options: dict[str, Any] = {
            "completion": "late",
            "schedule": "random",
            "seed": 1,
            "instruction_limit": 50_000_000,  # a kernel that hangs is found in seconds
        } | options
        self.reports: deque[Report] = deque(maxlen=3)  # of the last launches

    def __str__(self) -> str:
        return f"{self.device.name}-{self.options['completion']}-{self.options['schedule']}"

    def kernels(self, op: str) -> Module:
        """The op's kernels."""
        return module_of(op, self.arch, source_root() / "csrc")

    def run(self, op: str, arguments: Arguments, make_plan: Callable[[dict[str, int]], _host.LaunchPlan]) -> None:
        """Runs the plan that `make_plan` makes from the arguments' addresses."""
        memory = DeviceMemory()
        plan = make_plan(_place(memory, arguments))
        if plan.grid[0] == 0:
            return
        report = self.kernels(op).launch(
            plan.entry,
            plan.grid,
            plan.block,
            [params_of(plan)],
            shared=plan.shared_bytes,
            memory=memory,
            dependent=plan.overlaps and int(self.arch.removeprefix("sm_").rstrip("a")) >= 90,
            **self.options,
        )
        self.reports.append(report.check())
        assert report.completed

    def run_steps(
        self,
        op_of: Callable[[str], str],
        arguments: Arguments,
        make_steps: Callable[[dict[str, int]], list[_host.OpStep]],
    ) -> list[_host.OpStep]:
        """Runs steps: products by torch on the CPU, launches as `run` does. `op_of`: the op whose file has an entry."""
        address = _place(DeviceMemory(), arguments)
        steps = make_steps(address)
        for index, step in enumerate(steps):
            for product in step.products:
                _multiply(arguments, address, product)

            def plan(address: dict[str, int], index: int = index) -> _host.LaunchPlan:
                return make_steps(address)[index].launch

            self.run(op_of(step.launch.entry), arguments, plan)
        return steps

    @property
    def report(self) -> Report:
        """Of the last launch."""
        return self.reports[-1]

    def traffic(self, name: str) -> BufferCount:
        """Of the storage whose first argument is `name`, in the last launch."""
        return self.report.buffers[name]

    def assert_loads(self, name: str, least: int, slack: float = 1.02) -> None:
        """The last launch loaded little more than `least` bytes of a storage, in whole sectors."""
        traffic = self.traffic(name)
        assert_count(f"bytes loaded of {name}", traffic.load_bytes, least, slack)
        assert_count(f"sectors loaded of {name}, in bytes", traffic.load_sectors * _SECTOR_BYTES, least, slack)

    def assert_stores(self, name: str, least: int, slack: float = 1.0) -> None:
        """As assert_loads."""
        traffic = self.traffic(name)
        assert_count(f"bytes stored in {name}", traffic.store_bytes, least, slack)
        assert_count(f"sectors stored in {name}, in bytes", traffic.store_sectors * _SECTOR_BYTES, least, slack)


def params_of(plan: _host.LaunchPlan) -> bytes:
    """A plan's parameters with its tensor maps, which on a GPU the driver makes."""
    params = bytearray(plan.params)
    for made in plan.tensor_maps:
        dtype = {_host.DType.float16: "f16", _host.DType.bfloat16: "bf16"}[made.dtype]
        tensor_map = bytes(TensorMap(dtype, made.data, made.sizes, made.box, made.strides, swizzle=128))
        params[made.params_offset : made.params_offset + len(tensor_map)] = tensor_map
    return bytes(params)


def _place(memory: DeviceMemory, arguments: Arguments) -> dict[str, int]:
    """Gives every storage a buffer, named after its first tensor; returns the tensors' addresses."""
    storages: dict[int, list[_Argument]] = {}
    address = {argument.name: 0 for argument in arguments.arguments}
    for argument in arguments.arguments:
        if argument.tensor is not None and argument.tensor.untyped_storage().nbytes() > 0:
            storages.setdefault(argument.tensor.untyped_storage().data_ptr(), []).append(argument)
    for sharing in storages.values():
        tensors = [argument.tensor for argument in sharing if argument.tensor is not None]
        accesses = {argument.access for argument in sharing}
        contents = torch.empty(0, dtype=torch.uint8).set_(tensors[0].untyped_storage())
        base = memory.add(
            sharing[0].name,
            contents.numpy(),
            read_only=accesses == {"read"},
            undefined=accesses == {"write"},
            settled=all(argument.settled for argument in sharing),
        )
        for argument, tensor in zip(sharing, tensors, strict=True):
            address[argument.name] = base + tensor.storage_offset() * tensor.element_size()
    return address


def _multiply(arguments: Arguments, address: dict[str, int], product: _host.LibraryProduct) -> None:
    """What `aten::mm.dtype_out` does."""

    def matrix(start: int, dtype: torch.dtype, rows: int, columns: int, stride: int) -> Tensor:
        for argument in arguments.arguments:
            if argument.tensor is None:
                continue
            storage, tensor = argument.tensor.untyped_storage(), argument.tensor
            offset = start - (address[argument.name] - tensor.storage_offset() * tensor.element_size())
            if 0 <= offset < storage.nbytes():
                sizes = (rows, columns)
                return torch.empty(0, dtype=dtype).set_(storage, offset // dtype.itemsize, sizes, (stride, 1))
        raise ValueError(f"{start:#x} lies in no argument")

    dtype = {_host.DType.float32: torch.float32, _host.DType.float16: torch.float16}.get(product.dtype, torch.bfloat16)
    activations = matrix(product.activations, dtype, product.rows, product.inner, product.activations_stride)
    weight = matrix(product.weight, dtype, product.columns, product.inner, product.weight_stride)
    out = matrix(product.out, torch.float32, product.rows, product.columns, product.out_stride)
    out.copy_(activations.float() @ weight.float().T)


def sparse_elements(count: int, dtype: torch.dtype) -> Tensor:
    """A 1-D tensor of any size whose pages take no memory until they are touched, for strides past 2^31."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    return torch.frombuffer(mmap.mmap(-1, count * dtype.itemsize, flags), dtype=dtype)


# The three orders in which asynchronous work may complete, over GPUs whose plans differ.
GPUS = [
    Gpu("H200", arch="sm_90a", completion="early", schedule="round_robin"),
    Gpu("RTX 3090", completion="late", schedule="greedy"),
    Gpu("B200", completion="random", schedule="random", seed=7),
]
