import mmap
from typing import Any

import pytest
import torch
from torch import Tensor

import dflash_ops
from dflash_ops import reference
from tests.cases.block_attention import CASES, TENSOR_CORE_CASES, Case
from tests.cases.casting import in_dtype
from tests.ops.harness import (
    DTYPES,
    ISAS,
    assert_as_accurate,
    check_compiles,
    check_cuda_message,
    check_registration,
    cpu_isa,
)

MAP_NORESERVE = 0x4000  # Linux; in Python's mmap from 3.13


def define(inputs: dict[str, Any], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The reference on clean (finite) inputs in `dtype`."""
    without_splits = {name: value for name, value in inputs.items() if name != "num_splits"}
    return reference.block_attention(**in_dtype(without_splits, dtype))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_the_definition(case: Case, dtype: torch.dtype, isa: str) -> None:
    inputs = case.inputs(dtype)
    expected, expected_lse = define(inputs, torch.float64)
    plain, plain_lse = define(inputs, dtype)
    with cpu_isa(isa):
        out, lse = dflash_ops.block_attention(**inputs)
    assert out.dtype == dtype
    assert lse.dtype == torch.float32
    if out.numel() == 0:
        return
    assert_as_accurate(out, expected, plain)
    assert_as_accurate(lse, expected_lse, plain_lse)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", TENSOR_CORE_CASES, ids=str)
def test_matches_the_definition_where_cuda_does(case: Case, dtype: torch.dtype) -> None:
    """The CUDA kernel's cases, which also keep the cases honest."""
    inputs = case.inputs(dtype)
    rows = sum(case.blocks)
    out, lse = torch.full_like(inputs["q"], torch.nan), torch.full(inputs["q"].shape[:2], torch.nan)
    dflash_ops.block_attention(**inputs, out=out, lse=lse)
    for actual, expected, plain in zip((out, lse), define(inputs, torch.float64), define(inputs, dtype), strict=True):
        assert_as_accurate(actual[:rows], expected[:rows], plain[:rows])
        assert actual[rows:].isnan().all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("poison", [(torch.nan, 0.0), (0.0, torch.nan), (torch.inf, -torch.inf)], ids=str)
@pytest.mark.parametrize("options", [{}, {"window": 20}, {"causal": True, "num_splits": 3}], ids=str)
def test_unused_slots_never_reach_the_result(
    options: dict[str, Any], poison: tuple[float, float], dtype: torch.dtype, isa: str
) -> None:
    case = Case((1, 100, 250, 0), 7, page_size=64, options=options)
    with cpu_isa(isa):
        clean = dflash_ops.block_attention(**case.inputs(dtype, poison=(0.0, 0.0)))
        poisoned = dflash_ops.block_attention(**case.inputs(dtype, poison=poison))
    assert torch.equal(clean[0], poisoned[0])
    assert torch.equal(clean[1], poisoned[1])


@pytest.mark.parametrize("causal", [False, True])
def test_pages_outside_the_window_are_never_read(causal: bool) -> None:
    case = Case((200, 37), 5, page_size=8, options={"window": 30, "causal": causal})
    inputs = case.inputs(torch.float32)
    expected = dflash_ops.block_attention(**inputs)
    for request, context in enumerate(case.contexts):
        freed = max(0, context - 30 + 1) // 8
        inputs["k_cache"][inputs["page_table"][request, :freed].long()] = torch.nan
        inputs["v_cache"][inputs["page_table"][request, :freed].long()] = torch.nan
        inputs["page_table"][request, :freed] = -1
    actual = dflash_ops.block_attention(**inputs)
    assert torch.equal(actual[0], expected[0])
    assert torch.equal(actual[1], expected[1])


def test_offsets_beyond_32_bits() -> None:
    """Strides of more than 2^31 elements, as in a big cache; only the pages in use ever become memory."""
    case = Case((11, 4), 3, page_size=4, kv_heads=2)
    inputs = case.inputs(torch.bfloat16)
    expected = dflash_ops.block_attention(**inputs)
    pages, page_size, heads, dim = inputs["k_cache"].shape
    page_stride = 2**30 + 64
    assert page_stride * (pages - 1) > 2**31
    for name in ("k_cache", "v_cache"):
        memory = mmap.mmap(-1, 2 * page_stride * pages, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
        flat = torch.frombuffer(memory, dtype=torch.bfloat16)
        wide = flat.as_strided((pages, page_size, heads, dim), (page_stride, heads * dim, dim, 1))
        wide.copy_(inputs[name])
        inputs[name] = wide
    actual = dflash_ops.block_attention(**inputs)
    assert torch.equal(actual[0], expected[0])
    assert torch.equal(actual[1], expected[1])


def test_every_stride_is_honoured() -> None:
    case = Case((40, 3), 6, q_heads=6, kv_heads=3)
    inputs = case.inputs(torch.float32)
    expected = dflash_ops.block_attention(**inputs)
    tokens = inputs["q"].shape[0]
    # q, k and v as columns of one projection, with k and v of different strides; outputs transposed and spaced.
    qkv = torch.full((tokens, 20, 64), torch.nan)
    qkv[:, :6] = inputs["q"]
    qkv[:, 7:10] = inputs["k_block"]
    v_block = torch.full((3, tokens, 64), torch.nan)
    v_block.copy_(inputs["v_block"].transpose(0, 1))
    lengths = torch.full((2, 3), -5, dtype=torch.int32)
    lengths[:, 1] = inputs["context_lens"]
    table = torch.full((2, 2, inputs["page_table"].shape[1]), -1, dtype=torch.int32)
    table[:, 0] = inputs["page_table"]
    out_storage = torch.full((6, tokens, 70), 7.0)
    lse_storage = torch.full((6, tokens, 2), 7.0)
    inputs |= {
        "q": qkv[:, :6],
        "k_block": qkv[:, 7:10],
        "v_block": v_block.transpose(0, 1),
        "context_lens": lengths[:, 1],
        "page_table": table[:, 0],
        "cu_block_lens": torch.tensor([[0, 9], [6, 9], [12, 9]], dtype=torch.int32)[:, 0],
        "out": out_storage[:, :, :64].transpose(0, 1),
        "lse": lse_storage[:, :, 0].t(),
    }
    out, lse = dflash_ops.block_attention(**inputs)
    assert torch.equal(out, expected[0])
    assert torch.equal(lse, expected[1])
    assert (out_storage[:, :, 64:] == 7).all()
    assert (lse_storage[:, :, 1] == 7).all()


@pytest.mark.parametrize("num_splits", [1, 3])
def test_fixed_splits_make_a_request_independent_of_its_batch(num_splits: int) -> None:
    case = Case((700, 0, 150, 321), (8, 16, 3, 100), q_heads=6, options={"causal": True, "num_splits": num_splits})
    inputs = case.inputs(torch.bfloat16)
    out, lse = dflash_ops.block_attention(**inputs)
    bounds = inputs["cu_block_lens"].tolist()
    for request in range(4):
        rows = slice(bounds[request], bounds[request + 1])
        alone = {name: inputs[name][rows] for name in ("q", "k_block", "v_block")}
        alone |= {name: inputs[name][request : request + 1] for name in ("page_table", "context_lens")}
        alone_out, alone_lse = dflash_ops.block_attention(**(inputs | alone | {"cu_block_lens": None}))
        assert torch.equal(alone_out, out[rows])
        assert torch.equal(alone_lse, lse[rows])


def test_workspace_and_padding_rows() -> None:
    """Runs in exactly the bytes asked for, whatever they hold; rows past the last request's stay as they are."""
    case = Case((3000, 11), (4, 7), kv_heads=1, options={"num_splits": 0})
    inputs = case.inputs(torch.float32)
    expected = dflash_ops.block_attention(**inputs)
    for name in ("q", "k_block", "v_block"):
        inputs[name] = torch.cat([inputs[name], torch.full_like(inputs[name][:5], torch.nan)])
    max_context = inputs["page_table"].shape[1] * case.page_size
    for num_splits in (0, 4):
        size = dflash_ops.block_attention_workspace_size(16, 2, 4, 1, 64, max_context, num_splits)
        assert size > 0
        buffer = torch.full((size + 64,), 255, dtype=torch.uint8)
        out, lse = torch.full((16, 4, 64), 7.0), torch.full((16, 4), 7.0)
        dflash_ops.block_attention(**(inputs | {"num_splits": num_splits}), out=out, lse=lse, workspace=buffer[:size])
        torch.testing.assert_close(out[:11], expected[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(lse[:11], expected[1], rtol=1e-5, atol=1e-6)
        assert (out[11:] == 7).all()
        assert (lse[11:] == 7).all()
        assert (buffer[size:] == 255).all()
        with pytest.raises(RuntimeError, match=f"workspace: expected at least {size} bytes"):
            dflash_ops.block_attention(**(inputs | {"num_splits": num_splits}), workspace=buffer[: size - 64])


@pytest.mark.parametrize("isa", ISAS)
def test_invisible_and_infinite_logits(isa: str) -> None:
    """A row whose logits are all -inf gives out 0 and lse -inf; NaN in a query stays in that query's rows."""
    case = Case((20,), 4, q_heads=2, kv_heads=1, options={"scale": 1.0})
    inputs = case.inputs(torch.float32)
    for name in ("q", "k_block"):
        inputs[name].abs_()
    inputs["k_cache"].abs_()
    inputs["q"][1, 0] = -torch.inf
    inputs["q"][2, 1] = torch.nan
    with cpu_isa(isa):
        out, lse = dflash_ops.block_attention(**inputs)
    assert (out[1, 0] == 0).all()
    assert lse[1, 0] == -torch.inf
    assert out[2, 1].isnan().all()
    assert lse[2, 1].isnan()
    assert out.isnan().sum() == 64


def test_long_query_blocks() -> None:
    """A prefill chunk: far more rows than an item holds, against torch's own attention."""
    generator = torch.Generator().manual_seed(2)
    tokens = 4096
    q = torch.randn(tokens, 2, 32, generator=generator)
    k, v = torch.randn(2, tokens, 1, 32, generator=generator)
    cache = torch.full((1, 16, 1, 32), torch.nan)
    table, lengths = torch.zeros(1, 1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    out, _ = dflash_ops.block_attention(q, k, v, cache, cache, table, lengths, causal=True)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1), k.transpose(0, 1).expand(2, -1, -1), v.transpose(0, 1).expand(2, -1, -1), is_causal=True
    )
    torch.testing.assert_close(out.transpose(0, 1), expected, rtol=1e-4, atol=1e-5)


def valid_arguments() -> dict[str, Any]:
    return Case((20, 3), 4, page_size=4).inputs(torch.float32) | {
        "out": torch.zeros(8, 4, 64),
        "lse": torch.zeros(8, 4),
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(8, 4, 64, dtype=torch.float64)}, "q: expected float32, float16 or bfloat16"),
        ({"q": torch.zeros(8, 4, 64).half()}, "k_block: expected float16, got float32"),
        ({"q": torch.zeros(8, 64)[:, None, ::2]}, "q: expected stride 1 in the last dimension"),
        ({"q": torch.zeros(8, 4, 60)}, "q: expected head_dim a multiple of 8 from 8 to 256"),
        ({"q": torch.zeros(8, 4, 264)}, "q: expected head_dim a multiple of 8 from 8 to 256"),
        ({"q": torch.zeros(8, 3, 64), "out": torch.zeros(8, 3, 64)}, "k_block: expected kv heads that divide q's 3"),
        ({"k_block": torch.zeros(7, 2, 64)}, r"k_block: expected shape \[8, \*, 64\]"),
        ({"v_block": torch.zeros(8, 4, 64)}, r"v_block: expected shape \[8, 2, 64\]"),
        ({"k_cache": torch.zeros(9, 6, 2, 64)}, "k_cache: expected a page size that is a power of two from 1 to 256"),
        ({"k_cache": torch.zeros(9, 512, 2, 64)}, "k_cache: expected a page size that is a power of two from 1 to 256"),
        ({"v_cache": torch.zeros(9, 4, 2, 64).half()}, "v_cache: expected float32, got float16"),
        ({"v_cache": torch.zeros(9, 8, 2, 64)}, r"v_cache: expected shape \[8, 4, 2, 64\]"),
        ({"page_table": torch.zeros(2, 5, dtype=torch.int64)}, "page_table: expected int32, got int64"),
        ({"page_table": torch.zeros(3, 5, dtype=torch.int32)}, r"page_table: expected shape \[2, \*\]"),
        ({"page_table": torch.zeros(2, 1, dtype=torch.int32)}, r"context_lens\[0\]: expected 0 to 4 .*, got 20"),
        (
            {"page_table": torch.full((2, 5), 8, dtype=torch.int32)},
            r"page_table\[0, 0\]: expected a page from 0 to 7, got 8",
        ),
        ({"page_table": torch.full((2, 5), -1, dtype=torch.int32)}, r"page_table\[0, 0\]: expected .*, got -1"),
        ({"context_lens": torch.tensor([1, -1], dtype=torch.int32)}, r"context_lens\[1\]: expected 0 to .*, got -1"),
        ({"context_lens": torch.zeros(2)}, "context_lens: expected int32, got float32"),
        (
            {"context_lens": torch.zeros(3, dtype=torch.int32), "page_table": torch.zeros(3, 5, dtype=torch.int32)},
            "q: expected as many rows for each of 3 requests",
        ),
        ({"cu_block_lens": torch.zeros(2, dtype=torch.int32)}, r"cu_block_lens: expected shape \[3\]"),
        ({"cu_block_lens": torch.tensor([1, 4, 8], dtype=torch.int32)}, r"cu_block_lens\[0\]: expected 0, got 1"),
        (
            {"cu_block_lens": torch.tensor([0, 9, 8], dtype=torch.int32)},
            r"cu_block_lens\[1\]: expected a value from 0 to 8, got 9",
        ),
        (
            {"cu_block_lens": torch.tensor([0, 5, 4], dtype=torch.int32)},
            r"cu_block_lens\[2\]: expected a value from 5 to 8, got 4",
        ),
        ({"window": -1}, "window: expected 0"),
        ({"softcap": -1.0}, "softcap: expected 0"),
        ({"num_splits": -1}, "num_splits: expected 0"),
        ({"sinks": torch.zeros(4).half()}, "sinks: expected float32, got float16"),
        ({"sinks": torch.zeros(2)}, r"sinks: expected shape \[4\]"),
        ({"out": torch.zeros(8, 4, 64).half()}, "out: expected float32, got float16"),
        ({"out": torch.zeros(1, 4, 64).expand(8, 4, 64)}, "out: expected an output without overlapping elements"),
        ({"lse": torch.zeros(8, 4).half()}, "lse: expected float32, got float16"),
        ({"workspace": torch.zeros(8, dtype=torch.uint8)}, "workspace: expected at least"),
    ],
)
def test_bad_arguments_are_named_before_anything_is_written(change: dict[str, Any], message: str) -> None:
    arguments = valid_arguments() | change
    with pytest.raises(RuntimeError, match=f"block_attention: {message}"):
        dflash_ops.block_attention(**arguments)
    assert (arguments["out"] == 0).all()
    assert (arguments["lse"] == 0).all()


def test_registration() -> None:
    inputs = Case((20, 3), (4, 2), has_sinks=True).inputs(torch.float32)
    size = dflash_ops.block_attention_workspace_size(6, 2, 4, 2, 64, inputs["page_table"].shape[1] * 16)
    out, lse = torch.zeros(6, 4, 64), torch.zeros(6, 4)
    tensors = [inputs[name] for name in list(inputs)[:8]]
    args = (*tensors, 0.125, True, 7, 0.0, inputs["sinks"], 0, out, lse, torch.zeros(size, dtype=torch.uint8))
    check_registration("block_attention", args)
    check_registration("block_attention", (*args[:7], None, *args[8:12], None, 0, out, None, args[16]))
    check_cuda_message("block_attention", args)
    check_compiles(lambda *tensors: dflash_ops.block_attention(*tensors, causal=True), *tensors)
