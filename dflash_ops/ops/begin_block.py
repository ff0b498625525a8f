"""``begin_block``: ids, positions and slots of the next block, on the device."""

import torch
from torch import Tensor

from dflash_ops._arguments import check_count, check_dims, register_out_variant


def begin_block(
    next_token: Tensor,
    context_lens: Tensor,
    page_table: Tensor,
    *,
    page_size: int,
    mask_token_id: int,
    block_size: int | None = None,
    finished: Tensor | None = None,
    input_ids: Tensor | None = None,
    positions: Tensor | None = None,
    slot_mapping: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Starts a round: the newest token followed by masks, at positions ``context_len + i``.

    Args:
        next_token: int64 ``[b]``, the newest committed token, not yet in the cache.
        context_lens: int32 ``[b]``, tokens in the cache.
        page_table: int32 ``[b, max_pages]``.
        page_size: tokens a page.
        mask_token_id: id of the mask token.
        block_size: B; may be left out when an output is given.
        finished: bool ``[b]``; such requests get mask ids, positions 0 and slots -1.
        input_ids, positions, slot_mapping: int64 ``[b, B]`` outputs, allocated when absent.

    Returns:
        ``(input_ids, positions, slot_mapping)``; a slot is ``page * page_size + offset``, or -1 past the page table and
        where the table holds a negative page.

    Raises:
        ValueError: neither block_size nor an output says how long the block is.
        RuntimeError: a shape, dtype, stride or device is not as above, or (CPU) a length is negative.
    """
    check_dims("begin_block", next_token=(next_token, 1))
    outputs = {"input_ids": input_ids, "positions": positions, "slot_mapping": slot_mapping}
    given = next(((name, output) for name, output in outputs.items() if output is not None), None)
    if block_size is None:
        if given is None:
            raise ValueError("begin_block: block_size: expected a number where no output is given, got None")
        check_dims("begin_block", **{given[0]: (given[1], 2)})
        block_size = given[1].shape[1]
    check_count("begin_block", "block_size", block_size)
    shape = (next_token.shape[0], block_size)
    input_ids = next_token.new_empty(shape) if input_ids is None else input_ids
    positions = next_token.new_empty(shape) if positions is None else positions
    slot_mapping = next_token.new_empty(shape) if slot_mapping is None else slot_mapping
    torch.ops.dflash_ops.begin_block(
        next_token,
        context_lens,
        page_table,
        page_size,
        mask_token_id,
        finished,
        input_ids,
        positions,
        slot_mapping,
    )
    return input_ids, positions, slot_mapping


register_out_variant("begin_block")
