import pytest
import torch

import dflash_ops
from dflash_ops import reference
from dflash_ops.reference.verify_sampled import philox_words, sampling_probabilities
from tests.cases.verify import CASES, HARD_SAMPLINGS, Case, hard_to_cut_logits, sampling_parameters
from tests.ops.harness import DTYPES, ISAS, check_compiles, check_cuda_message, check_registration, cpu_isa


def test_philox_known_answers() -> None:
    """Vectors published with the algorithm (Random123's known-answer file): zeros, ones, digits of pi."""
    assert philox_words(0, 0) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox_words(2**64 - 1, 2**128 - 1) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    key = 0xA4093822 | 0x299F31D0 << 32
    counter = 0x243F6A88 | 0x85A308D3 << 32 | 0x13198A2E << 64 | 0x03707344 << 96
    assert philox_words(key, counter) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_the_definition(case: Case, dtype: torch.dtype, isa: str) -> None:
    logits = case.logits(dtype)
    sampling = sampling_parameters(case.batch)
    empty = torch.zeros(case.batch, case.drafts, dtype=torch.int64)
    everything = Case(case.batch, case.drafts, case.vocabulary)
    ids = torch.zeros(case.batch, case.drafts + 1, dtype=torch.int64)
    for i in range(case.drafts + 1):  # the target's choice of every row, one row at a time
        shifted = sampling | {"offset": sampling["offset"] + i}
        ids[:, i] = reference.verify_sampled(empty[:, :0], target_logits=logits[:, i : i + 1], **shifted)[1][:, 0]
    drafts = everything.drafts_matching(ids)
    expected = reference.verify_sampled(drafts, target_logits=logits, draft_lens=case.draft_lens(), **sampling)
    with cpu_isa(isa):
        actual = dflash_ops.verify_sampled(drafts, target_logits=logits, draft_lens=case.draft_lens(), **sampling)
    for left, right in zip((*actual, sampling["offset"]), expected, strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.6, 0, 1.0), (1.0, 4, 1.0), (1.5, 0, 0.7), (0.9, 6, 0.8)]
)
def test_emitted_tokens_follow_the_target(temperature: float, top_k: int, top_p: float) -> None:
    """10^5 draws on a small vocabulary: sample-and-match emits the target's distribution whatever the draft says."""
    draws, vocabulary = 100_000, 12
    logits = torch.randn(2, vocabulary, generator=torch.Generator().manual_seed(5)) * 1.5
    _, tokens, _ = dflash_ops.verify_sampled(
        torch.full((draws, 1), int(logits[0].argmax())),
        target_logits=logits.expand(draws, 2, vocabulary),
        temperature=torch.full((draws,), temperature),
        top_k=torch.full((draws,), top_k, dtype=torch.int32),
        top_p=torch.full((draws,), top_p),
        seed=torch.full((draws,), 1234),
        offset=torch.arange(draws) * 2,
    )
    for row in range(2):
        expected = sampling_probabilities(logits[row], temperature, top_k, top_p)
        emitted = tokens[:, row][tokens[:, row] >= 0]
        assert len(emitted) > 1000
        counts = torch.bincount(emitted, minlength=vocabulary).double()
        kept = expected > 0
        assert (counts[~kept] == 0).all()
        wanted = expected[kept] * len(emitted)
        chi_square = ((counts[kept] - wanted) ** 2 / wanted).sum()
        degrees = torch.tensor((len(wanted) - 1) / 2, dtype=torch.float64)
        assert torch.special.gammaincc(degrees, chi_square / 2) > 1e-4  # the chance of a fit as bad as this


ROWS = 8


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["spread", "ties", "two levels", "holes"])
def test_large_vocabularies_are_cut_exactly(kind: str, dtype: torch.dtype, isa: str) -> None:
    """Cuts that need several narrowings: few distinct logits, all equal but one, ids that cannot be drawn."""
    logits = hard_to_cut_logits(kind, ROWS, 6007).to(dtype)
    drafts = torch.zeros(ROWS, 0, dtype=torch.int64)
    for temperature, top_k, top_p in HARD_SAMPLINGS:
        options = {
            "temperature": torch.full((ROWS,), temperature),
            "top_k": torch.full((ROWS,), top_k, dtype=torch.int32),
            "top_p": torch.full((ROWS,), top_p),
            "seed": torch.arange(ROWS) * 77,
            "offset": torch.arange(ROWS),
        }
        expected = reference.verify_sampled(drafts, target_logits=logits, **options)[2]
        with cpu_isa(isa):
            _, _, token = dflash_ops.verify_sampled(drafts, target_logits=logits, **options)
        assert torch.equal(token, expected), (temperature, top_k, top_p)


