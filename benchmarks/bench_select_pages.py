"""select_pages against the same products and topk in plain torch, on bounds that are gathered already."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

import dflash_ops
from benchmarks.compare import Comparison, Maker
from tests.cases.page_selection import Attention, Case

CONTEXTS = [16384, 65536, 131072]
BUDGET, SINKS, LOCAL = 2048, 64, 256


def case_of(context: int) -> Case:
    return Case(Attention((context,), 16, 32, 8, 128), BUDGET, SINKS, LOCAL)


def inputs_of(context: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Arguments of select_pages but the budget, with workspace and outputs. Random bounds: what they hold costs nothing."""
    heads, dim, page_size = 8, 128, 16
    pages = context // page_size
    bounds = torch.randn(pages, heads, 2, dim).sort(dim=2).values.to(dtype)
    width = dflash_ops.select_pages_width(pages, page_size, BUDGET, SINKS, LOCAL)
    q = torch.randn(16, 32, dim).to(dtype)
    return {
        "q": q,
        "k_bounds": bounds,
        "page_table": torch.randperm(pages).int()[None],
        "context_lens": torch.tensor([context], dtype=torch.int32),
        "selected_pages": torch.empty(1, heads, width, dtype=torch.int32),
        "selected_counts": torch.empty(1, heads, dtype=torch.int32),
        "workspace": torch.empty(dflash_ops.select_pages_workspace_size(1, heads, pages, q.device), dtype=torch.uint8),
    }


def comparisons() -> Iterator[Maker]:
    for context in CONTEXTS:
        for dtype in (torch.bfloat16, torch.float32):
            yield partial(comparison, context, dtype)


def comparison(context: int, dtype: torch.dtype) -> Comparison:
    case = case_of(context)
    inputs = inputs_of(context, dtype)
    queries = inputs["q"].view(16, 8, 4, 128).permute(1, 0, 2, 3).flatten(1, 2)  # [heads, rows, dim]
    gathered = inputs["k_bounds"][inputs["page_table"][0].long()].permute(1, 2, 3, 0).contiguous()

    def composition() -> Tensor:
        minima, maxima = gathered.unbind(1)
        scores = torch.baddbmm(queries.clamp(max=0) @ minima, queries.clamp(min=0), maxima).amax(1)
        return scores.topk(BUDGET // 16, dim=1).indices

    return Comparison(
        op="select_pages",
        shape=f"context {context}, budget {BUDGET}, B 16, heads 32/8, dim 128, page 16",
        dtype=str(dtype).removeprefix("torch."),
        ours=lambda: dflash_ops.select_pages(**inputs, **case.budgets()),
        plain={"matmul_topk": composition},
        flops=2.0 * context / 16 * 8 * 64 * 256,
        bytes=case.least_traffic_of_selection(dtype, inputs["selected_pages"].shape[2]).total,
        other_results={"matmul_topk": "neither sinks nor local pages, and no order of the lists"},
    )
