"""The decoder's text is plain decoding's with every draft context, whatever it leaves out."""

from __future__ import annotations

import pytest
from dflash_decoding import (
    CacheFreeContext,
    DFlashDecoder,
    DraftContext,
    Generations,
    SparseContext,
    WindowContext,
)
from dflash_decoding.baselines.denoising_drafter import DenoisingDrafter
from dflash_decoding.cache import UNUSED_PAGE
from dflash_decoding.draft_context.ring import RingPages
from dflash_decoding.target import Target
from torch import Tensor

from tests.decoding.decoder.world import SAMPLED, tokens_of, watched
from tests.decoding.drafters import RandomDrafter
from tests.decoding.tiny import VOCAB, tiny_drafter

POLICIES: dict[str, DraftContext] = {
    "sparse": SparseContext(budget_tokens=24, sink_tokens=4, local_tokens=8),
    "sparse_reused": SparseContext(budget_tokens=24, sink_tokens=4, local_tokens=8, round_interval=3, layer_interval=2),
    "window": WindowContext(budget_tokens=12),
    "cache_free": CacheFreeContext(budget_tokens=12),
}


@pytest.mark.parametrize(("max_batch", "page_size"), [(1, 4), (3, 4), (16, 1)])
@pytest.mark.parametrize("name", POLICIES)
def test_greedy_text_is_the_plain_one(
    target: Target, prompts: list[list[int]], plain: Generations, name: str, max_batch: int, page_size: int
) -> None:
    """Ragged prompts and limits, so that rows end early, move, and are taken by the next of the queue."""
    watch, as_target = watched(target)
    decoder = DFlashDecoder(
        as_target,
        tiny_drafter(target, layer_types=("full_attention",) * 2),
        max_batch=max_batch,
        page_size=page_size,
        prefill_chunk=24,
        draft_context=POLICIES[name],
    )
    limits = [24 - 3 * index for index in range(6)]
    got = decoder.generate(prompts[:6], max_new_tokens=limits, stop_token_ids=())
    assert tokens_of(got) == [tokens[:limit] for tokens, limit in zip(tokens_of(plain), limits, strict=False)]
    assert watch.pool.num_free_pages == watch.pool.num_pages


def test_several_forwards_a_round(target: Target, prompts: list[list[int]], plain: Generations) -> None:
    drafter = DenoisingDrafter(tiny_drafter(target, layer_types=("full_attention",) * 2), steps=2)
    decoder = DFlashDecoder(target, drafter, page_size=4, draft_context=POLICIES["sparse_reused"])
    got = decoder.generate(prompts[2:4], max_new_tokens=12, stop_token_ids=())
    assert tokens_of(got) == [tokens[:12] for tokens in tokens_of(plain)[2:4]]


@pytest.mark.parametrize("name", POLICIES)
def test_sampled_text_is_the_plain_one(target: Target, prompts: list[list[int]], name: str) -> None:
    plain = DFlashDecoder(target).generate(prompts[:4], max_new_tokens=16, sampling=SAMPLED)
    decoder = DFlashDecoder(target, tiny_drafter(target), draft_context=POLICIES[name])
    got = decoder.generate(prompts[:4], max_new_tokens=16, sampling=SAMPLED)
    assert tokens_of(got) == tokens_of(plain)


@pytest.mark.parametrize("policy", [WindowContext(16), CacheFreeContext(16)])
def test_drafts_do_not_depend_on_the_batch_or_on_who_had_the_pages(
    target: Target, prompts: list[list[int]], policy: DraftContext
) -> None:
    """A drafter whose every draft were wrong would still decode right: so its acceptance is looked at, too."""

    def acceptance(max_batch: int) -> list[list[int]]:
        drafter = tiny_drafter(target, layer_types=("full_attention",) * 2)
        decoder = DFlashDecoder(target, drafter, max_batch=max_batch, page_size=4, draft_context=policy)
        got = decoder.generate(prompts[1:6], max_new_tokens=[16, 9, 16, 4, 12], stop_token_ids=())
        return [generation.stats.acceptance for generation in got]

    assert acceptance(1) == acceptance(3)


def test_no_page_before_the_window_is_read(
    target: Target, prompts: list[list[int]], plain: Generations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Table entries of older pages are no pages at all: the attention refuses such a one if it would read it."""
    table_of = RingPages.table
    window, forbidden = 12, 0

    def newest_only(rings: RingPages, page_table: Tensor) -> Tensor:
        nonlocal forbidden
        table = table_of(rings, page_table).clone()
        lens = watch.pool.context_lens[: len(table)].tolist()
        for row, length in enumerate(lens):
            oldest = max(0, length - window + 1) // rings.page_size
            table[row, :oldest] = UNUSED_PAGE
            forbidden += oldest
        return table

    monkeypatch.setattr(RingPages, "table", newest_only)
    watch, as_target = watched(target)
    drafter = tiny_drafter(target, layer_types=("full_attention",) * 2)
    decoder = DFlashDecoder(as_target, drafter, page_size=4, draft_context=WindowContext(window))
    got = decoder.generate(prompts[2:6], max_new_tokens=16, stop_token_ids=())
    assert tokens_of(got) == [tokens[:16] for tokens in tokens_of(plain)[2:6]]
    assert forbidden > 200


@pytest.mark.parametrize(
    ("policy", "layers"),
    [(WindowContext(16), "full_attention"), (CacheFreeContext(16), "full_attention"), ("full", "sliding_attention")],
)
def test_draft_memory_does_not_grow_with_the_context(
    target: Target, policy: DraftContext | str, layers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = tiny_drafter(target, layer_types=(layers,) * 2, sliding_window=16)
    decoder = DFlashDecoder(target, drafter, max_batch=2, draft_context=policy)
    sizes = set()
    for length in (80, 200, 400):
        session = decoder._session(drafter, [[1] * length] * 2, 4, SAMPLED, (), (), None)
        list(session.events())
        sizes.add(session.stats.draft_cache_bytes)
    assert len(sizes) == 1
    assert sizes != {0}


def test_refused_at_once(target: Target) -> None:
    with pytest.raises(ValueError, match="expected full for a drafter with a context of its own kind"):
        DFlashDecoder(target, RandomDrafter(VOCAB, 4), draft_context="window")
    with pytest.raises(ValueError, match="budget_tokens: expected at least the drafter's block"):
        DFlashDecoder(target, tiny_drafter(target), draft_context=WindowContext(4))
    with pytest.raises(ValueError, match="expected a drafter beside them, got none"):
        DFlashDecoder(target, draft_context="sparse")
