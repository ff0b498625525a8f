"""begin_block's kernel on the PTX interpreter."""

from typing import Any

import pytest
import torch

from dflash_ops import reference
from tests.cases.begin_block import CASES, Case
from tests.cuda.gpu import GPUS, Gpu, sparse_elements
from tests.cuda.simulated_ops import begin_block

GARBAGE = 2147480000


@pytest.mark.parametrize("gpu", GPUS, ids=str)
@pytest.mark.parametrize("case", [*CASES, Case(9, 64, tuple(range(0, 540, 60)), 16)], ids=str)
def test_matches_the_definition(case: Case, gpu: Gpu) -> None:
    for finished in (None, torch.arange(case.batch) % 2 == 0):
        options: dict[str, Any] = {
            "page_size": case.page_size,
            "mask_token_id": 7,
            "block_size": case.block,
            "finished": finished,
        }
        expected = reference.begin_block(*case.state(), **options)
        actual = begin_block(gpu, *case.state(), **options)
        for left, right in zip(actual, expected, strict=True):
            assert torch.equal(left, right)


def test_large_numbers_do_not_wrap() -> None:
    _, positions, slots = begin_block(
        Gpu(),
        torch.tensor([1, 1]),
        torch.tensor([2**31 - 2, 3], dtype=torch.int32),
        torch.tensor([[0, 0], [GARBAGE, -1]], dtype=torch.int32),
        page_size=4,
        mask_token_id=0,
        block_size=4,
    )
    assert positions[0].tolist() == [2**31 - 2, 2**31 - 1, 2**31, 2**31 + 1]
    assert slots.tolist() == [[-1] * 4, [GARBAGE * 4 + 3, -1, -1, -1]]


def test_lengths_that_make_no_sense_are_not_followed() -> None:
    """Of a finished request they may be anything; of another one the CPU refuses what CUDA cannot look at."""
    ids, positions, slots = begin_block(
        Gpu(),
        torch.tensor([-1, 5]),
        torch.tensor([-2147480000, -5], dtype=torch.int32),
        torch.tensor([[GARBAGE], [3]], dtype=torch.int32),
        page_size=4,
        mask_token_id=9,
        block_size=2,
        finished=torch.tensor([True, False]),
    )
    assert ids.tolist() == [[9, 9], [5, 9]]
    assert positions[0].tolist() == [0, 0]
    assert slots.tolist() == [[-1, -1], [-1, -1]]


def test_strides_are_honoured() -> None:
    next_token, context_lens, table = Case(3, 4, (2, 5), 3).state()
    expected = reference.begin_block(next_token, context_lens, table, page_size=4, mask_token_id=7, block_size=3)
    wide = torch.full((2, 12), -7)
    lens, finished = torch.full((2, 2), GARBAGE, dtype=torch.int32), torch.ones(2, 3, dtype=torch.bool)
    lens[:, 1], finished[:, 1] = context_lens, False
    pages = torch.full((2, 8), -9, dtype=torch.int32)
    pages[:, 2:5] = table
    outputs = {"input_ids": wide[:, 0:3], "positions": wide[:, 4:7], "slot_mapping": wide[:, 8:11]}
    begin_block(
        Gpu(),
        next_token.repeat_interleave(2)[::2],
        lens[:, 1],
        pages[:, 2:5],
        page_size=4,
        mask_token_id=7,
        block_size=3,
        finished=finished[:, 1],
        **outputs,
    )
    for left, right in zip(outputs.values(), expected, strict=True):
        assert torch.equal(left, right)
    assert (wide[:, [3, 7, 11]] == -7).all()


def test_a_page_table_of_more_than_2_31_entries() -> None:
    next_token, context_lens, table = Case(3, 4, (2, 5), 3).state()
    pages = sparse_elements(2**31 + 3, torch.int32).as_strided((2, 3), (2**31, 1))
    pages.copy_(table)
    options: dict[str, Any] = {"page_size": 4, "mask_token_id": 7, "block_size": 3}
    expected = reference.begin_block(next_token, context_lens, table, **options)
    actual = begin_block(Gpu(), next_token, context_lens, pages, **options)
    for left, right in zip(actual, expected, strict=True):
        assert torch.equal(left, right)


def test_whole_sectors_are_stored_once() -> None:
    gpu = Gpu()
    case = Case(20, 16, tuple(range(0, 160, 10)), 16)
    begin_block(gpu, *case.state(), page_size=16, mask_token_id=7, block_size=16)
    for name in ("input_ids", "positions", "slot_mapping"):
        gpu.assert_stores(name, 16 * 16 * 8)
