"""Page selection and attention over the selected pages, together, against our own block_attention over all of them.

Queries, keys and bounds are random, which costs what real ones do.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

import dflash_ops
from benchmarks.bench_select_pages import BUDGET, case_of, inputs_of
from benchmarks.compare import Comparison, Maker

TARGETS = {16384: None, 65536: 8.0, 131072: 12.0}


def comparisons() -> Iterator[Maker]:
    for context in TARGETS:
        for dtype in (torch.bfloat16, torch.float32):
            yield partial(comparison, context, dtype)


def comparison(context: int, dtype: torch.dtype) -> Comparison:
    case = case_of(context)
    budgets = case.budgets()
    selecting = inputs_of(context, dtype)
    pages = context // 16
    shared = {name: selecting[name] for name in ("q", "page_table", "context_lens")}
    shared |= {name: torch.randn(pages, 16, 8, 128).to(dtype) for name in ("k_cache", "v_cache")}
    shared |= {name: torch.randn(16, 8, 128).to(dtype) for name in ("k_block", "v_block")}
    shared |= {"out": torch.empty_like(selecting["q"]), "lse": torch.empty(16, 32)}
    size = dflash_ops.sparse_block_attention_workspace_size(16, 1, 32, 8, 128, pages, 16, device=shared["q"].device)
    workspace = torch.empty(size, dtype=torch.uint8)  # enough for block_attention too

    def sparse() -> Tensor:
        selected, counts = dflash_ops.select_pages(**selecting, **budgets)
        out, _ = dflash_ops.sparse_block_attention(
            **shared, selected_pages=selected, selected_counts=counts, workspace=workspace
        )
        return out

    target = TARGETS[context]
    return Comparison(
        op="sparse_block_attention",
        shape=f"context {context}, budget {BUDGET}, B 16, heads 32/8, dim 128, page 16, with select_pages",
        dtype=str(dtype).removeprefix("torch."),
        ours=sparse,
        plain={
            "block_attention": lambda: dflash_ops.block_attention(**shared, workspace=workspace)[0],
            "selection_alone": lambda: dflash_ops.select_pages(**selecting, **budgets)[0],
        },
        flops=2.0 * 8 * 64 * (pages * 256 + 2 * 128 * (BUDGET + 16)),
        bytes=case.least_traffic_of_selection(dtype, selecting["selected_pages"].shape[2]).total
        + case.least_traffic_of_attention(dtype).total,
        other_results={"block_attention": "attends to the whole context", "selection_alone": "a part of the call"},
        targets={} if target is None else {"block_attention": target},
    )
