"""Cases of block_attention, shared by tests and benchmarks."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tests.cases.traffic import Traffic

GARBAGE_PAGE = 2147480000
POISONED_PAGES = 2  # the first and the last of the cache, in nobody's table


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
    if layout == "padded":  # K's strides differ from V's, vectors of 16 bytes still fit
        k = torch.empty(pages, page_size, heads + 1, dim + 8, dtype=dtype)
        v = torch.empty(pages, heads, page_size + 2, dim + 16, dtype=dtype)
        return k[:, :, :heads, :dim], v[:, :, :page_size, :dim].transpose(1, 2)
    if layout == "uneven":  # as padded, but they do not
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
    slack_rows: int = 0  # rows of NaN in q, k_block and v_block behind the last request's

    @property
    def blocks(self) -> tuple[int, ...]:
        """Rows of each request."""
        return (self.block,) * len(self.contexts) if isinstance(self.block, int) else self.block

    @property
    def group(self) -> int:
        """Query heads of a kv head."""
        return self.q_heads // self.kv_heads

    def visible(self, request: int) -> tuple[int, int]:
        """First and last-but-one position that any row of a request sees."""
        context, rows = self.contexts[request], self.blocks[request]
        window = self.options.get("window", 0)
        begin = max(0, context - window + 1) if window else 0
        return (begin, context + rows) if rows else (0, 0)

    def least_traffic(self, dtype: torch.dtype) -> Traffic:
        """Every row of K and V that a row sees once for each kv head, its table entries, queries, results."""
        row = self.head_dim * dtype.itemsize
        keys = entries = tokens = 0
        for request, context in enumerate(self.contexts):
            begin, end = self.visible(request)
            keys += end - begin
            entries += max(0, -(-min(context, end) // self.page_size) - begin // self.page_size)
            tokens += self.blocks[request]
        lengths = 4 * len(self.contexts) + (0 if isinstance(self.block, int) else 4 * len(self.contexts) + 4)
        sinks = 4 * self.q_heads if self.has_sinks else 0
        rows = tokens * self.q_heads
        return Traffic(
            loads=2 * keys * self.kv_heads * row + rows * row + 4 * entries + lengths + sinks,
            stores=rows * (row + 4),
        )

    def inputs(self, dtype: torch.dtype, *, poison: tuple[float, float] = (torch.nan, torch.nan)) -> dict[str, Any]:
        """Arguments of the op. Cache slots and pages that no request uses hold `poison` (K's, V's)."""
        generator = torch.Generator().manual_seed(0)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).to(dtype)

        batch = len(self.contexts)
        tokens = sum(self.blocks)
        used = [-(-context // self.page_size) for context in self.contexts]
        pages = sum(used) + POISONED_PAGES
        k_cache, v_cache = cache_pair(self.layout, pages, self.page_size, self.kv_heads, self.head_dim, dtype)
        k_cache.fill_(poison[0])
        v_cache.fill_(poison[1])
        page_table = torch.full((batch, max(used, default=0) + self.table_slack), GARBAGE_PAGE, dtype=torch.int32)
        order = 1 + torch.randperm(sum(used), generator=generator).int()
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
            cu_block_lens = torch.tensor([0, *self.blocks]).cumsum(0).int()

        def ragged(heads: int) -> Tensor:
            rows = random(tokens, heads, self.head_dim)
            return torch.cat([rows, torch.full((self.slack_rows, heads, self.head_dim), torch.nan, dtype=dtype)])

        return {
            "q": ragged(self.q_heads),
            "k_block": ragged(self.kv_heads),
            "v_block": ragged(self.kv_heads),
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


# What the CUDA kernel takes: 16-bit data, head sizes of whole tensor-core tiles. Small, so that the PTX interpreter gets
# through all of them; odd in at least two ways each.
TENSOR_CORE_CASES = [
    # Batch shapes and lengths around tiles of 32, 64 and 128 keys.
    Case((), 0, head_dim=128),
    Case((0,), 1, head_dim=128),
    Case((0, 0), (0, 0)),
    Case((1,), 1, q_heads=3, kv_heads=3, head_dim=96),
    Case((0, 5, 0), (3, 0, 8), head_dim=128, slack_rows=3),
    Case((31, 32, 33, 63, 64, 65), 4, q_heads=2, kv_heads=1),
    Case((127, 0, 128, 129), (15, 16, 1, 2), q_heads=2, kv_heads=2, head_dim=128, options=CAUSAL, slack_rows=5),
    Case((48, 49, 60, 112), (16, 15, 4, 16), q_heads=4, kv_heads=1, head_dim=128),  # the block ends with a tile
    Case((1, 2, 3), (1, 2, 3), q_heads=1, kv_heads=1, head_dim=256),
    Case(  # more requests than a warp has lanes
        tuple(7 * i % 20 for i in range(70)),
        tuple((2, 0, 1)[i % 3] for i in range(70)),
        q_heads=1,
        kv_heads=1,
        options=CAUSAL,
    ),
    # Groups of query heads, over head sizes, page sizes and block sizes.
    Case((37, 100), 16, q_heads=1, kv_heads=1, head_dim=128, options=CAUSAL),
    Case((16, 15), (7, 16), q_heads=2, kv_heads=1, head_dim=256),
    Case((70, 3), 10, q_heads=6, kv_heads=2, head_dim=96, page_size=2),
    Case((130,), 16, q_heads=8, kv_heads=2, head_dim=128, page_size=64, layout="heads_first"),
    Case((50, 9), 13, q_heads=5, kv_heads=1, page_size=1, options=CAUSAL),
    Case((50, 0), (11, 16), q_heads=12, kv_heads=2, head_dim=128, layout="halves"),
    Case((77,), 10, q_heads=21, kv_heads=3, head_dim=64, layout="interleaved"),
    Case((65, 40), (16, 5), q_heads=7, kv_heads=1, head_dim=128, options=CAUSAL),
    Case((66,), 8, q_heads=16, kv_heads=2, head_dim=256, page_size=4),
    Case((90, 17), (16, 3), q_heads=16, kv_heads=1, head_dim=128),  # 256 rows share a kv head
    Case((20,), 16, q_heads=16, kv_heads=1, head_dim=96, options=CAUSAL),
    Case((33,), 11, q_heads=9, kv_heads=1),
    Case((45,), 9, q_heads=26, kv_heads=2, head_dim=64, options=CAUSAL),  # a group of 13
    # Pages: contexts around one page, and layouts of every engine.
    *(
        Case((size - 1, size, size + 1), (5, 16, 1), head_dim=dim, page_size=size, layout=layout)
        for size, dim, layout in (
            (1, 128, "separate"),
            (2, 64, "heads_first"),
            (16, 256, "halves"),
            (64, 96, "interleaved"),
            (128, 64, "padded"),
            (256, 128, "heads_first"),
        )
    ),
    Case((70, 33), 8, page_size=1, layout="halves"),
    Case((70, 33), 8, page_size=1, layout="padded", head_dim=128, options=CAUSAL),
    Case((70, 133), (8, 3), page_size=8, layout="padded", head_dim=96),
    Case((19, 70), 8, page_size=32, layout="interleaved", head_dim=256, q_heads=2),
    Case((300,), 16, page_size=256, head_dim=64, table_slack=0),
    Case((0, 260), (16, 9), page_size=256, head_dim=128, table_slack=0, options=CAUSAL),
    Case((64,), 8, page_size=64, head_dim=96, table_slack=0),
    # Windows: less than a block, within the context, across pages, more than everything; each row has its own bound.
    *(
        Case(
            (200, 20, 0),
            (16, 5, 16),
            q_heads=q_heads,
            kv_heads=1,
            head_dim=dim,
            page_size=size,
            options={"window": window, "causal": causal},
        )
        for window, q_heads, dim, size in (
            (1, 2, 64, 16),
            (7, 4, 128, 8),
            (33, 5, 128, 16),
            (100, 1, 96, 1),
            (500, 3, 64, 64),
        )
        for causal in (False, True)
    ),
    Case((100, 7), (70, 33), options={"window": 20, "causal": True}),
    Case((100, 7), (70, 33), head_dim=128, options={"window": 20}),
    # Logit transforms.
    Case((100, 3), 8, options={"softcap": 3.0}),
    Case((100, 3), 8, head_dim=128, options={"softcap": 30.0, "scale": 1.5, "causal": True}),
    Case((100, 3), 8, head_dim=96, options={"scale": -0.2}),
    Case((100, 3), (8, 16), head_dim=256, has_sinks=True, q_heads=6),
    Case((150, 0), (3, 16), head_dim=128, has_sinks=True, options={"softcap": 20.0, "window": 40, "causal": True}),
    Case((300, 3), 8, has_sinks=True, options={"num_splits": 3, "softcap": 20.0, "window": 200}),
    # Long blocks: prefill and verification, more rows than one tile of queries.
    Case((0,), 150, q_heads=2, kv_heads=1, options=CAUSAL),
    Case((37,), 70, q_heads=8, kv_heads=2, head_dim=128, options=CAUSAL),
    Case((20, 90, 0), (200, 33, 64), q_heads=3, kv_heads=1, options=CAUSAL, slack_rows=2),
    Case((30,), 80, q_heads=4, kv_heads=1, head_dim=128),
    Case((5,), 40, q_heads=5, kv_heads=1, head_dim=256, options=CAUSAL),
    Case((9,), 129, q_heads=1, kv_heads=1, head_dim=96, page_size=4, options=CAUSAL | {"num_splits": 2}),
    Case((100,), 300, q_heads=1, kv_heads=1, page_size=64, options=CAUSAL | {"window": 64}),
    # Splits: fewer keys than splits, uneven ones, splits of which some rows see nothing.
    *(
        Case((300, 64, 0), (8, 3, 5), head_dim=dim, options={"num_splits": splits})
        for splits, dim in ((1, 64), (2, 128), (3, 256), (5, 96), (40, 64))
    ),
    Case((400, 17), (16, 2), q_heads=5, kv_heads=1, head_dim=128, page_size=1, options=CAUSAL | {"num_splits": 4}),
    Case((300,), 16, q_heads=2, kv_heads=1, options=CAUSAL | {"num_splits": 5, "window": 40}),
    Case((300,), 16, q_heads=2, kv_heads=1, options={"num_splits": 3, "window": 90}),
    Case((70,), 100, q_heads=2, kv_heads=1, head_dim=128, has_sinks=True, options=CAUSAL | {"num_splits": 3}),
    Case((20, 0), (260, 100), 1, 1, 128, options=CAUSAL | {"num_splits": 40, "window": 50}),
    Case((520, 260), (3, 4), q_heads=2, kv_heads=1, head_dim=128, has_sinks=True, options={"num_splits": 12}),
    Case((700,), 4, q_heads=4, kv_heads=1, head_dim=128),
    Case((900, 5), (2, 16), q_heads=2, kv_heads=2, layout="heads_first", options=CAUSAL),
]
