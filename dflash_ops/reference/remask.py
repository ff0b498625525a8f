"""Definition of ``remask``."""

import torch
from torch import Tensor


def remask(logits: Tensor, tokens: Tensor, *, mask_token_id: int, keep: Tensor) -> tuple[Tensor, Tensor]:
    """``logits [b, n, V]``, ``tokens [b, n]``, ``keep [b]`` -> (tokens, confidence [b, n]); inputs stay as they are."""
    if 0 <= mask_token_id < logits.shape[2]:
        logits = logits.clone()
        logits[:, :, mask_token_id] = -torch.inf
    best, choice = logits.max(dim=2)
    masked = tokens == mask_token_id
    confidence = (best - logits.logsumexp(dim=2)).exp().masked_fill(~masked, 0)
    order = torch.argsort(
        confidence.nan_to_num(nan=-1.0).masked_fill(~masked, -2.0), dim=1, descending=True, stable=True
    )
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(tokens.shape[1]).expand_as(order))
    chosen = masked & (rank < keep[:, None])
    return torch.where(chosen, choice, tokens), confidence