def test_threads_do_not_matter() -> None:
    """A row cut up among threads gives what it gives alone."""
    logits = (2 * torch.randn(1, 6, 60000, generator=torch.Generator().manual_seed(2))).bfloat16()
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            for batch in (1, 4):
                tokens = []
                for row in range(6):
                    _, _, token = dflash_ops.verify_sampled(
                        torch.zeros(batch, 0, dtype=torch.int64),
                        target_logits=logits[:, row : row + 1].expand(batch, 1, -1),
                        temperature=torch.full((batch,), 1.2),
                        top_k=torch.zeros(batch, dtype=torch.int32),
                        top_p=torch.full((batch,), [0.3, 0.9, 1.0][row % 3]),
                        seed=torch.full((batch,), 8),
                        offset=torch.full((batch,), row),
                    )
                    assert (token == token[0]).all()
                    tokens.append(int(token[0]))
                results.append(tokens)
    finally:
        torch.set_num_threads(threads)
    assert all(tokens == results[0] for tokens in results)


def test_rows_past_the_draft_are_not_read() -> None:
    """NaN logits and wild draft ids past a request's draft length change nothing."""
    logits = torch.randn(3, 5, 40, generator=torch.Generator().manual_seed(3))
    lens = torch.tensor([2, 0, -1], dtype=torch.int32)
    drafts = torch.zeros(3, 4, dtype=torch.int64)
    expected = reference.verify_sampled(drafts, target_logits=logits, draft_lens=lens, **sampling_parameters(3))
    for row, length in enumerate(lens.tolist()):
        logits[row, length + 1 :] = torch.nan
        drafts[row, max(length, 0) :] = 2147480000
    sampling = sampling_parameters(3)
    actual = dflash_ops.verify_sampled(drafts, target_logits=logits, draft_lens=lens, **sampling)
    for left, right in zip((*actual, sampling["offset"]), expected, strict=True):
        assert torch.equal(left, right)


def test_a_text_depends_on_its_seed_alone() -> None:
    """The same request alone, in a batch, with a longer block and without drafts emits the same tokens."""
    vocabulary, length = 50, 24
    stream = torch.randn(length, vocabulary, generator=torch.Generator().manual_seed(7)) * 2

    def emit(block: int, batch: int, drafts_from: list[int] | None) -> list[int]:
        offset = torch.zeros(batch, dtype=torch.int64)
        text: list[int] = []
        while len(text) + block <= length:
            logits = stream[len(text) : len(text) + block].expand(batch, block, vocabulary)
            drafts = torch.zeros(batch, block - 1, dtype=torch.int64)
            if drafts_from is not None:
                drafts[:] = torch.tensor(drafts_from[len(text) : len(text) + block - 1])
            _, tokens, _ = dflash_ops.verify_sampled(
                drafts,
                target_logits=logits,
                temperature=torch.full((batch,), 0.9),
                top_k=torch.full((batch,), 20, dtype=torch.int32),
                top_p=torch.full((batch,), 0.95),
                seed=torch.arange(batch) * 0 + 99,
                offset=offset,
            )
            text += [int(token) for token in tokens[-1] if token >= 0]
            assert offset.tolist() == [len(text)] * batch
        return text

    plain = emit(1, 1, None)
    assert len(plain) == length
    for block, batch, drafts in ((4, 1, None), (4, 3, plain), (8, 5, plain)):
        text = emit(block, batch, drafts)
        assert text == plain[: len(text)]
        assert len(text) > length - 8


