"""The decoder on tiny random models: exactness, acceptance, stops, streaming, batching."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import pytest
import torch
from dflash_decoding import (
    DFlashDecoder,
    Drafter,
    Generation,
    Generations,
    PagePool,
    SamplingParams,
    StreamEvent,
    compare_greedy,
)
from dflash_decoding.target import Target

from tests.decoding.drafters import OracleDrafter, RandomDrafter, WatchedTarget, one_thread, planted_acceptance
from tests.decoding.tiny import EOS, MASK, MAX_POSITIONS, VOCAB, letter_tokenizer, tiny_drafter, tiny_target

BLOCK = 8
NEW = 40
SAMPLED = SamplingParams(temperature=0.8, top_k=50, top_p=0.95, seed=11)


@pytest.fixture(autouse=True, scope="module")
def single_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target()


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Ragged, the shortest of one token."""
    generator = torch.Generator().manual_seed(3)
    lengths = (5, 1, 33, 17, 2, 64, 9, 16, 31, 4)
    return [torch.randint(VOCAB, (length,), generator=generator).tolist() for length in lengths]


@pytest.fixture(scope="module")
def plain(target: Target, prompts: list[list[int]]) -> Generations:
    """Greedy answers without a drafter, longer than the tests' by two blocks."""
    return DFlashDecoder(target).generate(prompts, max_new_tokens=NEW + 2 * BLOCK, stop_token_ids=())


def tokens_of(generations: Sequence[Generation]) -> list[tuple[int, ...]]:
    return [generation.token_ids for generation in generations]


def watched(target: Target) -> tuple[WatchedTarget, Target]:
    """The same object, as what it is and as what the decoder takes it for."""
    watch = WatchedTarget(target)
    return watch, cast(Target, watch)


def texts_of(prompts: list[list[int]], plain: Generations) -> list[list[int]]:
    return [[*prompt, *generation.token_ids] for prompt, generation in zip(prompts, plain, strict=True)]


# Exactness


def test_plain_decoding_is_the_models_own(target: Target, prompts: list[list[int]], plain: Generations) -> None:
    """Against a full forward per token, without any cache."""
    for prompt, generation in list(zip(prompts, plain, strict=True))[:3]:
        ids = list(prompt)
        for token in generation.token_ids[:12]:
            difference = compare_greedy(target, ids, [token], [token])
            assert difference is None
            with torch.no_grad():
                logits = target.forward(
                    torch.tensor(ids),
                    torch.arange(len(ids)),
                    torch.full((len(ids),), -1),
                    target.new_cache(PagePool(1, 1, 1, 1)),
                    torch.zeros(1, 1, dtype=torch.int32),
                    torch.zeros(1, dtype=torch.int32),
                ).logits
            assert logits is not None
            assert token == int(logits[-1].argmax())
            ids.append(token)


@pytest.mark.parametrize("max_batch", [1, 3, 16])
@pytest.mark.parametrize("page_size", [1, 16])
def test_real_drafter_gives_the_plain_text(
    target: Target, prompts: list[list[int]], plain: Generations, max_batch: int, page_size: int
) -> None:
    watch, as_target = watched(target)
    decoder = DFlashDecoder(as_target, tiny_drafter(target), max_batch=max_batch, page_size=page_size)
    got = decoder.generate(prompts, max_new_tokens=NEW, stop_token_ids=())
    assert tokens_of(got) == [tokens[:NEW] for tokens in tokens_of(plain)]
    assert all(generation.finish_reason == "length" for generation in got)
    assert watch.pool.num_free_pages == watch.pool.num_pages


@pytest.mark.parametrize("block_size", [2, 3, 8])
def test_smaller_block_than_trained(
    target: Target, prompts: list[list[int]], plain: Generations, block_size: int
) -> None:
    decoder = DFlashDecoder(target, tiny_drafter(target))
    got = decoder.generate(prompts, max_new_tokens=NEW, stop_token_ids=(), block_size=block_size)
    assert tokens_of(got) == [tokens[:NEW] for tokens in tokens_of(plain)]
    assert got.stats.block_size == block_size == len(got.stats.acceptance)


