from typing import Any

import pytest
import torch

import dflash_ops
from dflash_ops import reference
from tests.cases.commit_block import SHAPES, round_state
from tests.ops.harness import check_compiles, check_cuda_message, check_registration


@pytest.mark.parametrize("seed", range(2 * len(SHAPES)))
@pytest.mark.parametrize("stops", [None, [], [3], [3, 5, 0]])
@pytest.mark.parametrize("bounded", [False, True])
def test_matches_the_definition(seed: int, stops: list[int] | None, bounded: bool) -> None:
    args, state = round_state(*SHAPES[seed % len(SHAPES)], seed, stops=stops, bounded=bounded)
    copy = {name: None if value is None else value.clone() for name, value in state.items()}
    expected = reference.commit_block(*args, **copy)
    actual = dflash_ops.commit_block(*args, **state)
    for left, right in zip(actual, expected, strict=True):
        assert torch.equal(left, right)
    for name, value in state.items():
        if value is not None:
            assert torch.equal(value, copy[name]), name


def one_request(tokens: list[int], accepted: int, **changes: Any) -> tuple[dict[str, Any], torch.Tensor, torch.Tensor]:
    state: dict[str, Any] = {
        "context_lens": torch.tensor([10], dtype=torch.int32),
        "next_token": torch.tensor([50]),
        "output_ids": torch.full((1, 16), -7),
        "output_lens": torch.tensor([2], dtype=torch.int32),
        "finished": torch.tensor([False]),
    } | changes
    slots = torch.arange(len(tokens))[None] + 70
    committed, context_slots = dflash_ops.commit_block(
        torch.tensor([tokens]), torch.tensor([accepted], dtype=torch.int32), slots, **state
    )
    return state, committed, context_slots


def test_rejected_rows_get_no_slot() -> None:
    state, committed, slots = one_request([8, 9, 4, -1], 2)
    assert committed.tolist() == [3]
    assert slots.tolist() == [[70, 71, 72, -1]]
    assert state["output_ids"][0, :6].tolist() == [-7, -7, 8, 9, 4, -7]
    assert (int(state["context_lens"]), int(state["next_token"]), int(state["output_lens"])) == (13, 4, 5)


def test_a_stop_token_inside_the_run_cuts_it() -> None:
    state, committed, slots = one_request([8, 2, 4, 2], 3, stop_token_ids=torch.tensor([2]))
    assert committed.tolist() == [2]
    assert slots.tolist() == [[70, 71, -1, -1]]
    assert state["finished"].item() is True
    assert int(state["next_token"]) == 2


def test_the_uncommitted_tail_is_not_scanned_for_stop_tokens() -> None:
    state, committed, _ = one_request([8, 9, 2, 2], 1, stop_token_ids=torch.tensor([2]))
    assert committed.tolist() == [2]
    assert state["finished"].item() is False


def test_a_token_equal_to_the_mask_id_is_kept() -> None:
    state, committed, _ = one_request([0, 0, 0, -1], 2)  # 0 would be the mask token
    assert committed.tolist() == [3]
    assert state["output_ids"][0, 2:5].tolist() == [0, 0, 0]


def test_length_limits_cut_and_finish() -> None:
    state, committed, _ = one_request([8, 9, 4, 5], 3, max_output_lens=torch.tensor([4], dtype=torch.int32))
    assert committed.tolist() == [2]
    assert state["finished"].item() is True
    state, committed, _ = one_request([8, 9], 1, output_ids=torch.full((1, 3), -7))
    assert committed.tolist() == [1]
    assert state["finished"].item() is True


def test_finished_and_idle_requests_stay_as_they_are() -> None:
    for changes, tokens in (({"finished": torch.tensor([True])}, [8, 9]), ({}, [-1, -1])):
        state, committed, slots = one_request(tokens, 0, **changes)
        assert committed.tolist() == [0]
        assert slots.tolist() == [[-1, -1]]
        assert (int(state["context_lens"]), int(state["next_token"]), int(state["output_lens"])) == (10, 50, 2)
        assert (state["output_ids"] == -7).all()


