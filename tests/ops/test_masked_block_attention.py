from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor

import dflash_ops
from dflash_ops import reference
from tests.cases.masked_block_attention import CASES, PACKED, PADDED, Case, spread
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
    # Autograd would have straightened these rows out.
    grad_out = fused((q, k, v, grad_out))[3]
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


def test_autograd_is_one_definition_for_all_devices() -> None:
    table = torch._C._dispatch_dump_table("dflash_ops::masked_block_attention").splitlines()
    of_device = [line.split(": ", 1)[1] for line in table if line.startswith(("AutogradCPU", "AutogradCUDA"))]
    assert len(of_device) == 2
    assert "autograd kernel" in of_device[0]
    assert of_device[0] == of_device[1]


def test_works_under_activation_checkpointing() -> None:
    """Eager and compiled: the forward pass runs twice, the gradients are the same bits."""
    options = ANCHORED.options()
    q, k, v, grad_out = ANCHORED.tensors(torch.float32)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dflash_ops.masked_block_attention(q * 2, k, v, **options)[0].sin()

    def checkpointed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(attend, q, k, v, use_reentrant=False)

    torch._dynamo.reset()
    gradients = []
    for function in (attend, checkpointed, torch.compile(checkpointed, fullgraph=True, backend="aot_eager")):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        gradients.append(torch.autograd.grad(function(*leaves), leaves, grad_out))
    for other in gradients[1:]:
        for one, same in zip(gradients[0], other, strict=True):
            assert torch.equal(one, same)


def test_gradients_of_any_layout_are_taken() -> None:
    """Of a concatenation with something odd, autograd hands over rows that lie askew in memory."""
    options = ANCHORED.options()
    q, k, v, _ = ANCHORED.tensors(torch.float32)
    aside = torch.ones(*q.shape[:2], 3)
    weights = torch.randn(*q.shape[:2], q.shape[2] + 3, generator=torch.Generator().manual_seed(1))
    results = []
    for joined in (True, False):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        out, _ = dflash_ops.masked_block_attention(*leaves, **options)
        loss = (torch.cat([aside, out], dim=2) * weights).sum() if joined else (out * weights[:, :, 3:]).sum()
        results.append(torch.autograd.grad(loss, leaves))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_lse_is_not_differentiable() -> None:
    q, k, v, _ = ANCHORED.tensors(torch.float32)
    out, lse = dflash_ops.masked_block_attention(q.requires_grad_(), k, v, **ANCHORED.options())
    assert out.requires_grad
    assert not lse.requires_grad
    # Autograd hands the op an expanded scalar here.
    out.sum().backward()
    assert q.grad is not None


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [0, 9])
def test_keys_that_nobody_sees_never_reach_a_result(window: int, dtype: torch.dtype, isa: str) -> None:
    """Context behind the last anchor of a document, between windows, rows of no document, and padding blocks."""
    case = Case("anchor", 140, 8, PADDED, PACKED, window=window, q_heads=6, kv_heads=2)
    options = case.options()
    zeros, poisoned = ([x.clone() for x in case.tensors(dtype)] for _ in range(2))
    visible = reference_mask(case)
    unseen = ~visible.any(dim=0)
    sees_nothing = ~visible.any(dim=1)
    assert unseen.sum() > 40
    for tensors, value in ((zeros, 0.0), (poisoned, torch.nan)):
        q, k, v, grad_out = tensors
        k[unseen] = v[unseen] = value
        q[sees_nothing] = grad_out[sees_nothing] = value
    with cpu_isa(isa):
        expected = with_gradients(dflash_ops.masked_block_attention, tuple(zeros), options)
        actual = with_gradients(dflash_ops.masked_block_attention, tuple(poisoned), options)
    for name in NAMES:
        assert not actual[name].isnan().any()
        assert torch.equal(actual[name], expected[name])
    assert (actual["out"][sees_nothing] == 0).all()
    assert (actual["lse"][sees_nothing] == -torch.inf).all()
    assert (actual["grad_q"][sees_nothing] == 0).all()
    assert (actual["grad_k"][unseen] == 0).all()
    assert (actual["grad_v"][unseen] == 0).all()


