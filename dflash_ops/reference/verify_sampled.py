"""Definition of ``verify_sampled``."""

import torch
from torch import Tensor

from dflash_ops.reference.row_argmax import row_argmax
from dflash_ops.reference.verify_greedy import accept_run

_WORD = (1 << 32) - 1


def philox_words(key: int, counter: int) -> tuple[int, int, int, int]:
    """Philox4x32-10 (Salmon et al., SC11) of a 64-bit key and a 128-bit counter, low words first."""
    k0, k1 = key & _WORD, (key >> 32) & _WORD
    c = [(counter >> shift) & _WORD for shift in (0, 32, 64, 96)]
    for _ in range(10):
        product0, product1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(product1 >> 32) ^ c[1] ^ k0, product1 & _WORD, (product0 >> 32) ^ c[3] ^ k1, product0 & _WORD]
        k0, k1 = (k0 + 0x9E3779B9) & _WORD, (k1 + 0xBB67AE85) & _WORD
    return c[0], c[1], c[2], c[3]


def philox_uniform(seed: int, counter: int) -> float:
    """53 bits of words 0 and 1, in [0, 1)."""
    first, second, _, _ = philox_words(seed & (1 << 64) - 1, counter & (1 << 64) - 1)
    return (((first << 32) | second) >> 11) * 2.0**-53


def sampling_probabilities(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """``logits [V]`` -> probabilities [V] (float64) after temperature, top-k, then top-p over what top-k left.

    Tokens are ordered by larger logit, equal ones by lower id; top-k keeps the first k, top-p the shortest prefix whose
    renormalised probability reaches top_p (at least one token).
    """
    logits = logits.double()
    order = torch.argsort(logits, descending=True, stable=True)
    scaled = (logits[order] - logits[order[0]]) / temperature
    weights = scaled.exp()
    if 0 < top_k < len(weights):
        weights[top_k:] = 0
    if top_p < 1:
        before = (weights.cumsum(0) - weights) / weights.sum()
        weights[before >= top_p] = 0
    return torch.zeros_like(weights).scatter_(0, order, weights / weights.sum())


def sample_row(logits: Tensor, temperature: float, top_k: int, top_p: float, uniform: float) -> int:
    """Inverse CDF over ids in ascending order; argmax at temperature 0, top_k 1, or a largest logit that is not finite."""
    ids, values = row_argmax(logits[None])
    if temperature == 0 or top_k == 1 or not bool(values.isfinite()):
        return int(ids)
    cumulative = sampling_probabilities(logits, temperature, top_k, top_p).cumsum(0)
    return int(torch.searchsorted(cumulative, uniform * cumulative[-1], right=True).clamp(max=len(cumulative) - 1))


def verify_sampled(
    draft_tokens: Tensor,
    *,
    target_logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seed: Tensor,
    offset: Tensor,
    draft_lens: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """-> (accepted, tokens, next_token, advanced offset); row i of a request samples with u(seed, offset + i)."""
    batch, rows = target_logits.shape[:2]
    target_ids = torch.zeros((batch, rows), dtype=torch.int64)
    for b in range(batch):
        for i in range(rows):
            uniform = philox_uniform(int(seed[b]), int(offset[b]) + i)
            target_ids[b, i] = sample_row(
                target_logits[b, i], float(temperature[b]), int(top_k[b]), float(top_p[b]), uniform
            )
    accepted, tokens, next_token = accept_run(draft_tokens, draft_lens, target_ids)
    return accepted, tokens, next_token, offset + (tokens >= 0).sum(dim=1)
