"""norm_rope_qkv against the composition of rms_norm, chunk and cat."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

import dflash_ops
from benchmarks.compare import Comparison, Maker
from benchmarks.plain_rope import norm_rotate
from tests.cases.norm_rope_qkv import Case

SHAPES = [Case(16, 32, 8, 128), Case(8 * 16, 32, 8, 128), Case(8, 9, 3, 64)]


def comparisons() -> Iterator[Maker]:
    for case in SHAPES:
        for dtype in (torch.bfloat16, torch.float32):
            yield partial(comparison, case, dtype)


def comparison(case: Case, dtype: torch.dtype) -> Comparison:
    arguments = case.arguments(dtype, table_dtype=dtype)
    qkv, q_weight, k_weight = arguments["qkv"], arguments["q_norm_weight"], arguments["k_norm_weight"]
    table, positions = arguments["cos_sin"], arguments["positions"]
    outputs = [
        torch.empty(case.rows, heads, case.head_dim, dtype=dtype)
        for heads in (case.q_heads, case.kv_heads, case.kv_heads)
    ]
    q_out, k_out, v_out = outputs

    def composition() -> tuple[Tensor, Tensor, Tensor]:
        heads = qkv.view(case.rows, -1, case.head_dim)
        q, k, v = heads.split([case.q_heads, case.kv_heads, case.kv_heads], 1)
        cosines, sines = table[positions][:, None].chunk(2, -1)
        q = norm_rotate(q, q_weight, cosines, sines, 1e-6)
        k = norm_rotate(k, k_weight, cosines, sines, 1e-6)
        return q, k, v.contiguous()

    return Comparison(
        op="norm_rope_qkv",
        shape=f"{case.rows} rows, heads {case.q_heads}/{case.kv_heads}, dim {case.head_dim}",
        dtype=str(dtype).removeprefix("torch."),
        ours=lambda: dflash_ops.norm_rope_qkv(**arguments, q=q_out, k=k_out, v=v_out),
        plain={"composition": composition},
        bytes=case.least_traffic(dtype, table_dtype=dtype).total,
        targets={"composition": 1.3},
    )
