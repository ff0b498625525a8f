"""The experiment of `benchmarks/error_accumulation.py` on tiny random models whose drafts can be made anew one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from dflash_decoding import DraftConfig, PagePool
from dflash_decoding.baselines.autoregressive_drafter import AutoregressiveDrafter, tensor_specs
from torch import Tensor

from benchmarks.error_accumulation import Recorder, drafts_of_text, measure, table
from tests.baselines.world import random_tensors
from tests.decoding.tiny import MASK, tiny_drafter, tiny_target

TEXT = np.random.default_rng(0).integers(0, 256, 30).astype(np.uint16)
FIRST = 6


def make_drafter(kind: str, target: Any) -> Any:
    """A drafter of block 8 for the tiny target; a chain's head sees hidden states that it can tell apart."""
    if kind == "block":
        return tiny_drafter(target)
    fields: dict[str, Any] = dict(
        block_size=8, mask_token_id=MASK, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, vocab_size=target.vocab_size,
        target_layer_ids=(0, 2), layer_types=("full_attention",), max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    config = DraftConfig(**fields)
    weights = random_tensors(tensor_specs(config))
    return AutoregressiveDrafter(config, weights, target.embed_weight, target.lm_head_weight)


def one_draft(kind: str, place: int, forced: bool) -> tuple[Tensor, Tensor]:
    """Hidden rows and tokens of the draft at one place, with models and caches of its own."""
    target = tiny_target()
    drafter = make_drafter(kind, target)
    tokens = torch.from_numpy(TEXT.astype(np.int64))
    pool = PagePool(1, 64, 1, 1)
    pool.allocate(0, 64)
    recorder = Recorder(drafter)
    recorder.begin(tokens[place + 1 :] if forced else None)
    slots, positions = torch.arange(place), torch.arange(place)
    no_context = torch.zeros(1, dtype=torch.int32)
    output = target.forward(
        tokens[:place], positions, slots, target.new_cache(pool), pool.page_table, no_context,
        tap_layers=drafter.tap_layers,
    )  # fmt: skip
    cache = drafter.new_cache(pool)
    drafter.inject(output.taps, positions, slots, cache)
    ids = torch.tensor([[int(tokens[place])] + [MASK] * 7])
    drafter.draft(ids, torch.arange(place, place + 8)[None], cache, pool.page_table, no_context + place)
    return torch.cat(recorder.hidden), torch.cat(recorder.tokens)


@pytest.mark.parametrize(("kind", "forced"), [("block", False), ("chain", False), ("chain", True)])
def test_drafts_are_those_of_a_cache_of_their_own(kind: str, forced: bool) -> None:
    target = tiny_target()
    drafter = make_drafter(kind, target)
    hidden, tokens = drafts_of_text(drafter, Recorder(drafter), target, TEXT, FIRST, forced)
    assert len(hidden) == len(tokens) == len(TEXT) - 8 - FIRST + 1
    for place in (FIRST, 15, len(TEXT) - 8):
        expected = one_draft(kind, place, forced)
        torch.testing.assert_close(hidden[place - FIRST], expected[0], atol=1e-4, rtol=1e-4)
        assert torch.equal(tokens[place - FIRST], expected[1])


def test_a_measure_counts_by_place() -> None:
    target = tiny_target()
    drafter = make_drafter("block", target)
    _, tokens = drafts_of_text(drafter, Recorder(drafter), target, TEXT, FIRST, False)
    result = measure(make_drafter("block", target), target, [(TEXT, FIRST)], False)
    places = len(tokens) - 7
    assert result["places"] == places
    assert result["distance"][0] == 0
    assert min(result["distance"][1:]) > 0
    truth = torch.from_numpy(TEXT.astype(np.int64))
    for i in range(7):
        right = [int(tokens[p, i]) == int(truth[FIRST + p + 1 + i]) for p in range(places)]
        assert result["right"][i] == pytest.approx(float(np.mean(right)))
    printed = table({"block": result})
    assert printed.count("\n") == 3
    assert "| block, distance | 0.00 |" in printed
