"""block_attention's kernel on the PTX interpreter: one plan launched again and again, workspaces, batches, strides."""

from typing import Any

import pytest
import torch

from tests.cases.block_attention import CAUSAL, GARBAGE_PAGE, Case
from tests.cuda.gpu import Gpu, sparse_elements
from tests.cuda.simulated_attention import AttentionCall, block_attention
from tests.cuda.test_block_attention import DTYPES, SENTINEL, assert_same, check_result, same_bits

MODES: list[dict[str, Any]] = [
    {"completion": "early", "schedule": "round_robin"},
    {"completion": "late", "schedule": "greedy"},
    {"completion": "late", "schedule": "random", "seed": 5},
    {"completion": "random", "schedule": "random", "seed": 6},
]


@pytest.mark.parametrize("num_splits", [1, 3, 40])
def test_fixed_splits_make_a_request_independent_of_its_batch(num_splits: int) -> None:
    """Bit by bit: in a batch, alone with no more pages than it needs, and elsewhere in another batch on another GPU."""
    options = {"causal": True, "num_splits": num_splits}
    case = Case((530, 0, 70, 101), (8, 16, 3, 40), q_heads=3, kv_heads=1, head_dim=128, options=options)
    inputs = case.inputs(torch.bfloat16)
    out, lse = block_attention(Gpu(), **inputs)
    assert lse is not None
    bounds = inputs["cu_block_lens"].tolist()
    rows = [slice(bounds[request], bounds[request + 1]) for request in range(4)]
    for request, context in enumerate(case.contexts):
        alone = {name: inputs[name][rows[request]] for name in ("q", "k_block", "v_block")}
        alone["context_lens"] = inputs["context_lens"][request : request + 1]
        alone["page_table"] = inputs["page_table"][request : request + 1, : -(-context // 16)]
        actual = block_attention(Gpu(), **(inputs | alone | {"cu_block_lens": None}))
        assert_same(actual, (out[rows[request]], lse[rows[request]]))
    order = [3, 2, 0]
    moved = {name: torch.cat([inputs[name][rows[i]] for i in order]) for name in ("q", "k_block", "v_block")}
    moved |= {name: inputs[name][order] for name in ("page_table", "context_lens")}
    moved["cu_block_lens"] = torch.tensor([0, 40, 43, 51], dtype=torch.int32)
    moved["page_table"] = torch.cat([moved["page_table"], torch.full((3, 90), GARBAGE_PAGE, dtype=torch.int32)], dim=1)
    expected = tuple(torch.cat([result[rows[i]] for i in order]) for result in (out, lse))
    assert_same(block_attention(Gpu("A100"), **(inputs | moved)), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_splits", [0, 4, 40])
def test_the_result_does_not_depend_on_the_order_of_events(num_splits: int, dtype: torch.dtype) -> None:
    case = Case((500, 30), (7, 16), q_heads=4, kv_heads=1, head_dim=128, options={"num_splits": num_splits})
    results = [block_attention(Gpu(**mode), **case.inputs(dtype)) for mode in MODES]
    for result in results[1:]:
        assert_same(result, results[0])


@pytest.mark.parametrize("num_splits", [0, 3])
def test_a_plan_serves_other_lengths(num_splits: int) -> None:
    """As in a CUDA graph: what the tensors hold changes between launches, the workspace stays as the last one left it."""
    longest = Case((400, 400, 400), (16, 16, 16), q_heads=4, kv_heads=2, options=CAUSAL | {"num_splits": num_splits})
    inputs = longest.inputs(torch.bfloat16)
    call = AttentionCall(Gpu(), **inputs)
    for contexts, blocks in (
        ((10, 0, 37), (16, 16, 16)),
        ((400, 400, 400), (16, 16, 16)),
        ((0, 400, 1), (1, 0, 9)),
        ((0, 0, 0), (0, 0, 0)),
        ((399, 64, 65), (16, 2, 16)),
    ):
        inputs["context_lens"].copy_(torch.tensor(contexts))
        inputs["cu_block_lens"].copy_(torch.tensor([0, *blocks]).cumsum(0))
        call.out.fill_(torch.nan)
        assert call.lse is not None
        call.lse.fill_(torch.nan)
        call.launch()
        check_result(inputs, call.out, call.lse)


def test_what_lies_in_the_workspace_does_not_matter() -> None:
    """But for the counters, which are zero between calls: partial results of rows that nobody wrote are not read. The
    workspace is no longer than the plan says."""
    case = Case((300, 1, 130), (16, 3, 9), q_heads=3, kv_heads=1, head_dim=128, options={"num_splits": 3})
    inputs = case.inputs(torch.bfloat16)
    call = AttentionCall(Gpu(), **inputs)
    first = call.launch()
    assert call.plan is not None
    workspace = call.workspace[: call.plan.workspace_bytes].clone()
    workspace[workspace != 0] = 255
    assert_same(block_attention(Gpu(), **inputs, workspace=workspace), first)
    assert (workspace[workspace != 0] != 255).any()


def test_one_workspace_serves_calls_of_other_shapes() -> None:
    """An engine holds one, as large as its largest call needs."""
    cases = [
        Case((300,), 5, q_heads=2, kv_heads=1, options={"num_splits": 3}),
        Case((200, 70), 16, q_heads=42, kv_heads=21, options={"num_splits": 2}),
        Case((300,), 16, q_heads=8, kv_heads=2, head_dim=128),
        Case((170, 20, 0), (16, 3, 1), q_heads=8, kv_heads=4, head_dim=96, options={"num_splits": 5}),
    ]
    calls = [(Gpu(), case.inputs(torch.bfloat16)) for case in cases]
    size = max(AttentionCall(gpu, **inputs).workspace_size() for gpu, inputs in calls)
    workspace = torch.zeros(size, dtype=torch.uint8)
    for gpu, inputs in calls + calls[::-1]:
        check_result(inputs, *block_attention(gpu, **inputs, workspace=workspace))


@pytest.mark.parametrize("num_splits", [0, 3])
def test_lengths_that_make_no_sense_stay_inside(num_splits: int) -> None:
    """No one can check them before the launch: contexts count as the nearest possible length, requests take no rows that
    are not there. Nothing outside the tensors is touched, and the requests before keep their results."""
    case = Case((100, 70, 60, 33), (4, 2, 3, 5), options=CAUSAL | {"num_splits": num_splits}, table_slack=0)
    inputs = case.inputs(torch.bfloat16)
    bounded = inputs | {"context_lens": torch.tensor([100, 0, 112, 33], dtype=torch.int32)}
    inputs["page_table"][:, :] = inputs["page_table"].clamp(0, 16)
    inputs["k_cache"].nan_to_num_(0.5)
    inputs["v_cache"].nan_to_num_(0.5)
    expected = block_attention(Gpu(), **bounded)
    inputs["context_lens"].copy_(torch.tensor([100, -7, 2**31 - 1, 33]))
    assert_same(block_attention(Gpu(), **inputs), expected)
    for lengths in ([0, 4, 6, 9, 100], [0, 4, 4, 2**31 - 1, 3], [0, 4, -5, -1, -1], [-3, 4, 4, 4, 4]):
        inputs["cu_block_lens"].copy_(torch.tensor(lengths))
        out, lse = block_attention(Gpu(), **inputs)
        assert lse is not None
        assert expected[1] is not None
        assert_same((out[:4], lse[:4]), (expected[0][:4], expected[1][:4]))


def test_a_plan_for_one_context_serves_a_long_one() -> None:
    """Captured while all contexts are empty; the table has room for more."""
    inputs = Case((300, 170), 16, q_heads=2, kv_heads=1, head_dim=128).inputs(torch.float16)
    contexts = inputs["context_lens"].clone()
    inputs["context_lens"].zero_()
    call = AttentionCall(Gpu("A100"), **inputs)
    for lengths in (contexts * 0, contexts, contexts * 0):
        inputs["context_lens"].copy_(lengths)
        check_result(inputs, *call.launch())


@pytest.mark.parametrize("num_splits", [0, 1, 3])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_lse_is_optional(has_sinks: bool, num_splits: int) -> None:
    case = Case((150, 3), (9, 4), has_sinks=has_sinks, options={"num_splits": num_splits})
    inputs = case.inputs(torch.bfloat16)
    expected, _ = block_attention(Gpu(), **inputs)
    out, lse = block_attention(Gpu(), **inputs, needs_lse=False)
    assert lse is None
    assert same_bits(out, expected)


@pytest.mark.parametrize("num_splits", [1, 2])
def test_every_stride_is_honoured(num_splits: int) -> None:
    case = Case((40, 70), 6, q_heads=6, kv_heads=3, has_sinks=True, options={"num_splits": num_splits})
    inputs = case.inputs(torch.float16)
    expected = block_attention(Gpu(), **inputs)
    # q, k and v as columns of one projection, with k and v of different strides; outputs transposed and spaced.
    qkv = torch.full((12, 20, 64), torch.nan, dtype=torch.float16)
    qkv[:, :6] = inputs["q"]
    qkv[:, 7:10] = inputs["k_block"]
    v_block = torch.full((3, 12, 64), torch.nan, dtype=torch.float16)
    v_block.copy_(inputs["v_block"].transpose(0, 1))
    spread = {}
    for name, dtype in (("context_lens", torch.int32), ("sinks", torch.float32)):
        both = torch.full((inputs[name].shape[0], 3), -5, dtype=dtype)
        both[:, 1] = inputs[name]
        spread[name] = both[:, 1]
    table = torch.full((2, 2, inputs["page_table"].shape[1]), -1, dtype=torch.int32)
    table[:, 0] = inputs["page_table"]
    out_storage = torch.full((6, 12, 72), SENTINEL, dtype=torch.float16)
    lse_storage = torch.full((6, 12, 2), SENTINEL)
    inputs |= spread | {
        "q": qkv[:, :6],
        "k_block": qkv[:, 7:10],
        "v_block": v_block.transpose(0, 1),
        "page_table": table[:, 0],
        "cu_block_lens": torch.tensor([[0, 9], [6, 9], [12, 9]], dtype=torch.int32)[:, 0],
        "out": out_storage[:, :, :64].transpose(0, 1),
        "lse": lse_storage[:, :, 0].t(),
    }
    assert_same(block_attention(Gpu(), **inputs), expected)
    assert (out_storage[:, :, 64:] == SENTINEL).all()
    assert (lse_storage[:, :, 1] == SENTINEL).all()


def test_caches_past_2_31_elements() -> None:
    """And past 2^32 vectors of 16 bytes."""
    case = Case((4, 3, 4, 2), 3, head_dim=64, page_size=4, kv_heads=2)
    inputs = case.inputs(torch.bfloat16)
    expected = block_attention(Gpu(), **inputs)
    pages, page_size, heads, dim = inputs["k_cache"].shape
    for name, page_stride in (("k_cache", 2**34 + 64), ("v_cache", 2**29 + 128)):
        flat = sparse_elements(page_stride * pages, torch.bfloat16)
        wide = flat.as_strided((pages, page_size, heads, dim), (page_stride, heads * dim, dim, 1))
        inputs[name] = wide.copy_(inputs[name])
    assert_same(block_attention(Gpu(), **inputs), expected)


@pytest.mark.parametrize("num_splits", [1, 2])
def test_rows_past_2_31_elements(num_splits: int) -> None:
    """Queries, the block's keys and values, results and page tables whose rows lie far apart."""
    case = Case((11, 70), (2, 1), q_heads=4, head_dim=64, options={"num_splits": num_splits})
    inputs = case.inputs(torch.bfloat16)
    expected = block_attention(Gpu(), **inputs)
    stride = 2**30 + 64
    rows = sparse_elements(2 * stride + 4096, torch.bfloat16)  # of all four tensors, side by side
    for place, name in enumerate(("q", "k_block", "v_block", "out")):
        wide = rows[1024 * place :].as_strided((3, 2 if name.endswith("block") else 4, 64), (stride, 64, 1))
        inputs[name] = wide if name == "out" else wide.copy_(inputs[name])
    table = inputs["page_table"]
    entries = sparse_elements(2**31 + 64, torch.int32)
    inputs["page_table"] = entries.as_strided(table.shape, (2**31, 1)).copy_(table)
    inputs["lse"] = entries[32:].view(torch.float32).as_strided((3, 4), (2**30, 1))
    assert_same(block_attention(Gpu(), **inputs), expected)
