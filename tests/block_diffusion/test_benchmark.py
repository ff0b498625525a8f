"""The measures of `benchmarks/block_diffusion.py` on cases where they are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dflash_decoding.block_diffusion import BlockDiffusionDecoder, BlockDiffusionModel
from dflash_decoding.training.data import make_chats

from benchmarks.block_diffusion import agreement, measure, negative_log_likelihood, repetition
from tests.block_diffusion.dense import END, VOCAB, denoised, tiny_config, tiny_model
from tests.decoding.tiny import EOS, MASK, tiny_target


def test_repetition() -> None:
    assert repetition([1, 2, 3, 4, 5, 6]) == (0, 3)
    assert repetition([7] * 10) == (6, 7)
    assert repetition([1, 2, 3, 4, 1, 2, 3, 4]) == (1, 5)
    assert repetition([1, 2, 3]) == (0, 0)


@torch.no_grad()
def test_negative_log_likelihood_is_the_targets_own() -> None:
    target = tiny_target()
    prompt, answer = [5, 9, 200], [3, 17, 80, 4, 4]
    expected = 0.0
    for at, token in enumerate(answer):  # one token at a time, by a fresh model
        text = torch.tensor([*prompt, *answer[:at]])
        model = tiny_target().model
        model.set_attn_implementation("eager")
        logits = model(input_ids=text[None]).logits[0, -1]
        expected -= float(logits.log_softmax(dim=0)[token])
    assert negative_log_likelihood(target, prompt, answer) == pytest.approx(expected, rel=1e-4)


def test_agreement_counts_answer_tokens_only() -> None:
    model = tiny_model()
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    found = denoised(model, text[:5], [6, 7, 60, 60, 60], 3)
    text[7] = found[2]  # so that one of three answer tokens is surely right
    chats = make_chats(np.array(text), np.array([10]), np.array([7]), VOCAB)
    found = denoised(model, text[:5], [6, 7, 60, 60, 60], 3)
    expected = np.mean([a == b for a, b in zip(found[2:], text[7:], strict=True)])
    assert expected > 0
    assert agreement(BlockDiffusionDecoder(model), chats, [0], 3) == pytest.approx(expected)
    assert END not in text


def test_measure_runs() -> None:
    target = tiny_target()
    config = tiny_config(
        vocab_size=target.vocab_size, hidden_size=32, mask_token_id=MASK, end_token_id=EOS, max_position_embeddings=64
    )
    model = BlockDiffusionModel(config, target.embed_weight, target.lm_head_weight)
    model.initialize(0, std=0.3)
    chats = make_chats(np.arange(40), np.array([18, 22]), np.array([4, 9]), target.vocab_size)
    result = measure(BlockDiffusionDecoder(model), target, chats, [0, 1], 2, 11)
    assert 0 <= result.agreement <= 1
    assert result.text.tokens <= 22
    assert 1 <= result.tokens_per_forward <= 5