def test_idle_requests_do_not_advance_the_generator() -> None:
    sampling = sampling_parameters(3)
    before = sampling["offset"].clone()
    lens = torch.tensor([-1, 0, -1], dtype=torch.int32)
    dflash_ops.verify_sampled(
        torch.zeros(3, 2, dtype=torch.int64), target_logits=torch.randn(3, 3, 9), draft_lens=lens, **sampling
    )
    assert (sampling["offset"] - before).tolist() == [0, 1, 0]


def test_ties_are_cut_by_the_lower_id() -> None:
    """Eight equal logits: top-k 3 keeps ids 0, 1, 2 exactly; top-p 0.5 keeps ids 0 to 3."""
    draws = 400
    base = {
        "target_logits": torch.zeros(draws, 1, 8),
        "temperature": torch.ones(draws),
        "seed": torch.full((draws,), 5),
    }
    drafts = torch.zeros(draws, 0, dtype=torch.int64)
    off, one = torch.zeros(draws, dtype=torch.int32), torch.ones(draws)
    for top_k, top_p, kept in ((off + 3, one, {0, 1, 2}), (off, one * 0.5, {0, 1, 2, 3}), (off + 1, one, {0})):
        _, _, token = dflash_ops.verify_sampled(drafts, top_k=top_k, top_p=top_p, offset=torch.arange(draws), **base)
        assert set(token.tolist()) == kept


def test_special_logits() -> None:
    inf = float("inf")
    logits = torch.tensor(
        [[[-inf, 0.0, -inf, 0.0]], [[0.0, inf, 1.0, inf]], [[0.0, float("nan"), 1.0, 2.0]], [[-inf] * 4]]
    )
    seen = set()
    for trial in range(50):
        _, _, token = dflash_ops.verify_sampled(
            torch.zeros(4, 0, dtype=torch.int64),
            target_logits=logits,
            temperature=torch.ones(4),
            top_k=torch.zeros(4, dtype=torch.int32),
            top_p=torch.full((4,), 0.99),
            seed=torch.arange(4),
            offset=torch.full((4,), trial),
        )
        seen.add(int(token[0]))
        assert token[1:].tolist() == [1, 1, 0]
    assert seen == {1, 3}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"temperature": torch.tensor([1.0, -0.5])},
            r"temperature\[1\]: expected 0 .argmax. or a positive",
        ),
        ({"temperature": torch.tensor([float("nan"), 1.0])}, r"temperature\[0\]"),
        ({"top_p": torch.tensor([0.0, 1.0])}, r"top_p\[0\]: expected above 0, up to 1"),
        ({"top_k": torch.tensor([0, -3], dtype=torch.int32)}, r"top_k\[1\]: expected 0 \(off\)"),
        ({"top_k": torch.tensor([0, 3])}, "top_k: expected int32"),
        ({"seed": torch.zeros(3, dtype=torch.int64)}, "seed: expected shape"),
        ({"offset": torch.zeros(1, dtype=torch.int64).expand(2)}, "offset: expected an output without overlapping"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, torch.Tensor], message: str) -> None:
    args = sampling_parameters(2) | {"target_logits": torch.zeros(2, 4, 5)} | change
    with pytest.raises(RuntimeError, match=f"verify_sampled: {message}"):
        dflash_ops.verify_sampled(torch.zeros(2, 3, dtype=torch.int64), **args)


def test_registration() -> None:
    drafts, logits, sampling = torch.zeros(2, 3, dtype=torch.int64), torch.randn(2, 4, 9), sampling_parameters(2)
    outputs = (
        torch.zeros(2, dtype=torch.int32),
        torch.zeros(2, 4, dtype=torch.int64),
        torch.zeros(2, dtype=torch.int64),
    )
    check_registration("verify_sampled", (drafts, None, logits, *sampling.values(), *outputs))
    check_cuda_message("verify_sampled", (drafts, None, logits, *sampling.values(), *outputs))

    def call(drafts: torch.Tensor, logits: torch.Tensor, offset: torch.Tensor) -> object:
        offset = offset.clone()
        rest = {name: value for name, value in sampling.items() if name != "offset"}
        return *dflash_ops.verify_sampled(drafts, target_logits=logits, offset=offset, **rest), offset

    check_compiles(call, drafts, logits, sampling["offset"])
