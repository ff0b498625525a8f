"""lm_head_argmax against linear and argmax."""

from collections.abc import Iterator
from functools import partial

import torch
from torch.nn import functional as F

import dflash_ops
from benchmarks.compare import Comparison, Maker
from tests.cases.lm_head_argmax import Case

# SmolLM2's whole head, which the drafter runs every round; a part of Qwen3-8B's (its 151,936 rows take 1.2 GB).
SHAPES = [Case(1, 576, 49152), Case(7, 576, 49152), Case(15, 4096, 32768)]


def comparisons() -> Iterator[Maker]:
    for case in SHAPES:
        for dtype in (torch.bfloat16, torch.float32):
            yield partial(comparison, case, dtype)


def comparison(case: Case, dtype: torch.dtype) -> Comparison:
    hidden, weight = case.operands(dtype)
    ids, values = torch.empty(case.rows, dtype=torch.int64), torch.empty(case.rows)
    size = dflash_ops.lm_head_argmax_workspace_size(case.rows, case.hidden_size, case.vocab_size, device=weight.device)
    workspace = torch.empty(size, dtype=torch.uint8)
    return Comparison(
        op="lm_head_argmax",
        shape=f"[{case.rows}, {case.hidden_size}] x [{case.vocab_size}, {case.hidden_size}]",
        dtype=str(dtype).removeprefix("torch."),
        ours=lambda: dflash_ops.lm_head_argmax(hidden, weight, ids=ids, values=values, workspace=workspace),
        plain={"linear_argmax": lambda: F.linear(hidden, weight).argmax(-1)},
        flops=2.0 * case.rows * weight.numel(),
        bytes=case.least_traffic(dtype).total,
    )