def test_drafter_that_predicts_from_the_anchor(target: Target, prompts: list[list[int]], plain: Generations) -> None:
    """Row 0 drafts too, so the target verifies one row more than were drafted from."""
    drafter = tiny_drafter(target, sample_from_anchor=True, block_size=4)
    got = DFlashDecoder(target, drafter).generate(prompts, max_new_tokens=NEW, stop_token_ids=())
    assert tokens_of(got) == [tokens[:NEW] for tokens in tokens_of(plain)]
    assert got.stats.block_size == 5


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunked_prefill(target: Target, prompts: list[list[int]], plain: Generations, chunk: int) -> None:
    watch, as_target = watched(target)
    decoder = DFlashDecoder(as_target, tiny_drafter(target), prefill_chunk=chunk, max_batch=1)
    got = decoder.generate(prompts[2:4], max_new_tokens=8, stop_token_ids=())
    assert tokens_of(got) == [tokens[:8] for tokens in tokens_of(plain)[2:4]]
    assert max(watch.chunks) <= max(chunk, BLOCK)


def test_no_stale_state_in_refilled_rows(target: Target, prompts: list[list[int]], plain: Generations) -> None:
    """Rows and pages change hands at different times; the oracle reads every context back through the page table."""
    watch, as_target = watched(target)
    drafter = OracleDrafter(watch, texts_of(prompts, plain), BLOCK)
    limits = [1 + 7 * (i % 5) for i in range(len(prompts))]
    for max_batch in (2, 3):
        decoder = DFlashDecoder(as_target, drafter, max_batch=max_batch, page_size=4)
        got = decoder.generate(prompts, max_new_tokens=limits, stop_token_ids=())
        assert tokens_of(got) == [t[:limit] for t, limit in zip(tokens_of(plain), limits, strict=True)]
    assert drafter.drafted_rows > 0


def test_pool_smaller_than_the_requests_makes_them_wait(
    target: Target, prompts: list[list[int]], plain: Generations
) -> None:
    decoder = DFlashDecoder(target, tiny_drafter(target), max_tokens=112)  # room for the longest one only
    got = decoder.generate(prompts, max_new_tokens=NEW, stop_token_ids=())
    assert tokens_of(got) == [tokens[:NEW] for tokens in tokens_of(plain)]


def test_mask_id_in_the_answer_is_kept(target: Target, prompts: list[list[int]], plain: Generations) -> None:
    """Every token of the answer takes its turn as the mask id."""
    expected = plain[0].token_ids[:12]
    for mask in sorted({*expected, MASK}):
        drafter = tiny_drafter(target, mask_token_id=mask)
        got = DFlashDecoder(target, drafter).generate(prompts[:1], max_new_tokens=12, stop_token_ids=())
        assert got[0].token_ids == expected


# Acceptance


def test_random_drafter_is_hardly_accepted(target: Target, prompts: list[list[int]], plain: Generations) -> None:
    for from_anchor in (False, True):
        drafter = RandomDrafter(VOCAB, BLOCK, MASK, from_anchor)
        got = DFlashDecoder(target, drafter).generate(prompts, max_new_tokens=NEW, stop_token_ids=())
        assert tokens_of(got) == [tokens[:NEW] for tokens in tokens_of(plain)]
        assert 1.0 <= got.stats.tau < 1.1


@pytest.mark.parametrize("from_anchor", [False, True])
@pytest.mark.parametrize("max_batch", [1, 4])
def test_oracle_is_accepted_whole(
    target: Target, prompts: list[list[int]], plain: Generations, max_batch: int, from_anchor: bool
) -> None:
    watch, as_target = watched(target)
    drafter = OracleDrafter(watch, texts_of(prompts, plain), BLOCK, from_anchor=from_anchor)
    rows = drafter.num_draft_tokens + 1
    length = 1 + 4 * rows  # one token of the prefill and four full rounds
    got = DFlashDecoder(as_target, drafter, max_batch=max_batch).generate(
        prompts, max_new_tokens=length, stop_token_ids=()
    )
    assert tokens_of(got) == [tokens[:length] for tokens in tokens_of(plain)]
    for generation in got:
        assert generation.stats.tau == rows
        assert generation.stats.acceptance == [0] * (rows - 1) + [4]
    assert got.stats.rounds == 4 * len(prompts)


