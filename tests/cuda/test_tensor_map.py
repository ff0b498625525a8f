"""Tensor maps: which layouts TMA takes, what a kernel fetches through them, and what the driver is asked for."""

import ctypes
import shutil
import struct
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from dflash_ops import _host
from tests.cuda.gpu import Arguments, Gpu, params_of
from tests.ops.harness import DTYPES
from tests.ptxsim import Module, SimulationError, TensorMap, find_nvcc
from tests.ptxsim.compiler import ROOT

HOST_DTYPE = {torch.float16: _host.DType.float16, torch.bfloat16: _host.DType.bfloat16}
BOX_ROWS = 16
MAP_OFFSET = 64


def tensor_map(**changes: Any) -> _host.TensorMapPlan | None:
    """Of 100 rows of 4 heads of 128 channels, without gaps."""
    layout: dict[str, Any] = {
        "data": 4096,
        "row_stride": 512,
        "head_stride": 128,
        "dtype": _host.DType.bfloat16,
        "rows": 100,
        "heads": 4,
        "head_dim": 128,
        "box_rows": BOX_ROWS,
        "params_offset": MAP_OFFSET,
    }
    return _host.head_rows_tensor_map(**layout | changes)


def made(**changes: Any) -> _host.TensorMapPlan:
    plan = tensor_map(**changes)
    assert plan is not None
    return plan


# ---- Layouts


def test_a_map_says_how_the_tensor_lies() -> None:
    plan = made()
    assert (plan.params_offset, plan.dtype, plan.data) == (MAP_OFFSET, _host.DType.bfloat16, 4096)
    assert (plan.sizes, plan.strides, plan.box) == ([128, 4, 100], [256, 1024], [64, 1, BOX_ROWS])


@pytest.mark.parametrize(
    ("changes", "strides"),
    [
        ({"row_stride": 640}, [256, 1280]),  # heads of a wider row
        ({"head_stride": 136, "row_stride": 544}, [272, 1088]),  # gaps between heads
        ({"heads": 1, "row_stride": 136, "head_stride": 0}, [272, 272]),
        ({"heads": 1, "row_stride": 136, "head_stride": 3}, [272, 272]),
        ({"row_stride": 2**39 - 128}, [256, 2**40 - 256]),
        ({"box_rows": 256, "rows": 2**32, "data": 16, "dtype": _host.DType.float16}, [256, 1024]),
    ],
)
def test_layouts_that_tma_takes(changes: dict[str, Any], strides: list[int]) -> None:
    """The interpreter's twin of the driver takes them too."""
    plan = made(**changes)
    assert plan.strides == strides
    bytes(TensorMap("bf16", plan.data, plan.sizes, plan.box, plan.strides, swizzle=128))


@pytest.mark.parametrize(
    "changes",
    [
        {"data": 4104},
        {"dtype": _host.DType.float32},
        {"row_stride": 516},  # not 16 bytes, nor whole heads
        {"row_stride": 4 * 132, "head_stride": 132},
        {"heads": 1, "row_stride": 132},
        {"row_stride": 0},
        {"head_stride": 0},
        {"row_stride": -512},
        {"row_stride": -512, "head_stride": -128},
        {"row_stride": 2**39},
        {"row_stride": 2**63 - 128},
        {"row_stride": 576},  # no whole number of heads
        {"row_stride": 128, "head_stride": 12800},  # a transposed tensor
        {"row_stride": 384},  # rows that overlap
        {"row_stride": 256, "head_stride": 64},  # heads that overlap
        {"rows": 0},
        {"rows": 2**32 + 1},
        {"heads": 0},
        {"head_dim": 0},
        {"box_rows": 0},
        {"box_rows": 257},
    ],
    ids=str,
)
def test_layouts_that_it_does_not_take(changes: dict[str, Any]) -> None:
    assert tensor_map(**changes) is None


# ---- A kernel


