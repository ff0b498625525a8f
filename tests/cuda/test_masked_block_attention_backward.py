"""The backward kernels of masked_block_attention on the PTX interpreter, against float64 autograd of the definition."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dflash_ops import reference
from tests.cases.masked_block_attention import PACKED, PADDED, Case, spread
from tests.cuda.gpu import Gpu, sparse_elements
from tests.cuda.simulated_masked_backward import NAMES, Gradients, masked_block_attention_backward
from tests.ops.harness import assert_as_accurate

DTYPES = [torch.float16, torch.bfloat16]
# The orders in which copies may land and warps may run, on GPUs whose plans differ.
GPUS = [
    Gpu("H200", completion="early", schedule="round_robin"),
    Gpu("RTX 3090", completion="late", schedule="greedy"),
    Gpu("B200", completion="random", schedule="random", seed=7),
    Gpu("H100", completion="random", schedule="random", seed=8),
]
# Both sets of kernels: those that multiply by warpgroups, and those of all architectures.
SETS = [Gpu("H200"), Gpu("A100")]
both_sets = pytest.mark.parametrize("gpu", SETS, ids=lambda gpu: gpu.device.name)
CASES = [
    # Blocks: unsorted and equal anchors, padding, anchors at a document's ends; a group that fills no tile of rows.
    Case("anchor", 128, 8, PADDED, head_dim=64),
    Case("anchor", 128, 8, PADDED, PACKED, q_heads=6, kv_heads=2, head_dim=64),
    Case("anchor", 140, 8, PADDED, PACKED, causal=True, head_dim=128),
    Case("anchor", 128, 6, PADDED, PACKED, True, 11, q_heads=3, head_dim=64),
    Case("anchor", 128, 6, PADDED, None, False, 70, q_heads=4, kv_heads=2, head_dim=128),
    Case("anchor", 300, 3, (10, 280, 150), window=5, head_dim=64),
    Case("anchor", 100, 130, (50, 100), window=40, head_dim=64),
    Case("anchor", 200, 16, spread(6, 200), q_heads=4, head_dim=128),
    Case("anchor", 0, 4, (0, -1), head_dim=64),
    Case("anchor", 40, 16, (-1, -1), head_dim=128),
    Case("anchor", 9, 4, head_dim=64),
    Case("anchor", 64, 4, spread(8, 64), scale=-0.3, head_dim=64),
    Case("anchor", 20, 3, (20, 7), q_heads=130, head_dim=64),  # a group longer than two tiles of rows
    Case("anchor", 33, 5, spread(4, 33), q_heads=3, kv_heads=3, head_dim=128),
    # Packed modes: documents (empty ones too, and rows behind the last) and windows.
    *(
        Case(mode, 140, block_size, documents=documents, window=window, q_heads=3, head_dim=dim)
        for mode, block_size in (("block_causal", 7), ("bidirectional", 1), ("causal", 1))
        for documents, window, dim in ((PACKED, 0, 64), (PACKED, 50, 128), (None, 9, 64))
    ),
    Case("block_causal", 230, 100, q_heads=4, kv_heads=2, head_dim=64),
    Case("causal", 200, head_dim=128),
    Case("bidirectional", 60, documents=(0,), head_dim=64),
    *(Case(mode, tokens, 4, head_dim=64) for mode in ("causal", "bidirectional") for tokens in (1, 5)),
]


def reference_gradients(
    inputs: tuple[Tensor, ...], options: dict[str, Any], dtype: torch.dtype
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """(out, lse, gradients) of the definition in `dtype` for (q, k, v, grad_out)."""
    q, k, v, grad_out = (x.to(dtype) for x in inputs)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out, lse = reference.masked_block_attention(*leaves, **options)
    return out.detach(), lse.detach(), torch.autograd.grad(out, leaves, grad_out)


def run(gpu: Gpu, case: Case, inputs: tuple[Tensor, ...], **gradients: Tensor) -> Gradients:
    """The kernels on (q, k, v, grad_out), with what a forward pass in float64 leaves them."""
    q, k, v, grad_out = inputs
    out, lse, _ = reference_gradients(inputs, case.options(), torch.float64)
    return masked_block_attention_backward(
        gpu, grad_out, q, k, v, out.to(q.dtype), lse.float(), **case.options(), **gradients
    )


def check(gpu: Gpu, case: Case, inputs: tuple[Tensor, ...]) -> Gradients:
    """The tolerance rule; gradients that are 0 in exact arithmetic, as of a row that sees one key, to float32 rounding."""
    actual = run(gpu, case, inputs)
    _, _, expected = reference_gradients(inputs, case.options(), torch.float64)
    _, _, plain = reference_gradients(inputs, case.options(), inputs[0].dtype)
    for name, gradient, wanted, rounded in zip(NAMES, actual.tensors(), expected, plain, strict=True):
        assert not gradient.isnan().any(), name
        if wanted.abs().sum() > 1e-9:
            assert_as_accurate(gradient, wanted, rounded, floor=1e-5)
        else:
            assert (gradient.abs() < 1e-5).all(), name
    return actual


def same_bits(one: Gradients, other: Gradients) -> bool:
    return all(
        torch.equal(a.contiguous().view(torch.int16), b.contiguous().view(torch.int16))
        for a, b in zip(one.tensors(), other.tensors(), strict=True)
    )


@pytest.mark.parametrize("index", range(len(CASES)), ids=lambda index: str(CASES[index]))
def test_matches_the_definition(index: int) -> None:
    check(GPUS[index % 4], CASES[index], CASES[index].tensors(DTYPES[index // 4 % 2]))


# 16 blocks of 64 rows over three context tiles: rows enough for several splits of each context tile.
SPLIT = Case("anchor", 180, 16, (*spread(15, 180), -1), (0, 70, 180), q_heads=4, head_dim=64)


@both_sets
@pytest.mark.parametrize(("head_dim", "dtype"), [(64, torch.float16), (128, torch.bfloat16)])
def test_splits_add_up(head_dim: int, dtype: torch.dtype, gpu: Gpu) -> None:
    case = replace(SPLIT, head_dim=head_dim)
    actual = check(gpu, case, case.tensors(dtype))
    assert "masked_backward_sum" in actual.reports


@pytest.mark.parametrize(
    ("case", "name"),
    [
        (replace(SPLIT, documents=None), "H200"),
        (Case("causal", 150, q_heads=3, head_dim=128), "A100"),
    ],
    ids=str,
)
def test_orders_do_not_change_a_bit(case: Case, name: str) -> None:
    inputs = case.tensors(torch.bfloat16)
    expected = run(Gpu(name, completion="early", schedule="round_robin"), case, inputs)
    for options in (
        {"completion": "late", "schedule": "greedy"},
        {"completion": "random", "schedule": "random", "seed": 5},
        {"completion": "random", "schedule": "random", "seed": 6},
    ):
        assert same_bits(run(Gpu(name, **options), case, inputs), expected)


def spaced(x: Tensor, slack: int) -> Tensor:
    """The same with other strides: heads in front, NaN behind each row and each head."""
    rows, heads, dim = x.shape
    storage = x.new_full((heads, rows + 1, dim + slack), torch.nan)
    storage[:, :-1, :dim] = x.transpose(0, 1)
    return storage[:, :-1, :dim].transpose(0, 1)


@both_sets
def test_every_stride_is_honoured(gpu: Gpu) -> None:
    """Nothing is written between the gradients' rows either."""
    case = Case("anchor", 128, 6, PADDED, PACKED, causal=True, window=30, q_heads=6, kv_heads=2, head_dim=64)
    inputs = case.tensors(torch.bfloat16)
    expected = run(gpu, case, inputs)
    q, k, v, grad_out = (spaced(x, 8 * i) for i, x in enumerate(inputs))
    out, lse, _ = reference_gradients(inputs, case.options(), torch.float64)
    storages = [torch.full((x.shape[1], x.shape[0], 72), 7.0).bfloat16() for x in (q, k, v)]
    gradients = [x[:, :, :64].transpose(0, 1) for x in storages]
    spaced_out = torch.full((*out.shape[:2], 80), torch.nan).bfloat16()
    spaced_out[:, :, :64] = out
    spaced_lse = torch.full((case.q_heads, case.queries, 3), torch.nan)
    spaced_lse[:, :, 1] = lse.t()
    options = case.options()
    options["anchors"] = torch.stack([options["anchors"]] * 2, dim=1)[:, 1]
    options["cu_seqlens"] = torch.stack([options["cu_seqlens"]] * 3, dim=1)[:, 2]
    given = dict(zip(NAMES, gradients, strict=True))
    actual = masked_block_attention_backward(
        gpu, grad_out, q, k, v, spaced_out[:, :, :64], spaced_lse[:, :, 1].t(), **given, **options
    )
    assert same_bits(actual, expected)
    for storage in storages:
        assert (storage[:, :, 64:] == 7).all()


