"""How the binding calls torch's GEMM (csrc/bindings/library_product.cpp), with a stand-in for the op, which only CUDA has:
operands, order and type of its arguments, and that nothing is kept."""

import shutil
import subprocess
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.ops.harness import DTYPES
from tests.ptxsim.compiler import ROOT

SOURCE = ROOT / "tests" / "cuda" / "library_product.cpp"
SCHEMA = "aten::mm.dtype_out(Tensor self, Tensor mat2, ScalarType out_dtype, *, Tensor(a!) out) -> Tensor(a!)"


@dataclass(frozen=True)
class Call:
    """Of the stand-in: addresses of the operands and the output, the type asked for, and the tensors if they live."""

    addresses: tuple[int, int, int]
    dtype: torch.dtype
    tensors: list[weakref.ref[Tensor]]


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Call]]:
    """Loads the op; collects the calls of the stand-in."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    library = tmp_path_factory.mktemp("library_product") / "library_product.so"
    torch_dir = Path(torch.__file__).parent
    flags = ["-std=c++17", "-fPIC", "-shared", "-fvisibility=hidden", "-DTORCH_TARGET_VERSION=0x020a000000000000"]
    folders = [f"-I{ROOT / 'csrc'}", "-isystem", str(torch_dir / "include")]
    libraries = [str(torch_dir / "lib" / "libtorch_cpu.so")]
    subprocess.run([compiler, *flags, *folders, str(SOURCE), "-o", str(library), *libraries], check=True)
    made: list[Call] = []

    def multiply(factor: Tensor, transposed: Tensor, dtype: torch.dtype, *, out: Tensor) -> Tensor:
        tensors = [factor, transposed, out]
        addresses = (factor.data_ptr(), transposed.data_ptr(), out.data_ptr())
        made.append(Call(addresses, dtype, [weakref.ref(tensor) for tensor in tensors]))
        return out.copy_(factor.float() @ transposed.float())

    stand_in = torch.library.Library("aten", "IMPL")
    stand_in.impl("mm.dtype_out", multiply, "CPU")
    torch.ops.load_library(str(library))
    yield made
    stand_in._destroy()


def test_torch_has_the_op() -> None:
    """The stack of the call is laid out by this schema."""
    assert str(torch.ops.aten.mm.dtype_out._schema) == SCHEMA


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_operands_are_passed_as_they_lie(dtype: torch.dtype, calls: list[Call]) -> None:
    """Rows with gaps between them; what lies in the gaps of the output stays."""
    activations, weight = torch.randn(5, 12).to(dtype)[:, :8], torch.randn(6, 11).to(dtype)[:, :8]
    storage = torch.full((5, 9), 7.0)
    torch.ops.dflash_ops_tests.multiply_alone(activations, weight, storage[:, :6])
    torch.testing.assert_close(storage[:, :6], activations.float() @ weight.float().T)
    assert (storage[:, 6:] == 7.0).all()
    assert calls[-1].addresses == (activations.data_ptr(), weight.data_ptr(), storage.data_ptr())
    assert calls[-1].dtype == torch.float32


def test_no_tensor_is_kept(calls: list[Call]) -> None:
    """Views made for the call end with it. Of the result the call gets a handle of its own, which is given back."""
    out = torch.zeros(2, 2)
    torch.ops.dflash_ops_tests.multiply_alone(torch.ones(2, 3), torch.ones(2, 3), out)
    assert out.tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert [tensor() for tensor in calls[-1].tensors] == [None, None, None]
