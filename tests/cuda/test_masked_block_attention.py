"""masked_block_attention's forward kernels on the PTX interpreter: values, and what must not reach them."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from dflash_ops import _host, reference
from tests.cases.masked_block_attention import CASES, PACKED, PADDED, Case, spread
from tests.cuda.gpu import Gpu, sparse_elements
from tests.cuda.simulated_masked_attention import MaskedCall, masked_block_attention
from tests.cuda.test_block_attention import assert_same
from tests.ops.harness import assert_as_accurate

DTYPES = [torch.float16, torch.bfloat16]
# The orders in which copies may land and warps may run, on GPUs whose plans differ: those of Hopper are for warpgroups.
GPUS = [
    Gpu("H200", completion="early", schedule="round_robin"),
    Gpu("RTX 3090", completion="late", schedule="greedy"),
    Gpu("B200", completion="random", schedule="random", seed=7),
    Gpu("H100", completion="late", schedule="greedy"),
    Gpu("H200", completion="random", schedule="random", seed=8),
]
KERNELS = [Gpu("H200"), Gpu("A100")]
on_both_kernels = pytest.mark.parametrize("gpu", KERNELS, ids=str)
SENTINEL = 7.0
LONG_DOCUMENTS = Case("anchor", 410, 16, (330, 150, 391, 202, 410, 64), (0, 202, 391, 410), q_heads=4, head_dim=64)
SMALL = Case("anchor", 128, 6, PADDED, PACKED, causal=True, window=30, q_heads=6, kv_heads=2, head_dim=64)


def on_tensor_cores(case: Case, index: int = 0) -> Case:
    """The case with a head size that the kernels have."""
    return case if case.head_dim in (64, 128) else dataclasses.replace(case, head_dim=(64, 128)[index % 2])


def check(gpu: Gpu, case: Case, dtype: torch.dtype, **outputs: Tensor) -> tuple[Tensor, Tensor]:
    """The tolerance rule; lse also to what float32 arithmetic gives."""
    q, k, v, _ = case.tensors(dtype)
    out, lse = masked_block_attention(gpu, q, k, v, **case.options(), **outputs)
    check_result(case, (q, k, v), out, lse)
    return out, lse


def check_result(case: Case, tensors: tuple[Tensor, ...], out: Tensor, lse: Tensor) -> None:
    expected, expected_lse = reference.masked_block_attention(*(x.double() for x in tensors), **case.options())
    plain, plain_lse = reference.masked_block_attention(*tensors, **case.options())
    if out.numel() == 0:
        return
    assert_as_accurate(out, expected, plain)
    assert_as_accurate(lse, expected_lse, plain_lse)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-5, atol=1e-4, equal_nan=True)


def visible_keys(case: Case) -> Tensor:
    """bool ``[Q, K]``: which keys a query sees, found by one-hot values."""
    q, k = torch.zeros(case.queries, 1, 1), torch.zeros(case.keys, 1, 1)
    options = case.options()
    out, _ = reference.masked_block_attention(q, k, torch.eye(case.keys)[:, None], **options)
    return out[:, 0] > 0


@pytest.mark.parametrize("index", range(len(CASES)), ids=lambda index: str(CASES[index]))
def test_matches_the_definition(index: int) -> None:
    """Every mode, window and packing of the op's own cases, in turn with each dtype, head size and order of events."""
    check(GPUS[index % len(GPUS)], on_tensor_cores(CASES[index], index // 2), DTYPES[index % 2])


@pytest.mark.parametrize("gpu", GPUS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_many_tiles(head_dim: int, dtype: torch.dtype, gpu: Gpu) -> None:
    """More key tiles than stages and more row tiles than one, in every order of events."""
    case = Case("anchor", 330, 16, spread(12, 330), q_heads=4, kv_heads=2, head_dim=head_dim)
    check(gpu, case, dtype)


@pytest.mark.parametrize(
    ("group", "block_size", "gpu"), [(1, 64, GPUS[0]), (3, 16, GPUS[3]), (4, 7, GPUS[4]), (8, 16, GPUS[3])], ids=str
)
def test_groups_and_block_sizes_by_warpgroups(group: int, block_size: int, gpu: Gpu) -> None:
    """Row tiles that hold parts of blocks, a block, several; windows longer than a tile in the last."""
    window = 90 if group == 8 else 0
    anchors = spread(256 // block_size // group + 3, 300)
    case = Case("anchor", 300, block_size, anchors, q_heads=2 * group, kv_heads=2, head_dim=64, window=window)
    check(gpu, case, torch.bfloat16)


@pytest.mark.parametrize("gpu", [GPUS[0], GPUS[3], GPUS[4]], ids=str)
def test_whole_tiles_are_gathered_where_tma_does_not_take_the_layout(gpu: Gpu) -> None:
    """Heads in front of rows."""
    case = Case("anchor", 330, 16, spread(12, 330), q_heads=4, kv_heads=2, head_dim=64)
    q, k, v, _ = case.tensors(torch.bfloat16)
    k, v = (x.transpose(0, 1).contiguous().transpose(0, 1) for x in (k, v))
    check_result(case, (q, k, v), *masked_block_attention(gpu, q, k, v, **case.options()))
    assert gpu.report.count("wgmma.mma_async") > 0
    assert gpu.report.count("cp.async.bulk.tensor") == 0


@pytest.mark.parametrize(
    ("case", "gpu"),
    [
        (Case("anchor", 66, 4, (66, 10), q_heads=280, kv_heads=280, head_dim=64), GPUS[3]),
        (Case("causal", 129, q_heads=67, kv_heads=67, head_dim=64), GPUS[4]),
    ],
    ids=str,
)
def test_more_row_tiles_than_multiprocessors(case: Case, gpu: Gpu) -> None:
    """Blocks for warpgroups go from one to the next, twice and once, with boxes and gathered rows in between."""
    check(gpu, case, torch.float16)


def test_the_result_does_not_depend_on_the_order_of_events() -> None:
    q, k, v, _ = SMALL.tensors(torch.bfloat16)
    for gpu in KERNELS:
        alike = [other for other in GPUS if other.device.warpgroup_kernels == gpu.device.warpgroup_kernels]
        expected = masked_block_attention(gpu, q, k, v, **SMALL.options())
        for other in alike:
            assert_same(masked_block_attention(other, q, k, v, **SMALL.options()), expected)


@on_both_kernels
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
@pytest.mark.parametrize("window", [0, 9])
def test_keys_that_nobody_sees_never_reach_a_result(gpu: Gpu, window: int, poison: float) -> None:
    """Context behind the last anchor of a document, between windows, rows of no document, and padding blocks."""
    unseen_never_reach_a_result(
        gpu, Case("anchor", 140, 8, PADDED, PACKED, window=window, q_heads=6, kv_heads=2, head_dim=128), poison
    )


@on_both_kernels
def test_keys_that_nobody_sees_behind_whole_tiles(gpu: Gpu) -> None:
    """Documents of several tiles, in which the last anchors are early or late in one."""
    unseen_never_reach_a_result(
        gpu, dataclasses.replace(LONG_DOCUMENTS, anchors=(150, 40, 391, -1, 301, 201)), torch.nan
    )


def unseen_never_reach_a_result(gpu: Gpu, case: Case, poison: float) -> None:
    visible = visible_keys(case)
    unseen, sees_nothing = ~visible.any(dim=0), ~visible.any(dim=1)
    assert unseen.sum() > 40
    results = []
    for value in (0.0, poison):
        q, k, v, _ = case.tensors(torch.bfloat16)
        k[unseen] = v[unseen] = value
        q[sees_nothing] = value
        results.append(masked_block_attention(gpu, q, k, v, **case.options()))
    assert_same(results[1], results[0])
    out, lse = results[1]
    assert (out[sees_nothing] == 0).all()
    assert (lse[sees_nothing] == -torch.inf).all()


@on_both_kernels
@pytest.mark.parametrize("mode", ["anchor", "block_causal", "bidirectional", "causal"])
def test_documents_are_isolated(mode: str, gpu: Gpu) -> None:
    """NaN in one document stays there, though its rows and keys share tiles with others'."""
    anchors = (90, 17, 128, 60, 119, 3, 65)
    case = Case(mode, 128, 7, anchors, PACKED, q_heads=6, kv_heads=2, head_dim=64)
    assert_isolated(gpu, case, slice(61, 120), 70)


@on_both_kernels
@pytest.mark.parametrize("mode", ["anchor", "causal"])
def test_long_documents_are_isolated(mode: str, gpu: Gpu) -> None:
    """The same with tiles that lie within a document."""
    assert_isolated(gpu, dataclasses.replace(LONG_DOCUMENTS, mode=mode), slice(202, 391), 215)


def assert_isolated(gpu: Gpu, case: Case, document: slice, key: int) -> None:
    visible = visible_keys(case)
    q, k, v, _ = case.tensors(torch.float16)
    clean = masked_block_attention(gpu, q, k, v, **case.options())
    k[key] = v[key] = torch.nan
    touched = visible[:, document].any(dim=1)
    q[touched.nonzero()[-1, 0]] = torch.nan
    out, lse = masked_block_attention(gpu, q, k, v, **case.options())
    assert out[touched].isnan().any()
    assert_same((out[~touched], lse[~touched]), (clean[0][~touched], clean[1][~touched]))


@on_both_kernels
def test_order_of_the_blocks_is_immaterial(gpu: Gpu) -> None:
    anchors = (40, 3, 99, 64, 17)
    case = Case("anchor", 100, 8, anchors, q_heads=3, head_dim=128)
    q, k, v, _ = case.tensors(torch.float16)
    out, lse = masked_block_attention(gpu, q, k, v, **case.options())
    order = torch.tensor([4, 2, 0, 3, 1])
    rows = (order[:, None] * 8 + torch.arange(8)).flatten()
    keys = torch.cat([torch.arange(100), 100 + rows])
    options = case.options() | {"anchors": torch.tensor(anchors, dtype=torch.int32)[order]}
    moved = masked_block_attention(gpu, q[rows], k[keys], v[keys], **options)
    assert_same(moved, (out[rows], lse[rows]))


@on_both_kernels
def test_a_plan_serves_other_anchors_and_documents(gpu: Gpu) -> None:
    """As in a CUDA graph: what the tensors hold changes between launches, the plans do not, and what the workspace holds
    is the last launch's."""
    case = Case("anchor", 128, 6, PADDED, PACKED, head_dim=64, q_heads=3)
    q, k, v, _ = case.tensors(torch.bfloat16)
    anchors = torch.tensor(case.anchors, dtype=torch.int32)
    documents = torch.tensor(case.documents, dtype=torch.int32)
    call = MaskedCall(gpu, q, k, v, **(case.options() | {"anchors": anchors, "cu_seqlens": documents}))
    for new_anchors, new_documents in (
        (case.anchors, case.documents),
        ((-1,) * 11, (0, 0, 0, 0, 0, 0)),
        (spread(11, 128), (0, 128, 128, 128, 128, 128)),
        (case.anchors[::-1], (0, 5, 30, 31, 90, 128)),
    ):
        anchors.copy_(torch.tensor(new_anchors))
        documents.copy_(torch.tensor(new_documents))
        call.out.fill_(torch.nan)
        call.lse.fill_(torch.nan)
        out, lse = call.launch()
        check_result(dataclasses.replace(case, anchors=new_anchors, documents=new_documents), (q, k, v), out, lse)


@on_both_kernels
def test_values_that_make_no_sense_stay_inside(gpu: Gpu) -> None:
    """No one can check them before the launch. Nothing outside the tensors is touched."""
    case = dataclasses.replace(SMALL, window=0)
    q, k, v, _ = case.tensors(torch.bfloat16)
    for anchors, documents in (
        ((2**31 - 1, -(2**31), 127, 500, *case.anchors[4:]), case.documents),
        (case.anchors, (-9, 2**31 - 1, 40, -(2**31), 128, 129)),
        (case.anchors, (128, 120, 61, 61, 13, 0)),
    ):
        options = case.options() | {
            "anchors": torch.tensor(anchors, dtype=torch.int32),
            "cu_seqlens": torch.tensor(documents, dtype=torch.int32),
        }
        out, lse = masked_block_attention(gpu, q, k, v, **options)
        assert not out.isnan().any()
        assert not lse.isnan().any()
    packed = Case("causal", 100, documents=(0, 40, 100), head_dim=64)
    q, k, v, _ = packed.tensors(torch.bfloat16)
    for bounds in ([7, 3, 100], [-4, 2**31 - 1, 0], [101, 101, 101]):
        options = packed.options() | {"cu_seqlens": torch.tensor(bounds, dtype=torch.int32)}
        out, _ = masked_block_attention(gpu, q, k, v, **options)
        assert not out.isnan().any()


@on_both_kernels
def test_infinite_logits(gpu: Gpu) -> None:
    """A row whose logits are all -inf gives out 0 and lse -inf; NaN in a query stays in that row."""
    case = Case("causal", 150, q_heads=2, head_dim=128, scale=1.0)
    q, k, v, _ = (x.abs().clamp(0.25, 1.0) for x in case.tensors(torch.bfloat16))
    q[70, 0] = -torch.inf
    q[71, 1] = torch.nan
    out, lse = masked_block_attention(gpu, q, k, v, **case.options())
    assert (out[70, 0] == 0).all()
    assert lse[70, 0] == -torch.inf
    assert out[71, 1].isnan().all()
    assert out.isnan().sum() == 128
    assert lse.isnan().sum() == 1


@on_both_kernels
def test_logits_that_rise_and_fall(gpu: Gpu) -> None:
    """Along the keys, so that sums are rescaled at every tile, or never after the first."""
    case = Case("bidirectional", 200, q_heads=2, head_dim=64, scale=1.0)
    for slope in (0.3, -0.3):
        q, k, v, _ = case.tensors(torch.float16)
        q.fill_(1.0)
        k.copy_((torch.arange(200)[:, None, None] * slope / 64).half())
        check_result(case, (q, k, v), *masked_block_attention(gpu, q, k, v, **case.options()))


@on_both_kernels
def test_every_stride_is_honoured(gpu: Gpu) -> None:
    """q, k and v as parts of one projection with NaN around them, outputs transposed and spaced, anchors apart."""
    q, k, v, _ = SMALL.tensors(torch.float16)
    options = SMALL.options()
    expected = masked_block_attention(gpu, q, k, v, **options)
    kv = torch.full((k.shape[0], 5, 64), torch.nan, dtype=torch.float16)
    kv[:, :2], kv[:, 3:] = k, v
    spaced = torch.full((6, q.shape[0], 72), torch.nan, dtype=torch.float16)
    spaced[:, :, :64] = q.transpose(0, 1)
    apart = {
        name: torch.stack([options[name], torch.full_like(options[name], -5)], dim=1)[:, 0]
        for name in ("anchors", "cu_seqlens")
    }
    out_storage = torch.full((6, q.shape[0], 72), SENTINEL, dtype=torch.float16)
    lse_storage = torch.full((6, q.shape[0], 2), SENTINEL)
    out, lse = out_storage[:, :, :64].transpose(0, 1), lse_storage[:, :, 0].t()
    actual = masked_block_attention(
        gpu, spaced[:, :, :64].transpose(0, 1), kv[:, :2], kv[:, 3:], **(options | apart), out=out, lse=lse
    )
    assert_same(actual, expected)
    assert (out_storage[:, :, 64:] == SENTINEL).all()
    assert (lse_storage[:, :, 1] == SENTINEL).all()


@on_both_kernels
def test_rows_past_2_31_elements(gpu: Gpu) -> None:
    case = Case("anchor", 3, 2, (3, 1), q_heads=4, kv_heads=2, head_dim=64)
    q, k, v, _ = case.tensors(torch.bfloat16)
    expected = masked_block_attention(gpu, q, k, v, **case.options())
    # Rows and heads of k and v are counted in 16 bytes: past 2^32 of them.
    wide: list[Tensor] = []
    for tensor, stride in ((q, 2**30 + 64), (k, 2**33 + 64), (v, 2**33 + 128)):
        rows, heads, dim = tensor.shape
        flat = sparse_elements(stride * rows, torch.bfloat16)
        wide.append(flat.as_strided((rows, heads, dim), (stride, dim, 1)).copy_(tensor))
    out = wide[0].as_strided(q.shape, wide[0].stride(), 1024)  # beside q
    entries = sparse_elements(2**32 + 64, torch.int32)  # of lse and the anchors
    lse = entries[32:].view(torch.float32).as_strided((4, 4), (2**30, 1))
    options = case.options()
    options["anchors"] = entries.as_strided((2,), (2**31,)).copy_(options["anchors"])
    actual = masked_block_attention(gpu, *wide, **options, out=out, lse=lse)
    assert_same(actual, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_dim": 32}, "head_dim: expected 64 or 128 on CUDA, got 32"),
        ({"dtype": _host.DType.float32}, "q: expected float16 or bfloat16 on CUDA, got float32"),
        ({"k": 8}, "k: expected 16-byte aligned rows, got an address that is not"),
        ({"v_row_stride": 65}, "v: expected strides that are multiples of 8 elements, got 65"),
        ({"out_head_stride": 4}, "out: expected strides that are multiples of 8 elements, got 4"),
        ({"queries": 2**31, "keys": 2**31}, r"q: expected fewer than 2\^31 rows of a kv head on CUDA"),
    ],
)
def test_the_plan_refuses(change: dict[str, Any], message: str) -> None:
    fields = {
        "dtype": _host.DType.bfloat16,
        "mode": _host.MaskMode.causal,
        "queries": 64,
        "keys": 64,
        "q_heads": 2,
        "kv_heads": 1,
        "head_dim": 64,
    }
    params = _host.MaskedBlockAttentionParams(**(fields | change))
    with pytest.raises(ValueError, match=message):
        _host.plan_masked_block_attention_forward(params, 0, _host.known_device("A100"))
