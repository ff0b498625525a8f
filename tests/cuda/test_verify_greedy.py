"""verify_greedy's kernels on the PTX interpreter."""

import pytest
import torch

from dflash_ops import reference
from tests.cases.verify import CASES, Case
from tests.cuda.gpu import COUNTER_BYTES, GPUS, Gpu, sparse_elements
from tests.cuda.simulated_ops import verify_greedy
from tests.ops.harness import DTYPES
from tests.ptxsim import assert_count


@pytest.mark.parametrize("gpu", GPUS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_the_definition(case: Case, dtype: torch.dtype, gpu: Gpu) -> None:
    logits = case.logits(dtype)
    ids = reference.row_argmax(logits.flatten(0, 1).double())[0].view(logits.shape[:2])
    drafts = case.drafts_matching(ids)
    expected = reference.verify_greedy(drafts, target_ids=ids, draft_lens=case.draft_lens())
    from_logits = verify_greedy(gpu, drafts, target_logits=logits, draft_lens=case.draft_lens())
    from_ids = verify_greedy(gpu, drafts, target_ids=ids, draft_lens=case.draft_lens())
    for actual in (from_logits, from_ids):
        for left, right in zip(actual, expected, strict=True):
            assert torch.equal(left, right)


@pytest.mark.parametrize("accepted", [0, 1, 31, 32, 33, 63, 64, 69, 70])
def test_long_blocks(accepted: int) -> None:
    """More drafts than a warp has lanes: the run may end in any group of 32, or nowhere."""
    ids = torch.randint(0, 5, (2, 71), generator=torch.Generator().manual_seed(accepted))
    drafts = ids[:, :70].clone()
    drafts[:, accepted:] += 1
    actual = verify_greedy(Gpu(), drafts, target_ids=ids)
    for left, right in zip(actual, reference.verify_greedy(drafts, target_ids=ids), strict=True):
        assert torch.equal(left, right)


def test_special_logits() -> None:
    inf = float("inf")
    logits = torch.tensor([[[-inf, -inf, -inf], [1.0, 1.0, 0.0], [0.0, float("nan"), inf]]])
    _, tokens, _ = verify_greedy(Gpu(), torch.tensor([[0, 0]]), target_logits=logits)
    assert tokens.tolist() == [[0, 0, 1]]


def test_idle_requests_and_strided_tensors() -> None:
    ids = torch.arange(24).view(3, 8)[:, :4]
    logits = torch.nn.functional.one_hot(ids, 24).float()
    lens = torch.tensor([3, -1, 1], dtype=torch.int32)
    for target in ({"target_ids": ids}, {"target_logits": logits}):
        wide = torch.full((3, 9), -7)
        accepted = torch.full((3, 2), -7, dtype=torch.int32)
        outputs = {"accepted": accepted[:, 1], "tokens": wide[:, 2:6], "next_token": wide[:, 8]}
        verify_greedy(Gpu(), ids[:, :3], draft_lens=lens, **target, **outputs)
        assert accepted.tolist() == [[-7, 3], [-7, 0], [-7, 1]]
        assert wide[:, 2:6].tolist() == [[0, 1, 2, 3], [-1] * 4, [16, 17, -1, -1]]
        assert wide[:, 8].tolist() == [3, -1, 17]
        assert (wide[:, [0, 1, 6, 7]] == -7).all()


def test_rows_past_the_draft_are_not_read() -> None:
    """NaN logits and wild draft ids past a request's draft length change nothing, and their bytes are not loaded."""
    logits = torch.randn(3, 5, 40, generator=torch.Generator().manual_seed(3))
    lens = torch.tensor([2, 0, -1], dtype=torch.int32)
    drafts = logits[:, :4].argmax(-1)
    expected = reference.verify_greedy(drafts, target_logits=logits, draft_lens=lens)
    for row, length in enumerate(lens.tolist()):
        logits[row, length + 1 :] = torch.nan
        drafts[row, max(length, 0) :] = 2147480000
    gpu = Gpu()
    actual = verify_greedy(gpu, drafts, target_logits=logits, draft_lens=lens)
    for left, right in zip(actual, expected, strict=True):
        assert torch.equal(left, right)
    rows_read = 4
    lookups = rows_read * 16  # the winning chunk of each row once more
    assert_count("bytes of logits", gpu.traffic("logits").load_bytes, rows_read * 40 * 4 + lookups)


@pytest.mark.parametrize("strides", [(2**31, 30), (30, 2**31)])
def test_logits_of_more_than_2_31_elements(strides: tuple[int, int]) -> None:
    logits = sparse_elements(sum(strides) + 30, torch.bfloat16).as_strided((2, 2, 30), (*strides, 1))
    logits.copy_(torch.randn(2, 2, 30, generator=torch.Generator().manual_seed(1)))
    ids = logits.argmax(-1)
    expected = reference.verify_greedy(ids[:, :1], target_ids=ids)
    for left, right in zip(verify_greedy(Gpu(), ids[:, :1], target_logits=logits), expected, strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize(("length", "counts_as"), [(5, 4), (2**31 - 1, 4), (-2, -1), (-(2**31), -1)])
def test_a_draft_length_out_of_range_stays_inside(length: int, counts_as: int) -> None:
    logits = torch.randn(1, 5, 40, generator=torch.Generator().manual_seed(3))
    drafts = logits[:, :4].argmax(-1)
    expected = reference.verify_greedy(drafts, target_logits=logits, draft_lens=torch.tensor([counts_as]))
    actual = verify_greedy(Gpu(), drafts, target_logits=logits, draft_lens=torch.tensor([length]).int())
    for left, right in zip(actual, expected, strict=True):
        assert torch.equal(left, right)


def test_the_workspace_serves_call_after_call() -> None:
    workspace = torch.zeros(COUNTER_BYTES + 16384, dtype=torch.uint8)
    for seed in range(3):
        case = Case(2, 3, 5000, lens=(3, seed))
        logits = case.logits(torch.bfloat16, seed)
        drafts = case.drafts_matching(logits[:, :3].argmax(-1), seed)
        expected = reference.verify_greedy(drafts, target_logits=logits.double(), draft_lens=case.draft_lens())
        actual = verify_greedy(Gpu(), drafts, target_logits=logits, draft_lens=case.draft_lens(), workspace=workspace)
        for left, right in zip(actual, expected, strict=True):
            assert torch.equal(left, right)
        assert (workspace[:COUNTER_BYTES] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_logit_is_read_once(dtype: torch.dtype) -> None:
    gpu = Gpu()
    logits = torch.randn(1, 4, 49152).to(dtype)
    verify_greedy(gpu, logits[:, :3].argmax(-1), target_logits=logits)
    gpu.assert_loads("logits", logits.nbytes)
