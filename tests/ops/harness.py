"""What every op's tests share: instruction sets, the tolerance rule, and the registration checks."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import dflash_ops

_ORDER = ["portable", "avx2", "avx512", "avx512_bf16"]
_BEST = dflash_ops.cpu_isa()
ISAS = _ORDER[: _ORDER.index(_BEST) + 1]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@contextmanager
def cpu_isa(name: str) -> Iterator[None]:
    """Runs the CPU kernels of one instruction set."""
    previous = dflash_ops.cpu_isa()
    dflash_ops.set_cpu_isa(name)
    try:
        yield
    finally:
        dflash_ops.set_cpu_isa(previous)


def assert_as_accurate(actual: Tensor, reference: Tensor, plain: Tensor, *, floor: float = 1e-6) -> None:
    """The project's tolerance rule: the error against the float64 reference is at most twice that of `plain`, the same
    computation in plain torch in the data's dtype. `floor` (relative to the largest reference value) covers cases where
    plain torch happens to be exact. NaN and infinities must sit at the same places."""
    assert actual.shape == reference.shape
    actual64, plain64 = actual.double(), plain.double()
    assert torch.equal(actual64.isnan(), reference.isnan())
    finite = reference.isfinite()
    assert torch.equal(actual64[~finite].nan_to_num(nan=0.0), reference[~finite].nan_to_num(nan=0.0))
    if not finite.any():
        return
    error = (actual64 - reference)[finite].abs().max().item()
    allowed = 2 * (plain64 - reference)[finite].abs().max().item() + floor * reference[finite].abs().max().item()
    assert error <= allowed, f"error {error:.3e}, allowed {allowed:.3e}"


def check_registration(op: str, args: Sequence[Any]) -> None:
    """torch.library.opcheck on every aspect (schema, fake, autograd registration, AOT dispatch)."""
    torch.library.opcheck(getattr(torch.ops.dflash_ops, op).default, tuple(args))


def check_compiles(function: Callable[..., Any], *args: Any) -> None:
    """`function` traces in one graph and gives the same results as eager, through functionalization."""
    expected = function(*args)
    torch._dynamo.reset()
    actual = torch.compile(function, fullgraph=True, backend="aot_eager")(*args)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def check_cuda_message(op: str, args: Sequence[Any]) -> None:
    """The CUDA key exists; it says which build is needed, or where the tensors have to be."""
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    message = "this build of dflash_ops has no CUDA kernel"
    if op in dflash_ops.build_info()["cuda_ops"]:
        message = "device: expected tensors on a GPU, got .+ on cpu"
    with pytest.raises(RuntimeError, match=f"{op}: {message}"):
        getattr(torch.ops.dflash_ops, op).default.redispatch(key, *args)
