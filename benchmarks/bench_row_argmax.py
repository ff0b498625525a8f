"""row_argmax against torch.argmax."""

from collections.abc import Iterator
from functools import partial

import torch

import dflash_ops
from benchmarks.compare import Comparison, Maker
from tests.cases.row_argmax import Case


def comparisons() -> Iterator[Maker]:
    for dtype in (torch.bfloat16, torch.float32):
        yield partial(comparison, Case(8 * 16, 151936), dtype)


def comparison(case: Case, dtype: torch.dtype) -> Comparison:
    logits = case.logits(dtype)
    ids, values = torch.empty(case.rows, dtype=torch.int64), torch.empty(case.rows)
    return Comparison(
        op="row_argmax",
        shape=f"[{case.rows}, {case.columns}]",
        dtype=str(dtype).removeprefix("torch."),
        ours=lambda: dflash_ops.row_argmax(logits, ids=ids, values=values),
        plain={"argmax": lambda: logits.argmax(-1)},
        bytes=case.least_traffic(dtype).total,
    )
