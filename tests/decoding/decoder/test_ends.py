"""Where answers end: lengths, stop tokens, stop strings; streaming; what is refused."""

from __future__ import annotations

import pytest
from dflash_decoding import (
    DFlashDecoder,
    Drafter,
    Generations,
    SamplingParams,
    StreamEvent,
    compare_greedy,
)
from dflash_decoding.target import Target

from tests.decoding.decoder.world import BLOCK, NEW, SAMPLED, text_of, texts_of, tokens_of, watched
from tests.decoding.drafters import OracleDrafter
from tests.decoding.tiny import EOS, MAX_POSITIONS, VOCAB, letter_tokenizer, tiny_drafter, tiny_target


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
