"""The training losses, weighted by the row's place in the block, in bounded memory.

Both run over the target's frozen head: cross-entropy with the target's greedy answer, and KL divergence from its
whole distribution.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor


def default_gamma(block_size: int) -> float:
    """Decay of the row weights by block size: the paper's 7, 5, 4 for 16, 10, 8 (half the block, at most 7)."""
    return min(7.0, block_size / 2)


def position_weights(predictions: int, gamma: float) -> Tensor:
    """w_k = exp(-(k - 1) / gamma) for k = 1..predictions: float32 [predictions] (DFlash, arXiv 2602.06036).

    An early miss ends the accepted run and makes later rows worthless, so early rows weigh more.

    Raises:
        ValueError: gamma is not positive.
    """
    if not gamma > 0:
        raise ValueError(f"gamma: expected a positive number, got {gamma}")
    return torch.exp(-torch.arange(predictions, dtype=torch.float32) / gamma)


class _ChunkedLoss(torch.autograd.Function):
    """Forms the gradient of the hidden rows while a chunk's logits are at hand, so they are computed once only."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, wanted: Tensor, row_weights: Tensor, bias: Tensor | None, rows: int
    ) -> Tensor:
        """`wanted`: int64 [n] token ids, or [n, H] hidden rows of the target."""
        row_losses = _cross_entropy_rows if wanted.ndim == 1 else _kl_rows
        gradient = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        total = hidden.new_zeros((), dtype=torch.float32)
        for start in range(0, hidden.shape[0], rows):
            part = slice(start, start + rows)
            losses, error = row_losses(_logits(hidden[part], weight, bias), wanted[part], weight, bias)
            total += (row_weights[part] * losses).sum()
            if gradient is not None:
                error *= row_weights[part, None]
                gradient[part] = error.to(weight.dtype) @ weight
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return (gradient * grads[0].to(gradient.dtype), None, None, None, None, None)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    logits = (hidden @ weight.t()).float()
    return logits if bias is None else logits.add_(bias)


def _cross_entropy_rows(logits: Tensor, targets: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Loss of each row, and d loss / d logits = softmax - one_hot, written over the logits."""
    normaliser = logits.logsumexp(dim=1)
    losses = normaliser - logits.gather(1, targets[:, None]).squeeze(1)
    error = logits.sub_(normaliser[:, None]).exp_()
    return losses, error.scatter_add_(1, targets[:, None], torch.full_like(error[:, :1], -1.0))


def _kl_rows(logits: Tensor, target_hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """KL(p || q) of each row, p the target's distribution and q the drafter's, and d KL / d logits = q - p."""
    log_p = _logits(target_hidden, weight, bias)
    log_p -= log_p.logsumexp(dim=1, keepdim=True)
    log_q = logits.sub_(logits.logsumexp(dim=1, keepdim=True))
    p = log_p.exp()
    losses = log_p.sub_(log_q).mul_(p).sum(dim=1)
    return losses, log_q.exp_().sub_(p)


def chunked_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    row_weights: Tensor,
    *,
    bias: Tensor | None = None,
    chunk_rows: int = 512,
    total_weight: Tensor | None = None,
) -> Tensor:
    """sum_i row_weights[i] * cross_entropy(hidden[i] @ weight^T + bias, targets[i]) / total_weight.

    At most `chunk_rows` x V logits exist at a time, forward and backward together.

    Args:
        hidden: [n, H] float; gets a gradient.
        weight: [V, H] of the same dtype, frozen.
        targets: int64 [n] in 0..V-1 (any value where the row's weight is 0, if within range).
        row_weights: float32 [n], not negative.
        bias: float32 [V] added to the logits, frozen.
        total_weight: float32 scalar, the weight of all rows of which these are a part; default: of these rows.

    Returns:
        float32 scalar; 0 if all row weights are 0 (or n is 0).

    Raises:
        ValueError: `weight` or `bias` asks for a gradient, or chunk_rows < 1.
    """
    return _chunked_loss(hidden, weight, targets, row_weights, bias, chunk_rows, total_weight)


