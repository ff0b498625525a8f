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


def context_plan(kv_heads: int, head_dim: int, device: _host.DeviceProperties, rows: int = 16) -> _host.LaunchPlan:
    hidden_size, columns = 4096, 5 * 2 * kv_heads * head_dim
    activations = _host.GemmActivations(pieces=[(0, hidden_size)], piece_columns=hidden_size, rows=rows)
    weight = _host.GemmWeight(row_stride=hidden_size, layer_columns=columns // 5, columns=columns)
    gemm = _host.SkinnyGemm(activations=activations, weight=weight, dtype=_host.DType.bfloat16)
    layers = [_host.ContextCacheLayer() for _ in range(5)]
    caches = _host.ContextCaches(kv_heads=kv_heads, head_dim=head_dim, page_size=16, pages=1, layers=layers)
    write = _host.WriteContextKvParams(rows=rows, caches=caches)
    (step,) = _host.plan_project_context_kv(_host.ProjectContextKvParams(gemm=gemm, write=write), device)
    return step.launch


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_a_context_update_fills_the_gpu(device: _host.DeviceProperties) -> None:
    for rows in (1, 16, 64, 112):
        plan = context_plan(8, 128, device, rows)
        assert plan.grid[0] % device.multiprocessors == 0
        blocks = occupancy(device, 128, 255, 17680 + plan.shared_bytes).blocks
        assert blocks >= plan.grid[0] // device.multiprocessors
    assert occupancy(device, 128, 255, 17680 + context_plan(8, 128, device, 128).shared_bytes).blocks >= 1


def test_no_heads_need_no_launch() -> None:
    assert context_plan(0, 128, DEVICES[0]).grid[0] == 0
