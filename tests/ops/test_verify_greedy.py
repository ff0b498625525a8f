import pytest
import torch

import dflash_ops
from dflash_ops import reference
from tests.cases.verify import CASES, Case
from tests.ops.harness import DTYPES, ISAS, check_compiles, check_cuda_message, check_registration, cpu_isa


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_the_definition(case: Case, dtype: torch.dtype, isa: str) -> None:
    logits = case.logits(dtype)
    ids = reference.row_argmax(logits.flatten(0, 1).double())[0].view(logits.shape[:2])
    drafts = case.drafts_matching(ids)
    expected = reference.verify_greedy(drafts, target_ids=ids, draft_lens=case.draft_lens())
    with cpu_isa(isa):
        from_logits = dflash_ops.verify_greedy(drafts, target_logits=logits, draft_lens=case.draft_lens())
        from_ids = dflash_ops.verify_greedy(drafts, target_ids=ids, draft_lens=case.draft_lens())
    for actual in (from_logits, from_ids):
        for left, right in zip(actual, expected, strict=True):
            assert torch.equal(left, right)


@pytest.mark.parametrize("accepted", [0, 1, 2, 6, 7])
@pytest.mark.parametrize("batch", [1, 3, 5])
def test_few_requests_share_the_threads(batch: int, accepted: int) -> None:
    """Rows of one request are taken by several threads, more rows at a time the longer the run goes on."""
    logits = Case(batch, 7, 50).logits(torch.float32)
    ids = logits.argmax(-1)
    drafts = ids[:, :7].clone()
    drafts[-1, accepted:] += 1  # one request stops here, the others go on
    lens = torch.tensor([-1, 3, 7, 7, 7])[-batch:].int()
    expected = reference.verify_greedy(drafts, target_ids=ids, draft_lens=lens)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 4, 64):
            torch.set_num_threads(count)
            actual = dflash_ops.verify_greedy(drafts, target_logits=logits, draft_lens=lens)
            for left, right in zip(actual, expected, strict=True):
                assert torch.equal(left, right)
    finally:
        torch.set_num_threads(threads)


def test_counts_the_leading_run_only() -> None:
    target = torch.tensor([[5, 6, 7, 8], [5, 6, 7, 8], [5, 6, 7, 8]])
    drafts = torch.tensor([[9, 6, 7], [5, 6, 7], [5, 9, 7]])
    accepted, tokens, next_token = dflash_ops.verify_greedy(drafts, target_ids=target)
    assert accepted.tolist() == [0, 3, 1]  # the first draft token is verified like every other
    assert tokens.tolist() == [[5, -1, -1, -1], [5, 6, 7, 8], [5, 6, -1, -1]]
    assert next_token.tolist() == [5, 8, 6]


def test_special_logits() -> None:
    inf = float("inf")
    logits = torch.tensor([[[-inf, -inf, -inf], [1.0, 1.0, 0.0], [0.0, float("nan"), inf]]])
    _, tokens, _ = dflash_ops.verify_greedy(torch.tensor([[0, 0]]), target_logits=logits)
    assert tokens.tolist() == [[0, 0, 1]]


def test_idle_requests_and_strided_tensors() -> None:
    ids = torch.arange(24).view(3, 8)[:, ::1][:, :4]
    wide = torch.full((3, 9), -7)
    accepted = torch.full((3, 2), -7, dtype=torch.int32)
    lens = torch.tensor([3, -1, 1], dtype=torch.int32)
    dflash_ops.verify_greedy(
        ids[:, :3], target_ids=ids, draft_lens=lens, accepted=accepted[:, 1], tokens=wide[:, 2:6], next_token=wide[:, 8]
    )
    assert accepted.tolist() == [[-7, 3], [-7, 0], [-7, 1]]
    assert wide[:, 2:6].tolist() == [[0, 1, 2, 3], [-1] * 4, [16, 17, -1, -1]]
    assert wide[:, 8].tolist() == [3, -1, 17]
    assert (wide[:, [0, 1, 6, 7]] == -7).all()


def test_rows_past_the_draft_are_not_read() -> None:
    """NaN logits and wild draft ids past a request's draft length change nothing."""
    logits = torch.randn(3, 5, 40, generator=torch.Generator().manual_seed(3))
    lens = torch.tensor([2, 0, -1], dtype=torch.int32)
    drafts = logits[:, :4].argmax(-1)
    expected = reference.verify_greedy(drafts, target_logits=logits, draft_lens=lens)
    for row, length in enumerate(lens.tolist()):
        logits[row, length + 1 :] = torch.nan
        drafts[row, max(length, 0) :] = 2147480000
    actual = dflash_ops.verify_greedy(drafts, target_logits=logits, draft_lens=lens)
    for left, right in zip(actual, expected, strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target_ids": None}, "target_logits, target_ids: expected exactly one of them, got neither"),
        ({"target_logits": torch.zeros(2, 4, 5)}, "target_logits, target_ids: expected exactly one of them, got both"),
        ({"target_ids": torch.zeros(2, 3, dtype=torch.int64)}, r"target_ids: expected shape \[2, 4\]"),
        ({"target_ids": torch.zeros(2, 4)}, "target_ids: expected int64, got float32"),
        ({"draft_tokens": torch.zeros(2, 3, dtype=torch.int32)}, "draft_tokens: expected int64"),
        ({"draft_lens": torch.tensor([4, 0], dtype=torch.int32)}, r"draft_lens\[0\]: expected -1 \(idle\) to 3, got 4"),
        ({"draft_lens": torch.tensor([3, -2], dtype=torch.int32)}, r"draft_lens\[1\]: expected -1"),
        ({"accepted": torch.zeros(2, dtype=torch.int64)}, "accepted: expected int32"),
        ({"tokens": torch.zeros(2, 3, dtype=torch.int64)}, "tokens: expected shape"),
        ({"next_token": torch.zeros(1, dtype=torch.int64).expand(2)}, "next_token: expected an output without overlap"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, torch.Tensor | None], message: str) -> None:
    args = {
        "draft_tokens": torch.zeros(2, 3, dtype=torch.int64),
        "draft_lens": None,
        "target_logits": None,
        "target_ids": torch.zeros(2, 4, dtype=torch.int64),
        "accepted": torch.full((2,), 7, dtype=torch.int32),
        "tokens": torch.zeros(2, 4, dtype=torch.int64),
        "next_token": torch.zeros(2, dtype=torch.int64),
    } | change
    with pytest.raises(RuntimeError, match=f"verify_greedy: {message}"):
        torch.ops.dflash_ops.verify_greedy(*args.values())
    assert args["accepted"] is not None
    assert (args["accepted"] == (7 if "accepted" not in change else 0)).all()  # nothing was written


def test_registration() -> None:
    drafts, logits = torch.zeros(2, 3, dtype=torch.int64), torch.randn(2, 4, 9)
    outputs = (
        torch.zeros(2, dtype=torch.int32),
        torch.zeros(2, 4, dtype=torch.int64),
        torch.zeros(2, dtype=torch.int64),
    )
    check_registration("verify_greedy", (drafts, None, logits, None, *outputs))
    check_registration("verify_greedy", (drafts, torch.tensor([3, -1], dtype=torch.int32), logits, None, *outputs))
    check_cuda_message("verify_greedy", (drafts, None, logits, None, *outputs))
    check_compiles(lambda a, b: dflash_ops.verify_greedy(a, target_logits=b), drafts, logits)