@both_sets
def test_rows_past_2_31_elements(gpu: Gpu) -> None:
    """Inputs and gradients whose rows lie far apart, all in one storage."""
    case = Case("causal", 3, q_heads=4, kv_heads=2, head_dim=64)
    inputs = case.tensors(torch.bfloat16)
    expected = run(gpu, case, inputs)
    out, lse, _ = reference_gradients(inputs, case.options(), torch.float64)
    stride = 2**30 + 64
    rows = sparse_elements(2 * stride + 8192, torch.bfloat16)

    def wide(place: int, like: Tensor) -> Tensor:
        return rows[1024 * place :].as_strided(like.shape, (stride, 64, 1))

    q, k, v, grad_out = (wide(i, x).copy_(x) for i, x in enumerate(inputs))
    gradients = {name: wide(5 + i, x) for i, (name, x) in enumerate(zip(NAMES, inputs, strict=False))}
    actual = masked_block_attention_backward(
        gpu, grad_out, q, k, v, wide(4, out).copy_(out), lse.float(), **case.options(), **gradients
    )
    assert same_bits(actual, expected)


@pytest.mark.parametrize("window", [0, 30])
def test_indices_that_make_no_sense_stay_inside(window: int) -> None:
    """Nothing checks what lies on a GPU: gradients are some numbers, all of them written."""
    case = Case("anchor", 70, 5, (2**31 - 1, 200, -5, 71, -(2**31)), window=window, head_dim=64)
    q, k, v, grad_out = case.tensors(torch.float16)
    options = case.options() | {"cu_seqlens": torch.tensor([9, 300, -7, 40], dtype=torch.int32)}
    lse = torch.zeros(q.shape[:2])
    actual = masked_block_attention_backward(Gpu(), grad_out, q, k, v, torch.zeros_like(q), lse, **options)
    assert not any(x.isnan().any() for x in actual.tensors())


