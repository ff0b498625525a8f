"""Cases of select_pages and sparse_block_attention, shared by tests and benchmarks: those of block_attention, with bounds
and a budget."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dflash_ops import reference
from tests.cases import block_attention
from tests.cases.traffic import Traffic


def last_slots(page_table: Tensor, context_lens: Tensor, page_size: int) -> Tensor:
    """The slot of the last valid row of every page that a request owns, as update_page_bounds takes it."""
    slots = [torch.empty(0, dtype=torch.int64)]
    for table, context in zip(page_table, context_lens.tolist(), strict=True):
        index = torch.arange(-(-context // page_size))
        last = torch.clamp(context - index * page_size, max=page_size) - 1
        slots.append(table[: len(index)].long() * page_size + last)
    return torch.cat(slots)


def bounds_of(inputs: dict[str, Any]) -> Tensor:
    """Bounds of every owned page; NaN for all others."""
    cache = inputs["k_cache"]
    pages, page_size, heads, dim = cache.shape
    bounds = torch.full((pages, heads, 2, dim), torch.nan, dtype=cache.dtype)
    slots = last_slots(inputs["page_table"], inputs["context_lens"], page_size)
    reference.update_page_bounds([cache], slots, None, [bounds])
    return bounds


@dataclass(frozen=True)
class Case:
    attention: block_attention.Case
    budget: int
    sink: int = 0
    local: int = 1

    def inputs(self, dtype: torch.dtype, *, whole: bool = False) -> dict[str, Any]:
        """Arguments of select_pages. `whole`: queries and keys are small whole numbers, so scores are exact in float32
        and many are equal."""
        attention = self.attention.inputs(dtype)
        if whole:
            for name in ("q", "k_cache"):
                attention[name] = attention[name].mul(1.5).round().clamp(-3, 3)
        return {
            "q": attention["q"],
            "k_bounds": bounds_of(attention),
            "page_table": attention["page_table"],
            "context_lens": attention["context_lens"],
            "cu_block_lens": attention["cu_block_lens"],
            **self.budgets(),
        }

    def least_traffic_of_selection(self, dtype: torch.dtype, width: int) -> Traffic:
        """Bounds of the pages that are scored and their table entries once, queries, lists of `width` entries. Some pages
        have to be chosen of each context."""
        case = self.attention
        scored = sum(
            (context - self.local) // case.page_size - -(-self.sink // case.page_size) for context in case.contexts
        )
        row, batch = case.head_dim * dtype.itemsize, len(case.contexts)
        loads = 2 * scored * case.kv_heads * row + sum(case.blocks) * case.q_heads * row + 4 * (scored + batch)
        return Traffic(loads, 4 * batch * case.kv_heads * (width + 1))

    def least_traffic_of_attention(self, dtype: torch.dtype) -> Traffic:
        """K and V of the budget's rows and of the block for each kv head, with the entries that lead there, queries,
        results. Contexts are longer than the budget and end with a page."""
        case = self.attention
        batch, row, tokens = len(case.contexts), case.head_dim * dtype.itemsize, sum(case.blocks)
        keys = batch * self.budget + tokens
        entries = batch * self.budget // case.page_size * case.kv_heads
        queries = tokens * case.q_heads * row
        return Traffic(2 * keys * case.kv_heads * row + queries + 8 * entries, queries + 4 * tokens * case.q_heads)

    def budgets(self) -> dict[str, int]:
        return {
            "page_size": self.attention.page_size,
            "budget_tokens": self.budget,
            "sink_tokens": self.sink,
            "local_tokens": self.local,
        }


Attention = block_attention.Case
CASES = [
    Case(Attention((), 0), 64),
    Case(Attention((0, 5, 0), (3, 0, 8)), 64),
    Case(Attention((300, 0, 17, 64), (16, 1, 0, 7)), 64, sink=1, local=20),
    Case(Attention((1000, 999, 961), 8), 256, sink=17, local=64),
    Case(Attention((1000,), 8), 0, sink=40, local=100),  # what is always kept is more than the budget
    Case(Attention((500, 90), 4), 5000, sink=4, local=8),  # and the budget more than the context
    Case(Attention((700,), 16, q_heads=1, kv_heads=1), 100),
    Case(Attention((3000, 10), 5, q_heads=3, kv_heads=1), 512, sink=64, local=256),
    *(Case(Attention((400, 222), 8, q_heads=group, kv_heads=1), 96, sink=16) for group in (5, 6, 7, 16)),
    Case(Attention((300,), 150, q_heads=8, kv_heads=2), 64),  # more rows than a panel of queries holds
    *(Case(Attention((333, 70), 3, head_dim=dim), 80, sink=16) for dim in (8, 40, 72, 128, 256)),
    *(Case(Attention((700, 1300), 3, page_size=size), 600, sink=2, local=10) for size in (1, 2, 64, 256)),
]
