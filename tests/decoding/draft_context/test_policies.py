"""Each draft context against the dense drafter, which knows no cache: what a policy leaves out, it leaves out of both."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from dflash_decoding import CacheFreeContext, DraftContext, FullContext, PagePool, SparseContext, WindowContext
from dflash_decoding.draft_context import draft_context
from dflash_decoding.draft_context.ring import RingPages
from torch import Tensor

from dflash_ops import reference
from tests.decoding.drafter_world import BLOCK, MASK, SLIDING, VARIANTS, Requests, Variant, World
from tests.decoding.drafters import RandomDrafter, one_thread


@pytest.fixture(autouse=True, scope="module")
def single_thread() -> Iterator[None]:
    with one_thread():
        yield


def windowed(name: str, window: int) -> Variant:
    """A variant whose drafter knows nothing of the window that its dense twin has."""
    variant = VARIANTS[name]
    windows = tuple(min(own or window, window) for own in variant.windows)
    return dataclasses.replace(variant, windows=windows)


@pytest.mark.parametrize("policy", [WindowContext, CacheFreeContext])
@pytest.mark.parametrize(
    ("name", "window"), [("full", 11), ("all_causal", BLOCK), ("sliding_causal", 13), ("bias", 70)]
)
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_window_is_the_dense_drafters(
    policy: type[WindowContext | CacheFreeContext], name: str, window: int, page_size: int
) -> None:
    """Ragged, over rounds with rejected rows, written (as an engine may) or skipped."""
    context = policy(budget_tokens=window)
    requests = Requests(
        World(windowed(name, window)), [50, 17, 1], page_size=page_size, capacity=90, draft_context=context
    )
    for number in range(4):
        requests.round(BLOCK, number)


@pytest.mark.parametrize("causal", [False, True])
def test_full_context_of_sliding_layers_keeps_their_window_only(causal: bool) -> None:
    changes = {"layer_types": [SLIDING, SLIDING], "sliding_window": 9, "use_sliding_window": True, "is_causal": causal}
    variant = Variant(changes, windows=(9, 9), causal=(causal, causal))
    requests = Requests(World(variant), [3, 40], page_size=4, capacity=70)
    pages_of_a_ring = -(-(9 + BLOCK) // 4) + 1
    assert requests.cache.k[0].shape[0] == 2 * pages_of_a_ring < requests.pool.num_pages
    for number in range(4):
        requests.round(BLOCK, number)
    requests.pool.release(0)
    requests.pool.move(1, 0)
    requests.history = requests.history[1:]
    requests.pool.allocate(1, 30)
    requests.history.append(requests.world.taps(22))
    requests._inject([(1, 0, requests.history[1], 22)])
    requests.pool.context_lens[1] = 22
    for number in range(2):
        requests.round(BLOCK, number)


@pytest.mark.parametrize("name", ["full", "sliding_causal"])
def test_sparse_with_budget_for_everything_is_dense(name: str) -> None:
    context = SparseContext(budget_tokens=96, sink_tokens=4, local_tokens=8)
    requests = Requests(World(VARIANTS[name]), [1, 17, 40], page_size=4, capacity=80, draft_context=context)
    for number in range(4):
        requests.round(BLOCK, number)


@pytest.mark.parametrize("context", [WindowContext(11), CacheFreeContext(11)])
def test_rows_of_a_write_never_share_a_slot(context: DraftContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt of many rings comes in parts: the order in which an op writes its rows is the op's own."""
    seen = []
    slots_of = RingPages.slots

    def watched(rings: RingPages, slot_mapping: Tensor) -> Tensor:
        slots = slots_of(rings, slot_mapping)
        kept = slots[slots >= 0]
        assert len(kept.unique()) == len(kept)
        seen.append(len(kept))
        return slots

    monkeypatch.setattr(RingPages, "slots", watched)
    requests = Requests(World(VARIANTS["full"]), [150, 7], page_size=4, capacity=170, draft_context=context)
    assert sum(seen) == 157
    forward(requests)


