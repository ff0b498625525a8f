"""Sampling parameters, and the distribution of what a sampled run emits."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from dflash_decoding import DFlashDecoder, PagePool, SamplingParams
from dflash_decoding.target import Target, TargetOutput
from torch import Tensor

VOCAB = 11
BLOCK = 4
REQUESTS = 250
NEW = 400  # 10^5 draws in all


class MarkovTarget:
    """A target whose next token depends on the last one alone: logits [V, V] by the last token."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits
        self.vocab_size = logits.shape[0]
        self.num_layers = 1
        self.device = logits.device
        self.eos_token_ids: tuple[int, ...] = ()
        self.config = SimpleNamespace()
        self.tokenizer = None

    def new_cache(self, pool: PagePool) -> None:
        return None

    def forward(self, input_ids: Tensor, *_: Any, logit_rows: Any = "all", **__: Any) -> TargetOutput:
        rows = input_ids if isinstance(logit_rows, str) else input_ids[logit_rows]
        return TargetOutput(self.logits[rows], [])


class MostLikelyDrafter:
    """Drafts the most likely path of a Markov target: accepted often, but far from always."""

    def __init__(self, logits: Tensor, block_size: int) -> None:
        self.block_size = block_size
        self.num_draft_tokens = block_size - 1
        self.mask_token_id = 0
        self.tap_layers: Sequence[int] = ()
        self.max_positions = None
        self._next = logits.argmax(-1)

    def new_cache(self, pool: PagePool) -> None:
        return None

    def inject(self, taps: Sequence[Tensor], positions: Tensor, slot_mapping: Tensor, cache: Any) -> None:
        pass

    def draft(self, input_ids: Tensor, *_: Any) -> Tensor:
        tokens = [input_ids[:, 0]]
        for _step in range(input_ids.shape[1] - 1):
            tokens.append(self._next[tokens[-1]])
        return torch.stack(tokens[1:], dim=1)


def distribution(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """The definition, row by row in float64: temperature, then the k most likely, then the nucleus."""
    result = np.zeros_like(logits, dtype=np.float64)
    for row, values in enumerate(logits.astype(np.float64)):
        weights = np.exp((values - values.max()) / params.temperature)
        order = np.argsort(-weights, kind="stable")[: params.top_k or None]
        weights = weights[order] / weights[order].sum()
        # A token is kept while the ones before it have not reached top_p yet.
        before = np.concatenate([[0.0], np.cumsum(weights)[:-1]])
        kept = before < params.top_p
        result[row, order[kept]] = weights[kept] / weights[kept].sum()
    return result


def p_value(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Chi-square test of transition counts [V, V] against probabilities; small cells of a row are pooled."""
    statistic, degrees = 0.0, 0
    for observed, chances in zip(counts, probabilities, strict=True):
        expected = chances * observed.sum()
        large = expected >= 5
        cells = [(o, e) for o, e in zip(observed[large], expected[large], strict=True)]
        if expected[~large].sum() >= 5:
            cells.append((observed[~large].sum(), expected[~large].sum()))
        statistic += sum((o - e) ** 2 / e for o, e in cells)
        degrees += max(len(cells) - 1, 0)
    return float(torch.special.gammaincc(torch.tensor(degrees / 2.0), torch.tensor(statistic / 2)))


@pytest.mark.parametrize(
    ("params", "with_drafter"),
    [
        (SamplingParams(temperature=1.0), True),
        (SamplingParams(temperature=1.0), False),
        (SamplingParams(temperature=0.7, top_k=4), True),
        (SamplingParams(temperature=1.3, top_p=0.8), True),
        (SamplingParams(temperature=0.9, top_k=6, top_p=0.7), True),
    ],
    ids=lambda value: "" if isinstance(value, bool) else f"t{value.temperature}-k{value.top_k}-p{value.top_p}",
)
def test_emitted_tokens_follow_the_targets_distribution(params: SamplingParams, with_drafter: bool) -> None:
    logits = 1.5 * torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(5))
    drafter = MostLikelyDrafter(logits, BLOCK) if with_drafter else None
    decoder = DFlashDecoder(cast(Target, MarkovTarget(logits)), drafter, max_batch=REQUESTS)
    seeded = [
        SamplingParams(params.temperature, params.top_k, params.top_p, seed=1000 + request)
        for request in range(REQUESTS)
    ]
    prompts = [[request % VOCAB] for request in range(REQUESTS)]
    got = decoder.generate(prompts, max_new_tokens=NEW, sampling=seeded)
    counts = np.zeros((VOCAB, VOCAB))
    for prompt, generation in zip(prompts, got, strict=True):
        assert len(generation.token_ids) == NEW
        for previous, token in itertools.pairwise([*prompt, *generation.token_ids]):
            counts[previous, token] += 1
    expected = distribution(logits.numpy(), params)
    assert counts[expected == 0].sum() == 0
    assert p_value(counts, expected) > 1e-3
    # The test can tell: a temperature 10 % off is ruled out.
    other = SamplingParams(params.temperature * 1.1, params.top_k, params.top_p)
    assert p_value(counts, distribution(logits.numpy(), other)) < 1e-6
    if with_drafter:
        assert 1.3 < got.stats.tau < BLOCK - 0.3


def test_requests_do_not_share_random_numbers() -> None:
    """Of two requests with different seeds, pairs of tokens at the same place are independent."""
    logits = torch.zeros(VOCAB, VOCAB)
    decoder = DFlashDecoder(cast(Target, MarkovTarget(logits)), max_batch=2)
    params = [SamplingParams(temperature=1.0, seed=seed) for seed in (0, 1)]
    got = decoder.generate([[0], [0]], max_new_tokens=4000, sampling=params)
    counts = np.zeros((VOCAB, VOCAB))
    for pair in zip(got[0].token_ids, got[1].token_ids, strict=True):
        counts[pair] += 1
    assert p_value(counts, np.full((VOCAB, VOCAB), 1 / VOCAB)) > 1e-3


def test_defaults_are_greedy() -> None:
    assert SamplingParams().is_greedy
    assert not SamplingParams(temperature=0.1).is_greedy


def test_seeds() -> None:
    assert SamplingParams(seed=7).seeded() == SamplingParams(seed=7)
    drawn = {SamplingParams().seeded().seed for _ in range(20)}
    assert len(drawn) == 20
    assert all(seed is not None and 0 <= seed < 2**63 for seed in drawn)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_k", 2.5),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", float("nan")),
        ("seed", -1),
        ("seed", 2**63),
    ],
)
def test_bad_values(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}: expected .*, got"):
        SamplingParams(**{name: value})