@pytest.mark.parametrize("period", [1, 2, 3, 5, 8, 13])
def test_planted_wrong_tokens_end_the_run_exactly_there(
    target: Target, prompts: list[list[int]], plain: Generations, period: int
) -> None:
    def is_wrong(position: int) -> bool:
        return position % period == 0

    watch, as_target = watched(target)
    drafter = OracleDrafter(
        watch,
        texts_of(prompts, plain),
        BLOCK,
        spoil=lambda position, token: (token + 1) % VOCAB if is_wrong(position) else token,
    )
    got = DFlashDecoder(as_target, drafter, max_batch=4).generate(prompts, max_new_tokens=NEW, stop_token_ids=())
    assert tokens_of(got) == [tokens[:NEW] for tokens in tokens_of(plain)]
    total = [0] * BLOCK
    for prompt, generation in zip(prompts, got, strict=True):
        first = len(prompt)
        acceptance, rounds = planted_acceptance(first, first + NEW - 1, BLOCK - 1, is_wrong)
        assert generation.stats.acceptance == acceptance
        assert generation.stats.rounds == rounds
        assert generation.stats.tau == pytest.approx((NEW - 1) / rounds)
        total = [a + b for a, b in zip(total, acceptance, strict=True)]
    assert got.stats.acceptance == total


# Ends


@pytest.mark.parametrize("max_new_tokens", [0, 1, 2, 9, 10, 17])
def test_length_limit_inside_a_run(
    target: Target, prompts: list[list[int]], plain: Generations, max_new_tokens: int
) -> None:
    watch, as_target = watched(target)
    drafter = OracleDrafter(watch, texts_of(prompts, plain), BLOCK)
    got = DFlashDecoder(as_target, drafter).generate(prompts, max_new_tokens=max_new_tokens, stop_token_ids=())
    assert tokens_of(got) == [tokens[:max_new_tokens] for tokens in tokens_of(plain)]
    assert {generation.finish_reason for generation in got} == {"length"}
    assert [generation.stats.tokens for generation in got] == [max_new_tokens] * len(prompts)


@pytest.mark.parametrize("place", range(0, 18))
def test_stop_token_inside_an_accepted_run(
    target: Target, prompts: list[list[int]], plain: Generations, place: int
) -> None:
    """Every place of the first two rounds, the prefill's token included, takes its turn."""
    answer = plain[2].token_ids
    stop = answer[place]
    end = answer.index(stop) + 1
    watch, as_target = watched(target)
    drafter = OracleDrafter(watch, texts_of(prompts, plain), BLOCK)
    got = DFlashDecoder(as_target, drafter).generate([prompts[2]], max_new_tokens=NEW, stop_token_ids=[stop, EOS])[0]
    assert got.token_ids == answer[:end]
    assert got.finish_reason == "stop_token"
    assert got.stats.tokens == end
    ends_at_limit = DFlashDecoder(as_target, drafter).generate([prompts[2]], max_new_tokens=end, stop_token_ids=[stop])[
        0
    ]
    assert ends_at_limit.finish_reason == "stop_token"


def test_drafted_but_rejected_stop_token_ends_nothing(
    target: Target, prompts: list[list[int]], plain: Generations
) -> None:
    """Only committed tokens are looked at: here every draft is the stop token, and wrong."""
    stop = next(token for token in range(VOCAB) if token not in plain[0].token_ids)
    watch, as_target = watched(target)
    drafter = OracleDrafter(watch, texts_of(prompts, plain), BLOCK, spoil=lambda position, token: stop)
    got = DFlashDecoder(as_target, drafter).generate(prompts[:1], max_new_tokens=NEW, stop_token_ids=[stop])
    assert got[0].token_ids == plain[0].token_ids[:NEW]


