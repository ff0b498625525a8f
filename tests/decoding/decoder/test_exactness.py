"""The decoder gives plain decoding's text, whatever drafts and however requests are batched."""

from __future__ import annotations

import pytest
import torch
from dflash_decoding import (
    DFlashDecoder,
    Generations,
    PagePool,
    compare_greedy,
)
from dflash_decoding.target import Target

from tests.decoding.decoder.world import BLOCK, NEW, texts_of, tokens_of, watched
from tests.decoding.drafters import OracleDrafter, RandomDrafter, planted_acceptance
from tests.decoding.tiny import MASK, VOCAB, tiny_drafter


def test_plain_decoding_is_the_models_own(target: Target, prompts: list[list[int]], plain: Generations) -> None:
    """Against a full forward per token, without any cache."""
    for prompt, generation in list(zip(prompts, plain, strict=True))[:3]:
        ids = list(prompt)
        for token in generation.token_ids[:12]:
            difference = compare_greedy(target, ids, [token], [token])
            assert difference is None
            with torch.no_grad():
                logits = target.forward(
                    torch.tensor(ids),
                    torch.arange(len(ids)),
                    torch.full((len(ids),), -1),
                    target.new_cache(PagePool(1, 1, 1, 1)),
                    torch.zeros(1, 1, dtype=torch.int32),
                    torch.zeros(1, dtype=torch.int32),
                ).logits
            assert logits is not None
            assert token == int(logits[-1].argmax())
            ids.append(token)


@pytest.mark.parametrize("max_batch", [1, 3, 16])
@pytest.mark.parametrize("page_size", [1, 16])
def test_real_drafter_gives_the_plain_text(
    target: Target, prompts: list[list[int]], plain: Generations, max_batch: int, page_size: int
) -> None:
    watch, as_target = watched(target)
    decoder = DFlashDecoder(as_target, tiny_drafter(target), max_batch=max_batch, page_size=page_size)
    got = decoder.generate(prompts, max_new_tokens=NEW, stop_token_ids=())
    assert tokens_of(got) == [tokens[:NEW] for tokens in tokens_of(plain)]
    assert all(generation.finish_reason == "length" for generation in got)
    assert watch.pool.num_free_pages == watch.pool.num_pages


@pytest.mark.parametrize("block_size", [2, 3, 8])
def test_smaller_block_than_trained(
    target: Target, prompts: list[list[int]], plain: Generations, block_size: int
) -> None:
    decoder = DFlashDecoder(target, tiny_drafter(target))
    got = decoder.generate(prompts, max_new_tokens=NEW, stop_token_ids=(), block_size=block_size)
    assert tokens_of(got) == [tokens[:NEW] for tokens in tokens_of(plain)]
    assert got.stats.block_size == block_size == len(got.stats.acceptance)


def test_drafter_that_predicts_from_the_anchor(target: Target, prompts: list[list[int]], plain: Generations) -> None:
    """Row 0 drafts too, so the target verifies one row more than were drafted from."""
    drafter = tiny_drafter(target, sample_from_anchor=True, block_size=4)
    got = DFlashDecoder(target, drafter).generate(prompts, max_new_tokens=NEW, stop_token_ids=())
    assert tokens_of(got) == [tokens[:NEW] for tokens in tokens_of(plain)]
    assert got.stats.block_size == 5


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunked_prefill(target: Target, prompts: list[list[int]], plain: Generations, chunk: int) -> None:
    watch, as_target = watched(target)
    decoder = DFlashDecoder(as_target, tiny_drafter(target), prefill_chunk=chunk, max_batch=1)
    got = decoder.generate(prompts[2:4], max_new_tokens=8, stop_token_ids=())
    assert tokens_of(got) == [tokens[:8] for tokens in tokens_of(plain)[2:4]]
    assert max(watch.chunks) <= max(chunk, BLOCK)


