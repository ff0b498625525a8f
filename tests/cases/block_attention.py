"""Cases of block_attention, shared by tests and benchmarks."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

GARBAGE_PAGE = 2147480000
POISONED_PAGES = 2  # at the end of the cache, in nobody's table


def cache_pair(layout: str, pages: int, page_size: int, heads: int, dim: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """(k_cache, v_cache) ``[pages, page_size, heads, dim]`` as views of the storage an engine would hold."""
    if layout == "separate":
        return torch.empty(pages, page_size, heads, dim, dtype=dtype), torch.empty(
            pages, page_size, heads, dim, dtype=dtype
        )
    if layout == "halves":  # vLLM: K and V are the two halves of one tensor
        both = torch.empty(2, pages, page_size, heads, dim, dtype=dtype)
        return both[0], both[1]
    if layout == "interleaved":  # K and V side by side in each page
        both = torch.empty(pages, 2, page_size, heads, dim, dtype=dtype)
        return both[:, 0], both[:, 1]
    if layout == "heads_first":  # FlashInfer and TensorRT-LLM: HND, K and V interleaved by page
        both = torch.empty(pages, 2, heads, page_size, dim, dtype=dtype)
        return both[:, 0].transpose(1, 2), both[:, 1].transpose(1, 2)
    if layout == "uneven":  # K's strides differ from V's
        k = torch.empty(pages, page_size, heads + 1, dim + 3, dtype=dtype)
        v = torch.empty(pages, heads, page_size + 2, dim, dtype=dtype)
        return k[:, :, :heads, :dim], v[:, :, :page_size].transpose(1, 2)
    raise ValueError(layout)


@dataclass(frozen=True)
class Case:
    contexts: tuple[int, ...]
    block: int | tuple[int, ...]  # rows of every request, or of each
    q_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    page_size: int = 16
    layout: str = "separate"
    options: dict[str, Any] = field(default_factory=dict)
    has_sinks: bool = False
    table_slack: int = 2  # garbage columns behind the longest request's pages

    def inputs(self, dtype: torch.dtype, *, poison: tuple[float, float] = (torch.nan, torch.nan)) -> dict[str, Any]:
        """Arguments of the op. Cache slots and pages that no request uses hold `poison` (K's, V's)."""
        generator = torch.Generator().manual_seed(0)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).to(dtype)

        batch = len(self.contexts)
        blocks = (self.block,) * batch if isinstance(self.block, int) else self.block
        tokens = sum(blocks)
        used = [-(-context // self.page_size) for context in self.contexts]
        pages = sum(used) + POISONED_PAGES
        k_cache, v_cache = cache_pair(self.layout, pages, self.page_size, self.kv_heads, self.head_dim, dtype)
        k_cache.fill_(poison[0])
        v_cache.fill_(poison[1])
        page_table = torch.full((batch, max(used, default=0) + self.table_slack), GARBAGE_PAGE, dtype=torch.int32)
        order = torch.randperm(sum(used), generator=generator).int()
        for request, context in enumerate(self.contexts):
            mine, order = order[: used[request]], order[used[request] :]
            page_table[request, : used[request]] = mine
            for cache in (k_cache, v_cache):
                rows = random(used[request] * self.page_size, self.kv_heads, self.head_dim)
                position = torch.arange(context)
                page, slot = mine[position // self.page_size].long(), position % self.page_size
                cache[page, slot] = rows[:context]
        cu_block_lens = None
        if not isinstance(self.block, int):
            cu_block_lens = torch.tensor([0, *blocks]).cumsum(0).int()
        return {
            "q": random(tokens, self.q_heads, self.head_dim),
            "k_block": random(tokens, self.kv_heads, self.head_dim),
            "v_block": random(tokens, self.kv_heads, self.head_dim),
            "k_cache": k_cache,
            "v_cache": v_cache,
            "page_table": page_table,
            "context_lens": torch.tensor(self.contexts, dtype=torch.int32),
            "cu_block_lens": cu_block_lens,
            "sinks": torch.randn(self.q_heads, generator=generator) if self.has_sinks else None,
            **self.options,
        }


CAUSAL = {"causal": True}
CASES = [
    # Batch shapes: empty, no context, no rows, ragged, blocks longer than a tile and than an item.
    Case((), 0),
    Case((0,), 1),
    Case((0, 0), 0),
    Case((0, 5, 0), (3, 0, 8)),
    Case((1, 95, 96, 97), 8),
    Case((300, 0, 17, 64), (16, 1, 0, 7), options=CAUSAL),
    Case((40,), 150, options=CAUSAL),
    Case((0, 130), (200, 70), q_heads=8, options=CAUSAL),
    Case((700,), 16, q_heads=1, kv_heads=1),
    Case((2500, 10), 5, q_heads=3, kv_heads=1),
    # Groups of query heads.
    *(Case((37, 100), 8, q_heads=group, kv_heads=1) for group in (1, 3, 5, 6, 7, 16)),
    Case((50,), 10, q_heads=21, kv_heads=3),
    Case((50,), 32, q_heads=16, kv_heads=1),
    # Head sizes.
    *(Case((130, 9), 8, head_dim=dim) for dim in (8, 16, 40, 72, 80, 96, 120, 128, 192, 256)),
    # Pages and cache layouts.
    *(Case((70, 300), 8, page_size=size) for size in (1, 2, 4, 64, 128, 256)),
    *(Case((70, 33), 8, layout=layout) for layout in ("halves", "interleaved", "heads_first", "uneven")),
    Case((70, 33), 8, page_size=1, layout="heads_first"),
    # Windows: block < window < context, window < block, window > everything, ranges that skip pages and tiles.
    *(
        Case((500, 20, 0), 16, options={"window": window, "causal": causal})
        for window in (1, 7, 33, 100, 600)
        for causal in (False, True)
    ),
    Case((300,), 100, options={"window": 40, "causal": True}),
    Case((300,), 100, options={"window": 40}),
    # Logit transforms.
    Case((100, 3), 8, options={"softcap": 3.0}),
    Case((100, 3), 8, options={"softcap": 30.0, "scale": 1.5, "causal": True}),
    Case((100, 3), 8, options={"scale": -0.2}),
    Case((100, 3), 8, has_sinks=True),
    Case((900, 3), 8, has_sinks=True, options={"num_splits": 3, "softcap": 20.0, "window": 200}),
    # Splits: fewer keys than splits, uneven splits.
    *(Case((1000, 96, 0), (8, 3, 5), options={"num_splits": splits}) for splits in (1, 2, 5, 40)),
]
