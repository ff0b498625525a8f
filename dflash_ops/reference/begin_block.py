"""Definition of ``begin_block``."""

import torch
from torch import Tensor


def begin_block(
    next_token: Tensor,
    context_lens: Tensor,
    page_table: Tensor,
    *,
    page_size: int,
    mask_token_id: int,
    block_size: int,
    finished: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """-> (input_ids, positions, slot_mapping), int64 ``[b, block_size]`` each."""
    batch = next_token.shape[0]
    input_ids = torch.full((batch, block_size), mask_token_id)
    input_ids[:, :1] = next_token[:, None]
    positions = context_lens.long()[:, None] + torch.arange(block_size)
    entries = positions // page_size
    inside = entries < page_table.shape[1]
    pages = torch.full_like(positions, -1)
    if page_table.shape[1] > 0:
        pages = page_table.long().gather(1, entries.clamp(max=page_table.shape[1] - 1)).masked_fill(~inside, -1)
    slots = torch.where(pages >= 0, pages * page_size + positions % page_size, -1)
    if finished is not None:
        done = finished[:, None]
        input_ids = input_ids.masked_fill(done, mask_token_id)
        positions = positions.masked_fill(done, 0)
        slots = slots.masked_fill(done, -1)
    return input_ids, positions, slots