@dataclass(frozen=True)
class BoxCopyPlan:
    """A LaunchPlan of tests/ptxsim/kernels/box_copy.cu."""

    params: bytes
    tensor_maps: list[_host.TensorMapPlan]
    entry: str = "box_copy"
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (128, 1, 1)
    shared_bytes: int = 0
    overlaps: bool = False


class BoxGpu(Gpu):
    """Its kernel is compiled with a planted bug, if any."""

    def __init__(self, completion: str = "late", bug: str | None = None) -> None:
        super().__init__(arch="sm_90a", completion=completion)
        self.defines = {bug: None} if bug else None

    def kernels(self, op: str) -> Module:
        path = ROOT / "tests" / "ptxsim" / "kernels" / f"{op}.cu"
        return Module.compile(path, self.arch, defines=self.defines, include_dirs=[ROOT / "csrc"])


def box_copy(gpu: BoxGpu, source: Tensor, channel: int, head: int, row: int) -> Tensor:
    """The box [row, channel] that the kernel fetches from [rows, heads, head_dim]."""
    out = torch.full((BOX_ROWS, 8, 8), torch.nan, dtype=source.dtype)

    def plan(address: dict[str, int]) -> _host.LaunchPlan:
        rows, heads, head_dim = source.shape
        made_map = _host.head_rows_tensor_map(
            data=address["source"],
            row_stride=source.stride(0),
            head_stride=source.stride(1),
            dtype=HOST_DTYPE[source.dtype],
            rows=rows,
            heads=heads,
            head_dim=head_dim,
            box_rows=BOX_ROWS,
            params_offset=MAP_OFFSET,
        )
        assert made_map is not None
        params = struct.pack("<Qiii", address["out"], channel, head, row).ljust(MAP_OFFSET, b"\0") + bytes(128)
        return cast(_host.LaunchPlan, BoxCopyPlan(params, [made_map]))

    arguments = Arguments()
    arguments.read("source", source)
    arguments.write("out", out)
    gpu.run("box_copy", arguments, plan)
    # The 128-byte swizzle: unit i of row r lies at i ^ r % 8.
    units = torch.arange(8)[None] ^ torch.arange(BOX_ROWS)[:, None] % 8
    return out[torch.arange(BOX_ROWS)[:, None], units].reshape(BOX_ROWS, 64)


def head_rows(dtype: torch.dtype) -> Tensor:
    """[37, 3, 128] within wider rows; NaN lies between them."""
    storage = torch.full((37, 640), torch.nan, dtype=dtype)
    rows = storage[:, 128:512].view(37, 3, 128)
    return rows.copy_(torch.arange(rows.numel()).reshape(rows.shape) % 1009)


needs_nvcc = pytest.mark.skipif(find_nvcc() is None, reason="needs nvcc")


@needs_nvcc
@pytest.mark.parametrize("completion", ["early", "late", "random"])
@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_a_box_arrives(dtype: torch.dtype, completion: str) -> None:
    gpu = BoxGpu(completion)
    source = head_rows(dtype)
    for channel, head, row in [(0, 0, 0), (64, 2, 5), (0, 1, 21), (64, 1, 30)]:
        expected = torch.zeros(BOX_ROWS, 64, dtype=dtype)  # rows past the end read as zero
        present = source[row : row + BOX_ROWS, head, channel : channel + 64]
        expected[: len(present)] = present
        assert torch.equal(box_copy(gpu, source, channel, head, row), expected)
        gpu.assert_loads("source", len(present) * 128)


@needs_nvcc
@pytest.mark.parametrize(("channel", "head", "row"), [(0, 3, 0), (0, -1, 0), (128, 0, 0), (0, 0, 37), (0, 0, -16)])
def test_a_box_outside_is_zero(channel: int, head: int, row: int) -> None:
    box = box_copy(BoxGpu(), head_rows(torch.bfloat16), channel, head, row)
    assert torch.equal(box, torch.zeros_like(box))