def test_lengths_of_finished_and_idle_requests_are_not_read() -> None:
    for changes, tokens in (({"finished": torch.tensor([True])}, [8, 9]), ({}, [-1, -1])):
        lens = torch.tensor([2147480000], dtype=torch.int32)
        state, committed, _ = one_request(tokens, 2147480000, output_lens=lens, **changes)
        assert committed.tolist() == [0]
        assert (state["output_ids"] == -7).all()


def test_a_request_at_its_limit_finishes_without_a_token() -> None:
    state, committed, slots = one_request([8, 9], 1, max_output_lens=torch.tensor([2], dtype=torch.int32))
    assert committed.tolist() == [0]
    assert slots.tolist() == [[-1, -1]]
    assert state["finished"].item() is True
    assert int(state["next_token"]) == 50


def test_strided_state_and_slots_in_place() -> None:
    """Columns of wider tensors; context_slots may be the slot mapping itself."""
    wide = torch.full((2, 5), -7, dtype=torch.int32)
    wide[:, 1], wide[:, 3] = torch.tensor([4, 6]), torch.tensor([0, 1])
    output = torch.full((2, 12), -7)
    slots = torch.tensor([[70, 71, 72], [80, 81, 82]])
    finished = torch.zeros(2, 2, dtype=torch.bool)
    dflash_ops.commit_block(
        torch.tensor([[5, 6, -1], [7, 8, 9]]),
        torch.tensor([1, 2], dtype=torch.int32),
        slots,
        context_lens=wide[:, 1],
        next_token=output[:, 0],
        output_ids=output[:, 2:10],
        output_lens=wide[:, 3],
        finished=finished[:, 1],
        committed=wide[:, 0],
        context_slots=slots,
    )
    assert wide.tolist() == [[2, 6, -7, 2, -7], [3, 9, -7, 4, -7]]
    assert output[0].tolist() == [6, -7, 5, 6, *[-7] * 8]
    assert output[1].tolist() == [9, -7, -7, 7, 8, 9, *[-7] * 6]
    assert slots.tolist() == [[70, 71, -1], [80, 81, 82]]
    assert not finished.any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"accepted": torch.tensor([4], dtype=torch.int32)}, r"accepted\[0\]: expected 0 to 3, got 4"),
        ({"accepted": torch.tensor([-1], dtype=torch.int32)}, r"accepted\[0\]: expected 0 to 3, got -1"),
        ({"output_lens": torch.tensor([17], dtype=torch.int32)}, r"output_lens\[0\]: expected 0 to 16, got 17"),
        ({"finished": torch.zeros(1, dtype=torch.uint8)}, "finished: expected bool"),
        (
            {"output_ids": torch.zeros(16, 1, dtype=torch.int64).t().expand(1, 16)[:, ::2]},
            "output_ids: expected stride 1",
        ),
        ({"stop_token_ids": torch.zeros(2, 2, dtype=torch.int64)}, "stop_token_ids: expected shape"),
        ({"context_lens": torch.zeros(1, dtype=torch.int64)}, "context_lens: expected int32"),
    ],
)
def test_bad_arguments_are_named(changes: dict[str, torch.Tensor], message: str) -> None:
    (tokens, accepted, slots), state = round_state(1, 4, 16, 0, stops=None, bounded=False)
    arguments = {"tokens": tokens, "accepted": accepted, "slot_mapping": slots} | state | changes
    with pytest.raises(RuntimeError, match=f"commit_block: {message}"):
        dflash_ops.commit_block(**arguments)


def test_registration() -> None:
    (tokens, accepted, slots), state = round_state(3, 4, 16, 1, stops=[3], bounded=True)
    outputs = (torch.zeros(3, dtype=torch.int32), torch.zeros(3, 4, dtype=torch.int64))
    order = ("context_lens", "next_token", "output_ids", "output_lens", "finished")
    mutable = [state[name] for name in order]
    args = (tokens, accepted, slots, state["stop_token_ids"], state["max_output_lens"], *mutable, *outputs)
    check_registration("commit_block", args)
    check_cuda_message("commit_block", args)

    def call(tokens: torch.Tensor, accepted: torch.Tensor, slots: torch.Tensor, *mutable: torch.Tensor) -> object:
        own = {name: value.clone() for name, value in zip(order, mutable, strict=True)}
        return *dflash_ops.commit_block(tokens, accepted, slots, **own), *own.values()

    check_compiles(call, tokens, accepted, slots, *mutable)
