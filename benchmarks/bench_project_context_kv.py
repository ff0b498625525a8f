"""project_context_kv against linear and the composition of bench_write_context_kv."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

import dflash_ops
from benchmarks.bench_write_context_kv import plain_write
from benchmarks.compare import Comparison, Maker
from tests.cases import write_context_kv
from tests.cases.project_context_kv import Case

# Qwen3-8B's drafter, and the one for SmolLM2.
SHAPES = [Case(4096, write_context_kv.Case(rows, 5, 8, 128)) for rows in (1, 8, 16, 64)]
SHAPES += [Case(576, write_context_kv.Case(rows, 2, 3, 64)) for rows in (1, 8, 512)]

Caches = tuple[Sequence[Tensor], Sequence[Tensor]]


def comparisons() -> Iterator[Maker]:
    for case in SHAPES:
        for dtype in (torch.bfloat16, torch.float32):
            yield partial(comparison, case, dtype)


def comparison(case: Case, dtype: torch.dtype) -> Comparison:
    arguments = case.arguments(dtype, table_dtype=dtype)
    features, weight = arguments["features"], arguments["kv_weight"]
    k_caches, v_caches = case.write.caches(dtype)
    columns = weight.shape[:2].numel()
    size = dflash_ops.project_context_kv_workspace_size(
        case.write.rows, case.hidden_size, columns, device=weight.device
    )
    workspace = torch.empty(size, dtype=torch.uint8)
    norm_weight, table = arguments["k_norm_weight"], arguments["cos_sin"]
    positions, slots = arguments["positions"], arguments["slot_mapping"]

    def composition() -> Caches:
        kv = F.linear(features, weight.flatten(0, 1))
        kv = kv.view(-1, case.write.layers, 2, case.write.kv_heads, case.write.head_dim)
        return plain_write(kv, norm_weight, table, positions, slots, k_caches, v_caches)

    def ours() -> Caches:
        dflash_ops.project_context_kv(**arguments, k_caches=k_caches, v_caches=v_caches, workspace=workspace)
        return k_caches, v_caches

    return Comparison(
        op="project_context_kv",
        shape=f"[{case.write.rows}, {case.hidden_size}] -> {case.write.layers} layers of {weight.shape[1]}",
        dtype=str(dtype).removeprefix("torch."),
        ours=ours,
        plain={"composition": composition},
        flops=2.0 * case.write.rows * weight.numel(),
        bytes=case.least_traffic(dtype).total,
        targets={"composition": 1.3},
    )
