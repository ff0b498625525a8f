"""``sparse_block_attention``: the block's queries over selected pages of the context and the block itself."""

import torch
from torch import Tensor

from dflash_ops import _host
from dflash_ops._arguments import check_count, check_dims, default_scale, register_out_variant
from dflash_ops._workspace import new_workspace


def sparse_block_attention_workspace_size(
    tokens: int,
    batch: int,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    max_pages: int,
    page_size: int,
    num_splits: int = 0,
    threads: int | None = None,
    device: torch.device | str = "cpu",
) -> int:
    """Bytes of workspace that ``sparse_block_attention`` needs.

    Args:
        tokens: rows of ``q``, all requests together.
        batch: requests.
        q_heads: heads of ``q``.
        kv_heads: heads of the cache.
        head_dim: channels of a head.
        max_pages: columns of the page table.
        page_size: rows of a page.
        num_splits: as passed to the op.
        threads: CPU threads the op will run on; now's ``torch.get_num_threads()`` when absent. Without meaning on CUDA.
        device: where the op will run.
    """
    sizes = (tokens, batch, q_heads, kv_heads, head_dim, max_pages, page_size, num_splits)
    if torch.device(device).type == "cuda":
        multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        return _host.sparse_block_attention_cuda_workspace_size(*sizes, multiprocessors)
    if threads is None:
        threads = torch.get_num_threads()
    return _host.sparse_block_attention_workspace_size(*sizes, threads)


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
    num_splits: int = 0,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    workspace: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``block_attention`` where each kv head sees only selected pages of the context, and the whole block.

    A selection of ``select_pages`` may be used again while the context grows, and for other layers: pages of the context
    after the last selected one are always seen, and selected pages that lie past the context are not. So a selection
    that is empty, or all pages, is attention over the whole context.

    Args:
        q, k_block, v_block, k_cache, v_cache, page_table, context_lens, cu_block_lens, scale, causal, softcap, sinks,
            num_splits, out, lse: as ``block_attention`` has them. Entries of the page table that no head sees are not
            read.
        selected_pages: int32 ``[batch, kv_heads, width]``: indices into the request's row of the page table, ascending;
            those past the count are not read.
        selected_counts: int32 ``[batch, kv_heads]``.
        workspace: uint8, at least ``sparse_block_attention_workspace_size(...)`` bytes, 64-byte aligned, allocated when
            absent; on CUDA zero before its first use, as ``block_attention`` has it.

    Returns:
        ``(out, lse)``, lse over what is seen.

    Raises:
        RuntimeError: a shape, dtype, stride, device, length, count, selected page or used page id is not as above.
            Nothing is written then.
    """
    op = "sparse_block_attention"
    check_dims(op, q=(q, 3), k_block=(k_block, 3), k_cache=(k_cache, 4), page_table=(page_table, 2))
    check_count(op, "num_splits", num_splits)
    tokens, q_heads, head_dim = q.shape
    if out is None:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if lse is None:
        lse = q.new_empty((tokens, q_heads), dtype=torch.float32)
    if workspace is None:
        batch, max_pages = page_table.shape
        sizes = [tokens, batch, q_heads, k_block.shape[1], head_dim, max_pages, k_cache.shape[1], num_splits]
        workspace = new_workspace(q, "sparse_block_attention", sizes)
    if scale is None:
        scale = default_scale(head_dim)
    torch.ops.dflash_ops.sparse_block_attention(
        q,
        k_block,
        v_block,
        k_cache,
        v_cache,
        page_table,
        context_lens,
        selected_pages,
        selected_counts,
        cu_block_lens,
        scale,
        causal,
        softcap,
        sinks,
        num_splits,
        out,
        lse,
        workspace,
    )
    return out, lse


register_out_variant("sparse_block_attention")