def visible_keys(case: Case) -> Tensor:
    """bool ``[Q, K]``, found by one-hot values."""
    q, k = torch.zeros(case.queries, 1, 1), torch.zeros(case.keys, 1, 1)
    out, _ = reference.masked_block_attention(q, k, torch.eye(case.keys)[:, None], **case.options())
    return out[:, 0] > 0


@both_sets
@pytest.mark.parametrize(
    "case",
    [
        Case("anchor", 140, 8, PADDED, PACKED, window=9, q_heads=6, kv_heads=2, head_dim=64),
        Case("anchor", 140, 4, PADDED, head_dim=128),
        Case("bidirectional", 140, documents=PACKED, head_dim=64),
    ],
    ids=str,
)
def test_what_nobody_sees_never_reaches_a_gradient(case: Case, gpu: Gpu) -> None:
    """Context behind a document's last anchor, between windows, rows of no document, and padding blocks."""
    dtype = DTYPES[case.head_dim // 64 % 2]
    visible = visible_keys(case)
    unseen, sees_nothing = ~visible.any(dim=0), ~visible.any(dim=1)
    assert unseen.sum() >= 12
    assert sees_nothing.any()
    zeros, poisoned = (tuple(x.clone() for x in case.tensors(dtype)) for _ in range(2))
    for (q, k, v, grad_out), value in ((zeros, 0.0), (poisoned, torch.nan)):
        k[unseen] = v[unseen] = value
        q[sees_nothing] = grad_out[sees_nothing] = value
    out, lse, _ = reference_gradients(zeros, case.options(), torch.float64)
    results = [
        masked_block_attention_backward(gpu, grad_out, q, k, v, out.to(dtype), lse.float(), **case.options())
        for q, k, v, grad_out in (zeros, poisoned)
    ]
    assert same_bits(*results)
    grad_q, grad_k, grad_v = results[1].tensors()
    assert (grad_q[sees_nothing] == 0).all()
    assert (grad_k[unseen] == 0).all()
    assert (grad_v[unseen] == 0).all()


@both_sets
@pytest.mark.parametrize("poisoned", ["q", "k", "v", "grad_out"])
@pytest.mark.parametrize("mode", ["anchor", "causal"])
def test_documents_are_isolated(mode: str, poisoned: str, gpu: Gpu) -> None:
    """NaN in one document stays there, although tiles of rows and of keys hold several documents."""
    case = Case(mode, 128, 5, (90, 17, 127, 60, 119, 3, 65), PACKED, q_heads=2, head_dim=64)
    visible = visible_keys(case)
    q, k, v, grad_out = (x.clone() for x in case.tensors(torch.bfloat16))
    touched_queries = visible[:, 61:120].any(dim=1)  # of that document
    touched_keys = visible[touched_queries].any(dim=0)
    clean_out, clean_lse, _ = reference_gradients((q, k, v, grad_out), case.options(), torch.float64)
    clean = run(gpu, case, (q, k, v, grad_out))
    tensor = {"q": q, "k": k, "v": v, "grad_out": grad_out}[poisoned]
    tensor[61 if poisoned in "kv" else touched_queries.nonzero()[1, 0]] = torch.nan
    out, lse, expected = reference_gradients((q, k, v, grad_out), case.options(), torch.float64)
    # Dense products carry NaN to where the mask is 0: the forward pass does not.
    out = torch.where(touched_queries[:, None, None], out, clean_out)
    lse = torch.where(touched_queries[:, None], lse, clean_lse)
    actual = masked_block_attention_backward(gpu, grad_out, q, k, v, out.bfloat16(), lse.float(), **case.options())
    touched = {"grad_q": touched_queries, "grad_k": touched_keys, "grad_v": touched_keys}
    for name, gradient, before, wanted in zip(NAMES, actual.tensors(), clean.tensors(), expected, strict=True):
        assert torch.equal(gradient[~touched[name]], before[~touched[name]]), name
        if poisoned != "v" or name != "grad_v":
            assert gradient[touched[name]].isnan().any(), name
            assert wanted[touched[name]].isnan().any(), name
