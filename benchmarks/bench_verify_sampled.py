"""verify_sampled against the usual torch samplers over all rows, then compare, count and gather.

All drafts are what the op draws, so that every row has to be read. The compositions draw with their own random numbers,
which costs them their matching drafts but no time.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

import dflash_ops
from benchmarks.bench_verify_greedy import accept, verify_outputs
from benchmarks.compare import Comparison, Maker
from tests.cases.verify import Case

CASE = Case(2, 7, 151936)
SAMPLINGS = [(1.0, 0, 1.0), (0.7, 50, 1.0), (1.0, 0, 0.95), (0.7, 50, 0.95)]  # temperature, top_k, top_p


def probabilities(logits: Tensor, temperature: float, top_k: int, top_p: float) -> tuple[Tensor, Tensor | None]:
    """(probabilities [rows, k], ids [rows, k]; None: ids are the columns)."""
    scaled = logits.float() / temperature
    if top_k == 0 and top_p == 1:
        return scaled.softmax(-1), None
    values, ids = scaled.topk(top_k, -1) if top_k else scaled.sort(-1, descending=True)
    weights = values.softmax(-1)
    if top_p < 1:
        weights = weights.masked_fill(weights.cumsum(-1) - weights >= top_p, 0)
    return weights, ids


def compositions(drafts: Tensor, logits: Tensor, sampling: tuple[float, int, float]) -> dict[str, Callable[[], object]]:
    rows = logits.flatten(0, 1)

    def finish(place: Tensor, ids: Tensor | None) -> object:
        choice = place if ids is None else ids.gather(1, place)
        return accept(drafts, choice.view(logits.shape[:2]))

    def multinomial() -> object:
        weights, ids = probabilities(rows, *sampling)
        return finish(torch.multinomial(weights, 1), ids)

    def inverse_cdf() -> object:
        weights, ids = probabilities(rows, *sampling)
        cumulative = weights.cumsum(-1)
        wanted = torch.rand(len(rows), 1, device=rows.device) * cumulative[:, -1:]
        return finish(torch.searchsorted(cumulative, wanted, right=True).clamp(max=weights.shape[1] - 1), ids)

    return {"multinomial": multinomial, "inverse_cdf": inverse_cdf}


def comparisons() -> Iterator[Maker]:
    for sampling in SAMPLINGS:
        for dtype in (torch.bfloat16, torch.float32):
            yield partial(comparison, sampling, dtype)


def comparison(sampling: tuple[float, int, float], dtype: torch.dtype) -> Comparison:
    batch = CASE.batch
    logits = CASE.logits(dtype)
    options = {
        "temperature": torch.full((batch,), sampling[0]),
        "top_k": torch.full((batch,), sampling[1], dtype=torch.int32),
        "top_p": torch.full((batch,), sampling[2]),
        "seed": torch.arange(batch),
    }
    drafts = torch.empty(batch, CASE.drafts, dtype=torch.int64)
    for row in range(CASE.drafts):
        offset = torch.full((batch,), row)
        drafts[:, row] = dflash_ops.verify_sampled(
            drafts[:, :0], target_logits=logits[:, row : row + 1], offset=offset, **options
        )[2]
    outputs = verify_outputs(CASE)
    offset = torch.zeros(batch, dtype=torch.int64)

    def ours() -> object:
        offset.zero_()
        return dflash_ops.verify_sampled(drafts, target_logits=logits, offset=offset, **options, **outputs)

    plain = compositions(drafts, logits, sampling)
    return Comparison(
        op="verify_sampled",
        shape=f"[{batch}, {CASE.drafts + 1}, {CASE.vocabulary}], temperature {sampling[0]}, "
        f"top_k {sampling[1]}, top_p {sampling[2]}",
        dtype=str(dtype).removeprefix("torch."),
        ours=ours,
        plain=plain,
        bytes=CASE.least_traffic(dtype, sampled=True).total,
        other_results=dict.fromkeys(plain, "draws its own random numbers"),
    )
