from typing import Any

import pytest
import torch
from torch import Tensor

import dflash_ops
from dflash_ops import reference
from tests.cases import block_attention
from tests.cases.block_attention import Case
from tests.cases.casting import in_dtype
from tests.cases.page_selection import bounds_of
from tests.ops.harness import (
    DTYPES,
    ISAS,
    assert_as_accurate,
    check_compiles,
    check_cuda_message,
    check_registration,
    cpu_isa,
)

CASES = [case for case in block_attention.CASES if "window" not in case.options]
GARBAGE = 2147480000


def select(inputs: dict[str, Any], share: float, seed: int = 0) -> dict[str, Tensor]:
    """A selection at random, another for every head: about `share` of the pages, most often with the last among them."""
    generator = torch.Generator().manual_seed(seed)
    page_size, heads = inputs["k_cache"].shape[1:3]
    batch, width = inputs["page_table"].shape
    selected = torch.full((batch, heads, width + 1), GARBAGE, dtype=torch.int32)
    counts = torch.zeros(batch, heads, dtype=torch.int32)
    for request, context in enumerate(inputs["context_lens"].tolist()):
        pages = -(-context // page_size)
        for head in range(heads):
            kept = torch.rand(pages, generator=generator) < share
            kept[-1:] |= bool(torch.rand((), generator=generator) < 0.8)
            counts[request, head] = kept.sum()
            selected[request, head, : kept.sum()] = kept.nonzero().squeeze(1).int()
    return {"selected_pages": selected, "selected_counts": counts}


def define(inputs: dict[str, Any], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    without_splits = {name: value for name, value in inputs.items() if name != "num_splits"}
    return reference.sparse_block_attention(**in_dtype(without_splits, dtype))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_the_definition(case: Case, dtype: torch.dtype, isa: str) -> None:
    inputs = case.inputs(dtype)
    inputs |= select(inputs, 0.4)
    expected, expected_lse = define(inputs, torch.float64)
    plain, plain_lse = define(inputs, dtype)
    with cpu_isa(isa):
        out, lse = dflash_ops.sparse_block_attention(**inputs)
    if out.numel() == 0:
        return
    assert_as_accurate(out, expected, plain)
    assert_as_accurate(lse, expected_lse, plain_lse)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"causal": True, "softcap": 5.0, "num_splits": 3}], ids=str)
def test_a_budget_for_the_whole_context_is_dense_attention(
    options: dict[str, Any], dtype: torch.dtype, isa: str
) -> None:
    """As is an empty selection, since pages after the last selected one are seen."""
    case = Case((1, 100, 250, 0), 7, q_heads=6, page_size=4, options={"num_splits": 1} | options, has_sinks=True)
    inputs = case.inputs(dtype)
    names = ("q", "page_table", "context_lens", "cu_block_lens")
    with cpu_isa(isa):
        dense = dflash_ops.block_attention(**inputs)
        selected, counts = dflash_ops.select_pages(
            k_bounds=bounds_of(inputs), **{name: inputs[name] for name in names}, page_size=4, budget_tokens=252
        )
        assert counts[2].tolist() == [63, 63]
        for number in (counts, torch.zeros_like(counts)):
            sparse = dflash_ops.sparse_block_attention(**inputs, selected_pages=selected, selected_counts=number)
            assert torch.equal(sparse[0], dense[0])
            assert torch.equal(sparse[1], dense[1])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("poison", [(torch.nan, 0.0), (0.0, torch.nan), (torch.inf, -torch.inf)], ids=str)