def test_default_stops_are_the_targets(prompts: list[list[int]]) -> None:
    plain = DFlashDecoder(tiny_target()).generate(prompts[:1], max_new_tokens=NEW, stop_token_ids=())
    eos = plain[0].token_ids[5]
    got = DFlashDecoder(tiny_target(eos_token_id=[eos, VOCAB - 1])).generate(prompts[:1], max_new_tokens=NEW)
    assert got[0].token_ids == plain[0].token_ids[: plain[0].token_ids.index(eos) + 1]
    assert got[0].finish_reason == "stop_token"


@pytest.mark.parametrize("start", [0, 1, 6, 7, 18, 19, 20, 35])
@pytest.mark.parametrize("length", [1, 3, 10])
def test_stop_string_across_token_borders(
    target: Target,
    prompts: list[list[int]],
    plain: Generations,
    monkeypatch: pytest.MonkeyPatch,
    start: int,
    length: int,
) -> None:
    monkeypatch.setattr(target, "tokenizer", letter_tokenizer())
    whole = text_of(target, plain[2].token_ids[:NEW])
    stop = whole[start : start + length]
    watch, as_target = watched(target)
    drafter = OracleDrafter(watch, texts_of(prompts, plain), BLOCK)
    for decoder in (DFlashDecoder(as_target, drafter), DFlashDecoder(target)):
        events: list[StreamEvent] = []
        got = decoder.generate(
            [prompts[2]],
            max_new_tokens=NEW,
            stop_token_ids=(),
            stop_strings=[stop, "never"],
            on_token=events.append,
        )[0]
        assert got.text == whole[: whole.index(stop)] == "".join(event.text for event in events)
        assert got.finish_reason == "stop_string"
        # The token that completed the stop string is the last one.
        assert stop in text_of(target, got.token_ids)
        assert stop not in text_of(target, got.token_ids[:-1])
        assert got.stats.tokens == len(got.token_ids) == len(events)


def test_stop_string_that_is_only_drafted_ends_nothing(
    target: Target, prompts: list[list[int]], plain: Generations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "tokenizer", letter_tokenizer())
    absent = next(token for token in range(VOCAB) if token not in plain[0].token_ids)
    watch, as_target = watched(target)
    drafter = OracleDrafter(watch, texts_of(prompts, plain), BLOCK, spoil=lambda position, token: absent)
    stop = text_of(target, [absent, absent])
    got = DFlashDecoder(as_target, drafter).generate(
        prompts[:1], max_new_tokens=NEW, stop_token_ids=(), stop_strings=stop
    )
    assert got[0].token_ids == plain[0].token_ids[:NEW]


def text_of(target: Target, tokens: Sequence[int]) -> str:
    text: str = target.tokenizer.decode(list(tokens), skip_special_tokens=True)
    return text


# Streaming


@pytest.mark.parametrize("sampling", [SamplingParams(), SAMPLED])
def test_streamed_text_is_the_final_text(target: Target, prompts: list[list[int]], sampling: SamplingParams) -> None:
    decoder = DFlashDecoder(target, tiny_drafter(target), max_batch=3)
    events: list[StreamEvent] = []
    got = decoder.generate(prompts, max_new_tokens=NEW, sampling=sampling, on_token=events.append)
    for index, generation in enumerate(got):
        own = [event for event in events if event.request == index]
        assert tuple(event.token_id for event in own) == generation.token_ids
        assert "".join(event.text for event in own) == generation.text == text_of(target, generation.token_ids)
        assert [event.finish_reason for event in own[:-1]] == [None] * (len(own) - 1)
        assert own[-1].generation is generation

    streamed = list(decoder.stream(prompts[0], max_new_tokens=NEW, sampling=sampling))
    assert tuple(event.token_id for event in streamed) == got[0].token_ids