def reference_mask(case: Case) -> Tensor:
    """bool ``[Q, K]``: which keys a query sees, found by one-hot values."""
    keys = case.keys
    q, k = torch.zeros(case.queries, 1, 1), torch.zeros(keys, 1, 1)
    out, _ = reference.masked_block_attention(q, k, torch.eye(keys)[:, None], **case.options())
    return out[:, 0] > 0


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("mode", ["anchor", "block_causal", "bidirectional", "causal"])
def test_documents_are_isolated(mode: str, isa: str) -> None:
    """NaN in one document stays there, in both directions."""
    case = Case(mode, 128, 7, (90, 17, 128, 60, 119, 3, 65), PACKED, q_heads=6, kv_heads=2)
    visible = reference_mask(case)
    tensors = case.tensors(torch.float32)
    with cpu_isa(isa):
        clean = with_gradients(dflash_ops.masked_block_attention, tensors, case.options())
        q, k, v, grad_out = (x.clone() for x in tensors)
        k[70] = v[70] = torch.nan  # document 61..120
        touched_queries = visible[:, 61:120].any(dim=1)
        touched_keys = visible[touched_queries].any(dim=0)
        q[touched_queries.nonzero()[-1, 0]] = torch.nan
        actual = with_gradients(dflash_ops.masked_block_attention, (q, k, v, grad_out), case.options())
    for name in NAMES:
        touched = touched_keys if name in ("grad_k", "grad_v") else touched_queries
        assert actual[name].isnan().any()
        assert torch.equal(actual[name][~touched], clean[name][~touched])


def test_results_do_not_depend_on_threads_or_runs() -> None:
    case = Case("anchor", 500, 8, spread(40, 500), q_heads=6, kv_heads=2)
    tensors = case.tensors(torch.float32)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 3, 3):
            torch.set_num_threads(count)
            results.append(with_gradients(dflash_ops.masked_block_attention, tensors, case.options()))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        for name in NAMES:
            assert torch.equal(other[name], results[0][name])


def test_order_of_the_blocks_is_immaterial() -> None:
    anchors = (40, 3, 99, 64, 17)
    case = Case("anchor", 100, 8, anchors, q_heads=3)
    q, k, v, grad_out = case.tensors(torch.float32)
    expected = with_gradients(dflash_ops.masked_block_attention, (q, k, v, grad_out), case.options())
    order = torch.tensor([4, 2, 0, 3, 1])
    rows = (order[:, None] * 8 + torch.arange(8)).flatten()
    keys = torch.cat([torch.arange(100), 100 + rows])
    options = case.options() | {"anchors": torch.tensor(anchors, dtype=torch.int32)[order]}
    actual = with_gradients(dflash_ops.masked_block_attention, (q[rows], k[keys], v[keys], grad_out[rows]), options)
    for name in NAMES:
        assert torch.equal(actual[name], expected[name][keys if name in ("grad_k", "grad_v") else rows])


def valid_arguments() -> dict[str, Any]:
    return {
        "q": torch.zeros(8, 4, 64),
        "k": torch.zeros(18, 2, 64),
        "v": torch.zeros(18, 2, 64),
        "mode": "anchor",
        "block_size": 4,
        "anchors": torch.tensor([3, 10], dtype=torch.int32),
        "cu_seqlens": torch.tensor([0, 4, 10], dtype=torch.int32),
        "causal": False,
        "window": 0,
        "scale": 0.125,
    }


