"""remask against softmax, max, topk and scatter in torch."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

import dflash_ops
from benchmarks.compare import Comparison, Maker

POSITIONS, VOCABULARY, MASK, KEEP = 32, 151936, 151669, 4


def compositions(logits: Tensor, tokens: Tensor) -> dict[str, Callable[[], object]]:
    def unmask(confidence: Tensor, choice: Tensor) -> Tensor:
        confidence = confidence.masked_fill(tokens != MASK, -1)
        places = confidence.topk(KEEP, dim=1).indices
        return tokens.scatter(1, places, choice.gather(1, places))

    def softmax_max() -> object:
        logits[:, :, MASK] = -torch.inf
        return unmask(*logits.softmax(-1).max(-1))

    def max_logsumexp() -> object:
        logits[:, :, MASK] = -torch.inf
        best, choice = logits.max(-1)
        return unmask((best - logits.logsumexp(-1)).exp(), choice)

    return {"softmax_max": softmax_max, "max_logsumexp": max_logsumexp}


def comparisons() -> Iterator[Maker]:
    for dtype in (torch.bfloat16, torch.float32):
        yield partial(comparison, dtype)


def comparison(dtype: torch.dtype) -> Comparison:
    logits = torch.randn(1, POSITIONS, VOCABULARY, generator=torch.Generator().manual_seed(0)).to(dtype)
    masked = torch.full((1, POSITIONS), MASK)
    tokens = masked.clone()
    keep = torch.full((1,), KEEP, dtype=torch.int32)
    confidence = torch.empty(1, POSITIONS)

    def ours() -> object:
        tokens.copy_(masked)
        return dflash_ops.remask(logits, tokens, mask_token_id=MASK, keep=keep, confidence=confidence)

    return Comparison(
        op="remask",
        shape=f"[1, {POSITIONS}, {VOCABULARY}], keep {KEEP}",
        dtype=str(dtype).removeprefix("torch."),
        ours=ours,
        plain=compositions(logits, masked),
        # Every position is masked, which `least_traffic` of the case would have to read off the tokens.
        bytes=logits.nbytes + 8 * POSITIONS + 4 + (8 + 4) * POSITIONS,
    )
