"""block_attention's kernel on the PTX interpreter: values, and what must not reach them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from dflash_ops import reference
from tests.cases.block_attention import CAUSAL, GARBAGE_PAGE, TENSOR_CORE_CASES, Case
from tests.cuda.gpu import Gpu, sparse_elements
from tests.cuda.simulated_attention import AttentionCall, block_attention
from tests.ops.harness import assert_as_accurate

DTYPES = [torch.float16, torch.bfloat16]
# The orders in which copies may land and warps may run, on GPUs whose plans differ.
GPUS = [
    Gpu("H200", completion="early", schedule="round_robin"),
    Gpu("RTX 3090", completion="late", schedule="greedy"),
    Gpu("B200", completion="random", schedule="random", seed=7),
]
MODES: list[dict[str, Any]] = [
    {"completion": "early", "schedule": "round_robin"},
    {"completion": "late", "schedule": "greedy"},
    {"completion": "late", "schedule": "random", "seed": 5},
    {"completion": "random", "schedule": "random", "seed": 6},
]
SENTINEL = 7.0


def definition(inputs: dict[str, Any], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    converted = {
        name: value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in inputs.items()
        if name != "num_splits"
    }
    return reference.block_attention(**converted)


def rows_of(inputs: dict[str, Any]) -> int:
    """Rows of all requests, those behind the last one's not counted."""
    cu_block_lens = inputs["cu_block_lens"]
    return inputs["q"].shape[0] if cu_block_lens is None else int(cu_block_lens[-1])


def check_result(inputs: dict[str, Any], out: Tensor, lse: Tensor | None) -> None:
    """The tolerance rule; lse also to what float32 arithmetic gives. Rows of no request are as they were."""
    rows = rows_of(inputs)
    expected, expected_lse = definition(inputs, torch.float64)
    plain, plain_lse = definition(inputs, inputs["q"].dtype)
    assert_as_accurate(out[:rows], expected[:rows], plain[:rows])
    assert out[rows:].isnan().all()
    if lse is None:
        return
    assert_as_accurate(lse[:rows], expected_lse[:rows], plain_lse[:rows])
    softcap = inputs.get("softcap", 0.0)
    tolerance = 1e-3 * softcap if softcap else 1e-4
    torch.testing.assert_close(lse[:rows].double(), expected_lse[:rows], rtol=1e-5, atol=tolerance, equal_nan=True)
    assert lse[rows:].isnan().all()


