"""``update_page_bounds``: channel-wise minimum and maximum of a page's keys, for page selection."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash_ops._arguments import register_out_variant, tensor_list


def update_page_bounds(
    k_caches: Sequence[Tensor],
    *,
    slot_mapping: Tensor,
    k_bounds: Sequence[Tensor],
    row_count: Tensor | None = None,
    group_bounds: Sequence[Tensor] = (),
    page_table: Tensor | None = None,
    context_lens: Tensor | None = None,
    group_pages: int = 16,
) -> None:
    """Computes the bounds of every page that a slot names anew, from its rows up to the highest slot named.

    Call it with the slots whose rows were just written (``write_context_kv`` and ``project_context_kv`` do so when they
    get ``k_bounds``): a page's rows are valid up to the last one written, since contexts grow at their end and shrink by
    setting lengths. Nothing of the old bounds survives. For pages that are full already, or after a context was cut,
    one slot a page is enough: that of its last valid row.

    Args:
        k_caches: L tensors ``[pages, page_size, Hkv, D]`` of one shape and dtype, float32, float16 or bfloat16,
            page_size a power of two up to 256; page, slot and head strides free.
        slot_mapping: int64 ``[n]``, ``page * page_size + offset``, or -1 to skip the entry.
        k_bounds: L tensors ``[pages, Hkv, 2, D]`` in the caches' dtype, written at the named pages: minima, then maxima,
            NaN where a row has NaN. Page, head and part strides are free.
        row_count: int32, one element: entries at or past it are not read. None: all.
        group_bounds: a second level, for contexts of many pages (CPU only): none, or L tensors
            ``[batch, ceil(max_pages / group_pages), Hkv, 2, D]`` in the caches' dtype, outer strides free: bounds over
            ``group_pages`` pages that follow each other in a request's context. Every group that holds a named page is
            computed anew, from the bounds of its pages in the context; so a page that enters a row of the page table
            has to be named once, also where its rows were written before.
        page_table: int32 ``[batch, max_pages]``, with group_bounds; entries past a context are not read.
        context_lens: int32 ``[batch]``, with group_bounds: with the rows that were just written.
        group_pages: pages of a group, 1 or more.

    Raises:
        RuntimeError: a shape, dtype, stride or device is not as above; on CPU also a slot past the cache, a row count
            above n, or with group_bounds a length or used page id out of range. Nothing is written then.
    """
    torch.ops.dflash_ops.update_page_bounds(
        tensor_list("update_page_bounds", "k_caches", k_caches),
        slot_mapping,
        row_count,
        page_table,
        context_lens,
        group_pages,
        tensor_list("update_page_bounds", "k_bounds", k_bounds),
        tensor_list("update_page_bounds", "group_bounds", group_bounds),
    )


register_out_variant("update_page_bounds")
