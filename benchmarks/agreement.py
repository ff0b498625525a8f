"""Whether a composition computes what our op does, on the same inputs: no ratio of times means much otherwise."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.compare import Comparison

AGREES = "agrees"
# Relative error in the Frobenius norm: compositions round between their steps, ours do not.
TOLERANCES = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}
UNEQUAL_INTEGERS = 0.15  # rounded logits tie, and a tie goes either way


def tensors_of(result: object) -> list[Tensor]:
    """The tensors of a result, in order."""
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, (tuple, list)):
        return [tensor for part in result for tensor in tensors_of(part)]
    return []


def difference(expected: Tensor, found: Tensor, *, only_written: bool = False) -> str | None:
    """What is wrong with `found`, or None. `only_written`: its NaNs are elements that nobody wrote."""
    if expected.shape != found.shape:
        return f"shape {list(found.shape)}, ours {list(expected.shape)}"
    if not expected.dtype.is_floating_point:
        unequal = float((expected.long() != found.long()).double().mean()) if expected.numel() else 0.0
        return f"{unequal:.0%} of the integers differ" if unequal > UNEQUAL_INTEGERS else None
    tolerance = max(TOLERANCES[dtype] for dtype in (expected.dtype, found.dtype))
    written = ~found.isnan() if only_written else torch.ones_like(found, dtype=torch.bool)
    if not bool(written.any()):
        return "wrote nothing"
    a, b = expected[written].double(), found[written].double()
    error = float((a - b).norm() / a.norm().clamp(min=1e-30))
    return None if error <= tolerance else f"relative error {error:.1e}"


def check(comparison: Comparison) -> tuple[dict[str, str], dict[str, str]]:
    """(verdict of every composition that ran and means to compute the same: AGREES or how its result differs; why others
    did not run)."""
    results = tensors_of(comparison.ours())
    expected = [tensor.detach().clone() for tensor in results]
    verdicts: dict[str, str] = {}
    failed: dict[str, str] = {}
    for name, run in comparison.plain.items():
        # A composition may write where ours did: what it leaves alone must not pass for its result.
        for tensor in results:
            if tensor.dtype.is_floating_point:
                tensor.detach().fill_(torch.nan)
        try:
            found = tensors_of(run())
        except (
            Exception
        ) as error:  # other libraries raise what they like; the op's own measurement goes on without them
            failed[name] = f"{type(error).__name__}: {error}".partition("\n")[0]
            continue
        shared = {tensor.data_ptr() for tensor in results}
        problems = [
            problem
            for ours, theirs in zip(expected, found, strict=False)  # some return a part of ours
            if (problem := difference(ours, theirs.detach(), only_written=theirs.data_ptr() in shared))
        ]
        if name not in comparison.other_results:
            verdicts[name] = "; ".join(problems) if problems else (AGREES if found else "returned no tensor")
    return verdicts, failed
