"""The second level of bounds: groups of pages, in update_page_bounds and select_pages."""

from typing import Any

import pytest
import torch
from torch import Tensor

import dflash_ops
from dflash_ops import reference
from dflash_ops.reference.select_pages import page_scores
from dflash_ops.reference.update_page_bounds import update_group_bounds
from tests.cases.page_selection import CASES, Attention, Case, last_slots
from tests.ops.harness import DTYPES, ISAS, check_registration, cpu_isa


def groups_of(inputs: dict[str, Any], group_pages: int) -> Tensor:
    """By the definition, over bounds of every owned page; 7 where no page lies."""
    table, lens, page_size = inputs["page_table"], inputs["context_lens"], inputs["page_size"]
    shape = (table.shape[0], -(-table.shape[1] // group_pages), *inputs["k_bounds"].shape[1:])
    groups = torch.full(shape, 7.0, dtype=inputs["q"].dtype)
    slots = last_slots(table, lens, page_size)
    update_group_bounds([inputs["k_bounds"]], slots, page_size, table, lens, group_pages, [groups])
    return groups


def assert_same_selection(inputs: dict[str, Any], group_pages: int) -> None:
    one_level = dflash_ops.select_pages(**inputs)
    two_levels = dflash_ops.select_pages(**inputs, group_bounds=groups_of(inputs, group_pages), group_pages=group_pages)
    assert torch.equal(two_levels[0], one_level[0])
    assert torch.equal(two_levels[1], one_level[1])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("index", range(len(CASES)), ids=lambda index: str(CASES[index]))
def test_selects_what_one_level_selects(index: int, isa: str) -> None:
    """Sums of products of any numbers, rounded, and whole ones with many ties."""
    with cpu_isa(isa):
        inputs = CASES[index].inputs(DTYPES[index % 3], whole=index % 2 == 0)
        assert_same_selection(inputs, (1, 3, 16, 64)[index % 4])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("seed", range(6))
def test_adversarial_bounds(seed: int, isa: str) -> None:
    """Heavy tails, channels and pages of very different size, NaN and infinities of both signs: what a wider bound says
    about a narrower one is then least clear."""
    generator = torch.Generator().manual_seed(seed)
    dtype = DTYPES[seed % 3]
    case = Case(Attention((1200, 700), 5, q_heads=6, kv_heads=2, head_dim=40, page_size=4), 160, sink=4, local=8)
    inputs = case.inputs(dtype)
    bounds = torch.empty(inputs["k_bounds"].shape).cauchy_(generator=generator)
    bounds *= torch.exp(2 * torch.randn(40, generator=generator))
    bounds *= torch.exp(2 * torch.randn(bounds.shape[0], 1, 1, 1, generator=generator))
    bounds = bounds.sort(dim=2).values
    if seed >= 3:
        for value in (torch.nan, torch.inf, -torch.inf):
            places = torch.rand(bounds.shape[:2], generator=generator) < 0.01
            bounds[places, :, seed] = value
        inputs["q"][::2, :, seed] = 0.0
    inputs["k_bounds"] = bounds.to(dtype)  # where float16 ends, infinite
    with cpu_isa(isa):
        for group_pages in (2, 16):
            assert_same_selection(inputs, group_pages)


def clustered(pages: int, dtype: torch.dtype) -> dict[str, Any]:
    """Stretches of 64 pages about a subject of their own, which is most of a key."""
    generator = torch.Generator().manual_seed(1)
    subjects = 40 * torch.randn(-(-pages // 64), 2, 1, 64, generator=generator).repeat_interleave(64, 0)[:pages]
    bounds = subjects + torch.randn(pages, 2, 2, 64, generator=generator).sort(dim=2).values
    return {
        "q": torch.randn(8, 4, 64, generator=generator).to(dtype),
        "k_bounds": bounds.to(dtype),
        "page_table": torch.arange(pages).int()[None],
        "context_lens": torch.tensor([16 * pages], dtype=torch.int32),
        "page_size": 16,
        "budget_tokens": 1024,
    }


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_pages_of_poor_groups_are_not_read(dtype: torch.dtype, isa: str) -> None:
    """Bounds that grow after the groups' were made are not seen where the group is passed over."""
    inputs = clustered(1024, dtype)
    groups = groups_of(inputs, 16)
    heads = [inputs["q"][:, 2 * head : 2 * head + 2].flatten(0, 1).double() for head in range(2)]
    with cpu_isa(isa):
        expected, _ = dflash_ops.select_pages(**inputs)
        # A quarter of the groups, those whose greatest score for any head is least.
        scores = torch.stack([page_scores(queries, groups[0, :, head].double()) for head, queries in enumerate(heads)])
        poor = (scores.amax(0).argsort()[:16, None] * 16 + torch.arange(16)).flatten()
        inputs["k_bounds"][poor] = 1e4
        assert not torch.equal(dflash_ops.select_pages(**inputs)[0], expected)
        assert torch.equal(dflash_ops.select_pages(**inputs, group_bounds=groups)[0], expected)


def test_no_page_is_dropped_that_beats_the_chosen() -> None:
    """A planted page anywhere in a clustered context is always selected."""
    for page in (20, 64, 999):
        inputs = clustered(1024, torch.float32)
        inputs["k_bounds"][page] = 100 * inputs["q"][3, 1].sign()
        selected, _ = dflash_ops.select_pages(**inputs, group_bounds=groups_of(inputs, 16))
        assert page in selected[0, 0].tolist()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group_pages", [1, 3, 16])
def test_groups_follow_their_pages(group_pages: int, dtype: torch.dtype, isa: str) -> None:
    """Rows are written, the context grows, is cut and grows again: groups of named pages are made anew, others stay."""
    attention = Attention((320, 1, 161), (1, 1, 1), kv_heads=2, head_dim=40, page_size=4)
    generator = torch.Generator().manual_seed(2)
    inputs = attention.inputs(dtype)
    cache, table = inputs["k_cache"], inputs["page_table"]
    table.clamp_(max=cache.shape[0] - 1)
    shapes = (cache.shape[0], 2, 2, 40), (3, -(-table.shape[1] // group_pages), 2, 2, 40)
    ours, wanted = [[torch.full(shape, 7.0, dtype=dtype) for shape in shapes] for _ in range(2)]
    lens = inputs["context_lens"]
    with cpu_isa(isa):
        for contexts, first in (((300, 0, 161), (0, 0, 0)), ((303, 0, 90), (300, 0, 90)), ((309, 0, 97), (303, 0, 90))):
            lens.copy_(torch.tensor(contexts))
            slots = []
            for request in range(3):
                position = torch.arange(first[request], contexts[request])
                slots.append(table[request, position // 4].long() * 4 + position % 4)
            cache.view(-1, 2, 40)[torch.cat(slots)] = torch.randn(len(torch.cat(slots)), 2, 40, generator=generator).to(
                dtype
            )
            dflash_ops.update_page_bounds(
                [cache],
                slot_mapping=torch.cat(slots),
                k_bounds=[ours[0]],
                group_bounds=[ours[1]],
                page_table=table,
                context_lens=lens,
                group_pages=group_pages,
            )
            reference.update_page_bounds([cache], torch.cat(slots), None, [wanted[0]])
            update_group_bounds([wanted[0]], torch.cat(slots), 4, table, lens, group_pages, [wanted[1]])
            for actual, expected in zip(ours, wanted, strict=True):
                assert torch.equal(actual.nan_to_num(9.0), expected.nan_to_num(9.0))


def update_arguments() -> dict[str, Any]:
    return {
        "k_caches": [torch.zeros(5, 4, 2, 8)],
        "slot_mapping": torch.tensor([3, 5]),
        "k_bounds": [torch.zeros(5, 2, 2, 8)],
        "group_bounds": [torch.zeros(2, 2, 2, 2, 8)],
        "page_table": torch.tensor([[0, 1, 2], [3, 4, 9]], dtype=torch.int32),
        "context_lens": torch.tensor([7, 8], dtype=torch.int32),
        "group_pages": 2,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group_bounds": [torch.zeros(2, 1, 2, 2, 8)]}, r"group_bounds\[0\]: expected shape \[2, 2, 2, 2, 8\]"),
        ({"group_bounds": [torch.zeros(2, 2, 2, 2, 8).half()]}, r"group_bounds\[0\]: expected float32, got float16"),
        ({"group_bounds": [torch.zeros(2, 2, 2, 2, 8)] * 2}, "group_bounds: expected one tensor for each of 1 layers"),
        ({"page_table": None}, "page_table, context_lens: expected both with group_bounds"),
        ({"group_pages": 0}, "group_pages: expected 1 or more, got 0"),
        ({"context_lens": torch.tensor([7, 13], dtype=torch.int32)}, r"context_lens\[1\]: expected 0 to 12"),
        ({"context_lens": torch.tensor([7, 9], dtype=torch.int32)}, r"page_table\[1, 2\]: expected a page from 0 to 4"),
    ],
)
def test_bad_arguments_are_named_before_anything_is_written(change: dict[str, Any], message: str) -> None:
    arguments = update_arguments() | change
    arguments["k_caches"][0].fill_(1.0)
    with pytest.raises(RuntimeError, match=f"update_page_bounds: {message}"):
        dflash_ops.update_page_bounds(**arguments)
    assert not arguments["k_bounds"][0].any()
    assert not arguments["group_bounds"][0].any()


def test_bad_arguments_of_the_selection() -> None:
    inputs = Case(Attention((100, 37), 3, page_size=4), 40, sink=4, local=8).inputs(torch.float32)
    groups = groups_of(inputs, 4)
    for change, message in (
        ({"group_bounds": groups[:, 1:]}, r"group_bounds: expected shape \[2, 7, 2, 2, 64\]"),
        ({"group_bounds": groups.half()}, "group_bounds: expected float32, got float16"),
        ({"group_pages": 0}, "group_pages: expected 1 or more, got 0"),
    ):
        with pytest.raises(RuntimeError, match=f"select_pages: {message}"):
            dflash_ops.select_pages(**(inputs | {"group_bounds": groups, "group_pages": 4} | change))


def test_registration() -> None:
    arguments = update_arguments()
    names = ("page_table", "context_lens", "group_pages", "k_bounds", "group_bounds")
    given = (arguments["k_caches"], arguments["slot_mapping"], None, *(arguments[name] for name in names))
    check_registration("update_page_bounds", given)
