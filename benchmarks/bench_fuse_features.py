"""fuse_features against concatenation, linear and RMS norm."""

from collections.abc import Iterator
from functools import partial

import torch
from torch.nn import functional as F

import dflash_ops
from benchmarks.compare import Comparison, Maker
from tests.cases.fuse_features import Case

SHAPES = [Case(rows, 5, 4096, 4096) for rows in (1, 16)] + [Case(rows, 3, 576, 576) for rows in (1, 8, 512)]


def comparisons() -> Iterator[Maker]:
    for case in SHAPES:
        for dtype in (torch.bfloat16, torch.float32):
            yield partial(comparison, case, dtype)


def comparison(case: Case, dtype: torch.dtype) -> Comparison:
    arguments = case.arguments(dtype)
    states, weight, norm_weight = arguments["hidden_states"], arguments["weight"], arguments["norm_weight"]
    out = torch.empty(case.rows, case.columns, dtype=dtype)
    size = dflash_ops.fuse_features_workspace_size(
        case.rows, case.taps, case.tap_columns, case.columns, device=weight.device
    )
    workspace = torch.empty(size, dtype=torch.uint8)

    def cat_linear_norm() -> torch.Tensor:
        return F.rms_norm(F.linear(torch.cat(states, 1), weight), (case.columns,), norm_weight, 1e-6)

    return Comparison(
        op="fuse_features",
        shape=f"[{case.rows}, {case.taps}*{case.tap_columns}] -> {case.columns}",
        dtype=str(dtype).removeprefix("torch."),
        ours=lambda: dflash_ops.fuse_features(states, weight, norm_weight, out=out, workspace=workspace),
        plain={"cat_linear_norm": cat_linear_norm},
        flops=2.0 * case.rows * weight.numel(),
        bytes=case.least_traffic(dtype).total,
    )
