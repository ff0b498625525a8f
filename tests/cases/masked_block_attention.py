"""Cases of masked_block_attention, shared by tests and benchmarks."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.cases.traffic import Traffic


@dataclass(frozen=True)
class Case:
    mode: str
    context: int  # rows of the context, or of everything
    block_size: int = 1
    anchors: tuple[int, ...] = ()
    documents: tuple[int, ...] | None = None  # cu_seqlens
    causal: bool = False
    window: int = 0
    q_heads: int = 2
    kv_heads: int = 1
    head_dim: int = 32
    scale: float | None = None

    @property
    def queries(self) -> int:
        return len(self.anchors) * self.block_size if self.mode == "anchor" else self.context

    @property
    def keys(self) -> int:
        return self.context + self.queries if self.mode == "anchor" else self.context

    def options(self) -> dict[str, Any]:
        """Keyword arguments of the op."""
        return {
            "mode": self.mode,
            "block_size": self.block_size,
            "anchors": torch.tensor(self.anchors, dtype=torch.int32) if self.mode == "anchor" else None,
            "cu_seqlens": None if self.documents is None else torch.tensor(self.documents, dtype=torch.int32),
            "causal": self.causal,
            "window": self.window,
            "scale": self.scale,
        }

    def tensors(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(q, k, v, grad_out)."""
        generator = torch.Generator().manual_seed(0)

        def random(rows: int, heads: int) -> Tensor:
            return torch.randn(rows, heads, self.head_dim, generator=generator).to(dtype)

        return (
            random(self.queries, self.q_heads),
            random(self.keys, self.kv_heads),
            random(self.keys, self.kv_heads),
            random(self.queries, self.q_heads),
        )

    def least_traffic(self, dtype: torch.dtype) -> Traffic:
        """The context up to the last anchor and the blocks for each kv head, queries, results; every row of the other
        modes."""
        row = self.head_dim * dtype.itemsize
        seen = max(self.anchors, default=0) + self.queries if self.mode == "anchor" else self.keys
        indices = 4 * (len(self.anchors) + len(self.documents or ()))
        rows = self.queries * self.q_heads
        return Traffic(rows * row + 2 * seen * self.kv_heads * row + indices, rows * (row + 4))

    def least_backward_traffic(self, dtype: torch.dtype) -> Traffic:
        """Every input read and every gradient written once."""
        queries, keys = (
            rows * heads * self.head_dim * dtype.itemsize
            for rows, heads in ((self.queries, self.q_heads), (self.keys, self.kv_heads))
        )
        lse, indices = self.queries * self.q_heads * 4, 4 * (len(self.anchors) + len(self.documents or ()))
        return Traffic(3 * queries + 2 * keys + lse + indices, queries + 2 * keys)


def spread(count: int, context: int, seed: int = 0) -> tuple[int, ...]:
    """Random anchors, in no order, some of them equal."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, context + 1, (count,), generator=generator).tolist())


PADDED = (17, -1, 60, 3, 0, 61, -1, 128, 127, 30, 30)
PACKED = (0, 13, 61, 61, 120, 128)

CASES = [
    # Blocks: empty, single rows, unsorted and equal anchors, padding, anchors at a document's first and last row.
    Case("anchor", 0),
    Case("anchor", 9, 4),
    Case("anchor", 0, 4, (0, -1)),
    Case("anchor", 5, 1, (5, 0, 3)),
    Case("anchor", 128, 8, PADDED),
    Case("anchor", 128, 8, PADDED, documents=PACKED),
    Case("anchor", 140, 8, PADDED, documents=PACKED, causal=True),  # 12 rows belong to no document
    *(
        Case("anchor", 128, 6, PADDED, documents, causal, window)
        for documents in (None, PACKED)
        for causal in (False, True)
        for window in (1, 4, 11, 70, 500)
    ),
    Case("anchor", 300, 3, (10, 280, 150), window=5),  # contexts far apart
    Case("anchor", 40, 16, (-1, -1, -1)),
    Case("anchor", 210, 16, spread(9, 210), q_heads=4),
    # Blocks longer than a tile of rows, and of keys.
    Case("anchor", 100, 130, (50, 100, 7), q_heads=3, window=40),
    Case("anchor", 30, 100, (30, 12), q_heads=6, kv_heads=2, causal=True),
    # Groups of query heads, and head sizes.
    *(Case("anchor", 70, 8, spread(5, 70), q_heads=2 * group, kv_heads=2) for group in (1, 3, 4)),
    Case("anchor", 33, 5, spread(4, 33), q_heads=7),
    Case("anchor", 20, 3, spread(3, 20), q_heads=200),  # a group longer than a tile
    *(Case("anchor", 50, 5, spread(6, 50), head_dim=dim, q_heads=3) for dim in (8, 40, 64, 96, 128, 256)),
    Case("anchor", 64, 4, spread(8, 64), scale=-0.3),
    # Packed modes: documents (empty ones too, and rows behind the last) and windows.
    *(
        Case(mode, 140, block_size, documents=documents, window=window, q_heads=3)
        for mode, block_size in (("block_causal", 7), ("bidirectional", 1), ("causal", 1))
        for documents in (None, PACKED)
        for window in (0, 1, 9, 50)
    ),
    *(Case(mode, tokens, 4) for mode in ("block_causal", "bidirectional", "causal") for tokens in (0, 1, 5)),
    Case("block_causal", 230, 100, q_heads=4, kv_heads=2),
    Case("block_causal", 40, 300, documents=(0, 3, 40)),
    Case("causal", 450, q_heads=4, kv_heads=4, documents=(0, 300, 450)),
    Case("bidirectional", 60, documents=(0,)),  # no document at all
    *(Case("causal", 120, head_dim=dim, q_heads=4) for dim in (16, 64, 96, 128)),
]
