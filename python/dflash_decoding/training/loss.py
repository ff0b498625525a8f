"""The training loss: cross-entropy over a frozen head, weighted by the row's place in the block, in bounded memory."""

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


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Forms the gradient of the hidden rows while a chunk's logits are at hand, so they are computed once only."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, row_weights: Tensor, bias: Tensor | None, rows: int
    ) -> Tensor:
        gradient = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        total = hidden.new_zeros((), dtype=torch.float32)
        for start in range(0, hidden.shape[0], rows):
            part = slice(start, start + rows)
            logits = (hidden[part] @ weight.t()).float()
            if bias is not None:
                logits += bias
            normaliser = logits.logsumexp(dim=1)
            chosen = logits.gather(1, targets[part, None]).squeeze(1)
            total += (row_weights[part] * (normaliser - chosen)).sum()
            if gradient is not None:
                # d loss / d logits = w * (softmax - one_hot), written over the logits.
                error = logits.sub_(normaliser[:, None]).exp_()
                error.scatter_add_(1, targets[part, None], torch.full_like(error[:, :1], -1.0))
                error *= row_weights[part, None]
                gradient[part] = error.to(weight.dtype) @ weight
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return (gradient * grads[0].to(gradient.dtype), None, None, None, None, None)


def chunked_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    row_weights: Tensor,
    *,
    bias: Tensor | None = None,
    chunk_rows: int = 512,
) -> Tensor:
    """sum_i row_weights[i] * cross_entropy(hidden[i] @ weight^T + bias, targets[i]) / sum_i row_weights[i].

    At most `chunk_rows` x V logits exist at a time, forward and backward together.

    Args:
        hidden: [n, H] float; gets a gradient.
        weight: [V, H] of the same dtype, frozen.
        targets: int64 [n] in 0..V-1 (any value where the row's weight is 0, if within range).
        row_weights: float32 [n], not negative.
        bias: float32 [V] added to the logits, frozen.

    Returns:
        float32 scalar; 0 if all row weights are 0 (or n is 0).

    Raises:
        ValueError: `weight` or `bias` asks for a gradient, or chunk_rows < 1.
    """
    if weight.requires_grad or (bias is not None and bias.requires_grad):
        raise ValueError("weight: expected a frozen head, got one that requires a gradient")
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows: expected at least 1, got {chunk_rows}")
    total = _ChunkedCrossEntropy.apply(hidden, weight, targets, row_weights, bias, chunk_rows)
    return total / row_weights.sum().clamp_min(torch.finfo(torch.float32).tiny)


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
