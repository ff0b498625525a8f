"""Statistics against hand-made numbers."""

from __future__ import annotations

import pytest
import torch
from dflash_decoding import DecodeStats, DFlashDecoder
from dflash_decoding.stats import PhaseTimer

from tests.decoding.drafters import RandomDrafter
from tests.decoding.tiny import VOCAB, tiny_target


def example() -> DecodeStats:
    """One request: prefill of 10 tokens in 0.5 s, then rounds that accept 3, 0 and 2, the last one cut to 1 token."""
    stats = DecodeStats(4)
    stats.add_prefill(10, 1, 0.5)
    for accepted, emitted in ((3, 4), (0, 1), (2, 1)):
        stats.add_round(accepted, emitted)
        stats.add_step({"draft": 0.01, "verify": 0.03}, 0.05, "4 rows")
    return stats


def test_numbers_of_a_run() -> None:
    stats = example()
    assert stats.acceptance == [1, 0, 1, 1]
    assert stats.tokens == 7
    assert stats.tau == pytest.approx(6 / 3)
    assert stats.mean_accepted == pytest.approx(5 / 3)
    assert stats.t_draft == pytest.approx(0.01)
    assert stats.t_verify == pytest.approx(0.03)
    assert stats.t_prefill == pytest.approx(0.5)
    assert stats.tokens_per_s == pytest.approx(6 / 0.15)


def test_merge() -> None:
    stats, other = example(), example()
    other.add_round(1, 2)
    stats.merge(other)
    assert stats.acceptance == [2, 1, 2, 2]
    assert stats.plans == {"4 rows": 6}
    assert (stats.requests, stats.prompt_tokens, stats.rounds, stats.steps, stats.tokens) == (2, 20, 7, 6, 16)
    assert stats.decode_seconds == pytest.approx(0.3)
    assert stats.tau == pytest.approx(14 / 7)
    with pytest.raises(ValueError, match="block_size: expected 4, got 2"):
        stats.merge(DecodeStats(2))


def test_nothing_yet() -> None:
    stats = DecodeStats(4)
    assert (stats.tau, stats.t_draft, stats.tokens_per_s) == (0, 0, 0)


def test_phases_add_up() -> None:
    clock = iter([10.0, 11.0, 13.0, 16.0])
    timer = PhaseTimer(torch.device("cpu"), clock=lambda: next(clock))
    for phase in ("draft", "verify", "draft"):
        timer.mark(phase)
    timer.stop()
    assert timer.seconds() == {"draft": 4.0, "verify": 2.0}
    assert timer.seconds() == {}


def test_a_batch_counts_its_rounds_once() -> None:
    target = tiny_target()
    prompts = [[1], [2, 3], [4, 5, 6]]
    decoder = DFlashDecoder(target, RandomDrafter(VOCAB, 4, 0))
    got = decoder.generate(prompts, max_new_tokens=[3, 9, 0], stop_token_ids=())
    assert got.stats.requests == 3
    assert got.stats.prompt_tokens == 3
    assert got.stats.tokens == 12
    assert got.stats.rounds == sum(generation.stats.rounds for generation in got)
    assert got.stats.steps == max(generation.stats.steps for generation in got)
    assert got.stats.draft_seconds == pytest.approx(max(generation.stats.draft_seconds for generation in got))
    phases = got.stats.draft_seconds + got.stats.verify_seconds
    assert 0 < phases <= got.stats.decode_seconds
    assert sum(got.stats.acceptance) == got.stats.rounds
