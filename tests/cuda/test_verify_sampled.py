"""verify_sampled's three kernels on the PTX interpreter."""

import pytest
import torch
from torch import Tensor

import dflash_ops
from dflash_ops import reference
from tests.cases.verify import CASES, HARD_SAMPLINGS, Case, hard_to_cut_logits, sampling_parameters
from tests.cuda.gpu import COUNTER_BYTES, GPUS, Gpu
from tests.cuda.simulated_context_ops import verify_sampled
from tests.ops.harness import DTYPES
from tests.ptxsim import assert_count


def drafts_of(case: Case, logits: Tensor, sampling: dict[str, Tensor]) -> Tensor:
    """Drafts that agree with the target's own choices up to a random place."""
    ids = torch.zeros(case.batch, case.drafts + 1, dtype=torch.int64)
    nothing = torch.zeros(case.batch, 0, dtype=torch.int64)
    for i in range(case.drafts + 1):
        shifted = sampling | {"offset": sampling["offset"] + i}
        ids[:, i] = reference.verify_sampled(nothing, target_logits=logits[:, i : i + 1], **shifted)[1][:, 0]
    return Case(case.batch, case.drafts, case.vocabulary).drafts_matching(ids)


@pytest.mark.parametrize("gpu", GPUS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_the_definition(case: Case, dtype: torch.dtype, gpu: Gpu) -> None:
    logits = case.logits(dtype)
    sampling = sampling_parameters(case.batch)
    drafts = drafts_of(case, logits, sampling)
    expected = reference.verify_sampled(drafts, target_logits=logits, draft_lens=case.draft_lens(), **sampling)
    actual = verify_sampled(gpu, drafts, target_logits=logits, draft_lens=case.draft_lens(), **sampling)
    for left, right in zip((*actual, sampling["offset"]), expected, strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["spread", "ties", "two levels", "holes"])
def test_large_vocabularies_are_cut_exactly(kind: str, dtype: torch.dtype) -> None:
    """Every way of sampling is a request of one call."""
    rows = len(HARD_SAMPLINGS)
    logits = hard_to_cut_logits(kind, rows, 6007).to(dtype)
    drafts = torch.zeros(rows, 0, dtype=torch.int64)
    temperature, top_k, top_p = zip(*HARD_SAMPLINGS, strict=True)
    for round_ in range(2):
        options = {
            "temperature": torch.tensor(temperature),
            "top_k": torch.tensor(top_k, dtype=torch.int32),
            "top_p": torch.tensor(top_p),
            "seed": torch.arange(rows) * 77,
            "offset": torch.arange(rows) + 100 * round_,
        }
        expected = reference.verify_sampled(drafts, target_logits=logits, **options)[2]
        actual = verify_sampled(Gpu(), drafts, target_logits=logits, **options)[2]
        assert actual.tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_draws_what_the_cpu_draws(dtype: torch.dtype) -> None:
    """100 rows a dtype, each a request of its own, so that every draw is seen; temperature, top-k and top-p all at work."""
    rows = 100
    generator = torch.Generator().manual_seed(21)
    logits = (2.5 * torch.randn(rows, 1, 2003, generator=generator)).to(dtype)
    options = {
        "temperature": torch.empty(rows).uniform_(0.3, 2.0, generator=generator),
        "top_k": torch.randint(2, 1500, (rows,), dtype=torch.int32, generator=generator),
        "top_p": torch.empty(rows).uniform_(0.5, 0.999, generator=generator),
        "seed": torch.randint(-(2**62), 2**62, (rows,), generator=generator),
        "offset": torch.randint(0, 2**40, (rows,), generator=generator),
    }
    drafts = torch.zeros(rows, 0, dtype=torch.int64)
    offset = options["offset"].clone()
    expected = dflash_ops.verify_sampled(drafts, target_logits=logits, **options | {"offset": offset})
    actual = verify_sampled(Gpu(), drafts, target_logits=logits, **options)
    assert len(set(actual[2].tolist())) > rows // 4
    for left, right in zip((*actual, options["offset"]), (*expected, offset), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_without_a_finite_maximum_and_greedy_requests_take_the_argmax(dtype: torch.dtype) -> None:
    inf, nan = torch.inf, torch.nan
    logits = torch.randn(6, 1, 3001, generator=torch.Generator().manual_seed(4)).to(dtype)
    logits[0] = -inf
    logits[1, 0, 2000] = inf
    logits[2, 0, [7, 2999]] = nan
    logits[3, 0, [5, 2500]] = 9.0  # a tie
    logits[4, 0, [6, 2500]] = 9.0
    logits[5] = -inf
    logits[5, 0, 3000] = 1.0
    _, tokens, _ = verify_sampled(
        Gpu(),
        torch.zeros(6, 0, dtype=torch.int64),
        target_logits=logits,
        temperature=torch.tensor([1.0, 1.0, 1.0, 0.0, 1.0, 1.0]),
        top_k=torch.tensor([0, 0, 9, 0, 1, 0], dtype=torch.int32),
        top_p=torch.tensor([1.0, 1.0, 0.5, 1.0, 1.0, 1.0]),
        seed=torch.arange(6),
        offset=torch.zeros(6, dtype=torch.int64),
    )
    assert tokens[:, 0].tolist() == [0, 2000, 7, 5, 6, 3000]


@pytest.mark.parametrize("start", range(1, 9))
def test_a_row_may_start_anywhere(start: int) -> None:
    """The draw depends neither on the address of the row nor on how the GPU's blocks cut it."""
    row = 2 * torch.randn(5003, generator=torch.Generator().manual_seed(3))
    buffer = torch.full((3, 1, 5003 + 32), torch.nan, dtype=torch.bfloat16)
    logits = buffer[:, :, start : start + 5003]
    logits.copy_(row)
    options = {
        "temperature": torch.ones(3),
        "top_k": torch.tensor([0, 900, 40], dtype=torch.int32),
        "top_p": torch.tensor([0.95, 1.0, 0.9]),
        "seed": torch.tensor([5, 6, 7]),
    }
    drafts, offset = torch.zeros(3, 0, dtype=torch.int64), torch.tensor([2**33, 1, 0])
    expected = reference.verify_sampled(drafts, target_logits=logits, offset=offset, **options)[2]
    for gpu in (Gpu("H200"), Gpu("RTX 3090")):
        assert torch.equal(
            verify_sampled(gpu, drafts, target_logits=logits, offset=offset.clone(), **options)[2], expected
        )


@pytest.mark.parametrize(("dtype", "columns"), [(torch.float32, 270_001), (torch.bfloat16, 151_936)])
def test_long_rows(dtype: torch.dtype, columns: int) -> None:
    """More columns than 2048 stretches hold at a chunk a lane; and a vocabulary in use."""
    logits = (3 * torch.randn(1, 2, columns, generator=torch.Generator().manual_seed(8))).to(dtype)
    sampling = {
        "temperature": torch.tensor([0.8]),
        "top_k": torch.tensor([2000], dtype=torch.int32),
        "top_p": torch.tensor([0.9]),
        "seed": torch.tensor([-3]),
        "offset": torch.tensor([12]),
    }
    drafts = torch.tensor([[0]])
    drafts[0, 0] = reference.verify_sampled(drafts, target_logits=logits, **sampling)[1][0, 0]
    expected = reference.verify_sampled(drafts, target_logits=logits, **sampling)
    actual = verify_sampled(Gpu(), drafts, target_logits=logits, **sampling)
    assert actual[0].item() == 1
    for left, right in zip((*actual, sampling["offset"]), expected, strict=True):
        assert torch.equal(left, right)


def test_equal_logits_of_a_long_row() -> None:
    """Cuts between and inside stretches, of which a thread has several."""
    logits = torch.zeros(1, 1, 100_000).expand(3, 1, 100_000)
    sampling = {
        "temperature": torch.ones(3),
        "top_k": torch.tensor([129, 128, 1000], dtype=torch.int32),
        "top_p": torch.ones(3),
        "seed": torch.tensor([5, 6, 7]),
        "offset": torch.zeros(3, dtype=torch.int64),
    }
    drafts = torch.zeros(3, 0, dtype=torch.int64)
    expected = reference.verify_sampled(drafts, target_logits=logits, **sampling)[2]
    actual = verify_sampled(Gpu(), drafts, target_logits=logits, **sampling)[2]
    assert actual.tolist() == expected.tolist()
    assert actual.min() > 0


def test_the_workspace_serves_call_after_call() -> None:
    workspace = torch.zeros(COUNTER_BYTES + 400_000, dtype=torch.uint8)
    case = CASES[3]
    for seed in range(3):
        logits, sampling = case.logits(torch.float16, seed), sampling_parameters(case.batch, seed)
        drafts = drafts_of(case, logits, sampling)
        expected = reference.verify_sampled(drafts, target_logits=logits, draft_lens=case.draft_lens(), **sampling)
        actual = verify_sampled(
            Gpu(), drafts, target_logits=logits, draft_lens=case.draft_lens(), workspace=workspace, **sampling
        )
        for left, right in zip((*actual, sampling["offset"]), expected, strict=True):
            assert torch.equal(left, right)
        assert (workspace[:COUNTER_BYTES] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_scan_reads_each_logit_once(dtype: torch.dtype) -> None:
    """The first two launches; rows past the draft are not read by any of the three."""
    gpu = Gpu()
    logits = torch.randn(2, 3, 20000, generator=torch.Generator().manual_seed(1)).to(dtype)
    logits[0, 2] = torch.nan
    sampling = sampling_parameters(2) | {"temperature": torch.ones(2)}
    lens = torch.tensor([1, 2], dtype=torch.int32)
    verify_sampled(gpu, torch.zeros(2, 2, dtype=torch.int64), target_logits=logits, draft_lens=lens, **sampling)
    row_bytes = 20000 * logits.element_size()
    for report in list(gpu.reports)[:2]:
        traffic = report.buffers["logits"]
        assert_count("bytes of logits", traffic.load_bytes, 5 * row_bytes, 1.02)
        assert_count("sectors of logits, in bytes", traffic.load_sectors * 32, 5 * row_bytes, 1.02)