OUTPUTS = {"out": (8, 4, 64), "lse": (8, 4), "grad_q": (8, 4, 64), "grad_k": (18, 2, 64), "grad_v": (18, 2, 64)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(8, 256)}, "q: expected 3 dimensions"),
        ({"q": torch.zeros(8, 4, 64).double()}, "q: expected float32, float16 or bfloat16"),
        ({"q": torch.zeros(8, 64, 4).transpose(1, 2)}, "q: expected stride 1 in the last dimension"),
        ({"q": torch.zeros(8, 4, 60)}, "q: expected head_dim a multiple of 8"),
        ({"q": torch.zeros(8, 4, 264)}, "q: expected head_dim a multiple of 8 from 8 to 256"),
        ({"q": torch.zeros(7, 4, 64)}, "q: expected 2 blocks of 4 rows"),
        ({"q": torch.zeros(8, 3, 64)}, "k: expected kv heads that divide q's 3 heads"),
        ({"k": torch.zeros(18, 2, 64).half()}, "k: expected float32, got float16"),
        ({"k": torch.zeros(18, 2, 32)}, r"k: expected shape \[\*, \*, 64\]"),
        ({"k": torch.zeros(7, 2, 64), "v": torch.zeros(7, 2, 64)}, "k: expected the context's keys and 8"),
        ({"v": torch.zeros(17, 2, 64)}, r"v: expected shape \[18, 2, 64\]"),
        ({"mode": "prefix"}, "mode: expected anchor, block_causal, bidirectional or causal, got prefix"),
        ({"mode": "causal"}, "q: expected as many rows as k, 18"),
        ({"block_size": 0}, "block_size: expected 1 or more in this mode, got 0"),
        ({"anchors": None}, "anchors: expected a tensor in mode anchor, got None"),
        ({"anchors": torch.zeros(2, dtype=torch.int64)}, "anchors: expected int32, got int64"),
        ({"anchors": torch.tensor([3, 11], dtype=torch.int32)}, r"anchors\[1\]: expected at most 10 .*, got 11"),
        ({"cu_seqlens": torch.zeros(3)}, "cu_seqlens: expected int32, got float32"),
        ({"cu_seqlens": torch.zeros(0, dtype=torch.int32)}, "cu_seqlens: expected one element or more"),
        ({"cu_seqlens": torch.tensor([1, 10], dtype=torch.int32)}, r"cu_seqlens\[0\]: expected 0, got 1"),
        ({"cu_seqlens": torch.tensor([0, 11], dtype=torch.int32)}, r"cu_seqlens\[1\]: expected .* 0 to 10, got 11"),
        ({"cu_seqlens": torch.tensor([0, 5, 4], dtype=torch.int32)}, r"cu_seqlens\[2\]: expected .* 5 to 10, got 4"),
        ({"window": -1}, "window: expected 0"),
        ({"out": torch.zeros(8, 4, 64).half()}, "out: expected float32, got float16"),
        ({"out": torch.zeros(7, 4, 64)}, r"out: expected shape \[8, 4, 64\]"),
        ({"lse": torch.zeros(8, 4).half()}, "lse: expected float32, got float16"),
        ({"grad_out": torch.zeros(1, 1, 1).expand(8, 4, 64)}, "grad_out: expected stride 1 in the last dimension"),
        ({"grad_q": torch.zeros(1, 4, 64).expand(8, 4, 64)}, "grad_q: expected an output without overlapping"),
        ({"grad_k": torch.zeros(18, 4, 64)}, r"grad_k: expected shape \[18, 2, 64\]"),
        ({"grad_v": torch.zeros(18, 2, 64).half()}, "grad_v: expected float32, got float16"),
    ],
)
def test_bad_arguments_are_named_before_anything_is_written(change: dict[str, Any], message: str) -> None:
    inputs = valid_arguments() | {name: value for name, value in change.items() if name in valid_arguments()}
    outputs = {name: torch.full(shape, 7.0) for name, shape in OUTPUTS.items()} | change
    arguments = tuple(inputs.values())
    grad_out = change.get("grad_out", torch.zeros(8, 4, 64))
    calls = {
        "_forward": (*arguments, outputs["out"], outputs["lse"]),
        "_backward": (
            *(grad_out, *arguments[:3], outputs["out"], outputs["lse"], *arguments[3:]),
            *(outputs[name] for name in ("grad_q", "grad_k", "grad_v")),
        ),
    }
    if not set(change) - set(inputs):
        calls[""] = arguments
    elif any(name.startswith("grad") for name in change):
        del calls["_forward"]
    for suffix, call in calls.items():
        op = f"masked_block_attention{suffix}"
        with pytest.raises(RuntimeError, match=f"{op}: {message}"):
            getattr(torch.ops.dflash_ops, op)(*call)
    for name in set(OUTPUTS) - set(change):
        assert (outputs[name] == 7).all()
