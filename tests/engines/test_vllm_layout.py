"""vLLM's cache, block tables and slots on the ops, against attention over K and V by position."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import dflash_ops
from dflash_ops.engines import attend
from dflash_ops.engines.vllm_layout import cache_views, engine_batch, window_of
from tests.engines.world import CONTEXTS, HEAD_DIM, KV_HEADS, NEW, World, check, expected_attention, make_world

BLOCK_SIZE = 16
# How K is told from V, in which order of memory: vLLM 0.33's, the one before, and FlashInfer's of before.
LAYOUTS = [f"{kind} {order}" for kind in ("packed", "sides", "FlashInfer") for order in ("NHD", "HND")]
KV_DIMS = {"packed": 3, "sides": 0, "FlashInfer": 1}


def kv_dim(layout: str) -> int:
    return KV_DIMS[layout.split()[0]]


def new_cache(layout: str, blocks: int) -> Tensor:
    """A layer's cache of NaN as vLLM allocates it: in the order of memory, then permuted to the logical shape."""
    tokens_first = layout.endswith("NHD")
    if kv_dim(layout) == 3:
        if not tokens_first:
            return torch.full((blocks, KV_HEADS, BLOCK_SIZE, 2 * HEAD_DIM), torch.nan)
        return torch.full((blocks, BLOCK_SIZE, KV_HEADS, 2 * HEAD_DIM), torch.nan).permute(0, 2, 1, 3)
    sizes = [2, blocks] if kv_dim(layout) == 0 else [blocks, 2]
    if tokens_first:
        return torch.full((*sizes, BLOCK_SIZE, KV_HEADS, HEAD_DIM), torch.nan)
    return torch.full((*sizes, KV_HEADS, BLOCK_SIZE, HEAD_DIM), torch.nan).permute(0, 1, 3, 2, 4)


def write(cache: Tensor, layout: str, slot: int, k: np.ndarray, v: np.ndarray) -> None:
    """Puts a token's K and V [KV_HEADS, HEAD_DIM] where vLLM would, by index."""
    block, offset = divmod(slot, BLOCK_SIZE)
    if kv_dim(layout) == 3:
        for head in range(KV_HEADS):
            cache[block, head, offset] = torch.from_numpy(np.concatenate([k[head], v[head]]))
        return
    for side, values in enumerate((k, v)):
        at = (side, block) if kv_dim(layout) == 0 else (block, side)
        cache[(*at, offset)] = torch.from_numpy(values)


def fill(cache: Tensor, layout: str, world: World, new_too: bool) -> None:
    for request, (context, new) in enumerate(zip(CONTEXTS, NEW, strict=True)):
        for position in range(context + new * new_too):
            write(cache, layout, world.slot(request, position), world.k[request][position], world.v[request][position])


