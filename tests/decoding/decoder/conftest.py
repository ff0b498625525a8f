"""Target, prompts and plain answers of the decoder's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from dflash_decoding import (
    DFlashDecoder,
    Generations,
)
from dflash_decoding.target import Target

from tests.decoding.decoder.world import BLOCK, NEW
from tests.decoding.drafters import one_thread
from tests.decoding.tiny import VOCAB, tiny_target


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