def test_stream_of_text_and_early_close(target: Target) -> None:
    decoder = DFlashDecoder(target, tiny_drafter(target))
    expected = decoder.generate("Hello", max_new_tokens=NEW)[0]
    assert expected.prompt == tuple(b"Hello")
    stream = decoder.stream("Hello", max_new_tokens=NEW)
    assert next(iter(stream)).token_id == expected.token_ids[0]
    stream.close()  # type: ignore[attr-defined]
    assert decoder.generate(["Hello"], max_new_tokens=NEW)[0].text == expected.text


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_error_in_the_callback_ends_the_call_only(
    target: Target, prompts: list[list[int]], plain: Generations, error: type[BaseException]
) -> None:
    decoder = DFlashDecoder(target, tiny_drafter(target), max_batch=3)
    seen: list[StreamEvent] = []

    def fail(event: StreamEvent) -> None:
        seen.append(event)
        if len(seen) == 20:
            raise error("callback")

    with pytest.raises(error, match="callback"):
        decoder.generate(prompts, max_new_tokens=NEW, on_token=fail)
    got = decoder.generate(prompts, max_new_tokens=NEW, stop_token_ids=())
    assert tokens_of(got) == [tokens[:NEW] for tokens in tokens_of(plain)]


# Sampling


def test_sampled_text_depends_on_its_seed_alone(target: Target, prompts: list[list[int]]) -> None:
    """Not on the drafter, the block size, the order of the batch, or what is decoded beside it."""
    params = [SamplingParams(temperature=0.9, top_k=40, top_p=0.9, seed=100 + i) for i in range(len(prompts))]
    params[3] = SamplingParams()
    plain = tokens_of(DFlashDecoder(target).generate(prompts, max_new_tokens=NEW, sampling=params))
    drafter = tiny_drafter(target)
    order = [7, 2, 9, 0, 1, 8, 3, 6, 5, 4]
    for max_batch, block_size in ((1, None), (4, 3), (16, 8)):
        got = DFlashDecoder(target, drafter, max_batch=max_batch).generate(
            [prompts[i] for i in order],
            max_new_tokens=NEW,
            sampling=[params[i] for i in order],
            block_size=block_size,
        )
        assert tokens_of(got) == [plain[i] for i in order]
    alone = DFlashDecoder(target, drafter).generate([prompts[5]], max_new_tokens=NEW, sampling=params[5])
    assert alone[0].token_ids == plain[5]
    other_seed = SamplingParams(temperature=0.9, top_k=40, top_p=0.9, seed=1)
    other = DFlashDecoder(target, drafter).generate([prompts[5]], max_new_tokens=NEW, sampling=other_seed)
    assert other[0].token_ids != plain[5]


def test_without_a_seed_every_request_draws_its_own(target: Target, prompts: list[list[int]]) -> None:
    got = DFlashDecoder(target, tiny_drafter(target)).generate(
        [prompts[0]] * 4, max_new_tokens=NEW, sampling=SamplingParams(temperature=1.0)
    )
    assert len(set(tokens_of(got))) == 4


def test_greedy_beside_sampled(target: Target, prompts: list[list[int]], plain: Generations) -> None:
    got = DFlashDecoder(target, tiny_drafter(target)).generate(
        prompts[:2], max_new_tokens=NEW, sampling=[SAMPLED, SamplingParams()], stop_token_ids=()
    )
    assert got[1].token_ids == plain[1].token_ids[:NEW]
    assert got[0].token_ids != plain[0].token_ids[:NEW]


# Refusals


def test_answer_up_to_the_last_position(target: Target, prompts: list[list[int]]) -> None:
    """The last blocks reach beyond the models' positions; the answer does not."""
    new = MAX_POSITIONS - len(prompts[2])
    plain = DFlashDecoder(target).generate([prompts[2]], max_new_tokens=new, stop_token_ids=())
    watch, as_target = watched(target)
    oracle = OracleDrafter(watch, texts_of([prompts[2]], plain), BLOCK)
    drafters: list[tuple[Target, Drafter]] = [(as_target, oracle), (target, tiny_drafter(target))]
    for model, drafter in drafters:
        got = DFlashDecoder(model, drafter).generate([prompts[2]], max_new_tokens=new, stop_token_ids=())
        assert tokens_of(got) == tokens_of(plain)


