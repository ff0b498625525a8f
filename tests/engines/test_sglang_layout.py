"""SGLang's token pool and request table on the ops, against attention over K and V by position."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import dflash_ops
from dflash_ops.engines import attend
from dflash_ops.engines.sglang_layout import cache_view, engine_batch
from tests.engines.world import CONTEXTS, HEAD_DIM, KV_HEADS, NEW, World, check, expected_attention, make_world

POOL_ROWS = (5, 0, 3, 2)  # the rows of req_to_token that the requests have
MAX_CONTEXT = 96


def buffers(world: World, new_too: bool) -> tuple[Tensor, Tensor]:
    """K and V [slots, KV_HEADS, HEAD_DIM], NaN where no token is."""
    k, v = (torch.full((world.num_pages * world.page_size, KV_HEADS, HEAD_DIM), torch.nan) for _ in range(2))
    for request, (context, new) in enumerate(zip(CONTEXTS, NEW, strict=True)):
        for position in range(context + new * new_too):
            slot = world.slot(request, position)
            k[slot] = torch.from_numpy(world.k[request][position])
            v[slot] = torch.from_numpy(world.v[request][position])
    return k, v


def request_table(world: World) -> Tensor:
    """req_to_token int32 with the slot of every token; rows and tails of others hold their leftovers."""
    table = np.random.default_rng(1).integers(0, world.num_pages * world.page_size, (8, MAX_CONTEXT)).astype(np.int32)
    for request, row in enumerate(POOL_ROWS):
        for position in range(CONTEXTS[request] + NEW[request]):
            table[row, position] = world.slot(request, position)
    return torch.from_numpy(table)


def seq_lens() -> Tensor:
    return torch.tensor([context + new for context, new in zip(CONTEXTS, NEW, strict=True)])


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("new_too", [False, True], ids=["attention first", "cache written first"])
@pytest.mark.parametrize("causal", [True, False])
def test_attention(page_size: int, new_too: bool, causal: bool) -> None:
    world = make_world(page_size)
    batch = engine_batch(
        request_table(world),
        torch.tensor(POOL_ROWS),
        seq_lens(),
        torch.from_numpy(world.new_slots()),
        page_size=page_size,
        extend_seq_lens=torch.tensor(NEW),
    )
    k_cache, v_cache = (cache_view(buffer, page_size) for buffer in buffers(world, new_too))
    out = attend(torch.from_numpy(world.q), *world.new_kv(), k_cache, v_cache, batch, causal=causal)
    check(out, expected_attention(world, causal))


@pytest.mark.parametrize("page_size", [1, 16])
def test_equal_blocks_need_no_lengths(page_size: int) -> None:
    world = make_world(page_size)
    table, rows, lens = request_table(world), torch.tensor(POOL_ROWS), torch.tensor(CONTEXTS) + 1
    slots = torch.tensor([world.slot(r, context) for r, context in enumerate(CONTEXTS)])
    equal = engine_batch(table, rows, lens, slots, page_size=page_size)
    ragged = engine_batch(table, rows, lens, slots, page_size=page_size, extend_seq_lens=torch.ones(4))
    assert equal.cu_block_lens is None
    assert ragged.cu_block_lens is not None
    assert ragged.cu_block_lens.tolist() == [0, 1, 2, 3, 4]
    assert equal.context_lens.tolist() == ragged.context_lens.tolist() == list(CONTEXTS)
    assert torch.equal(equal.slot_mapping, ragged.slot_mapping)


@pytest.mark.parametrize("page_size", [1, 16])
def test_writing_draft_context_puts_rows_into_their_slots(page_size: int) -> None:
    world = make_world(page_size)
    k, v = world.new_kv()
    slots = torch.from_numpy(world.new_slots())
    slots[[2, 5]] = 0  # padding tokens, as SGLang's graphs have them
    batch = engine_batch(
        request_table(world),
        torch.tensor(POOL_ROWS),
        seq_lens(),
        slots,
        page_size=page_size,
        extend_seq_lens=torch.tensor(NEW),
    )
    stored = [torch.full((world.num_pages * page_size, KV_HEADS, HEAD_DIM), torch.nan) for _ in range(2)]
    dflash_ops.write_context_kv(
        torch.stack([k, v], dim=1)[:, None],
        slot_mapping=batch.slot_mapping,
        k_caches=[cache_view(stored[0], page_size)],
        v_caches=[cache_view(stored[1], page_size)],
    )
    for side, values in zip(stored, (k, v), strict=True):
        expected = torch.full_like(side, torch.nan)
        for row, slot in enumerate(slots.tolist()):
            if slot:
                expected[slot] = values[row]
        torch.testing.assert_close(side, expected, rtol=0, atol=0, equal_nan=True)


def test_a_buffer_of_broken_pages_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected \[pages \* 16, kv_heads, head_dim\]"):
        cache_view(torch.empty(33, 2, 8), 16)
    with pytest.raises(ValueError, match="expected a multiple of 2 tokens, got 3"):
        engine_batch(torch.zeros(4, 8, dtype=torch.int32), torch.tensor([0, 1]), torch.tensor([4, 4]), torch.arange(3))
