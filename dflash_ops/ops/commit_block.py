"""``commit_block``: the end of a round, on the device."""

import torch
from torch import Tensor

from dflash_ops._arguments import check_dims, register_out_variant


def commit_block(
    tokens: Tensor,
    accepted: Tensor,
    slot_mapping: Tensor,
    *,
    context_lens: Tensor,
    next_token: Tensor,
    output_ids: Tensor,
    output_lens: Tensor,
    finished: Tensor,
    stop_token_ids: Tensor | None = None,
    max_output_lens: Tensor | None = None,
    committed: Tensor | None = None,
    context_slots: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Appends the verified tokens to each request's output and shrinks what was speculated, by setting lengths only.

    Appended are the first ``accepted + 1`` tokens, cut after the first stop token, at ``max_output_lens`` and at the
    capacity; reaching any of these finishes the request. Only committed tokens are scanned for stop tokens, and every id
    (the mask token's too) is kept.

    Args:
        tokens: int64 ``[b, B]`` of a verify op; -1 in column 0 marks a request that sat the round out.
        accepted: int32 ``[b]``.
        slot_mapping: int64 ``[b, B]`` of ``begin_block``.
        context_lens: int32 ``[b]``, grows by the number of committed tokens.
        next_token: int64 ``[b]``, becomes the last committed token.
        output_ids: int64 ``[b, capacity]``; output_lens: int32 ``[b]``: the texts so far.
        finished: bool ``[b]``; finished requests are left alone.
        stop_token_ids: int64 ``[s]``.
        max_output_lens: int32 ``[b]``.
        committed, context_slots: outputs, allocated when absent.

    Returns:
        ``committed`` int32 ``[b]``: number of tokens appended; ``context_slots`` int64 ``[b, B]``: the slots of the rows
        that became context, -1 for the others.

    Raises:
        RuntimeError: a shape, dtype, stride or device is not as above, or (CPU) an accepted or output length is out of
            range.
    """
    check_dims("commit_block", accepted=(accepted, 1), slot_mapping=(slot_mapping, 2))
    if committed is None:
        committed = torch.empty_like(accepted)
    if context_slots is None:
        context_slots = slot_mapping.new_empty(slot_mapping.shape)
    torch.ops.dflash_ops.commit_block(
        tokens,
        accepted,
        slot_mapping,
        stop_token_ids,
        max_output_lens,
        context_lens,
        next_token,
        output_ids,
        output_lens,
        finished,
        committed,
        context_slots,
    )
    return committed, context_slots


register_out_variant("commit_block")