def chunked_kl_divergence(
    hidden: Tensor,
    weight: Tensor,
    target_hidden: Tensor,
    row_weights: Tensor,
    *,
    bias: Tensor | None = None,
    chunk_rows: int = 512,
    total_weight: Tensor | None = None,
) -> Tensor:
    """sum_i row_weights[i] * KL(p_i || q_i) / total_weight: how far drafts are from all that the target would say.

    p_i = softmax(target_hidden[i] @ weight^T + bias), q_i = softmax(hidden[i] @ weight^T + bias). Three times
    `chunk_rows` x V numbers exist at a time.

    Args:
        target_hidden: [n, H], what the target's own head reads at the place that row i predicts from; frozen.

    All else as `chunked_cross_entropy`.
    """
    return _chunked_loss(hidden, weight, target_hidden.to(weight.dtype), row_weights, bias, chunk_rows, total_weight)


def _chunked_loss(
    hidden: Tensor,
    weight: Tensor,
    wanted: Tensor,
    row_weights: Tensor,
    bias: Tensor | None,
    chunk_rows: int,
    total_weight: Tensor | None,
) -> Tensor:
    if weight.requires_grad or (bias is not None and bias.requires_grad):
        raise ValueError("weight: expected a frozen head, got one that requires a gradient")
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows: expected at least 1, got {chunk_rows}")
    total = _ChunkedLoss.apply(hidden, weight, wanted, row_weights, bias, chunk_rows)
    whole = row_weights.sum() if total_weight is None else total_weight
    return total / whole.clamp_min(torch.finfo(torch.float32).tiny)


class TrainingHead:
    """The frozen head as the loss sees it: all of the vocabulary, or its frequent part plus a sample of the rest.

    With `frequent` = N > 0 the softmax runs over the N most frequent ids (by `counts`), the batch's targets and a
    sample of `sampled` other ids, drawn anew each step. The sampled logits are raised by log(rest / sampled), which
    makes them stand for all the rest in the normaliser. Without them nothing would push the rare ids down, and they
    would win at decoding time, where the argmax runs over the whole vocabulary.

    Args:
        weight: [V, H] frozen head of the target.
        counts: [V] occurrences of each id in the training answers.
        frequent: N; 0 takes the whole vocabulary.

    Raises:
        ValueError: `frequent` or `sampled` is negative.
    """

    def __init__(self, weight: Tensor, counts: np.ndarray, frequent: int, sampled: int, seed: int) -> None:
        for name, value in (("train_vocab", frequent), ("train_vocab_sampled", sampled)):
            if value < 0:
                raise ValueError(f"{name}: expected 0 or more, got {value}")
        self._weight = weight
        self._seed = seed
        self._whole = frequent == 0 or frequent + sampled >= weight.shape[0]
        self._sampled = sampled
        if not self._whole:
            order = np.argsort(-counts, kind="stable")
            self._frequent = np.sort(order[:frequent])
            self._rest = np.sort(order[frequent:])
            self._frequent_weight = weight[torch.from_numpy(self._frequent)]

    def select(self, targets: Tensor, step: int) -> tuple[Tensor, Tensor | None, Tensor]:
        """(weight [V', H], bias float32 [V'] or None, targets as indices into V') for one step's targets int64 [n]."""
        if self._whole:
            return self._weight, None, targets
        generator = np.random.default_rng((self._seed, step))
        wanted = np.setdiff1d(targets.cpu().numpy(), self._frequent)
        sample = np.setdiff1d(generator.choice(self._rest, self._sampled, replace=False), wanted)
        extra = np.concatenate([wanted, sample])
        frequent = len(self._frequent)
        index = torch.zeros(self._weight.shape[0], dtype=torch.int64)
        index[torch.from_numpy(self._frequent)] = torch.arange(frequent)
        index[torch.from_numpy(extra)] = torch.arange(frequent, frequent + len(extra))
        weight = torch.cat([self._frequent_weight, self._weight[torch.from_numpy(extra)]])
        bias = torch.zeros(weight.shape[0], dtype=torch.float32)
        if len(sample):
            bias[-len(sample) :] = math.log((len(self._rest) - len(wanted)) / len(sample))
        device = targets.device
        return weight, bias.to(device), index.to(device)[targets]
