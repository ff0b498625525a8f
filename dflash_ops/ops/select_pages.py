"""``select_pages``: the pages of a long context that a block's attention reads."""

import torch
from torch import Tensor

from dflash_ops import _host
from dflash_ops._arguments import check_count, check_dims, register_out_variant
from dflash_ops._workspace import stream_workspace


@torch.compiler.assume_constant_result
def select_pages_workspace_size(batch: int, kv_heads: int, max_pages: int, device: torch.device | str = "cpu") -> int:
    """Bytes of workspace that ``select_pages`` needs.

    Args:
        batch: requests.
        kv_heads: heads of the cache.
        max_pages: columns of the page table.
        device: where the op will run; any GPU is as good as another.
    """
    if torch.device(device).type == "cuda":
        return _host.select_pages_cuda_workspace_size(batch, kv_heads, max_pages)
    return _host.select_pages_workspace_size(batch, kv_heads, max_pages)


def select_pages_width(max_pages: int, page_size: int, budget_tokens: int, sink_tokens: int, local_tokens: int) -> int:
    """The most pages that ``select_pages`` may select for a head, whatever the context's length.

    Args:
        max_pages: columns of the page table.
        page_size: rows of a page.
        budget_tokens, sink_tokens, local_tokens: as passed to the op.
    """
    always = -(-sink_tokens // page_size) + -(-(local_tokens - 1) // page_size) + 1
    return min(max_pages, max(budget_tokens // page_size, always))


def select_pages(
    q: Tensor,
    k_bounds: Tensor,
    page_table: Tensor,
    context_lens: Tensor,
    cu_block_lens: Tensor | None = None,
    *,
    page_size: int,
    budget_tokens: int,
    sink_tokens: int = 64,
    local_tokens: int = 256,
    group_bounds: Tensor | None = None,
    group_pages: int = 16,
    selected_pages: Tensor | None = None,
    selected_counts: Tensor | None = None,
    workspace: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Selects, for each request and kv head, the pages of the context that matter most to the block's queries.

    The pages of the first ``sink_tokens`` and of the last ``local_tokens`` positions are always kept. Of the others the
    budget's rest is chosen by the greatest logit that any key within the page's bounds could have with any query of the
    block and of the GQA group (arXiv 2406.10774): ``sum_d max(q_d * min_d, q_d * max_d)``, for a positive scale. Equal
    scores go to the lower page, NaN counts as the greatest.

    Args:
        q: ``[tokens, q_heads, D]`` float32, float16 or bfloat16, D a multiple of 8, at most 256: as attention gets them.
            On CUDA float16 or bfloat16, and D 64, 96, 128 or 256.
        k_bounds: ``[pages, kv_heads, 2, D]`` in q's dtype, of ``update_page_bounds``; page, head and part strides are
            free. Bounds of pages that are kept anyway are not read.
        page_table: int32 ``[batch, max_pages]``; entries past a context are not read.
        context_lens: int32 ``[batch]``.
        cu_block_lens: int32 ``[batch + 1]``, where each request's rows begin. None: ``tokens / batch`` rows each.
        page_size: rows of a page, a power of two from 1 to 256.
        budget_tokens: rows of the context to keep, in whole pages, those always kept among them. Where they alone are
            more, they are kept and no others.
        sink_tokens, local_tokens: 0 or more; 1 or more.
        group_bounds: ``[batch, ceil(max_pages / group_pages), kv_heads, 2, D]`` in q's dtype, of ``update_page_bounds``:
            pages of groups whose bounds show that none can be chosen are passed over. The selection is the same. CPU
            only.
        group_pages: pages of a group, as passed to ``update_page_bounds``.
        selected_pages: int32 ``[batch, kv_heads, width]``, width at least ``select_pages_width(...)``; allocated when
            absent.
        selected_counts: int32 ``[batch, kv_heads]``, allocated when absent.
        workspace: uint8, at least ``select_pages_workspace_size(..., device=...)`` bytes, 64-byte aligned, allocated
            when absent; on CUDA **zero** before its first use, after which it serves any CUDA ops one after another.

    Returns:
        ``(selected_pages, selected_counts)``: indices into the request's row of the page table, ascending, then -1; and
        how many there are.

    Raises:
        RuntimeError: a shape, dtype, stride, device, length or used page id is not as above. Nothing is written then.
    """
    check_dims("select_pages", q=(q, 3), k_bounds=(k_bounds, 4), page_table=(page_table, 2))
    check_count("select_pages", "page_size", page_size, least=1)
    check_count("select_pages", "budget_tokens", budget_tokens)
    check_count("select_pages", "sink_tokens", sink_tokens)
    check_count("select_pages", "local_tokens", local_tokens, least=1)
    batch, max_pages = page_table.shape
    kv_heads = k_bounds.shape[1]
    if selected_pages is None:
        width = select_pages_width(max_pages, page_size, budget_tokens, sink_tokens, local_tokens)
        selected_pages = q.new_empty((batch, kv_heads, width), dtype=torch.int32)
    if selected_counts is None:
        selected_counts = q.new_empty((batch, kv_heads), dtype=torch.int32)
    if workspace is None:
        workspace = stream_workspace(q, select_pages_workspace_size(batch, kv_heads, max_pages, q.device))
    torch.ops.dflash_ops.select_pages(
        q,
        k_bounds,
        page_table,
        context_lens,
        cu_block_lens,
        group_bounds,
        group_pages,
        page_size,
        budget_tokens,
        sink_tokens,
        local_tokens,
        selected_pages,
        selected_counts,
        workspace,
    )
    return selected_pages, selected_counts


register_out_variant("select_pages")
