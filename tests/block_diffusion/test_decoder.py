"""Generation against a definition that recomputes everything in float64, one prompt at a time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from dflash_decoding.block_diffusion import BlockDiffusionDecoder
from torch import Tensor

from tests.block_diffusion.dense import END, MASK, denoised, generated, tiny_config, tiny_model


def _prompts(lengths: Sequence[int]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(9)
    return [torch.randint(0, 50, (length,), generator=generator).tolist() for length in lengths]


@pytest.mark.parametrize(("size", "steps"), [(5, 1), (5, 2), (5, 3), (5, 5), (8, 4), (3, 2), (1, 1)])
@pytest.mark.parametrize("max_batch", [1, 3])
def test_ragged_batch_matches_definition(size: int, steps: int, max_batch: int) -> None:
    model = tiny_model(tiny_config(block_size=size))
    prompts = _prompts([1, 10, 7, 16, 4])
    limits = [9, 13, 1, 17, 0]
    decoder = BlockDiffusionDecoder(model, page_size=4, max_batch=max_batch)
    answers = decoder.generate(prompts, max_new_tokens=limits, steps=steps, stop_token_ids=())
    for prompt, limit, answer in zip(prompts, limits, answers, strict=True):
        expected = generated(model, prompt, limit, steps, ()) if limit else []
        assert list(answer.token_ids) == expected
        assert answer.finish_reason == "length"


@pytest.mark.parametrize("page_size", [1, 16])
def test_text_does_not_depend_on_the_batch(page_size: int) -> None:
    model = tiny_model()
    prompts = _prompts([3, 12, 5, 30, 1, 8])
    decoder = BlockDiffusionDecoder(model, page_size=page_size)
    together = decoder.generate(prompts, max_new_tokens=14, steps=3)
    backwards = decoder.generate(prompts[::-1], max_new_tokens=14, steps=3)[::-1]
    alone = [decoder.generate([prompt], max_new_tokens=14, steps=3)[0] for prompt in prompts]
    assert together == backwards == alone


def test_stop_token_ends_an_answer_and_only_that() -> None:
    model = tiny_model()
    prompts = _prompts([4, 9, 11])
    decoder = BlockDiffusionDecoder(model)
    free = decoder.generate(prompts, max_new_tokens=20, steps=2, stop_token_ids=())
    stop = free[1].token_ids[7]
    stopped = decoder.generate(prompts, max_new_tokens=20, steps=2, stop_token_ids=(stop,))
    for whole, cut in zip(free, stopped, strict=True):
        if stop in whole.token_ids:
            assert cut.token_ids == whole.token_ids[: whole.token_ids.index(stop) + 1]
            assert cut.finish_reason == "stop_token"
        else:
            assert cut == whole


def test_end_token_of_the_config_stops() -> None:
    model = tiny_model()
    with torch.no_grad():
        model.lm_head[END] = 10 * model.lm_head.abs().max()
        model.norm.weight.abs_()
    answers = BlockDiffusionDecoder(model).generate(_prompts([2, 3]), max_new_tokens=30)
    assert any(answer.finish_reason == "stop_token" and answer.token_ids[-1] == END for answer in answers)


@pytest.mark.parametrize(
    ("steps", "per_step"), [(8, [1] * 8), (1, [8]), (4, [2] * 4), (3, [3, 3, 2]), (5, [2, 2, 2, 1, 1])]
)
def test_tokens_revealed_per_step(steps: int, per_step: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = BlockDiffusionDecoder(tiny_model(tiny_config(block_size=8)))
    revealed: list[int] = []
    original = decoder.reveal

    def spy(hidden: Tensor, tokens: Tensor, keep: Sequence[int]) -> None:
        before = int((tokens == MASK).sum())
        original(hidden, tokens, keep)
        revealed.append(before - int((tokens == MASK).sum()))

    monkeypatch.setattr(decoder, "reveal", spy)
    (answer,) = decoder.generate(_prompts([16]), max_new_tokens=24, steps=steps, stop_token_ids=())
    assert revealed == per_step * 3
    assert answer.forwards == 3 * steps  # finished blocks ride along and cost none


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_teacher_forced_blocks_match_definition(steps: int) -> None:
    model = tiny_model()
    (text,) = _prompts([25])
    known = torch.arange(25) < 8
    known[17] = True
    found = BlockDiffusionDecoder(model, page_size=4).denoise_text(text, known, steps).tolist()
    for start in range(0, 25, 5):
        block = [text[at] if known[at] else MASK for at in range(start, start + 5)]
        assert found[start : start + 5] == denoised(model, text[:start], block, steps)


def test_refusals() -> None:
    decoder = BlockDiffusionDecoder(tiny_model())
    with pytest.raises(ValueError, match=r"steps: expected 1\.\.5"):
        decoder.generate([[1]], max_new_tokens=3, steps=6)
    with pytest.raises(ValueError, match=r"prompts\[1\]: expected no mask token"):
        decoder.generate([[1], [2, MASK]], max_new_tokens=3)
    with pytest.raises(ValueError, match="at most 128 tokens"):
        decoder.generate([[1]], max_new_tokens=128)
    with pytest.raises(ValueError, match="at least one token"):
        decoder.generate([[]], max_new_tokens=3)
    with pytest.raises(ValueError, match="whole blocks"):
        decoder.denoise_text([1, 2, 3], torch.zeros(3, dtype=torch.bool), 1)
    with pytest.raises(ValueError, match="max_batch"):
        BlockDiffusionDecoder(tiny_model(), max_batch=0)


def test_last_position_can_be_generated() -> None:
    """The last block reaches past `max_position_embeddings`; the rotation table covers it."""
    model = tiny_model(tiny_config(max_position_embeddings=23))
    (answer,) = BlockDiffusionDecoder(model).generate([[1, 2]], max_new_tokens=21, steps=2, stop_token_ids=())
    assert list(answer.token_ids) == generated(model, [1, 2], 21, 2, ())
