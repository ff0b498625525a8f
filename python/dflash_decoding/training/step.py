"""The training loss of one optimizer step, cut into batches (accumulation) and shares (processes)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .data import Batch, BatchPlan
from .loss import TrainingHead, chunked_cross_entropy, chunked_kl_divergence
from .validation import TapSource

CROSS_ENTROPY = "ce"
KL = "kl"
LOSSES = (CROSS_ENTROPY, KL)


@dataclass(frozen=True)
class StepPlan:
    """What one process computes in a step.

    One selection of head rows and one divisor serve all batches of all processes, so how a step is cut up changes
    nothing but rounding.

    Attributes:
        batches: of this process, one per accumulated part.
        targets: of each batch: int64 [N * predictions], indices into `head`.
        head: [V', H] rows of the target's head; bias: float32 [V'] or None.
        total_weight: float32 scalar, weight of all rows of the step.
        predictions: valid rows of the step, all processes together.
    """

    batches: Sequence[Batch]
    targets: Sequence[Tensor]
    head: Tensor
    bias: Tensor | None
    total_weight: Tensor
    predictions: int


def plan_step(
    plan: BatchPlan, head: TrainingHead, position_weights: Tensor, step: int, rank: int = 0, size: int = 1
) -> StepPlan:
    """The part of `step` that process `rank` of `size` computes."""
    parts = [part for batch in plan.batches(step, size) for part in batch]
    weight, bias, targets = head.select(torch.cat([part.targets.flatten() for part in parts]), step)
    targets_of_parts = targets.split([part.targets.numel() for part in parts])
    counts = torch.cat([part.valid for part in parts]).sum(dim=0)
    return StepPlan(
        batches=parts[rank::size],
        targets=targets_of_parts[rank::size],
        head=weight,
        bias=bias,
        total_weight=(position_weights * counts).sum(),
        predictions=int(counts.sum()),
    )


def batch_loss(
    plan: StepPlan,
    index: int,
    model: nn.Module,
    taps: TapSource,
    position_weights: Tensor,
    *,
    num_taps: int,
    loss: str,
    chunk_rows: int,
) -> Tensor:
    """Share of batch `index` in the step's loss, float32 scalar: over all batches of all processes they sum to it.

    Args:
        model: drafter, `TrainableDrafter` or what wraps it.
        taps: for `loss` "kl" with the target's final hidden state behind the `num_taps` taps of the drafter.
        position_weights: float32 [predictions].
        chunk_rows: rows whose logits exist at a time.
    """
    batch = plan.batches[index]
    states = taps.get(batch.chats)
    hidden = model(states[:, :num_taps], batch)[:, -batch.targets.shape[1] :].flatten(0, 1)
    row_weights = (position_weights * batch.valid).flatten()
    if loss == KL:
        target_hidden = states[batch.predicted_from().flatten(), num_taps]
        return chunked_kl_divergence(
            hidden,
            plan.head,
            target_hidden,
            row_weights,
            bias=plan.bias,
            chunk_rows=chunk_rows,
            total_weight=plan.total_weight,
        )
    return chunked_cross_entropy(
        hidden,
        plan.head,
        plan.targets[index],
        row_weights,
        bias=plan.bias,
        chunk_rows=chunk_rows,
        total_weight=plan.total_weight,
    )