def test_no_stale_state_in_refilled_rows(target: Target, prompts: list[list[int]], plain: Generations) -> None:
    """Rows and pages change hands at different times; the oracle reads every context back through the page table."""
    watch, as_target = watched(target)
    drafter = OracleDrafter(watch, texts_of(prompts, plain), BLOCK)
    limits = [1 + 7 * (i % 5) for i in range(len(prompts))]
    for max_batch in (2, 3):
        decoder = DFlashDecoder(as_target, drafter, max_batch=max_batch, page_size=4)
        got = decoder.generate(prompts, max_new_tokens=limits, stop_token_ids=())
        assert tokens_of(got) == [t[:limit] for t, limit in zip(tokens_of(plain), limits, strict=True)]
    assert drafter.drafted_rows > 0


def test_pool_smaller_than_the_requests_makes_them_wait(
    target: Target, prompts: list[list[int]], plain: Generations
) -> None:
    decoder = DFlashDecoder(target, tiny_drafter(target), max_tokens=112)  # room for the longest one only
    got = decoder.generate(prompts, max_new_tokens=NEW, stop_token_ids=())
    assert tokens_of(got) == [tokens[:NEW] for tokens in tokens_of(plain)]


def test_mask_id_in_the_answer_is_kept(target: Target, prompts: list[list[int]], plain: Generations) -> None:
    """Every token of the answer takes its turn as the mask id."""
    expected = plain[0].token_ids[:12]
    for mask in sorted({*expected, MASK}):
        drafter = tiny_drafter(target, mask_token_id=mask)
        got = DFlashDecoder(target, drafter).generate(prompts[:1], max_new_tokens=12, stop_token_ids=())
        assert got[0].token_ids == expected


def test_random_drafter_is_hardly_accepted(target: Target, prompts: list[list[int]], plain: Generations) -> None:
    for from_anchor in (False, True):
        drafter = RandomDrafter(VOCAB, BLOCK, MASK, from_anchor)
        got = DFlashDecoder(target, drafter).generate(prompts, max_new_tokens=NEW, stop_token_ids=())
        assert tokens_of(got) == [tokens[:NEW] for tokens in tokens_of(plain)]
        assert 1.0 <= got.stats.tau < 1.1


@pytest.mark.parametrize("from_anchor", [False, True])
@pytest.mark.parametrize("max_batch", [1, 4])
def test_oracle_is_accepted_whole(
    target: Target, prompts: list[list[int]], plain: Generations, max_batch: int, from_anchor: bool
) -> None:
    watch, as_target = watched(target)
    drafter = OracleDrafter(watch, texts_of(prompts, plain), BLOCK, from_anchor=from_anchor)
    rows = drafter.num_draft_tokens + 1
    length = 1 + 4 * rows  # one token of the prefill and four full rounds
    got = DFlashDecoder(as_target, drafter, max_batch=max_batch).generate(
        prompts, max_new_tokens=length, stop_token_ids=()
    )
    assert tokens_of(got) == [tokens[:length] for tokens in tokens_of(plain)]
    for generation in got:
        assert generation.stats.tau == rows
        assert generation.stats.acceptance == [0] * (rows - 1) + [4]
    assert got.stats.rounds == 4 * len(prompts)


@pytest.mark.parametrize("period", [1, 2, 3, 5, 8, 13])
def test_planted_wrong_tokens_end_the_run_exactly_there(
    target: Target, prompts: list[list[int]], plain: Generations, period: int
) -> None:
    def is_wrong(position: int) -> bool:
        return position % period == 0

    watch, as_target = watched(target)
    drafter = OracleDrafter(
        watch,
        texts_of(prompts, plain),
        BLOCK,
        spoil=lambda position, token: (token + 1) % VOCAB if is_wrong(position) else token,
    )
    got = DFlashDecoder(as_target, drafter, max_batch=4).generate(prompts, max_new_tokens=NEW, stop_token_ids=())
    assert tokens_of(got) == [tokens[:NEW] for tokens in tokens_of(plain)]
    total = [0] * BLOCK
    for prompt, generation in zip(prompts, got, strict=True):
        first = len(prompt)
        acceptance, rounds = planted_acceptance(first, first + NEW - 1, BLOCK - 1, is_wrong)
        assert generation.stats.acceptance == acceptance
        assert generation.stats.rounds == rounds
        assert generation.stats.tau == pytest.approx((NEW - 1) / rounds)
        total = [a + b for a, b in zip(total, acceptance, strict=True)]
    assert got.stats.acceptance == total
