"""``block_attention``: the block's queries over the paged context and the block's own keys and values."""

import torch
from torch import Tensor

from dflash_ops import _host
from dflash_ops._arguments import check_count, check_dims, default_scale, register_out_variant
from dflash_ops._workspace import new_workspace


def block_attention_workspace_size(
    tokens: int,
    batch: int,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    max_context: int,
    num_splits: int = 0,
    threads: int | None = None,
    device: torch.device | str = "cpu",
) -> int:
    """Bytes of workspace that ``block_attention`` needs.

    Args:
        tokens: rows of ``q``, all requests together.
        batch: requests.
        q_heads: heads of ``q``.
        kv_heads: heads of the cache.
        head_dim: channels of a head.
        max_context: the longest context the page table can hold, ``max_pages * page_size``.
        num_splits: as passed to the op.
        threads: CPU threads the op will run on; now's ``torch.get_num_threads()`` when absent. Without meaning on CUDA.
        device: where the op will run.
    """
    sizes = (tokens, batch, q_heads, kv_heads, head_dim, max_context, num_splits)
    if torch.device(device).type == "cuda":
        multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        return _host.block_attention_cuda_workspace_size(*sizes, multiprocessors)
    if threads is None:
        threads = torch.get_num_threads()
    return _host.block_attention_workspace_size(*sizes, threads)


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
    num_splits: int = 0,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    workspace: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of every request's block over its paged context followed by the block itself.

    Row i of a request sits at position ``context_len + i``. It sees the context and the block (all of it, or rows up to
    i if ``causal``), within ``window`` positions where that is set: ``(p - window, p]`` if causal, else
    ``|distance| < window``. Nothing is written to the cache.

    Args:
        q: ``[tokens, q_heads, head_dim]`` float32, float16 or bfloat16; head_dim a multiple of 8, at most 256. On CUDA
            float16 or bfloat16, head_dim 64, 96, 128 or 256, and rows of all tensors of that type 16-byte aligned.
        k_block, v_block: ``[tokens, kv_heads, head_dim]``; kv_heads divides q_heads.
        k_cache, v_cache: ``[pages, page_size, kv_heads, head_dim]``, page_size a power of two from 1 to 256. Page, slot
            and head strides are free and may differ between the two.
        page_table: int32 ``[batch, max_pages]``; entries past a request's context, and those wholly outside its window,
            are not read.
        context_lens: int32 ``[batch]``, 0 to ``max_pages * page_size``.
        cu_block_lens: int32 ``[batch + 1]``, where each request's rows begin; rows past the last are not touched. None:
            ``tokens / batch`` rows each.
        scale: factor of the logits, ``head_dim ** -0.5`` when absent.
        causal: block rows do not see later block rows.
        window: 0 for none.
        softcap: logits become ``softcap * tanh(logit / softcap)``; 0 for none.
        sinks: float32 ``[q_heads]``, extra logits without a value.
        num_splits: pieces each request's keys are cut into. 0 lets the op choose by the whole batch; with a fixed
            number a request's result does not depend, to the last bit, on the rest of the batch.
        out: output like ``q``, allocated when absent.
        lse: float32 ``[tokens, q_heads]`` output, allocated when absent.
        workspace: uint8, at least ``block_attention_workspace_size(...)`` bytes, 64-byte aligned, allocated when
            absent. On CUDA **zero** before its first use, left reusable by each call, and not shared by calls that may
            overlap (on two streams).

    Returns:
        ``(out, lse)``; lse is the natural logarithm of the softmax denominator.

    Raises:
        RuntimeError: a shape, dtype, stride, device, length or used page id is not as above.
    """
    check_dims("block_attention", q=(q, 3), k_block=(k_block, 3), k_cache=(k_cache, 4), page_table=(page_table, 2))
    check_dims("block_attention", context_lens=(context_lens, 1))
    check_count("block_attention", "num_splits", num_splits)
    tokens, q_heads, head_dim = q.shape
    if out is None:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if lse is None:
        lse = q.new_empty((tokens, q_heads), dtype=torch.float32)
    if workspace is None:
        max_context = page_table.shape[1] * k_cache.shape[1]
        sizes = [tokens, context_lens.shape[0], q_heads, k_block.shape[1], head_dim, max_context, num_splits]
        workspace = new_workspace(q, "block_attention", sizes)
    if scale is None:
        scale = default_scale(head_dim)
    torch.ops.dflash_ops.block_attention(
        q,
        k_block,
        v_block,
        k_cache,
        v_cache,
        page_table,
        context_lens,
        cu_block_lens,
        scale,
        causal,
        window,
        softcap,
        sinks,
        num_splits,
        out,
        lse,
        workspace,
    )
    return out, lse


register_out_variant("block_attention")
