"""verify_greedy against argmax over all rows, then compare, count and gather.

`all accepted` is the op's worst case: every row has to be read. A round that rejects early reads fewer.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

import dflash_ops
from benchmarks.compare import Comparison, Maker
from tests.cases.verify import Case

CASES = [  # case, accepted drafts of every request, target over the composition by dtype
    (Case(8, 15, 151936), 15, {torch.bfloat16: 8.0, torch.float32: 3.0}),
    (Case(8, 15, 151936), 4, {}),
    (Case(1, 15, 151936), 15, {}),
    (Case(8, 7, 49152), 7, {}),  # SmolLM2-135M
]


def verify_outputs(case: Case) -> dict[str, Tensor]:
    return {
        "accepted": torch.empty(case.batch, dtype=torch.int32),
        "tokens": torch.empty(case.batch, case.drafts + 1, dtype=torch.int64),
        "next_token": torch.empty(case.batch, dtype=torch.int64),
    }


def accept(drafts: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The matching half in torch: ids [b, n+1] are the target's choices."""
    accepted = (drafts == ids[:, :-1]).long().cumprod(1).sum(1)
    tokens = ids.masked_fill(torch.arange(ids.shape[1], device=ids.device) > accepted[:, None], -1)
    return accepted, tokens, ids.gather(1, accepted[:, None]).squeeze(1)


def compositions(drafts: Tensor, logits: Tensor) -> dict[str, Callable[[], object]]:
    plain: dict[str, Callable[[], object]] = {"argmax_compare": lambda: accept(drafts, logits.argmax(-1))}
    if logits.dtype != torch.float32:
        plain["float_argmax_compare"] = lambda: accept(drafts, logits.float().argmax(-1))
    return plain


def comparisons() -> Iterator[Maker]:
    for case, accepted, targets in CASES:
        for dtype in (torch.bfloat16, torch.float32):
            yield partial(comparison, case, accepted, targets.get(dtype), dtype)


def comparison(case: Case, accepted: int, target: float | None, dtype: torch.dtype) -> Comparison:
    logits = case.logits(dtype)
    drafts = dflash_ops.row_argmax(logits.flatten(0, 1))[0].view(case.batch, -1)[:, : case.drafts].clone()
    if accepted < case.drafts:
        drafts[:, accepted] = (drafts[:, accepted] + 1) % case.vocabulary
    outputs = verify_outputs(case)
    read = Case(case.batch, accepted, case.vocabulary)  # the rows up to the first that differs
    return Comparison(
        op="verify_greedy",
        shape=f"[{case.batch}, {case.drafts + 1}, {case.vocabulary}], {accepted} of {case.drafts} accepted",
        dtype=str(dtype).removeprefix("torch."),
        ours=lambda: dflash_ops.verify_greedy(drafts, target_logits=logits, **outputs),
        plain=compositions(drafts, logits),
        bytes=read.least_traffic(dtype).total,
        targets={} if target is None else {"argmax_compare": target},
    )
