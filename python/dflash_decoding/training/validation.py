"""Acceptance of a drafter on held-out chats without decoding: teacher-forced blocks against the target's answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

import dflash_ops

from .data import Batch, BlockShape, Chats, make_batch, possible_anchors
from .model import BlockPredictor, block_shape


class TapSource(Protocol):
    """Where taps come from: `TapStore`, or anything else with its `get`."""

    def get(self, indices: Sequence[int]) -> Tensor: ...


@dataclass(frozen=True)
class Acceptance:
    """How far drafts agree with the target.

    Attributes:
        tau: tokens committed per round: 1 (the target's own) + mean length of the matching prefix.
        prefix: prefix[k] = share of blocks whose first k + 1 drafts all match; tau = 1 + sum of them.
        position: position[k] = share of blocks whose draft k matches, whatever came before.
        blocks: number of blocks measured.
    """

    tau: float
    prefix: tuple[float, ...]
    position: tuple[float, ...]
    blocks: int


def acceptance(hits: Tensor) -> Acceptance:
    """From hits bool [blocks, drafts]: whether each draft equals the target's token. No blocks give tau 1."""
    if hits.shape[0] == 0:
        zeros = (0.0,) * hits.shape[1]
        return Acceptance(1.0, zeros, zeros, 0)
    prefix = hits.long().cumprod(dim=1).double().mean(dim=0)
    position = hits.double().mean(dim=0)
    return Acceptance(1.0 + float(prefix.sum()), tuple(prefix.tolist()), tuple(position.tolist()), hits.shape[0])


def validation_batches(
    chats: Chats, indices: Sequence[int], shape: BlockShape, anchors_per_chat: int, chats_per_batch: int = 8
) -> list[Batch]:
    """Evenly spaced anchors of each chat whose whole block lies within the answer; the same ones every time."""
    batches = []
    for start in range(0, len(indices), chats_per_batch):
        chosen = indices[start : start + chats_per_batch]
        anchors = []
        for index in chosen:
            possible = possible_anchors(chats, index)
            possible = possible[possible + shape.predictions < chats.length(index)]
            places = np.linspace(0, len(possible) - 1, min(anchors_per_chat, len(possible)))
            anchors.append(possible[np.unique(places.round().astype(np.int64))] if len(possible) else possible)
        batches.append(make_batch(chats, chosen, anchors, shape))
    return batches


@torch.no_grad()
def validate(model: BlockPredictor, lm_head: Tensor, batches: Sequence[Batch], taps: TapSource) -> Acceptance:
    """Drafts every block of `batches` greedily, as the decoder would, and compares with the chats."""
    hits = [torch.empty(0, block_shape(model.config).predictions, dtype=torch.bool)]
    for batch in batches:
        # Taps for a KL loss have the target's final hidden state behind those of the drafter.
        hidden = model(taps.get(batch.chats)[:, : model.num_taps], batch)
        rows = hidden[:, -batch.targets.shape[1] :]
        drafted = dflash_ops.lm_head_argmax(rows.flatten(0, 1), lm_head)[0].view_as(batch.targets)
        hits.append((drafted == batch.targets).cpu())
    return acceptance(torch.cat(hits))
