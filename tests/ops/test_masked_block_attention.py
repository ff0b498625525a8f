from typing import Any

import pytest
import torch
from torch import Tensor

import dflash_ops
from dflash_ops import reference
from tests.cases.masked_block_attention import CASES, PACKED, PADDED, Case
from tests.ops.harness import (
    DTYPES,
    ISAS,
    assert_as_accurate,
    check_compiles,
    check_cuda_message,
    check_registration,
    cpu_isa,
)

NAMES = ("out", "lse", "grad_q", "grad_k", "grad_v")


def with_gradients(function: Any, tensors: tuple[Tensor, ...], options: dict[str, Any]) -> dict[str, Tensor]:
    """Outputs and gradients of `function` for (q, k, v, grad_out)."""
    q, k, v, grad_out = tensors
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out, lse = function(*leaves, **options)
    gradients = torch.autograd.grad(out, leaves, grad_out)
    return dict(zip(NAMES, (out.detach(), lse.detach(), *gradients), strict=True))


def in_dtype(tensors: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(x.to(dtype) for x in tensors)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_the_definition(case: Case, dtype: torch.dtype) -> None:
    tensors = case.tensors(dtype)
    expected = with_gradients(reference.masked_block_attention, in_dtype(tensors, torch.float64), case.options())
    plain = with_gradients(reference.masked_block_attention, tensors, case.options())
    for isa in ISAS:
        with cpu_isa(isa):
            actual = with_gradients(dflash_ops.masked_block_attention, tensors, case.options())
        for name in NAMES:
            assert actual[name].dtype == (torch.float32 if name == "lse" else dtype)
            if expected[name].numel() > 0:
                assert_as_accurate(actual[name], expected[name], plain[name])


def fused(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The same (q, k, v, grad_out) with every outer stride free: k and v as columns of one projection, grad_out and q
    transposed, NaN all around."""
    q, k, v, grad_out = tensors
    kv = k.new_full((k.shape[0], 2 * k.shape[1] + 1, k.shape[2]), torch.nan)
    kv[:, : k.shape[1]] = k
    kv[:, k.shape[1] + 1 :] = v
    spaced = []
    for x in (q, grad_out):
        storage = x.new_full((x.shape[1], x.shape[0], x.shape[2] + 3), torch.nan)
        storage[:, :, : x.shape[2]] = x.transpose(0, 1)
        spaced.append(storage[:, :, : x.shape[2]].transpose(0, 1))
    return spaced[0], kv[:, : k.shape[1]], kv[:, k.shape[1] + 1 :], spaced[1]


ANCHORED = Case("anchor", 128, 6, PADDED, PACKED, causal=True, window=30, q_heads=6, kv_heads=2)


def test_every_stride_is_honoured() -> None:
    tensors = ANCHORED.tensors(torch.float32)
    options = ANCHORED.options()
    expected = with_gradients(dflash_ops.masked_block_attention, tensors, options)
    spaced = {name: torch.stack([value, value], dim=1)[:, 0] for name, value in options.items() if name == "anchors"}
    actual = with_gradients(dflash_ops.masked_block_attention, fused(tensors), options | spaced)
    for name in NAMES:
        assert torch.equal(actual[name], expected[name])


def test_out_variants_write_strided_outputs() -> None:
    case = ANCHORED
    q, k, v, grad_out = case.tensors(torch.bfloat16)
    options = case.options()
    expected = with_gradients(dflash_ops.masked_block_attention, (q, k, v, grad_out), options)
    arguments = (*list(options.values())[:-1], 32**-0.5)
    spaced = [torch.full((x.shape[1], x.shape[0], x.shape[2] + 3), 7.0).bfloat16() for x in (q, q, k, v)]
    out, grad_q, grad_k, grad_v = (x[:, :, : case.head_dim].transpose(0, 1) for x in spaced)
    lse_storage = torch.full((case.q_heads, case.queries, 2), 7.0)
    lse = lse_storage[:, :, 0].t()
    torch.ops.dflash_ops.masked_block_attention_forward(q, k, v, *arguments, out, lse)
    torch.ops.dflash_ops.masked_block_attention_backward(
        grad_out, q, k, v, out, lse, *arguments, grad_q, grad_k, grad_v
    )
    for name, value in zip(NAMES, (out, lse, grad_q, grad_k, grad_v), strict=True):
        assert torch.equal(value, expected[name]), name
    for storage in spaced:
        assert (storage[:, :, case.head_dim :] == 7).all()
    assert (lse_storage[:, :, 1] == 7).all()


def test_registration() -> None:
    q, k, v, grad_out = ANCHORED.tensors(torch.float32)
    arguments = (*list(ANCHORED.options().values())[:-1], 0.125)
    differentiable = tuple(x.requires_grad_() for x in (q.clone(), k.clone(), v.clone()))
    check_registration("masked_block_attention", (*differentiable, *arguments))
    check_registration("masked_block_attention", (k, k, v, "causal", 1, None, None, False, 0, 0.125))
    out, lse = torch.ops.dflash_ops.masked_block_attention(q, k, v, *arguments)
    forward = (q, k, v, *arguments, out, lse)
    check_registration("masked_block_attention_forward", forward)
    backward = (grad_out, q, k, v, out, lse, *arguments, q.clone(), k.clone(), v.clone())
    check_registration("masked_block_attention_backward", backward)
    check_cuda_message("masked_block_attention", (q, k, v, *arguments))
    check_cuda_message("masked_block_attention_forward", forward)
    check_cuda_message("masked_block_attention_backward", backward)


def test_compiles_with_its_gradients() -> None:
    tensors = ANCHORED.tensors(torch.float32)
    options = ANCHORED.options()
    q, k, v, _ = tensors
    check_compiles(lambda q, k, v: dflash_ops.masked_block_attention(q, k, v, **options), q, k, v)

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dflash_ops.masked_block_attention(q * 2, k, v, **options)[0].square().sum()

    gradients = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        gradients.append(torch.autograd.grad(function(*leaves), leaves))
    for eager, compiled in zip(*gradients, strict=True):
        assert torch.equal(eager, compiled)


def test_lse_is_not_differentiable() -> None:
    q, k, v, _ = ANCHORED.tensors(torch.float32)
    out, lse = dflash_ops.masked_block_attention(q.requires_grad_(), k, v, **ANCHORED.options())
    assert out.requires_grad
    assert not lse.requires_grad
    # Autograd hands the op an expanded scalar here.
    out.sum().backward()
    assert q.grad is not None
