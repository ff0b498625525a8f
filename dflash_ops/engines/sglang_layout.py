"""SGLang's token pool and request table as the ops' arguments.

K and V of a layer are tensors ``[size + page_size, kv_heads, head_dim]`` with a row per token slot; pages are runs of
``page_size`` slots. The first page is never given to a request: padding tokens write there. `req_to_token` holds, for
every request of the pool, the slot of each of its tokens.
"""

import torch
from torch import Tensor

from dflash_ops.engines.batch import EngineBatch


def cache_view(buffer: Tensor, page_size: int) -> Tensor:
    """``[pages, page_size, kv_heads, head_dim]`` of a layer's K or V buffer, a view.

    Raises:
        ValueError: the buffer is no whole number of pages.
    """
    if buffer.ndim != 3 or page_size < 1 or buffer.shape[0] % page_size:
        raise ValueError(
            f"buffer: expected [pages * {page_size}, kv_heads, head_dim], page_size positive, got {list(buffer.shape)}"
        )
    return buffer.unflatten(0, (-1, page_size))


def engine_batch(
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    *,
    page_size: int = 1,
    extend_seq_lens: Tensor | None = None,
) -> EngineBatch:
    """The ops' view of a forward batch. Reads nothing back to the host.

    Args:
        req_to_token: int32 ``[pool, max_context]``, the slot of each token of each request.
        req_pool_indices: ``[b]``, the rows of this batch's requests.
        seq_lens: ``[b]``, tokens of each request, the new ones included.
        out_cache_loc: int64 ``[tokens]``, slots of the new tokens; those of the first page are padding.
        page_size: as the server runs with; a request's slots are contiguous within a page.
        extend_seq_lens: ``[b]``, new tokens of each request; None: equally many each, as in decoding and verification.

    Raises:
        ValueError: without `extend_seq_lens`, the tokens are no multiple of the requests.
    """
    batch = req_pool_indices.shape[0]
    page_table = req_to_token[:, ::page_size].index_select(0, req_pool_indices.long()) // page_size
    slot_mapping = torch.where(out_cache_loc < page_size, -1, out_cache_loc.long())
    if extend_seq_lens is None:
        if out_cache_loc.shape[0] % max(batch, 1):
            raise ValueError(f"out_cache_loc: expected a multiple of {batch} tokens, got {out_cache_loc.shape[0]}")
        new_tokens = out_cache_loc.shape[0] // max(batch, 1)
        return EngineBatch(page_table, (seq_lens - new_tokens).clamp(min=0).int(), None, slot_mapping)
    ends = extend_seq_lens.cumsum(0, dtype=torch.int32)
    cu_block_lens = torch.nn.functional.pad(ends, (1, 0))
    return EngineBatch(page_table, (seq_lens - extend_seq_lens).int(), cu_block_lens, slot_mapping)
