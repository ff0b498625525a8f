"""Proof that two greedy answers differ by nothing but a tie within numeric error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .cache import PagePool
from .target import Target


@dataclass(frozen=True)
class GreedyDifference:
    """Where two greedy answers to one prompt part.

    Attributes:
        index: number of the first generated token that differs.
        token_a, token_b: the tokens there, None where an answer has ended.
        gap: how far the worse of the two tokens lies below the target's largest logit there, from one plain forward
            over the common text; infinite where an answer has ended. A tie within numeric error has a gap of that size.
        top_logit: the largest logit there, for scale.
    """

    index: int
    token_a: int | None
    token_b: int | None
    gap: float
    top_logit: float


def compare_greedy(
    target: Target, prompt: Sequence[int], a: Sequence[int], b: Sequence[int]
) -> GreedyDifference | None:
    """First difference of two greedy answers, with the logit gap there; None when they are equal.

    Args:
        prompt: token ids, at least one.
        a, b: generated token ids.
    """
    index = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    if index == len(a) == len(b):
        return None
    logits = next_logits(target, [*prompt, *a[:index]])
    top = float(logits.max())
    if index in (len(a), len(b)):
        token_a, token_b = (tokens[index] if index < len(tokens) else None for tokens in (a, b))
        return GreedyDifference(index, token_a, token_b, math.inf, top)
    gap = top - min(float(logits[a[index]]), float(logits[b[index]]))
    return GreedyDifference(index, a[index], b[index], gap, top)


def next_logits(target: Target, tokens: Sequence[int]) -> torch.Tensor:
    """Logits [V] after `tokens`, in one forward without any context."""
    length = len(tokens)
    pool = PagePool(-(-length // 16), 16, 1, -(-length // 16), target.device)
    pool.allocate(0, length)
    output = target.forward(
        torch.tensor(tokens, dtype=torch.int64, device=target.device),
        torch.arange(length, device=target.device),
        pool.slot_mapping(0, 0, length),
        target.new_cache(pool),
        pool.page_table,
        pool.context_lens,
        logit_rows=torch.tensor([length - 1], device=target.device),
    )
    assert output.logits is not None
    return output.logits[0]
