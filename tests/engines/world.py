"""Requests whose K and V are known by position, and numpy's idea of where other engines store them.

The storages are written as those engines' own code does it, one token at a time and by index, so that a wrong stride or
table in an adapter meets values of another token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

KV_HEADS, Q_HEADS, HEAD_DIM = 2, 4, 16
CONTEXTS = (37, 0, 5, 64)  # tokens in the cache
NEW = (3, 6, 1, 2)  # tokens of this forward


@dataclass
class World:
    """K and V of every request by position, the forward's queries, and which page holds which part of a request."""

    page_size: int
    k: list[np.ndarray]  # [length, KV_HEADS, HEAD_DIM] each
    v: list[np.ndarray]
    q: np.ndarray  # [tokens, Q_HEADS, HEAD_DIM]
    pages: list[np.ndarray]  # of each request, in order; page 0 is nobody's
    num_pages: int

    def slot(self, request: int, position: int) -> int:
        return int(self.pages[request][position // self.page_size]) * self.page_size + position % self.page_size

    def new_slots(self) -> np.ndarray:
        return np.array([self.slot(r, CONTEXTS[r] + i) for r, new in enumerate(NEW) for i in range(new)], np.int64)

    def new_kv(self) -> tuple[Tensor, Tensor]:
        """K and V of the new tokens, packed."""
        parts = [[side[r][CONTEXTS[r] :] for r in range(len(NEW))] for side in (self.k, self.v)]
        k, v = (torch.from_numpy(np.concatenate(part)) for part in parts)
        return k, v


def make_world(page_size: int, seed: int = 0) -> World:
    generator = np.random.default_rng(seed)
    lengths = [context + new for context, new in zip(CONTEXTS, NEW, strict=True)]
    needed = [-(-length // page_size) for length in lengths]
    order = 1 + generator.permutation(sum(needed) + 3)
    pages = np.split(order, np.cumsum(needed))[: len(needed)]

    def random(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape).astype(np.float32)

    return World(
        page_size,
        k=[random(length, KV_HEADS, HEAD_DIM) for length in lengths],
        v=[random(length, KV_HEADS, HEAD_DIM) for length in lengths],
        q=random(sum(NEW), Q_HEADS, HEAD_DIM),
        pages=pages,
        num_pages=sum(needed) + 4,
    )


def expected_attention(world: World, causal: bool, window: int = 0) -> np.ndarray:
    """Softmax attention of each new token in float64, by loops."""
    out, row = np.zeros(world.q.shape), 0
    for request, (context, new) in enumerate(zip(CONTEXTS, NEW, strict=True)):
        positions = np.arange(context + new)
        for at in range(context, context + new):
            seen = positions <= at if causal else np.ones_like(positions, dtype=bool)
            if window:
                seen &= np.abs(positions - at) < window
            for head in range(Q_HEADS):
                kv_head = head // (Q_HEADS // KV_HEADS)
                keys = world.k[request][seen, kv_head].astype(np.float64)
                logits = keys @ world.q[row, head].astype(np.float64) / np.sqrt(HEAD_DIM)
                weights = np.exp(logits - logits.max())
                out[row, head] = weights / weights.sum() @ world.v[request][seen, kv_head]
            row += 1
    return out


def check(out: Tensor, expected: np.ndarray) -> None:
    torch.testing.assert_close(out.double(), torch.from_numpy(expected), atol=2e-5, rtol=2e-5)