@needs_nvcc
@pytest.mark.parametrize("bug", ["BUG_FEW_BYTES", "BUG_NO_WAIT"])
def test_planted_faults_are_found(bug: str) -> None:
    with pytest.raises(SimulationError, match=r"race|async|mbarrier"):
        box_copy(BoxGpu(bug=bug), head_rows(torch.bfloat16), 0, 0, 0)


# ---- The driver


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """csrc/cuda/common/tensor_map.cu with stand-ins for the runtime and the driver."""
    nvcc = find_nvcc()
    if nvcc is None:
        pytest.skip("no nvcc")
    path = tmp_path_factory.mktemp("tensor_map") / "tensor_map.so"
    source = str(ROOT / "tests" / "cuda" / "tensor_map.cpp")
    flags = ["-std=c++17", "-shared", "-Xcompiler=-fPIC,-fvisibility=hidden", "--cudart=none", f"-I{ROOT / 'csrc'}"]
    subprocess.run([nvcc, *flags, source, "-o", str(path)], check=True)
    return path


@dataclass
class Driver:
    """A fresh copy of the library, which looks the driver's function up once."""

    library: Path
    folder: Path
    has_function: bool = True
    result: int = 0
    functions: ctypes.CDLL = field(init=False)

    def __post_init__(self) -> None:
        self.functions = ctypes.CDLL(str(shutil.copy(self.library, self.folder / "tensor_map.so")))
        self.functions.set_driver(self.has_function, self.result)
        self.functions.put.restype = ctypes.c_char_p

    def put(self, plans: list[_host.TensorMapPlan], params: bytes, device: int = 0) -> tuple[str, bytes]:
        """What went wrong, and the parameters."""
        dtype = {_host.DType.float16: 1, _host.DType.bfloat16: 2}
        numbers = np.array(
            [[m.params_offset, dtype[m.dtype], m.data, *m.sizes, *m.strides, *m.box] for m in plans], np.int64
        )
        buffer = ctypes.create_string_buffer(params, len(params))
        message = self.functions.put(len(plans), numbers.ctypes.data_as(ctypes.c_void_p), device, buffer)
        return message.decode(), buffer.raw


def test_the_driver_is_asked_for_what_the_interpreter_takes(library: Path, tmp_path: Path) -> None:
    """Two maps, with what lies around them left alone; no interleave, L2 sectors of 256 bytes."""
    plans = [made(), made(params_offset=256, dtype=_host.DType.float16, data=65536, row_stride=640, rows=7)]
    params = bytes(range(256)) + bytes(range(200))
    message, got = Driver(library, tmp_path).put(plans, params)
    assert message == ""
    no_interleave_l2_256 = b"\x00\x03"
    expected = bytearray(params_of(cast(_host.LaunchPlan, BoxCopyPlan(params, plans))))
    for plan in plans:
        expected[plan.params_offset + 126 : plan.params_offset + 128] = no_interleave_l2_256
    assert got == bytes(expected)


def test_failures_are_sentences(library: Path, tmp_path: Path) -> None:
    message, _ = Driver(library, tmp_path, result=1).put([made()], bytes(192))
    assert message == (
        "the driver refused a tensor map with CUresult 1: sizes [128, 4, 100], strides of [256, 1024] bytes, "
        "box [64, 1, 16] at address 4096"
    )


def test_an_old_driver(library: Path, tmp_path: Path) -> None:
    message, params = Driver(library, tmp_path, has_function=False).put([made()], bytes(192))
    assert message == "expected a driver of CUDA 12 or newer, got one without cuTensorMapEncodeTiled"
    assert params == bytes(192)


def test_a_device_that_is_not_there(library: Path, tmp_path: Path) -> None:
    assert Driver(library, tmp_path).put([made()], bytes(192), device=9)[0] == "invalid device ordinal"
