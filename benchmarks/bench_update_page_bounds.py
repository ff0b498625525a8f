"""update_page_bounds against torch's amin and amax over the touched pages."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

import dflash_ops
from benchmarks.compare import Comparison, Maker
from tests.cases.update_page_bounds import Case

# A round's rows in the middle of two pages, and a prompt.
SHAPES = [Case((1000,), (16,), layers=5, kv_heads=8, head_dim=128), Case((0,), (2048,), 5, 8, 128)]


def comparisons() -> Iterator[Maker]:
    for case in SHAPES:
        for dtype in (torch.bfloat16, torch.float32):
            yield partial(comparison, case, dtype)


def comparison(case: Case, dtype: torch.dtype) -> Comparison:
    arguments = case.arguments(dtype)
    caches, bounds = arguments["k_caches"], arguments["k_bounds"]
    pages = (arguments["slot_mapping"] // case.page_size).unique()

    def whole_pages() -> list[Tensor]:
        """The pages are known beforehand and taken to be full, which the last one is not."""
        for cache, kept in zip(caches, bounds, strict=True):
            rows = cache[pages]
            kept[pages] = torch.stack([rows.amin(1), rows.amax(1)], dim=2)
        return bounds

    def ours() -> list[Tensor]:
        dflash_ops.update_page_bounds(**arguments)
        return bounds

    return Comparison(
        op="update_page_bounds",
        shape=f"{case.rows[0]} rows, {case.layers} layers, {case.kv_heads} heads, dim {case.head_dim}, page 16",
        dtype=str(dtype).removeprefix("torch."),
        ours=ours,
        plain={"amin_amax": whole_pages},
        bytes=case.least_traffic(dtype).total,
    )