def forward(requests: Requests) -> Tensor:
    """One draft; the buffers of the drafter then hold what its last layer saw."""
    lens = requests.pool.context_lens
    ids = torch.full((lens.shape[0], BLOCK), MASK)
    positions = lens.long()[:, None] + torch.arange(BLOCK)
    return requests.world.drafter.draft(ids, positions, requests.cache, requests.pool.page_table, lens)


def bounds_of_valid_rows(requests: Requests, layer: int) -> Tensor:
    """[pages, heads, 2, D], from the stored keys and the lengths alone."""
    k, pool = requests.cache.k[layer], requests.pool
    bounds = torch.full((k.shape[0], k.shape[2], 2, k.shape[3]), torch.nan)
    for row, length in enumerate(pool.context_lens.tolist()):
        for page in range(-(-length // pool.page_size)):
            rows = k[pool.page_table[row, page], : min(pool.page_size, length - page * pool.page_size)]
            bounds[pool.page_table[row, page]] = torch.stack([rows.amin(0), rows.amax(0)], dim=1)
    return bounds


def assert_bounds_are_tight(requests: Requests) -> None:
    for layer, kept in enumerate(requests.cache.k_bounds):
        expected = bounds_of_valid_rows(requests, layer)
        known = ~expected.isnan()
        assert torch.equal(kept[known], expected[known])


def test_bounds_are_those_of_the_valid_rows_whoever_had_the_page_before() -> None:
    context = SparseContext(budget_tokens=16, sink_tokens=4, local_tokens=8)
    world = World(VARIANTS["full"])
    requests = Requests(world, [30, 13], page_size=4, capacity=100, draft_context=context)
    for round_number in range(4):
        forward(requests)
        parts = []
        for row, length in enumerate(requests.pool.context_lens.tolist()):
            # Taps of rejected rows are huge: a single one in the bounds would show.
            taps, keep = world.taps(BLOCK), 1 + (round_number + row) % BLOCK
            for tap in taps:
                tap[keep:] *= 1e6
            parts.append((row, length, taps, keep))
        requests._inject(parts)
        requests.pool.context_lens += torch.tensor([part[3] for part in parts], dtype=torch.int32)
        assert_bounds_are_tight(requests)
    for row in range(2):
        requests.pool.release(row)
    requests.start([9, 42])
    assert_bounds_are_tight(requests)


@pytest.mark.parametrize("budget", [16, 32])
def test_sparse_attends_to_the_selected_pages(budget: int) -> None:
    """The last layer against the definitions, with bounds made here."""
    context = SparseContext(budget_tokens=budget, sink_tokens=4, local_tokens=8)
    requests = Requests(World(VARIANTS["full"]), [90, 41, 3], page_size=4, capacity=120, draft_context=context)
    forward(requests)
    block = requests.world.drafter._block_buffers(3, BLOCK)
    pool, cache = requests.pool, requests.cache
    bounds = bounds_of_valid_rows(requests, 1).double()
    pages, counts = reference.select_pages(
        block.q.double(),
        bounds,
        pool.page_table,
        pool.context_lens,
        page_size=4,
        budget_tokens=budget,
        sink_tokens=4,
        local_tokens=8,
        width=pool.max_pages_per_request,
    )
    assert counts.tolist() == [[budget // 4] * 2, [min(budget // 4, 11)] * 2, [1, 1]]
    q, k, v = (tensor.double() for tensor in (block.q, block.k, block.v))
    expected, _ = reference.sparse_block_attention(
        q,
        k,
        v,
        cache.k[1].nan_to_num().double(),
        cache.v[1].nan_to_num().double(),
        pool.page_table,
        pool.context_lens,
        pages,
        counts,
    )
    torch.testing.assert_close(block.attended.double(), expected, rtol=0, atol=1e-5)
    dense, _ = reference.block_attention(
        q,
        k,
        v,
        cache.k[1].nan_to_num().double(),
        cache.v[1].nan_to_num().double(),
        pool.page_table,
        pool.context_lens,
    )
    assert (block.attended.double() - dense)[:BLOCK].abs().max() > 1e-3


def test_selections_are_used_again_until_the_requests_change() -> None:
    world = World(VARIANTS["full"])
    context = SparseContext(budget_tokens=16, sink_tokens=4, local_tokens=8, round_interval=3, layer_interval=2)
    requests = Requests(world, [30, 41], page_size=4, capacity=120, draft_context=context)
    made = []
    for step in range(8):
        if step == 4:
            requests.pool.allocate(0, 120)  # one more page
        if step == 6:
            context.set_budget(requests.cache, 12)
        forward(requests)
        made.append(requests.cache.selections_made)
    # Two layers share one selection; steps 0, 3, then 4 and 6, where something changed.
    assert made == [1, 1, 1, 2, 3, 3, 4, 4]


@pytest.mark.parametrize("policy", [SparseContext(16, 4, 8), WindowContext(24), CacheFreeContext(24)])
def test_smaller_budget_between_forwards(policy: DraftContext) -> None:
    """What an adaptive decoder does: the drafts are those of a policy made with that budget."""
    smaller, budget = dataclasses.replace(policy, budget_tokens=12), 12  # type: ignore[call-arg]
    drafts = []
    for context in (policy, smaller):
        requests = Requests(World(VARIANTS["full"]), [30, 61], page_size=4, capacity=80, draft_context=context)
        context.set_budget(requests.cache, budget)
        drafts.append(forward(requests))
        context.set_budget(requests.cache, None)
        drafts.append(forward(requests))
    assert torch.equal(drafts[0], drafts[2])
    assert torch.equal(drafts[0], drafts[3])


def test_memory() -> None:
    """Bytes of a request by hand: 2 layers, 2 heads of 16, hidden size 48, float32, pages of 4, block 6."""
    drafter = World(VARIANTS["full"]).drafter
    ring = -(-(24 + 6) // 4) + 1
    kv_page = 4 * 2 * 16 * 4  # rows, heads, channels, bytes
    expected = {
        FullContext(): lambda pages: 4 * kv_page * pages,
        SparseContext(64): lambda pages: (4 * kv_page + 2 * 2 * 2 * 16 * 4) * pages,
        WindowContext(24): lambda pages: 4 * kv_page * min(ring, pages),
        CacheFreeContext(24): lambda pages: 2 * kv_page * min(ring, pages) + 48 * 4 * (4 * min(ring, pages) + 1),
    }
    for context, size in expected.items():
        for tokens in (5, 400, 131072):
            assert context.request_bytes(drafter, tokens, 4) == size(-(-tokens // 4)), context.name
    pool = PagePool(100, 4, 1, 100)
    for context in expected:
        assert context.new_cache(drafter, pool).num_bytes == context.request_bytes(drafter, 400, 4)


def test_refusals() -> None:
    world = World(VARIANTS["full"])
    with pytest.raises(ValueError, match="budget_tokens: expected at least the drafter's block of 6, got 5"):
        WindowContext(budget_tokens=5).check(world.drafter)
    with pytest.raises(ValueError, match=r"draft_context: expected full .*RandomDrafter.*, got sparse"):
        SparseContext().check(RandomDrafter(9, 4))
    FullContext().check(RandomDrafter(9, 4))
    for field in ("budget_tokens", "local_tokens", "round_interval", "layer_interval"):
        with pytest.raises(ValueError, match=f"{field}: expected"):
            SparseContext(**{field: 0})
    with pytest.raises(ValueError, match="draft_context: expected one of full, sparse, window, cache_free, got dense"):
        draft_context("dense")
    with pytest.raises(ValueError, match="draft_context window: expected no sink_tokens"):
        draft_context("window", sink_tokens=4, budget_tokens=None)
    assert draft_context("sparse", budget_tokens=99, sink_tokens=None) == SparseContext(budget_tokens=99)


def test_budgets() -> None:
    assert FullContext().budgets() == (None,)
    assert WindowContext(256).budgets() == (256, 128, 64)
    assert SparseContext(1024, 64, 256).budgets() == (1024, 512, 320)
    assert SparseContext(100, 64, 256).budgets() == (100,)
