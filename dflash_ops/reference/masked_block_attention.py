"""Definition of ``masked_block_attention``."""

import itertools

import torch
from torch import Tensor


def masked_block_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mode: str,
    *,
    block_size: int = 1,
    anchors: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    causal: bool = False,
    window: int = 0,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """``q [Q, Hq, D]``, ``k, v [K, Hkv, D]`` -> (out ``[Q, Hq, D]``, lse ``[Q, Hq]``), with a dense mask; autograd gives
    the gradients."""
    queries, q_heads, head_dim = q.shape
    keys, kv_heads = k.shape[:2]
    if mode == "anchor":
        assert anchors is not None
        visible = _anchor_mask(anchors, block_size, keys - queries, cu_seqlens, causal, window)
    else:
        visible = _packed_mask(mode, queries, block_size, cu_seqlens, window)
    visible = visible.to(q.device)
    # Each kv head serves q_heads / kv_heads query heads.
    k = k.repeat_interleave(q_heads // kv_heads, dim=1)
    v = v.repeat_interleave(q_heads // kv_heads, dim=1)
    logits = torch.einsum("qhd,khd->hqk", q, k) * (head_dim**-0.5 if scale is None else scale)
    logits = logits.masked_fill(~visible, -torch.inf)
    lse = logits.detach().logsumexp(dim=2)
    # Rows that see nothing take the softmax of zeros, which the mask then removes: no NaN in the gradients.
    sees_something = visible.any(dim=1)
    weights = logits.masked_fill(~sees_something[:, None], 0.0).softmax(dim=2) * visible
    return torch.einsum("hqk,khd->qhd", weights, v), lse.t()


def _document_starts(tokens: int, cu_seqlens: Tensor | None) -> list[int]:
    """Where the documents start, and the end of the last one."""
    return [0, tokens] if cu_seqlens is None else cu_seqlens.tolist()


def _anchor_mask(
    anchors: Tensor, block_size: int, context: int, cu_seqlens: Tensor | None, causal: bool, window: int
) -> Tensor:
    """bool ``[N * block_size, context + N * block_size]``."""
    *starts, _ = _document_starts(context, cu_seqlens)
    document_start = torch.tensor([max((x for x in starts if x <= anchor), default=0) for anchor in anchors.tolist()])
    # Of every block row; the same rows are queries and keys.
    block = torch.arange(len(anchors)).repeat_interleave(block_size)
    row = torch.arange(block_size).repeat(len(anchors))
    anchor = anchors.long()[block][:, None]
    document_start = document_start.long()[block][:, None]
    position = anchor + row[:, None]

    token = torch.arange(context)[None]
    sees_context = (token >= document_start) & (token < anchor)
    sees_block = (block[:, None] == block[None]) & (anchor >= 0)
    if causal:
        sees_block &= row[None] <= row[:, None]
    if window > 0:
        sees_context &= position - token < window
        sees_block &= (row[:, None] - row[None]).abs() < window
    return torch.cat([sees_context, sees_block], dim=1)


def _packed_mask(mode: str, tokens: int, block_size: int, cu_seqlens: Tensor | None, window: int) -> Tensor:
    """bool ``[tokens, tokens]``."""
    starts = _document_starts(tokens, cu_seqlens)
    document = torch.full((tokens,), -1)
    for number, (start, end) in enumerate(itertools.pairwise(starts)):
        document[start:end] = number
    position = torch.arange(tokens)
    query, key = position[:, None], position[None]
    visible = (document[:, None] == document[None]) & (document[:, None] >= 0)
    if mode == "causal":
        visible &= key <= query
    elif mode == "block_causal":
        block = (position - torch.tensor(starts)[document.clamp(min=0)]) // block_size
        visible &= block[None] <= block[:, None]
    elif mode != "bidirectional":
        raise ValueError(f"mode: expected anchor, block_causal, bidirectional or causal, got {mode}")
    if window > 0:
        visible &= (query - key).abs() < window
    return visible
