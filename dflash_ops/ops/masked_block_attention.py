"""``masked_block_attention``: attention under the masks of drafter training and block diffusion, with autograd."""

from typing import Any

import torch
from torch import Tensor

from dflash_ops._arguments import check_dims, check_one_device, default_scale, register_out_variant


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
    """Attention whose mask is known by its structure; differentiable in q, k and v.

    No query sees another document. With a ``window`` W a query at position p sees ``(p - W, p]`` in mode "causal",
    else ``|distance| < W``. Modes:

    - "anchor": q holds N blocks of ``block_size`` rows; k and v hold S context rows, then the blocks' own. Row j of
      block i sits at position ``anchors[i] + j``; it sees the context of its document strictly before ``anchors[i]``
      and its own block (rows up to j if ``causal``). Training of DFlash drafters, arXiv 2602.06036.
    - "block_causal": blocks of ``block_size`` rows, counted from each document's start, see themselves and all earlier
      blocks.
    - "bidirectional": everything in the document.
    - "causal": the query itself and everything earlier in the document.

    Args:
        q: ``[Q, q_heads, head_dim]`` float32, float16 or bfloat16; head_dim a multiple of 8, at most 256.
        k, v: ``[K, kv_heads, head_dim]``; kv_heads divides q_heads. K is S + Q in mode "anchor", else Q.
        mode: as above.
        block_size: rows of a block, modes "anchor" and "block_causal".
        anchors: int32 ``[N]`` in any order, indices into the context rows; negative for blocks that see nothing.
        cu_seqlens: int32 ``[documents + 1]``, where each document's rows of the context (of k, in the other modes)
            begin; rows past the last bound belong to no document. None: one document.
        causal: mode "anchor": whether rows see later rows of their block.
        window: 0 for none.
        scale: factor of the logits, ``head_dim ** -0.5`` when absent.

    Returns:
        ``(out [Q, q_heads, head_dim], lse float32 [Q, q_heads])``; lse is the natural logarithm of the softmax
        denominator and not differentiable. A query that sees nothing gives out 0, lse -inf and gradients 0.

    Raises:
        RuntimeError: a shape, dtype, stride, device, mode, anchor or bound is not as above.
    """
    check_dims("masked_block_attention", q=(q, 3))
    if scale is None:
        scale = default_scale(q.shape[-1])
    out, lse = torch.ops.dflash_ops.masked_block_attention(
        q, k, v, mode, block_size, anchors, cu_seqlens, causal, window, scale
    )
    return out, lse


@torch.library.register_fake("dflash_ops::masked_block_attention")
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask_mode: str,
    block_size: int,
    anchors: Tensor | None,
    cu_seqlens: Tensor | None,
    causal: bool,
    window: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    tensors = {"q": q, "k": k, "v": v, "anchors": anchors, "cu_seqlens": cu_seqlens}
    check_one_device("masked_block_attention", tensors)
    return q.new_empty(q.shape), q.new_empty(q.shape[:2], dtype=torch.float32)


register_out_variant("masked_block_attention_forward")
register_out_variant("masked_block_attention_backward")


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, mode, block_size, anchors, cu_seqlens, causal, window, scale = inputs
    out, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, out, lse, anchors, cu_seqlens)
    ctx.mode, ctx.block_size, ctx.causal, ctx.window, ctx.scale = mode, block_size, causal, window, scale


def _backward(ctx: Any, grad_out: Tensor | None, _grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad_out is None:
        return (None,) * 10
    q, k, v, out, lse, anchors, cu_seqlens = ctx.saved_tensors
    # Of a sum, say, autograd hands over an expanded scalar; of a concatenation, rows that are not 16-byte aligned.
    places = (grad_out.storage_offset(), *grad_out.stride()[:-1])
    if grad_out.stride(-1) != 1 or any(place % 8 != 0 for place in places):
        grad_out = grad_out.clone(memory_format=torch.contiguous_format)
    grad_q, grad_k, grad_v = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    torch.ops.dflash_ops.masked_block_attention_backward(
        grad_out,
        q,
        k,
        v,
        out,
        lse,
        ctx.mode,
        ctx.block_size,
        anchors,
        cu_seqlens,
        ctx.causal,
        ctx.window,
        ctx.scale,
        grad_q,
        grad_k,
        grad_v,
    )
    return grad_q, grad_k, grad_v, *(None,) * 7


torch.library.register_autograd("dflash_ops::masked_block_attention", _backward, setup_context=_setup_context)
