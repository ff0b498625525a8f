from typing import Any

import pytest
import torch

import dflash_ops
from dflash_ops import reference
from tests.cases.begin_block import CASES, Case
from tests.ops.harness import check_compiles, check_cuda_message, check_registration

GARBAGE = 2147480000


@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_the_definition(case: Case) -> None:
    for finished in (None, torch.arange(case.batch) % 2 == 0):
        options: dict[str, Any] = {
            "page_size": case.page_size,
            "mask_token_id": 7,
            "block_size": case.block,
            "finished": finished,
        }
        expected = reference.begin_block(*case.state(), **options)
        actual = dflash_ops.begin_block(*case.state(), **options)
        for left, right in zip(actual, expected, strict=True):
            assert torch.equal(left, right)


def test_slots_come_from_the_table() -> None:
    table = torch.tensor([[5, 2, GARBAGE], [9, -1, GARBAGE]], dtype=torch.int32)
    ids, positions, slots = dflash_ops.begin_block(
        torch.tensor([41, 42]),
        torch.tensor([2, 3], dtype=torch.int32),
        table,
        page_size=4,
        mask_token_id=0,
        block_size=6,
    )
    assert ids.tolist() == [[41, 0, 0, 0, 0, 0], [42, 0, 0, 0, 0, 0]]
    assert positions.tolist() == [[2, 3, 4, 5, 6, 7], [3, 4, 5, 6, 7, 8]]
    assert slots[0].tolist() == [22, 23, 8, 9, 10, 11]
    assert slots[1, :5].tolist() == [39, -1, -1, -1, -1]  # -1 pages give no slot
    assert int(slots[1, 5]) == GARBAGE * 4  # 64-bit; the write op refuses a slot outside the cache


def test_positions_past_int32_do_not_wrap() -> None:
    _, positions, slots = dflash_ops.begin_block(
        torch.tensor([1]),
        torch.tensor([2**31 - 2], dtype=torch.int32),
        torch.zeros(1, 2, dtype=torch.int32),
        page_size=16,
        mask_token_id=0,
        block_size=4,
    )
    assert positions.tolist() == [[2**31 - 2, 2**31 - 1, 2**31, 2**31 + 1]]
    assert (slots == -1).all()


def test_a_finished_request_may_hold_garbage() -> None:
    ids, positions, slots = dflash_ops.begin_block(
        torch.tensor([-1, 5]),
        torch.tensor([-2147480000, 1], dtype=torch.int32),
        torch.tensor([[GARBAGE], [3]], dtype=torch.int32),
        page_size=4,
        mask_token_id=9,
        block_size=2,
        finished=torch.tensor([True, False]),
    )
    assert ids.tolist() == [[9, 9], [5, 9]]
    assert positions.tolist() == [[0, 0], [1, 2]]
    assert slots.tolist() == [[-1, -1], [13, 14]]


def test_outputs_may_be_parts_of_wider_tensors() -> None:
    next_token, context_lens, table = Case(3, 4, (2, 5), 3).state()
    wide = torch.full((2, 12), -7)
    outputs = {"input_ids": wide[:, 0:3], "positions": wide[:, 4:7], "slot_mapping": wide[:, 8:11]}
    dflash_ops.begin_block(next_token, context_lens, table, page_size=4, mask_token_id=1, **outputs)
    expected = reference.begin_block(next_token, context_lens, table, page_size=4, mask_token_id=1, block_size=3)
    for actual, value in zip(outputs.values(), expected, strict=True):
        assert torch.equal(actual, value)
    assert (wide[:, [3, 7, 11]] == -7).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"context_lens": torch.tensor([0, -4], dtype=torch.int32)}, r"context_lens\[1\]: expected 0 or more, got -4"),
        ({"context_lens": torch.zeros(2, dtype=torch.int64)}, "context_lens: expected int32"),
        ({"page_table": torch.zeros(3, 2, dtype=torch.int32)}, "page_table: expected shape"),
        ({"page_size": 0}, "page_size: expected a positive number, got 0"),
        ({"mask_token_id": -1}, "mask_token_id: expected a token id"),
        ({"finished": torch.zeros(2, dtype=torch.int32)}, "finished: expected bool"),
        ({"positions": torch.zeros(2, 3, dtype=torch.int64)}, "positions: expected shape"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, object], message: str) -> None:
    args: dict[str, object] = {
        "next_token": torch.zeros(2, dtype=torch.int64),
        "context_lens": torch.zeros(2, dtype=torch.int32),
        "page_table": torch.zeros(2, 2, dtype=torch.int32),
        "page_size": 4,
        "mask_token_id": 0,
        "finished": None,
        "input_ids": torch.zeros(2, 4, dtype=torch.int64),
        "positions": torch.zeros(2, 4, dtype=torch.int64),
        "slot_mapping": torch.zeros(2, 4, dtype=torch.int64),
    } | change
    with pytest.raises(RuntimeError, match=f"begin_block: {message}"):
        torch.ops.dflash_ops.begin_block(*args.values())


def test_block_size_is_needed() -> None:
    with pytest.raises(ValueError, match="block_size"):
        dflash_ops.begin_block(*Case(2, 4, (0,), 3).state(), page_size=4, mask_token_id=0)


def test_registration() -> None:
    next_token, context_lens, table = Case(3, 4, (1, 5), 4).state()
    outputs = [torch.zeros(2, 4, dtype=torch.int64) for _ in range(3)]
    args = (next_token, context_lens, table, 4, 0, None, *outputs)
    check_registration("begin_block", args)
    check_cuda_message("begin_block", args)
    check_compiles(
        lambda a, b, c: dflash_ops.begin_block(a, b, c, page_size=4, mask_token_id=0, block_size=4),
        next_token,
        context_lens,
        table,
    )
