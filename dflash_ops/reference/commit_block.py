"""Definition of ``commit_block``."""

import torch
from torch import Tensor


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
) -> tuple[Tensor, Tensor]:
    """Changes the request state in place, request by request -> (committed, context_slots)."""
    batch, capacity = output_ids.shape
    stops = set() if stop_token_ids is None else set(stop_token_ids.tolist())
    committed = torch.zeros(batch, dtype=torch.int32)
    context_slots = torch.full_like(slot_mapping, -1)
    for b in range(batch):
        if finished[b] or tokens[b, 0] < 0:
            continue
        length = int(output_lens[b])
        limit = capacity if max_output_lens is None else min(capacity, int(max_output_lens[b]))
        run = tokens[b, : int(accepted[b]) + 1].tolist()[: max(limit - length, 0)]
        stop_at = next((i + 1 for i, token in enumerate(run) if token in stops), None)
        run = run[:stop_at]
        count = len(run)
        output_ids[b, length : length + count] = torch.tensor(run, dtype=torch.int64)
        output_lens[b] += count
        context_lens[b] += count
        if run:
            next_token[b] = run[-1]
        finished[b] = stop_at is not None or length + count >= limit
        committed[b] = count
        context_slots[b, :count] = slot_mapping[b, :count]
    return committed, context_slots
