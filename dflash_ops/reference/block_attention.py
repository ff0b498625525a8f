"""Definition of ``block_attention``."""

import torch
from torch import Tensor


def block_attention(
    q: Tensor,
    k_block: Tensor,
    v_block: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    context_lens: Tensor,
    cu_block_lens: Tensor | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``q [tokens, Hq, D]`` -> (out ``[tokens, Hq, D]``, lse ``[tokens, Hq]``), one request after the other.

    Rows past the last request's are 0, with lse -inf.
    """
    tokens, q_heads, head_dim = q.shape
    page_size, kv_heads = k_cache.shape[1:3]
    batch = context_lens.shape[0]
    out = torch.zeros_like(q)
    lse = q.new_full((tokens, q_heads), -torch.inf)
    bounds = (
        [tokens // max(batch, 1) * i for i in range(batch + 1)] if cu_block_lens is None else cu_block_lens.tolist()
    )
    for request, context_len in enumerate(context_lens.tolist()):
        begin, end = bounds[request], bounds[request + 1]
        pages = page_table[request, : -(-context_len // page_size)].long()
        keys = _gather(k_cache, pages, context_len, k_block[begin:end])
        values = _gather(v_cache, pages, context_len, v_block[begin:end])
        # Each kv head serves q_heads / kv_heads query heads.
        keys = keys.repeat_interleave(q_heads // kv_heads, dim=1)
        values = values.repeat_interleave(q_heads // kv_heads, dim=1)
        logits = torch.einsum("qhd,khd->hqk", q[begin:end], keys) * (head_dim**-0.5 if scale is None else scale)
        if softcap > 0:
            logits = softcap * torch.tanh(logits / softcap)
        visible = _visible(context_len, end - begin, causal, window).to(q.device)
        logits = logits.masked_fill(~visible, -torch.inf)
        if sinks is not None:
            logits = torch.cat([logits, sinks.to(logits).view(-1, 1, 1).expand(-1, end - begin, 1)], dim=2)
        denominator = logits.logsumexp(dim=2)
        weights = torch.exp(logits - denominator.nan_to_num(neginf=0.0)[:, :, None])[:, :, : keys.shape[0]]
        out[begin:end] = torch.einsum("hqk,khd->qhd", weights, values)
        lse[begin:end] = denominator.t()
    return out, lse


def _gather(cache: Tensor, pages: Tensor, context_len: int, block: Tensor) -> Tensor:
    """``[context_len + block rows, Hkv, D]``: the context's rows of the cache, then the block's own."""
    return torch.cat([cache[pages].flatten(0, 1)[:context_len], block])


def _visible(context_len: int, rows: int, causal: bool, window: int) -> Tensor:
    """bool ``[rows, context_len + rows]``: whether the query of row i sees the key at each position."""
    position = context_len + torch.arange(rows)[:, None]
    key = torch.arange(context_len + rows)[None]
    visible = torch.ones(rows, context_len + rows, dtype=torch.bool)
    if causal:
        visible &= key <= position
    if window > 0:
        visible &= (position - key).abs() < window
    return visible