def check(gpu: Gpu, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    out, lse = block_attention(gpu, **inputs)
    check_result(inputs, out, lse)
    assert lse is not None
    return out, lse


def same_bits(actual: Tensor | None, expected: Tensor | None) -> bool:
    """Also of NaN and of minus zero."""
    assert actual is not None
    assert expected is not None
    integers = {2: torch.int16, 4: torch.int32}[actual.element_size()]
    return torch.equal(actual.contiguous().view(integers), expected.contiguous().view(integers))


def assert_same(actual: tuple[Tensor | None, Tensor | None], expected: tuple[Tensor | None, Tensor | None]) -> None:
    assert same_bits(actual[0], expected[0])
    assert same_bits(actual[1], expected[1])


@pytest.mark.parametrize("mode", range(3))
@pytest.mark.parametrize("index", range(len(TENSOR_CORE_CASES)), ids=lambda index: str(TENSOR_CORE_CASES[index]))
def test_matches_the_definition(index: int, mode: int) -> None:
    """Both dtypes of each case; the results' strides differ from launch to launch."""
    case = TENSOR_CORE_CASES[index]
    inputs = case.inputs(DTYPES[(index + mode) % 2])
    tokens, heads, dim = inputs["q"].shape
    storage = torch.full((tokens, heads + 1, dim + 8), SENTINEL, dtype=inputs["q"].dtype)
    if mode == 1:  # spread
        out = storage[:, :heads, :dim].fill_(torch.nan)
        lse = torch.full((heads, tokens), torch.nan).t()
        check_result(inputs, *block_attention(GPUS[mode], **inputs, out=out, lse=lse))
        assert (storage[:, heads:] == SENTINEL).all()
        assert (storage[:, :, dim:] == SENTINEL).all()
    else:
        check(GPUS[mode], inputs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("poison", [(torch.nan, 0.0), (0.0, torch.nan), (torch.inf, -torch.inf)], ids=str)
@pytest.mark.parametrize(
    "case",
    [
        Case((1, 40, 70, 0), 7, head_dim=128, page_size=64),
        Case((1, 40, 70, 0), (7, 1, 16, 2), head_dim=64, page_size=8, options=CAUSAL | {"num_splits": 2}),
        Case((90, 33), 5, head_dim=96, page_size=1, options={"window": 20}, layout="heads_first"),
        Case((17,), 16, q_heads=1, kv_heads=1, head_dim=256, page_size=256),
    ],
    ids=str,
)
def test_unused_slots_never_reach_the_result(case: Case, poison: tuple[float, float], dtype: torch.dtype) -> None:
    clean = block_attention(Gpu(), **case.inputs(dtype, poison=(0.0, 0.0)))
    assert_same(block_attention(Gpu(), **case.inputs(dtype, poison=poison)), clean)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("page_size", "num_splits"), [(8, 0), (16, 2), (64, 0), (1, 3)])
def test_pages_outside_the_window_are_never_read(page_size: int, num_splits: int, causal: bool) -> None:
    """Engines free them: their entries in the table are void, their slots belong to somebody else."""
    options = {"window": 30, "causal": causal, "num_splits": num_splits}
    case = Case((200, 37, 29), 5, head_dim=128, page_size=page_size, options=options)
    inputs = case.inputs(torch.bfloat16)
    expected = block_attention(Gpu(), **inputs)
    for request in range(3):
        freed = case.visible(request)[0] // page_size
        inputs["k_cache"][inputs["page_table"][request, :freed].long()] = torch.nan
        inputs["v_cache"][inputs["page_table"][request, :freed].long()] = torch.nan
        inputs["page_table"][request, :freed] = (-1, GARBAGE_PAGE, -1)[request]
    assert_same(block_attention(Gpu(), **inputs), expected)


@pytest.mark.parametrize("num_splits", [0, 3])
def test_a_request_of_nan_stays_alone(num_splits: int) -> None:
    """The block's rows of one request lie beside those of the next one."""
    case = Case((40, 5, 70), (7, 3, 9), q_heads=6, head_dim=128, options={"num_splits": num_splits})
    inputs = case.inputs(torch.float16)
    expected = block_attention(Gpu(), **inputs)
    for name in ("q", "k_block", "v_block"):
        inputs[name][7:10] = torch.nan
    inputs["k_cache"][inputs["page_table"][1, 0].long()] = torch.nan
    out, lse = block_attention(Gpu(), **inputs)
    assert expected[1] is not None
    assert lse is not None
    assert out[7:10].isnan().all()
    assert lse[7:10].isnan().all()
    others = [*range(7), *range(10, 19)]
    assert_same((out[others], lse[others]), (expected[0][others], expected[1][others]))


@pytest.mark.parametrize("num_splits", [0, 3])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_invisible_and_infinite_logits(has_sinks: bool, num_splits: int) -> None:
    """A row whose logits are all -inf gives out 0 and lse -inf (or the sink); NaN in a query stays in that row."""
    case = Case((150,), 4, q_heads=2, kv_heads=1, has_sinks=has_sinks, options={"scale": 1.0, "num_splits": num_splits})
    inputs = case.inputs(torch.bfloat16)
    for name in ("q", "k_block", "k_cache"):
        inputs[name].abs_().clamp_(0.25, 1.0)
    inputs["q"][1, 0] = -torch.inf
    inputs["q"][2, 1] = torch.nan
    out, lse = block_attention(Gpu(), **inputs)
    assert lse is not None
    assert (out[1, 0] == 0).all()
    assert lse[1, 0] == (inputs["sinks"][0] if has_sinks else -torch.inf)
    assert out[2, 1].isnan().all()
    assert lse[2, 1].isnan()
    assert out.isnan().sum() == 64
    assert lse.isnan().sum() == 1
    others = torch.ones(4, 2, dtype=torch.bool)
    others[1, 0] = others[2, 1] = False
    torch.testing.assert_close(lse[others].double(), definition(inputs, torch.float64)[1][others], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("num_splits", [0, 1, 3])
@pytest.mark.parametrize(("first", "last"), [(0, 140), (100, 150), (0, 64), (64, 128)])
def test_stretches_of_keys_that_count_nothing(first: int, last: int, num_splits: int) -> None:
    """Whole tiles, and whole splits, of logits that are -inf, before, between and behind finite ones."""
    case = Case((150,), 6, q_heads=2, kv_heads=1, head_dim=128, options={"num_splits": num_splits})
    inputs = case.inputs(torch.bfloat16)
    inputs["q"].abs_().clamp_(0.25, 1.0)
    for position in range(first, last):
        page, slot = inputs["page_table"][0, position // 16], position % 16
        inputs["k_cache"][page, slot] = -torch.inf
    check(Gpu(), inputs)


@pytest.mark.parametrize("num_splits", [1, 4])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_logits_that_rise_or_fall(sign: float, num_splits: int) -> None:
    """Every tile changes each row's maximum by far, or none but the first does."""
    case = Case((300,), 8, q_heads=2, kv_heads=1, head_dim=64, options={"scale": 1.0, "num_splits": num_splits})
    inputs = case.inputs(torch.float16)
    inputs["q"][:, :, 0] = 8.0
    for position in range(300):
        page, slot = inputs["page_table"][0, position // 16], position % 16
        inputs["k_cache"][page, slot, :, 0] = sign * (position - 150) / 40
    inputs["k_block"][:, :, 0] = sign * 3.75
    check(Gpu(), inputs)


@pytest.mark.parametrize("num_splits", [1, 3])
def test_outputs_near_the_end_of_float16(num_splits: int) -> None:
    """Sums of weights times values are far above 65504 until they are divided."""
    case = Case((250, 3), 8, q_heads=4, kv_heads=1, head_dim=128, options={"num_splits": num_splits})
    inputs = case.inputs(torch.float16)
    for name in ("v_cache", "v_block"):
        inputs[name] += 10_000.0
    out, _ = check(Gpu(), inputs)
    assert out.min() > 9_000
    for name in ("v_cache", "v_block"):
        inputs[name].clamp_(min=60_000.0)
    assert block_attention(Gpu(), **inputs)[0].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_splits", [0, 2])
def test_large_logits_choose_one_key(num_splits: int, dtype: torch.dtype) -> None:
    """Logits of +-100,000: each row takes its best key's value, nothing overflows."""
    case = Case((140,), 5, q_heads=3, kv_heads=1, head_dim=128, options={"scale": 8.0, "num_splits": num_splits})
    inputs = case.inputs(dtype)
    for name in ("q", "k_block", "k_cache"):
        inputs[name] *= 30
    out, lse = block_attention(Gpu(), **inputs)
    expected, expected_lse = definition(inputs, torch.float64)
    assert lse is not None
    assert lse.abs().max() > 5e4
    torch.testing.assert_close(out.double(), expected, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-5, atol=0)


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
@pytest.mark.parametrize("num_splits", [0, 4])
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
