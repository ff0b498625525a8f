"""write_context_kv against rms_norm, rotation and index_copy_ into every layer's cache."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

import dflash_ops
from benchmarks.compare import Comparison, Maker
from benchmarks.plain_rope import norm_rotate
from tests.cases.write_context_kv import Case

SHAPES = [Case(rows, 5, 8, 128) for rows in (1, 16, 64)]


def plain_write(
    kv: Tensor,
    weight: Tensor,
    table: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_caches: Sequence[Tensor],
    v_caches: Sequence[Tensor],
) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """The composition of one norm and rotation for all layers, then two index_copy_ a layer."""
    k, v = kv.unbind(2)
    cosines, sines = table[positions][:, None, None].chunk(2, -1)
    k = norm_rotate(k, weight[:, None], cosines, sines, 1e-6)
    for layer, (k_cache, v_cache) in enumerate(zip(k_caches, v_caches, strict=True)):
        k_cache.flatten(0, 1).index_copy_(0, slots, k[:, layer])
        v_cache.flatten(0, 1).index_copy_(0, slots, v[:, layer])
    return k_caches, v_caches


def comparisons() -> Iterator[Maker]:
    for case in SHAPES:
        for dtype in (torch.bfloat16, torch.float32):
            yield partial(comparison, case, dtype)


def comparison(case: Case, dtype: torch.dtype) -> Comparison:
    arguments = case.arguments(dtype, table_dtype=dtype)
    k_caches, v_caches = case.caches(dtype)
    kv, weight, table = arguments["kv"], arguments["k_norm_weight"], arguments["cos_sin"]
    positions, slots = arguments["positions"], arguments["slot_mapping"]

    def ours() -> tuple[list[Tensor], list[Tensor]]:
        dflash_ops.write_context_kv(**arguments, k_caches=k_caches, v_caches=v_caches)
        return k_caches, v_caches

    return Comparison(
        op="write_context_kv",
        shape=f"{case.rows} rows, {case.layers} layers, {case.kv_heads} heads, dim {case.head_dim}",
        dtype=str(dtype).removeprefix("torch."),
        ours=ours,
        plain={"composition": lambda: plain_write(kv, weight, table, positions, slots, k_caches, v_caches)},
        bytes=case.least_traffic(dtype, table_dtype=dtype).total,
    )
