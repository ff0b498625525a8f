"""What the tests of the decoder share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from dflash_decoding import (
    Generation,
    Generations,
    SamplingParams,
)
from dflash_decoding.target import Target

from tests.decoding.drafters import WatchedTarget

BLOCK = 8
NEW = 40
SAMPLED = SamplingParams(temperature=0.8, top_k=50, top_p=0.95, seed=11)


def tokens_of(generations: Sequence[Generation]) -> list[tuple[int, ...]]:
    return [generation.token_ids for generation in generations]


def watched(target: Target) -> tuple[WatchedTarget, Target]:
    """The same object, as what it is and as what the decoder takes it for."""
    watch = WatchedTarget(target)
    return watch, cast(Target, watch)


def texts_of(prompts: list[list[int]], plain: Generations) -> list[list[int]]:
    return [[*prompt, *generation.token_ids] for prompt, generation in zip(prompts, plain, strict=True)]


def text_of(target: Target, tokens: Sequence[int]) -> str:
    text: str = target.tokenizer.decode(list(tokens), skip_special_tokens=True)
    return text
