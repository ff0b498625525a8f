"""Definition of ``update_page_bounds``."""

from collections.abc import Sequence

import torch
from torch import Tensor


def update_page_bounds(
    k_caches: Sequence[Tensor], slot_mapping: Tensor, row_count: Tensor | None, k_bounds: Sequence[Tensor]
) -> None:
    """``k_bounds[l][page] [Hkv, 2, D]`` = minimum and maximum, a channel, of the page's rows up to the highest slot named.

    Every page that a slot names is computed anew; the bounds of all others stay as they are.
    """
    slots = slot_mapping if row_count is None else slot_mapping[: int(row_count)]
    slots = slots[slots >= 0]
    for k_cache, bounds in zip(k_caches, k_bounds, strict=True):
        page_size = k_cache.shape[1]
        for page in (slots // page_size).unique().tolist():
            last = int((slots[slots // page_size == page] % page_size).max())
            rows = k_cache[page, : last + 1]
            bounds[page] = torch.stack([rows.amin(0), rows.amax(0)], dim=1)


def update_group_bounds(
    k_bounds: Sequence[Tensor],
    slot_mapping: Tensor,
    page_size: int,
    page_table: Tensor,
    context_lens: Tensor,
    group_pages: int,
    group_bounds: Sequence[Tensor],
) -> None:
    """``group_bounds[l][request, group] [Hkv, 2, D]`` = bounds over the bounds of the group's pages in the context, for
    every group that holds a page which a slot names."""
    named = (slot_mapping[slot_mapping >= 0] // page_size).unique()
    for request, context_len in enumerate(context_lens.tolist()):
        pages = page_table[request, : -(-context_len // page_size)].long()
        for group, members in enumerate(pages.split(group_pages)):
            if torch.isin(members, named).any():
                for bounds, groups in zip(k_bounds, group_bounds, strict=True):
                    low, high = bounds[members].unbind(2)
                    groups[request, group] = torch.stack([low.amin(0), high.amax(0)], dim=1)
