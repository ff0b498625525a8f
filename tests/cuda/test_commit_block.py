"""commit_block's kernel on the PTX interpreter."""

from typing import Any

import pytest
import torch

from dflash_ops import reference
from tests.cases.commit_block import SHAPES, round_state
from tests.cuda.gpu import GPUS, Gpu
from tests.cuda.simulated_ops import commit_block


def check(gpu: Gpu, args: tuple[torch.Tensor, ...], state: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    copy = {name: None if value is None else value.clone() for name, value in state.items()}
    expected = reference.commit_block(*args, **copy)
    actual = commit_block(gpu, *args, **state)
    for left, right in zip(actual, expected, strict=True):
        assert torch.equal(left, right)
    for name, value in state.items():
        if value is not None:
            assert torch.equal(value, copy[name]), name
    return actual


@pytest.mark.parametrize("gpu", GPUS, ids=str)
@pytest.mark.parametrize("seed", range(2 * len(SHAPES)))
@pytest.mark.parametrize("stops", [None, [], [3], [3, 5, 0]])
@pytest.mark.parametrize("bounded", [False, True])
def test_matches_the_definition(seed: int, stops: list[int] | None, bounded: bool, gpu: Gpu) -> None:
    check(gpu, *round_state(*SHAPES[seed % len(SHAPES)], seed, stops=stops, bounded=bounded))


def one_request(block: int, output_len: int, **changes: Any) -> dict[str, Any]:
    return {
        "context_lens": torch.tensor([10], dtype=torch.int32),
        "next_token": torch.tensor([50]),
        "output_ids": torch.full((1, 80), -7),
        "output_lens": torch.tensor([output_len], dtype=torch.int32),
        "finished": torch.tensor([False]),
    } | changes


@pytest.mark.parametrize("stop_at", [0, 1, 31, 32, 39, 63, 64])
def test_the_first_stop_token_cuts_a_long_block(stop_at: int) -> None:
    """More tokens than a warp has lanes, 40 of them accepted; another stop token follows the first."""
    tokens = torch.arange(100, 170)[None]
    state = one_request(70, 5, stop_token_ids=torch.tensor([100 + stop_at, 139 + (stop_at == 39), 168]))
    committed, _ = check(Gpu(), (tokens, torch.tensor([40], dtype=torch.int32), tokens + 1000), state)
    assert committed.tolist() == [min(stop_at + 1, 40 + (stop_at == 39))]


@pytest.mark.parametrize("stop_at", [10, 31, 33])
def test_a_stop_token_past_the_accepted_ones_does_not_count(stop_at: int) -> None:
    tokens = torch.arange(100, 140)[None]
    state = one_request(40, 5, stop_token_ids=torch.tensor([100 + stop_at]))
    committed, _ = check(Gpu(), (tokens, torch.tensor([9], dtype=torch.int32), tokens + 1000), state)
    assert committed.tolist() == [10]


@pytest.mark.parametrize(("accepted", "output_len"), [(7, 2), (2**31 - 1, 2), (-5, 2), (3, -1), (3, 2147480000)])
def test_counts_that_make_no_sense_stay_inside(accepted: int, output_len: int) -> None:
    """The CPU refuses them; CUDA cannot look before the launch, and must write nothing out of place."""
    tokens = torch.arange(100, 104)[None]
    state = one_request(4, output_len)
    committed, slots = commit_block(Gpu(), tokens, torch.tensor([accepted]).int(), tokens + 1000, **state)
    count = 4 if accepted > 3 else 0
    assert committed.tolist() == [count]
    assert slots.tolist() == [[1100 + i if i < count else -1 for i in range(4)]]
    assert (state["output_ids"] != -7).sum() == count


def test_lengths_of_finished_and_idle_requests_are_not_read() -> None:
    for changes, first in (({"finished": torch.tensor([True])}, 8), ({}, -1)):
        tokens = torch.tensor([[first, 9]])
        lens = torch.tensor([2147480000], dtype=torch.int32)
        committed, slots = check(Gpu(), (tokens, lens, tokens + 70), one_request(2, 0, output_lens=lens, **changes))
        assert committed.tolist() == [0]
        assert slots.tolist() == [[-1, -1]]


def test_strided_state_and_slots_in_place() -> None:
    """Columns of wider tensors; context_slots may be the slot mapping itself."""
    wide = torch.full((2, 5), -7, dtype=torch.int32)
    wide[:, 1], wide[:, 3] = torch.tensor([4, 6]), torch.tensor([0, 1])
    output = torch.full((2, 12), -7)
    slots = torch.tensor([[70, 71, 72], [80, 81, 82]])
    finished = torch.zeros(2, 2, dtype=torch.bool)
    next_token = torch.full((2, 2), -7)
    committed = torch.full((2, 3), -7, dtype=torch.int32)
    commit_block(
        Gpu(),
        torch.tensor([[5, 6, -1], [7, 8, 9]]),
        torch.tensor([1, 2], dtype=torch.int32),
        slots,
        context_lens=wide[:, 1],
        next_token=next_token[:, 1],
        output_ids=output[:, 1:11],
        output_lens=wide[:, 3],
        finished=finished[:, 1],
        stop_token_ids=torch.tensor([9]),
        committed=committed[:, 2],
        context_slots=slots,
    )
    assert wide.tolist() == [[-7, 6, -7, 2, -7], [-7, 9, -7, 4, -7]]
    assert output.tolist() == [[-7, 5, 6] + [-7] * 9, [-7, -7, 7, 8, 9] + [-7] * 7]
    assert slots.tolist() == [[70, 71, -1], [80, 81, 82]]
    assert finished.tolist() == [[False, False], [False, True]]
    assert next_token.tolist() == [[-7, 6], [-7, 9]]
    assert committed.tolist() == [[-7, -7, 2], [-7, -7, 3]]


def test_whole_sectors_are_stored_once() -> None:
    gpu = Gpu()
    tokens = torch.arange(100, 164)[None]
    state = one_request(64, 8)
    check(gpu, (tokens, torch.tensor([39], dtype=torch.int32), tokens + 1000), state)
    # Lane 0, which has more to do, may come by itself.
    gpu.assert_stores("context_slots", 64 * 8, slack=1.2)
    gpu.assert_stores("output_ids", 40 * 8, slack=1.2)
    gpu.assert_loads("slot_mapping", 40 * 8, slack=1.2)
