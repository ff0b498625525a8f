"""How a streamed weight is cut into shares, and what a block needs of its multiprocessor."""

import pytest

from dflash_ops import _host
from tests.cuda.gpu import COUNTER_BYTES
from tests.cuda.occupancy import occupancy

DEVICES = _host.known_devices()
HIDDEN, VOCABULARY = 4096, 151936  # of Qwen3-8B


def lm_head_plan(
    rows: int, device: _host.DeviceProperties, hidden_size: int = HIDDEN, vocab_size: int = VOCABULARY
) -> _host.LaunchPlan:
    activations = _host.GemmActivations(pieces=[(0, hidden_size)], piece_columns=hidden_size, rows=rows)
    weight = _host.GemmWeight(row_stride=hidden_size, layer_columns=vocab_size, columns=vocab_size)
    gemm = _host.SkinnyGemm(activations=activations, weight=weight, dtype=_host.DType.bfloat16)
    return _host.plan_lm_head_argmax(_host.LmHeadArgmaxParams(gemm=gemm), device)


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_the_cut_does_not_depend_on_the_rows(device: _host.DeviceProperties) -> None:
    plans = [lm_head_plan(rows, device) for rows in (1, 7, 16, 17, 64, 128)]
    assert {plan.grid for plan in plans} == {plans[0].grid}
    assert plans[0].grid[0] % device.multiprocessors == 0
    assert lm_head_plan(129, device).grid == (VOCABULARY // 128, 2, 1)
    assert lm_head_plan(0, device).grid[0] == 0


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
@pytest.mark.parametrize("rows", [1, 16, 17, 32, 64, 100, 128])
def test_blocks_fit_and_keep_enough_under_way(rows: int, device: _host.DeviceProperties) -> None:
    """All shares are resident at once, but for many rows on the smaller multiprocessors of data centre GPUs. Peak
    bandwidth times 0.7 us, the latency of memory under load."""
    plan = lm_head_plan(rows, device)
    blocks = occupancy(device, 128, 216, 4112 + plan.shared_bytes).blocks
    planned = plan.grid[0] // device.multiprocessors
    assert blocks >= planned
    wanted = device.memory_bandwidth * 0.7e-6 / device.multiprocessors
    assert planned * plan.bytes_in_flight >= wanted


def test_small_weights_take_few_blocks() -> None:
    device = _host.known_device("H200")
    assert lm_head_plan(1, device, 64, 128).grid[0] == 1
    assert lm_head_plan(1, device, 8 * 64, 128).grid[0] == 2
    assert lm_head_plan(1, device, 4096, 1280).grid[0] == 160


@pytest.mark.parametrize("rows", [1, 16, 128, 129])
def test_the_workspace_serves_any_device(rows: int) -> None:
    for device in DEVICES:
        plan = lm_head_plan(rows, device)
        assert plan.workspace_bytes == _host.lm_head_argmax_cuda_workspace_size(rows, HIDDEN, VOCABULARY)
        slot_bytes = 0 if rows > 128 else -(-rows // 16) * 16 * 128 * 4
        bests_bytes = plan.grid[0] * plan.grid[1] * 128 * 8
        assert plan.workspace_bytes >= COUNTER_BYTES + 2 * plan.grid[0] * slot_bytes + bests_bytes
