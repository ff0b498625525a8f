"""Definition of ``sparse_block_attention``."""

import torch
from torch import Tensor

from dflash_ops.reference.block_attention import block_attention


def sparse_block_attention(
    q: Tensor,
    k_block: Tensor,
    v_block: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    context_lens: Tensor,
    selected_pages: Tensor,
    selected_counts: Tensor,
    cu_block_lens: Tensor | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As ``block_attention``, but each kv head sees of the context its selected pages only, and all after the last."""
    kv_heads = k_block.shape[1]
    group = q.shape[1] // kv_heads
    page_size = k_cache.shape[1]
    out, lse = torch.zeros_like(q), q.new_full(q.shape[:2], -torch.inf)
    for head in range(kv_heads):
        heads = slice(head * group, (head + 1) * group)
        lens, tables = context_lens.clone(), torch.zeros_like(page_table)
        for request, context_len in enumerate(context_lens.tolist()):
            pages = -(-context_len // page_size)
            count = int(selected_counts[request, head])
            seen = [page for page in selected_pages[request, head, :count].tolist() if page < pages]
            seen += range(seen[-1] + 1 if seen else 0, pages)
            tables[request, : len(seen)] = page_table[request, seen]
            lens[request] = context_len - (pages - len(seen)) * page_size  # all but the context's last are full
        out[:, heads], lse[:, heads] = block_attention(
            q[:, heads],
            k_block[:, head : head + 1],
            v_block[:, head : head + 1],
            k_cache[:, :, head : head + 1],
            v_cache[:, :, head : head + 1],
            tables,
            lens,
            cu_block_lens,
            scale=scale,
            causal=causal,
            softcap=softcap,
            sinks=None if sinks is None else sinks[heads],
        )
    return out, lse