def metadata(world: World, padded: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """query_start_loc, seq_lens, block_table and slot_mapping as vLLM hands them on; `padded` requests of a graph."""
    starts = np.concatenate([[0], np.cumsum(NEW), np.full(padded, sum(NEW))]).astype(np.int32)
    lens = np.array([c + n for c, n in zip(CONTEXTS, NEW, strict=True)] + [0] * padded, np.int32)
    table = np.zeros((len(lens), 12), np.int32)  # vLLM's tail is 0, or what an earlier request left
    for row, pages in enumerate(world.pages):
        table[row, : len(pages)] = pages
    return tuple(torch.from_numpy(array) for array in (starts, lens, table, world.new_slots()))  # type: ignore[return-value]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("new_too", [False, True], ids=["attention first", "cache written first"])
@pytest.mark.parametrize(("causal", "reach"), [(True, None), (False, None), (True, (6, 0)), (False, (6, 6))])
def test_attention(layout: str, new_too: bool, causal: bool, reach: tuple[int, int] | None) -> None:
    world = make_world(BLOCK_SIZE)
    cache = new_cache(layout, world.num_pages)
    fill(cache, layout, world, new_too)
    k, v = world.new_kv()
    window = window_of(reach, causal)
    views = cache_views(cache, kv_dim(layout))
    assert views[0].untyped_storage().data_ptr() == cache.untyped_storage().data_ptr()
    out = attend(torch.from_numpy(world.q), k, v, *views, engine_batch(*metadata(world)), causal=causal, window=window)
    check(out, expected_attention(world, causal, 7 if reach else 0))


def test_padding_of_a_graph_changes_nothing() -> None:
    world = make_world(BLOCK_SIZE)
    cache = new_cache("packed NHD", world.num_pages)
    fill(cache, "packed NHD", world, new_too=False)
    k, v = world.new_kv()
    batch = engine_batch(*metadata(world, padded=3))
    assert batch.context_lens.tolist() == [*CONTEXTS, 0, 0, 0]
    q = torch.cat([torch.from_numpy(world.q), torch.full((5, *world.q.shape[1:]), torch.nan)])
    padding = torch.full((5, KV_HEADS, HEAD_DIM), torch.nan)
    out = torch.full_like(q, 7.0)
    attend(q, torch.cat([k, padding]), torch.cat([v, padding]), *cache_views(cache, 3), batch, out=out)
    check(out[: sum(NEW)], expected_attention(world, causal=True))
    assert out[sum(NEW) :].eq(7).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_writing_draft_context_puts_rows_where_vllm_reads_them(layout: str) -> None:
    """`write_context_kv`, and with it `project_context_kv`, on vLLM's slots; -1 is padding to both."""
    world = make_world(BLOCK_SIZE)
    caches = [new_cache(layout, world.num_pages) for _ in range(2)]
    k, v = world.new_kv()
    slots = world.new_slots()
    slots[2] = -1
    kv = torch.stack([torch.stack([k, v], dim=1), torch.stack([v, k], dim=1)], dim=1)
    views = [cache_views(cache, kv_dim(layout)) for cache in caches]
    dflash_ops.write_context_kv(
        kv,
        slot_mapping=torch.from_numpy(slots),
        k_caches=[view[0] for view in views],
        v_caches=[view[1] for view in views],
    )
    for layer, cache in enumerate(caches):
        expected = new_cache(layout, world.num_pages)
        for row, slot in enumerate(slots.tolist()):
            if slot >= 0:
                sides = (k[row].numpy(), v[row].numpy())
                write(expected, layout, slot, *(sides if layer == 0 else sides[::-1]))
        torch.testing.assert_close(cache, expected, rtol=0, atol=0, equal_nan=True)


def test_begin_block_gives_vllms_slots() -> None:
    world = make_world(BLOCK_SIZE)
    _, _, block_table, _ = metadata(world)
    block = 2  # every request has pages for as many, and one of them crosses into its last page
    _, positions, slots = dflash_ops.begin_block(
        torch.zeros(len(NEW), dtype=torch.int64),
        torch.tensor(CONTEXTS, dtype=torch.int32),
        block_table,
        page_size=BLOCK_SIZE,
        mask_token_id=0,
        block_size=block,
    )
    for request, context in enumerate(CONTEXTS):
        assert positions[request].tolist() == [context, context + 1]
        assert slots[request, 0] == world.slot(request, context)


@pytest.mark.parametrize(
    ("shape", "dim", "message"),
    [
        ((3, 4, 16, 2, 8), 0, r"dimension 0 of size 2, got \[3, 4, 16, 2, 8\]"),
        ((2, 4, 16, 16), 0, "expected 5 dimensions"),
        ((2, 4, 16, 2, 8), 2, "kv_dim: expected 0, 1 or 3, got 2"),
        ((2, 4, 16, 2, 8), 3, "expected 4 dimensions"),
        ((4, 2, 16, 15), 3, "the last one even"),
    ],
)
def test_other_caches_are_refused(shape: tuple[int, ...], dim: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cache_views(torch.empty(shape), dim)


@pytest.mark.parametrize(
    ("reach", "causal", "window"),
    [(None, True, 0), ((-1, -1), True, 0), ((-1, -1), False, 0), ((127, 0), True, 128), ((127, 127), False, 128)],
)
def test_windows(reach: tuple[int, int] | None, causal: bool, window: int) -> None:
    assert window_of(reach, causal) == window


@pytest.mark.parametrize(("reach", "causal"), [((5, 5), True), ((5, 0), False), ((-1, 0), True)])
def test_reaches_that_are_no_window_are_refused(reach: tuple[int, int], causal: bool) -> None:
    with pytest.raises(ValueError, match="sliding_window: expected"):
        window_of(reach, causal)
