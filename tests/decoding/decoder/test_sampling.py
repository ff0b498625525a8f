"""Sampled texts: seeds, and greedy requests beside sampled ones."""

from __future__ import annotations

from dflash_decoding import (
    DFlashDecoder,
    Generations,
    SamplingParams,
)
from dflash_decoding.target import Target

from tests.decoding.decoder.world import NEW, SAMPLED, tokens_of
from tests.decoding.tiny import tiny_drafter


def test_sampled_text_depends_on_its_seed_alone(target: Target, prompts: list[list[int]]) -> None:
    """Not on the drafter, the block size, the order of the batch, or what is decoded beside it."""
    params = [SamplingParams(temperature=0.9, top_k=40, top_p=0.9, seed=100 + i) for i in range(len(prompts))]
    params[3] = SamplingParams()
    plain = tokens_of(DFlashDecoder(target).generate(prompts, max_new_tokens=NEW, sampling=params))
    drafter = tiny_drafter(target)
    order = [7, 2, 9, 0, 1, 8, 3, 6, 5, 4]
    for max_batch, block_size in ((1, None), (4, 3), (16, 8)):
        got = DFlashDecoder(target, drafter, max_batch=max_batch).generate(
            [prompts[i] for i in order],
            max_new_tokens=NEW,
            sampling=[params[i] for i in order],
            block_size=block_size,
        )
        assert tokens_of(got) == [plain[i] for i in order]
    alone = DFlashDecoder(target, drafter).generate([prompts[5]], max_new_tokens=NEW, sampling=params[5])
    assert alone[0].token_ids == plain[5]
    other_seed = SamplingParams(temperature=0.9, top_k=40, top_p=0.9, seed=1)
    other = DFlashDecoder(target, drafter).generate([prompts[5]], max_new_tokens=NEW, sampling=other_seed)
    assert other[0].token_ids != plain[5]


def test_without_a_seed_every_request_draws_its_own(target: Target, prompts: list[list[int]]) -> None:
    got = DFlashDecoder(target, tiny_drafter(target)).generate(
        [prompts[0]] * 4, max_new_tokens=NEW, sampling=SamplingParams(temperature=1.0)
    )
    assert len(set(tokens_of(got))) == 4


def test_greedy_beside_sampled(target: Target, prompts: list[list[int]], plain: Generations) -> None:
    got = DFlashDecoder(target, tiny_drafter(target)).generate(
        prompts[:2], max_new_tokens=NEW, sampling=[SAMPLED, SamplingParams()], stop_token_ids=()
    )
    assert got[1].token_ids == plain[1].token_ids[:NEW]
    assert got[0].token_ids != plain[0].token_ids[:NEW]
