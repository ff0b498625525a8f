"""Definition of ``select_pages``."""

import torch
from torch import Tensor


def page_scores(q: Tensor, bounds: Tensor) -> Tensor:
    """``q [rows, D]``, ``bounds [pages, 2, D]`` -> ``[pages]``: the greatest dot product with q that any key within the
    bounds could have, of the row where it is greatest."""
    minima, maxima = bounds.unbind(1)
    return (q.clamp(min=0) @ maxima.T + q.clamp(max=0) @ minima.T).amax(0)


def select_pages(
    q: Tensor,
    k_bounds: Tensor,
    page_table: Tensor,
    context_lens: Tensor,
    cu_block_lens: Tensor | None = None,
    *,
    page_size: int,
    budget_tokens: int,
    sink_tokens: int,
    local_tokens: int,
    width: int,
) -> tuple[Tensor, Tensor]:
    """-> (pages ``[batch, Hkv, width]`` ascending, then -1; their number ``[batch, Hkv]``), both int32.

    A page is an index into its request's row of the page table. Of a context's pages those of the first ``sink_tokens``
    and of the last ``local_tokens`` positions are kept; of the others as many as the budget leaves, by score, equal
    scores from the front and NaN above all.
    """
    batch, kv_heads = context_lens.shape[0], k_bounds.shape[1]
    group = q.shape[1] // kv_heads
    selected = torch.full((batch, kv_heads, width), -1, dtype=torch.int32)
    counts = torch.zeros(batch, kv_heads, dtype=torch.int32)
    rows_each = q.shape[0] // max(batch, 1)
    starts = [rows_each * i for i in range(batch + 1)] if cu_block_lens is None else cu_block_lens.tolist()
    for request, context_len in enumerate(context_lens.tolist()):
        pages = -(-context_len // page_size)
        sinks = min(pages, -(-sink_tokens // page_size))
        local = max(sinks, max(0, context_len - local_tokens) // page_size)
        always = [*range(sinks), *range(local, pages)]
        chosen = min(local - sinks, max(0, budget_tokens // page_size - len(always)))
        rows = q[starts[request] : starts[request + 1]]
        for head in range(kv_heads):
            candidates = list(range(sinks, local))
            if 0 < chosen < len(candidates) and len(rows) > 0:
                queries = rows[:, head * group : (head + 1) * group].flatten(0, 1)
                bounds = k_bounds[page_table[request, sinks:local].long(), head]
                order = page_scores(queries, bounds).argsort(descending=True, stable=True)
                candidates = (order + sinks).tolist()
            kept = sorted(always + candidates[:chosen])
            selected[request, head, : len(kept)] = torch.tensor(kept, dtype=torch.int32)
            counts[request, head] = len(kept)
    return selected, counts