def test_what_a_head_does_not_see_never_reaches_its_result(
    poison: tuple[float, float], dtype: torch.dtype, isa: str
) -> None:
    case = Case((300, 17, 0, 161), (5, 3, 2, 8), q_heads=6, kv_heads=3, page_size=8)
    inputs = case.inputs(dtype, poison=(0.0, 0.0))
    inputs |= select(inputs, 0.3)
    with cpu_isa(isa):
        clean = dflash_ops.sparse_block_attention(**inputs)
    seen = set()
    for request, context in enumerate(case.contexts):
        pages = -(-context // 8)
        for head in range(3):
            listed = inputs["selected_pages"][request, head, : inputs["selected_counts"][request, head]].tolist()
            listed += range(listed[-1] + 1 if listed else 0, pages)
            seen |= {(request, page) for page in listed}
            hidden = inputs["page_table"][request, sorted(set(range(pages)) - set(listed))].long()
            inputs["k_cache"][hidden, :, head] = poison[0]
            inputs["v_cache"][hidden, :, head] = poison[1]
        last = inputs["page_table"][request, pages - 1].long()
        if context % 8:
            inputs["k_cache"][last, context % 8 :] = poison[0]
            inputs["v_cache"][last, context % 8 :] = poison[1]
        for page in range(inputs["page_table"].shape[1]):
            if (request, page) not in seen:
                inputs["page_table"][request, page] = GARBAGE
    with cpu_isa(isa):
        poisoned = dflash_ops.sparse_block_attention(**inputs)
    assert torch.equal(clean[0], poisoned[0])
    assert torch.equal(clean[1], poisoned[1])


def test_a_selection_serves_a_context_that_grows_or_is_cut() -> None:
    """Rows after the last selected page are seen, whole new pages among them; selected pages past the context are not."""
    case = Case((200,), 4, page_size=8)
    inputs = case.inputs(torch.float32)
    inputs["page_table"] = inputs["page_table"][:, :25].contiguous()
    kept = torch.tensor([0, 3, 7, 9, 12], dtype=torch.int32)
    inputs |= {"selected_pages": kept.expand(1, 2, 5), "selected_counts": torch.full((1, 2), 5, dtype=torch.int32)}
    for context in (98, 104, 105, 200, 96, 57, 8, 0):
        pages = -(-context // 8)
        whole = [page for page in kept.tolist() if page < pages]
        whole += range((whole or [-1])[-1] + 1, pages)
        now = inputs | {"context_lens": torch.tensor([context], dtype=torch.int32)}
        explicit = torch.tensor(whole, dtype=torch.int32).expand(1, 2, len(whole))
        spelt = now | {"selected_pages": explicit, "selected_counts": torch.full((1, 2), len(whole), dtype=torch.int32)}
        out, lse = dflash_ops.sparse_block_attention(**now)
        expected, expected_lse = define(spelt, torch.float64)
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_splits", [1, 3])
def test_fixed_splits_make_a_request_independent_of_its_batch(num_splits: int) -> None:
    case = Case((700, 0, 150, 321), (8, 16, 3, 100), q_heads=6, options={"causal": True, "num_splits": num_splits})
    inputs = case.inputs(torch.bfloat16)
    inputs |= select(inputs, 0.5)
    out, lse = dflash_ops.sparse_block_attention(**inputs)
    bounds = inputs["cu_block_lens"].tolist()
    names = ("page_table", "context_lens", "selected_pages", "selected_counts")
    for request in range(4):
        rows = slice(bounds[request], bounds[request + 1])
        alone = {name: inputs[name][rows] for name in ("q", "k_block", "v_block")}
        alone |= {name: inputs[name][request : request + 1] for name in names}
        alone_out, alone_lse = dflash_ops.sparse_block_attention(**(inputs | alone | {"cu_block_lens": None}))
        assert torch.equal(alone_out, out[rows])
        assert torch.equal(alone_lse, lse[rows])


def test_runs_in_the_workspace_it_asks_for() -> None:
    case = Case((3000, 11), (4, 7), kv_heads=1)
    inputs = case.inputs(torch.float32)
    inputs |= select(inputs, 0.9)
    expected = dflash_ops.sparse_block_attention(**inputs)
    for num_splits in (0, 4):
        size = dflash_ops.sparse_block_attention_workspace_size(
            11, 2, 4, 1, 64, inputs["page_table"].shape[1], 16, num_splits
        )
        buffer = torch.full((size + 64,), 255, dtype=torch.uint8)
        changed = inputs | {"num_splits": num_splits}
        out, lse = dflash_ops.sparse_block_attention(**changed, workspace=buffer[:size])
        torch.testing.assert_close(out, expected[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(lse, expected[1], rtol=1e-5, atol=1e-6)
        assert (buffer[size:] == 255).all()
        with pytest.raises(RuntimeError, match=f"workspace: expected at least {size} bytes"):
            dflash_ops.sparse_block_attention(**changed, workspace=buffer[: size - 64])


def valid_arguments() -> dict[str, Any]:
    inputs = Case((20, 3), 4, page_size=4).inputs(torch.float32)
    return (
        inputs
        | {"selected_pages": torch.tensor([[[0, 2, 4]] * 2, [[0, 1, 2]] * 2], dtype=torch.int32)}
        | {"selected_counts": torch.tensor([[3, 3], [1, 1]], dtype=torch.int32)}
        | {"out": torch.zeros(8, 4, 64), "lse": torch.zeros(8, 4)}
    )


def with_page(request: int, page: int, value: int) -> Tensor:
    table = Case((20, 3), 4, page_size=4).inputs(torch.float32)["page_table"]
    table[request, page] = value
    return table


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(8, 4, 60)}, "q: expected head_dim a multiple of 8 from 8 to 256"),
        ({"k_cache": torch.zeros(9, 6, 2, 64)}, "k_cache: expected a page size that is a power of two from 1 to 256"),
        ({"context_lens": torch.tensor([1, -1], dtype=torch.int32)}, r"context_lens\[1\]: expected 0 to .*, got -1"),
        ({"selected_pages": torch.zeros(2, 2, 3)}, "selected_pages: expected int32, got float32"),
        ({"selected_pages": torch.zeros(2, 1, 3, dtype=torch.int32)}, r"selected_pages: expected shape \[2, 2, \*\]"),
        (
            {"selected_pages": torch.tensor([0, 2, 2], dtype=torch.int32).expand(2, 2, 3)},
            r"selected_pages\[0, 0, 2\]: expected more than 2, got 2",
        ),
        (
            {"selected_pages": torch.tensor([-1, 2, 3], dtype=torch.int32).expand(2, 2, 3)},
            r"selected_pages\[0, 0, 0\]: expected 0 or more, got -1",
        ),
        (
            {"selected_counts": torch.tensor([[3, 4], [1, 1]], dtype=torch.int32)},
            r"selected_counts\[0, 1\]: expected 0 to 3, got 4",
        ),
        ({"selected_counts": torch.zeros(2, 2)}, "selected_counts: expected int32, got float32"),
        ({"page_table": with_page(0, 4, 8)}, r"page_table\[0, 4\]: expected a page from 0 to 7, got 8"),
        ({"page_table": with_page(1, 0, -1)}, r"page_table\[1, 0\]: expected a page from 0 to 7, got -1"),
        ({"num_splits": -1}, "num_splits: expected 0"),
        ({"sinks": torch.zeros(2)}, r"sinks: expected shape \[4\]"),
        ({"out": torch.zeros(8, 4, 64).half()}, "out: expected float32, got float16"),
        ({"workspace": torch.zeros(8, dtype=torch.uint8)}, "workspace: expected at least"),
    ],
)
def test_bad_arguments_are_named_before_anything_is_written(change: dict[str, Any], message: str) -> None:
    arguments = valid_arguments() | change
    with pytest.raises(RuntimeError, match=f"sparse_block_attention: {message}"):
        dflash_ops.sparse_block_attention(**arguments)
    assert (arguments["out"] == 0).all()
    assert (arguments["lse"] == 0).all()


def test_registration() -> None:
    inputs = Case((20, 3), (4, 2), has_sinks=True).inputs(torch.float32)
    chosen = select(inputs, 0.5)
    max_pages = inputs["page_table"].shape[1]
    size = dflash_ops.sparse_block_attention_workspace_size(6, 2, 4, 2, 64, max_pages, 16)
    out, lse = torch.zeros(6, 4, 64), torch.zeros(6, 4)
    tensors = [*(inputs[name] for name in list(inputs)[:7]), *chosen.values(), inputs["cu_block_lens"]]
    workspace = torch.zeros(size, dtype=torch.uint8)
    args = (*tensors, 0.125, True, 0.0, inputs["sinks"], 0, out, lse, workspace)
    check_registration("sparse_block_attention", args)
    check_registration("sparse_block_attention", (*args[:9], None, 0.125, True, 0.0, None, 0, out, None, workspace))
    check_cuda_message("sparse_block_attention", args)
    check_compiles(lambda *tensors: dflash_ops.sparse_block_attention(*tensors, causal=True), *tensors)