def test_requests_that_can_never_fit_are_refused_before_any_work(target: Target, prompts: list[list[int]]) -> None:
    watch, as_target = watched(target)
    events: list[StreamEvent] = []
    decoder = DFlashDecoder(as_target, tiny_drafter(target), max_tokens=64)
    with pytest.raises(ValueError, match=r"prompts\[1\]: expected at most max_tokens 64, got 73"):
        decoder.generate(prompts[1:3], max_new_tokens=[4, 34], on_token=events.append)
    short = tiny_drafter(target, max_position_embeddings=40)
    for drafter, limit in ((tiny_drafter(target), MAX_POSITIONS), (short, 40)):
        with pytest.raises(ValueError, match=rf"prompts\[0\]: expected at most {limit} tokens"):
            DFlashDecoder(as_target, drafter).generate([[1]], max_new_tokens=limit, on_token=events.append)
    assert not events
    assert not watch.chunks


def test_bad_arguments(target: Target, prompts: list[list[int]]) -> None:
    decoder = DFlashDecoder(target, tiny_drafter(target))
    for arguments, message in (
        ({"prompts": [[1], []]}, r"prompts\[1\]: expected at least one token, got none"),
        ({"prompts": ""}, r"prompts\[0\]: expected at least one token"),
        ({"prompts": [[1, VOCAB]]}, r"prompts\[0\]: expected token ids in 0\.\.259, got 260"),
        ({"prompts": [1, 2, 3]}, "got one flat list of ids"),
        ({"max_new_tokens": -1}, "max_new_tokens: expected a number >= 0, got -1"),
        ({"max_new_tokens": [1]}, r"max_new_tokens: expected one value or one per prompt \(2\), got 1"),
        ({"sampling": [SAMPLED]}, r"sampling: expected one value or one per prompt \(2\), got 1"),
        ({"block_size": 9}, r"block_size: expected 2\.\.8, got 9"),
        ({"block_size": 1}, r"block_size: expected 2\.\.8, got 1"),
        ({"stop_strings": [""]}, "stop_strings: expected texts of at least one character"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            decoder.generate(**{"prompts": prompts[:2], "max_new_tokens": 4, **arguments})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="block_size: expected None without a drafter, got 4"):
        DFlashDecoder(target).generate(prompts, max_new_tokens=4, block_size=4)
    for name, value in (("page_size", 12), ("max_batch", 0), ("max_tokens", 0), ("prefill_chunk", 0)):
        with pytest.raises(ValueError, match=f"{name}: expected .*, got {value}"):
            DFlashDecoder(target, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"expected taps on target layers 0\.\.3, got 4"):
        DFlashDecoder(target, tiny_drafter(target, target_layer_ids=(0, 4)))


def test_target_without_tokenizer(prompts: list[list[int]], plain: Generations) -> None:
    target = tiny_target()
    del target.tokenizer
    decoder = DFlashDecoder(target)
    got = decoder.generate(prompts[:1], max_new_tokens=NEW, stop_token_ids=())
    assert got[0].token_ids == plain[0].token_ids[:NEW]
    assert got[0].text == ""
    with pytest.raises(ValueError, match="prompts: expected token ids"):
        decoder.generate("text", max_new_tokens=1)
    with pytest.raises(ValueError, match="stop_strings: expected none"):
        decoder.generate(prompts[:1], max_new_tokens=1, stop_strings=["x"])


def test_no_prompts(target: Target) -> None:
    assert DFlashDecoder(target).generate([], max_new_tokens=4) == []


def test_compare_greedy(target: Target, prompts: list[list[int]], plain: Generations) -> None:
    answer = list(plain[0].token_ids[:8])
    assert compare_greedy(target, prompts[0], answer, answer) is None
    second = (answer[3] + 1) % VOCAB
    difference = compare_greedy(target, prompts[0], answer, [*answer[:3], second, 5])
    assert difference is not None
    assert (difference.index, difference.token_a, difference.token_b) == (3, answer[3], second)
    assert difference.gap > 1e-3
    shorter = compare_greedy(target, prompts[0], answer, answer[:5])
    assert shorter is not None
    assert (shorter.index, shorter.token_a, shorter.token_b, shorter.gap) == (5, answer[5], None, float("inf"))
