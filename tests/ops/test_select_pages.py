from typing import Any

import pytest
import torch
from torch import Tensor

import dflash_ops
from dflash_ops import reference
from dflash_ops.reference.select_pages import page_scores
from tests.cases.page_selection import CASES, Attention, Case, last_slots
from tests.ops.harness import DTYPES, ISAS, check_compiles, check_cuda_message, check_registration, cpu_isa

SMALL = Case(Attention((100, 37), 3, page_size=4), 40, sink=4, local=8)


def define(inputs: dict[str, Any], width: int) -> tuple[Tensor, Tensor]:
    wide = inputs | {name: inputs[name].double() for name in ("q", "k_bounds")}
    return reference.select_pages(**wide, width=width)


def width_of(inputs: dict[str, Any]) -> int:
    budgets = {name: inputs[name] for name in ("page_size", "budget_tokens", "sink_tokens", "local_tokens")}
    return dflash_ops.select_pages_width(inputs["page_table"].shape[1], **budgets)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_definition(case: Case, dtype: torch.dtype, isa: str) -> None:
    """On whole numbers, where scores are exact and many are equal: the very same pages. Bounds of pages that no one owns
    are NaN, table entries past a context garbage."""
    inputs = case.inputs(dtype, whole=True)
    expected, expected_counts = define(inputs, width_of(inputs))
    with cpu_isa(isa):
        selected, counts = dflash_ops.select_pages(**inputs)
    assert torch.equal(counts, expected_counts)
    assert torch.equal(selected, expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", [CASES[3], CASES[7], CASES[12], CASES[17]], ids=str)
def test_differs_from_the_definition_only_between_scores_that_are_as_good_as_equal(
    case: Case, dtype: torch.dtype, isa: str
) -> None:
    inputs = case.inputs(dtype)
    with cpu_isa(isa):
        selected, counts = dflash_ops.select_pages(**inputs)
    expected, expected_counts = define(inputs, selected.shape[2])
    assert torch.equal(counts, expected_counts)
    for ours, wanted, scores in zip(selected.flatten(0, 1), expected.flatten(0, 1), all_scores(inputs), strict=True):
        differing = set(ours.tolist()) ^ set(wanted.tolist())
        if differing:
            values = scores[sorted(differing)]
            assert values.max() - values.min() < 1e-5 * scores.nan_to_num().abs().max()


def all_scores(inputs: dict[str, Any]) -> list[Tensor]:
    """float64, of every request's pages, for each kv head."""
    bounds = inputs["k_bounds"].double()
    group = inputs["q"].shape[1] // bounds.shape[1]
    rows = inputs["q"].double().unflatten(0, (len(inputs["context_lens"]), -1))
    return [
        page_scores(
            rows[request][:, head * group : (head + 1) * group].flatten(0, 1),
            bounds[inputs["page_table"][request, : -(-context // inputs["page_size"])].long(), head],
        )
        for request, context in enumerate(inputs["context_lens"].tolist())
        for head in range(bounds.shape[1])
    ]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
@pytest.mark.parametrize("seed", range(4))
def test_no_page_is_dropped_that_beats_the_bounds_of_the_chosen(seed: int, page_size: int, isa: str) -> None:
    """Keys with heavy tails and channels of very different size: an upper bound is wide, but never below the page's best
    dot product, and no dropped page has a better one than the bound of any chosen page."""
    generator = torch.Generator().manual_seed(seed)
    case = Case(Attention((page_size * 50 + 1,), 4, q_heads=4, kv_heads=2, head_dim=32, page_size=page_size), 0)
    attention = case.attention.inputs(torch.float32)
    cache = attention["k_cache"]
    cache.copy_(torch.empty_like(cache).cauchy_(generator=generator))
    cache *= torch.exp(3 * torch.randn(32, generator=generator))
    cache *= torch.exp(2 * torch.randn(cache.shape[0], 1, 1, 1, generator=generator))
    bounds = torch.full((cache.shape[0], 2, 2, 32), torch.nan)
    table, lens = attention["page_table"], attention["context_lens"]
    names = ("q", "page_table", "context_lens")
    with cpu_isa(isa):
        dflash_ops.update_page_bounds([cache], slot_mapping=last_slots(table, lens, page_size), k_bounds=[bounds])
        inputs = {name: attention[name] for name in names} | case.budgets() | {"k_bounds": bounds}
        inputs["budget_tokens"] = 12 * page_size
        selected, counts = dflash_ops.select_pages(**inputs)
    assert (counts == 12).all()
    for head, scores in enumerate(all_scores(inputs)):
        queries = attention["q"][:, 2 * head : 2 * head + 2].flatten(0, 1).double()
        keys = cache[table[0, :51].long(), :, head].double()
        best = (keys[:50] @ queries.T).flatten(1).amax(1)  # the last page is always kept
        tolerance = 1e-5 * scores.abs().max()
        assert (scores[:50] >= best - tolerance).all()
        chosen = selected[0, head, :11].long()
        dropped = torch.tensor(sorted(set(range(50)) - set(chosen.tolist())))
        assert best[dropped].max() <= scores[chosen].min() + tolerance


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_needle_is_always_selected(dtype: torch.dtype, isa: str) -> None:
    """One key, anywhere, with a dominant dot product with one query of the block."""
    case = Case(Attention((2000,), 8, q_heads=4, kv_heads=2, head_dim=64), 128, sink=16, local=16)
    generator = torch.Generator().manual_seed(3)
    for _ in range(10):
        attention = case.attention.inputs(dtype)
        page, slot, head, row, member = (
            int(torch.randint(0, bound, (), generator=generator)) for bound in (125, 16, 2, 8, 2)
        )
        attention["k_cache"][attention["page_table"][0, page].long(), slot, head] = (
            8 * attention["q"][row, 2 * head + member]
        )
        bounds = torch.full((attention["k_cache"].shape[0], 2, 2, 64), torch.nan, dtype=dtype)
        table, lens = attention["page_table"], attention["context_lens"]
        with cpu_isa(isa):
            dflash_ops.update_page_bounds(
                [attention["k_cache"]], slot_mapping=last_slots(table, lens, 16), k_bounds=[bounds]
            )
            selected, _ = dflash_ops.select_pages(attention["q"], bounds, table, lens, **case.budgets())
        assert page in selected[0, head].tolist()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_page_with_nan_or_infinite_keys_counts_as_the_greatest(dtype: torch.dtype, isa: str) -> None:
    case = Case(Attention((800,), 4), 48, local=1)
    for value in (torch.nan, torch.inf, -torch.inf):
        inputs = case.inputs(dtype)
        inputs["k_bounds"][inputs["page_table"][0, 33].long(), 1, 1 if value == torch.inf else 0, 5] = value
        with cpu_isa(isa):
            selected, _ = dflash_ops.select_pages(**inputs)
        assert 33 in selected[0, 1].tolist()


def test_only_bounds_between_the_sinks_and_the_local_pages_are_read() -> None:
    """The last page's may be stale: rows are written before their bounds are."""
    inputs = SMALL.inputs(torch.float32)
    expected = dflash_ops.select_pages(**inputs)
    inputs["k_bounds"][inputs["page_table"][0, [0, 23, 24]].long()] = torch.nan
    inputs["page_table"][0, [0, 23, 24]] = 2147480000
    inputs["page_table"][1, [0, 8, 9]] = -1
    actual = dflash_ops.select_pages(**inputs)
    assert torch.equal(actual[0], expected[0])
    assert torch.equal(actual[1], expected[1])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_does_not_depend_on_threads_or_the_batch(threads: int) -> None:
    case = Case(Attention((9000, 0, 4000), (16, 2, 7), q_heads=6, kv_heads=2, page_size=4), 512, sink=4, local=8)
    inputs = case.inputs(torch.bfloat16, whole=True)
    expected, counts = dflash_ops.select_pages(**inputs)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(dflash_ops.select_pages(**inputs)[0], expected)
        bounds = inputs["cu_block_lens"].tolist()
        for request in range(3):
            alone = inputs | {"q": inputs["q"][bounds[request] : bounds[request + 1]], "cu_block_lens": None}
            alone |= {name: inputs[name][request : request + 1] for name in ("page_table", "context_lens")}
            selected, count = dflash_ops.select_pages(**alone)
            assert torch.equal(selected[0], expected[request])
            assert torch.equal(count[0], counts[request])
    finally:
        torch.set_num_threads(before)


def test_strides_and_rows_past_the_last_request() -> None:
    case = Case(Attention((400, 90), (3, 5), q_heads=4, kv_heads=2, head_dim=40), 96, sink=16)
    inputs = case.inputs(torch.float32)
    expected = dflash_ops.select_pages(**inputs)
    pages, heads, _, dim = inputs["k_bounds"].shape
    q = torch.full((4, 12, dim + 8), torch.nan)
    q[:, :8, :dim] = inputs["q"].transpose(0, 1)
    bounds = torch.full((2, heads, pages, dim + 8), torch.nan)
    bounds[..., :dim] = inputs["k_bounds"].permute(2, 1, 0, 3)
    inputs |= {"q": q.transpose(0, 1)[..., :dim], "k_bounds": bounds.permute(2, 1, 0, 3)[..., :dim]}
    storage = torch.full((2, 2, expected[0].shape[2] + 3), 7, dtype=torch.int32)
    counts = torch.full((2, 2, 2), 7, dtype=torch.int32)
    dflash_ops.select_pages(**inputs, selected_pages=storage.transpose(0, 1), selected_counts=counts[:, :, 1].t())
    assert torch.equal(storage.transpose(0, 1)[:, :, :-3], expected[0])
    assert (storage[:, :, -3:] == -1).all()
    assert torch.equal(counts[:, :, 1].t(), expected[1])
    assert (counts[:, :, 0] == 7).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(6, 4, 64, dtype=torch.float64)}, "q: expected float32, float16 or bfloat16"),
        ({"q": torch.zeros(6, 4, 60)}, "q: expected head_dim a multiple of 8 from 8 to 256"),
        ({"q": torch.zeros(6, 3, 64)}, "k_bounds: expected kv heads that divide q's 3 heads"),
        ({"q": torch.zeros(7, 4, 64)}, "q: expected as many rows for each of 2 requests"),
        ({"k_bounds": torch.zeros(40, 2, 2, 64).half()}, "k_bounds: expected float32, got float16"),
        ({"k_bounds": torch.zeros(40, 2, 3, 64)}, r"k_bounds: expected shape \[\*, \*, 2, 64\]"),
        ({"page_table": torch.zeros(2, 27, dtype=torch.int64)}, "page_table: expected int32, got int64"),
        ({"page_table": torch.full((2, 27), 40, dtype=torch.int32)}, r"page_table\[0, 1\]: expected a page from 0 to"),
        (
            {"context_lens": torch.tensor([109, 3], dtype=torch.int32)},
            r"context_lens\[0\]: expected 0 to 108 .*got 109",
        ),
        ({"cu_block_lens": torch.tensor([0, 7, 6], dtype=torch.int32)}, r"cu_block_lens\[1\]: expected a value from 0"),
        ({"page_size": 3}, "page_size: expected a power of two from 1 to 256, got 3"),
        ({"budget_tokens": -1}, "budget_tokens: expected 0 or more"),
        ({"sink_tokens": -1}, "sink_tokens: expected 0 or more"),
        ({"local_tokens": 0}, "local_tokens: expected 1 or more"),
        (
            {"selected_pages": torch.zeros(2, 2, 9, dtype=torch.int32)},
            r"selected_pages: expected at least 10 columns \(select_pages_width\)",
        ),
        ({"selected_pages": torch.zeros(2, 2, 10)}, "selected_pages: expected int32, got float32"),
        ({"selected_counts": torch.zeros(2, dtype=torch.int32)}, r"selected_counts: expected shape \[2, 2\]"),
        ({"workspace": torch.zeros(8, dtype=torch.uint8)}, "workspace: expected at least"),
    ],
)
def test_bad_arguments_are_named_before_anything_is_written(change: dict[str, Any], message: str) -> None:
    outputs = {
        "selected_pages": torch.full((2, 2, 10), 7, dtype=torch.int32),
        "selected_counts": torch.full((2, 2), 7, dtype=torch.int32),
    }
    with pytest.raises(RuntimeError, match=f"select_pages: {message}"):
        dflash_ops.select_pages(**(SMALL.inputs(torch.float32) | outputs | change))
    assert all((output == 7).all() for output in outputs.values())


def test_registration() -> None:
    inputs = SMALL.inputs(torch.float32)
    workspace = torch.zeros(dflash_ops.select_pages_workspace_size(2, 2, 27), dtype=torch.uint8)
    outputs = (torch.zeros(2, 2, 10, dtype=torch.int32), torch.zeros(2, 2, dtype=torch.int32))
    names = ("q", "k_bounds", "page_table", "context_lens", "cu_block_lens")
    args = (*(inputs[name] for name in names), None, 16, *SMALL.budgets().values(), *outputs, workspace)
    check_registration("select_pages", args)
    check_cuda_message("select_pages", args)
    budgets = SMALL.budgets()
    tensors = [inputs[name] for name in ("q", "k_bounds", "page_table", "context_lens")]
    check_compiles(lambda *tensors: dflash_ops.select_pages(*tensors, **budgets), *tensors)
