"""A model on the paged attention says what the same model says on its own."""

from __future__ import annotations

import torch

from examples.transformers_attention import PagedModel, tiny_model

PROMPTS = [[1, 2, 3], list(range(20, 41)), [5]]


def test_greedy_answers_are_those_of_the_models_own_attention() -> None:
    plain = tiny_model().eval()
    expected = []
    for prompt in PROMPTS:
        out = plain.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False, eos_token_id=None)
        expected.append(out[0, len(prompt) :].tolist())
    assert PagedModel(tiny_model(), len(PROMPTS), 64).generate(PROMPTS, 20) == expected


def test_logits_are_those_of_a_forward_without_cache() -> None:
    paged, plain = PagedModel(tiny_model(), 2, 64), tiny_model().eval()
    texts: list[list[int]] = [[], []]
    for step in ([[1, 2, 3], [9] * 17], [[4, 5], [6]], [[7], [8, 9, 10]]):
        logits = paged.forward(step)
        for row, tokens in enumerate(step):
            texts[row] += tokens
            with torch.no_grad():
                own = plain(torch.tensor([texts[row]])).logits[0, -1]
            torch.testing.assert_close(logits[row], own, atol=1e-4, rtol=1e-4)
