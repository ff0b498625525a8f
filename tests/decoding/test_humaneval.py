"""Greedy DFlash equals greedy plain decoding of a real model on real prompts.

A few prompts of HumanEval here; `make exactness` runs all 164.
"""

from __future__ import annotations

import pytest
import torch
from dflash_decoding.cli import load_models
from dflash_decoding.models import DEFAULT_MODEL

from benchmarks.exactness import DRAFTERS, Exactness, Outcome
from benchmarks.prompts import humaneval_prompts
from tests.decoding.tiny import tiny_drafter, tiny_target

PROMPTS = 6
NEW_TOKENS = 64


@pytest.fixture(scope="module")
def exactness() -> Exactness:
    """The plain answers are computed once. Prompts of many lengths, the shortest and the longest among them."""
    target, drafter = load_models(DEFAULT_MODEL, DEFAULT_MODEL, torch.float32)
    prompts = sorted((target.tokenizer(prompt)["input_ids"] for prompt in humaneval_prompts()), key=len)
    chosen = [prompts[round(i * (len(prompts) - 1) / (PROMPTS - 1))] for i in range(PROMPTS)]
    return Exactness(target, drafter, chosen, NEW_TOKENS)


def check(outcome: Outcome) -> None:
    assert outcome.passed, outcome
    assert outcome.identical + len(outcome.ties) == outcome.prompts
    if outcome.drafter == "random":
        assert outcome.tau < 1.1
    if outcome.drafter == "oracle" and not outcome.ties:
        assert outcome.tau > 7.8


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_text_is_the_plain_one(exactness: Exactness, drafter: str, batch: int) -> None:
    if drafter == "random" and batch == 1:  # a round per token: two prompts say as much as six
        exactness = exactness.first(2)
    check(exactness.check(drafter, batch))


def test_a_wrong_text_is_found() -> None:
    """The check itself: one token of the plain answers changed."""
    target = tiny_target()
    exactness = Exactness(target, tiny_drafter(target), [[1, 2, 3], [4, 5]], 16)
    assert exactness.check("real", 2).identical == 2
    exactness.plain[1] = (*exactness.plain[1][:5], (exactness.plain[1][5] + 1) % 256, *exactness.plain[1][6:])
    for name in DRAFTERS:
        outcome = exactness.check(name, 2)
        assert not outcome.passed
        assert [entry[:2] for entry in outcome.wrong] == [(1, 5)]
