"""block_attention's kernel on the PTX interpreter: values, and what must not reach them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from dflash_ops import reference
from tests.cases.block_attention import CAUSAL, GARBAGE_PAGE, TENSOR_CORE_CASES, Case
from tests.cases.casting import in_dtype
from tests.cuda.gpu import Gpu
from tests.cuda.simulated_attention import block_attention
from tests.ops.harness import assert_as_accurate

DTYPES = [torch.float16, torch.bfloat16]
# The orders in which copies may land and warps may run, on GPUs whose plans differ.
GPUS = [
    Gpu("H200", completion="early", schedule="round_robin"),
    Gpu("RTX 3090", completion="late", schedule="greedy"),
    Gpu("B200", completion="random", schedule="random", seed=7),
]
SENTINEL = 7.0


def definition(inputs: dict[str, Any], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    without_splits = {name: value for name, value in inputs.items() if name != "num_splits"}
    return reference.block_attention(**in_dtype(without_splits, dtype))


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
    torch.testing.assert_close(lse[:rows].double(), expected_lse[:rows], rtol=1e-5, atol=1e-4, equal_nan=True)
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
    expected = check(Gpu(), inputs)
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
