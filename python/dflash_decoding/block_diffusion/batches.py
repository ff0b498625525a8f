"""Training batches: chats as whole blocks, and noisy copies of the blocks that hold answer tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dflash_decoding.training.data import Chats

from .config import BlockDiffusionConfig


@dataclass(frozen=True)
class NoisyBatch:
    """Chats packed end to end (S clean tokens in all) and N noisy blocks.

    Attributes:
        input_ids, positions: int64 [S + N * B], clean tokens and then the noisy blocks.
        anchors: int32 [N], packed index of each noisy block's first token.
        cu_seqlens: int32 [chats + 1].
        masked: int64 [M], rows of the N * B noisy ones that hold a mask, the ones to predict.
        targets: int64 [M], their tokens.
        weights: float32 [M], weight of each in the loss.
    """

    input_ids: Tensor
    positions: Tensor
    anchors: Tensor
    cu_seqlens: Tensor
    masked: Tensor
    targets: Tensor
    weights: Tensor


def whole_blocks(chats: Chats, index: int, config: BlockDiffusionConfig) -> tuple[np.ndarray, np.ndarray]:
    """A chat as blocks: tokens int64 [blocks, B], and bool [blocks, B]: is it to be learnt, that is no prompt?

    A chat that ends with the end token has its last block filled with it, which is what the decoder's last block should
    hold. One that was cut off before its end says nothing on what follows, and loses what fills no block.
    """
    tokens, size = chats.chat(index), config.block_size
    rest = -len(tokens) % size
    if tokens[-1] == config.end_token_id:
        tokens = np.concatenate([tokens, np.full(rest, config.end_token_id)])
    elif rest:
        tokens = tokens[: len(tokens) // size * size]
    learnt = np.arange(len(tokens)) >= chats.prompt_lens[index]
    return tokens.reshape(-1, size), learnt.reshape(-1, size)


def noisy_batch(
    chats: Chats,
    indices: Sequence[int],
    config: BlockDiffusionConfig,
    generators: Sequence[np.random.Generator],
    *,
    copies: int = 1,
    max_weight: float = 4.0,
    all_masked: bool = False,
) -> NoisyBatch:
    """Masks `copies` copies of every block that has answer tokens, each copy anew.

    Of a block's m answer tokens, n in 1..m are masked, every n alike and every choice of n alike; each of them weighs
    m / n, clipped at `max_weight`. Unclipped, the sum over a block is an unbiased estimate of a bound on its negative
    log-likelihood, that of diffusion with a random mask ratio n / m as well as that of predicting its tokens in random
    order. Small n have the largest weights and the least to learn from, so clipping costs little and calms the gradient.

    Args:
        generators: one per chat.
        all_masked: n = m always: what a single denoising step has to predict.
    """
    clean, positions, bounds = [], [], [0]
    noisy, places, anchors, targets, weights = [], [], [], [], []
    mask, size = config.mask_token_id, config.block_size
    for index, generator in zip(indices, generators, strict=True):
        blocks, learnt = whole_blocks(chats, index, config)
        clean.append(blocks.ravel())
        positions.append(np.arange(blocks.size))
        chosen = np.tile(np.flatnonzero(learnt.any(axis=1)), copies)
        counts = learnt[chosen].sum(axis=1)
        hidden = counts if all_masked else generator.integers(1, counts + 1)
        # The n smallest of random numbers, which are drawn for answer tokens only.
        order = np.where(learnt[chosen], generator.random((len(chosen), size)), np.inf).argsort(axis=1).argsort(axis=1)
        masked = order < hidden[:, None]
        noisy.append(np.where(masked, mask, blocks[chosen]))
        places.append(chosen[:, None] * size + np.arange(size))
        anchors.append(bounds[-1] + chosen * size)
        targets.append(np.where(masked, blocks[chosen], -1))
        weights.append(np.broadcast_to(np.minimum(counts / hidden, max_weight)[:, None], masked.shape))
        bounds.append(bounds[-1] + blocks.size)
    wanted = np.concatenate(targets).ravel()
    rows = np.flatnonzero(wanted >= 0)
    return NoisyBatch(
        input_ids=torch.from_numpy(np.concatenate([*clean, np.concatenate(noisy).ravel()])),
        positions=torch.from_numpy(np.concatenate([*positions, np.concatenate(places).ravel()])),
        anchors=torch.from_numpy(np.concatenate(anchors).astype(np.int32)),
        cu_seqlens=torch.from_numpy(np.array(bounds, dtype=np.int32)),
        masked=torch.from_numpy(rows),
        targets=torch.from_numpy(wanted[rows]),
        weights=torch.from_numpy(np.concatenate(weights).ravel()[rows].astype(np.float32)),
    )
