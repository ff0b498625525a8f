"""How row_argmax and verify_greedy are cut into blocks, and their workspace."""

import struct

import pytest

from dflash_ops import _host
from tests.cuda.gpu import COUNTER_BYTES

DEVICES = _host.known_devices()
DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2}
THREADS = 256
WORKSPACE = 1 << 20


def row_argmax_plan(rows: int, columns: int, dtype: str, device: _host.DeviceProperties) -> _host.LaunchPlan:
    params = _host.RowArgmaxParams(rows=rows, columns=columns, row_stride=columns, dtype=getattr(_host.DType, dtype))
    return _host.plan_row_argmax(params, WORKSPACE, device)


def stretch_fields(plan: _host.LaunchPlan) -> tuple[int, int, int, int]:
    """arrivals, stretch_best (addresses), stretches, stretch_chunks: the tail of the parameter bytes."""
    return struct.unpack("<QQII", plan.params[-24:])


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_stretches_cover_a_row_wherever_it_starts(dtype: str, device: _host.DeviceProperties) -> None:
    for columns in (1, 7, 8, 4095, 4096, 4097, 49152, 151936, 262144):
        for rows in (1, 2, 16, 33, 127, 528, 529, 5000):
            check_stretches(rows, columns, dtype, row_argmax_plan(rows, columns, dtype, device))


def check_stretches(rows: int, columns: int, dtype: str, plan: _host.LaunchPlan) -> None:
    arrivals, bests, stretches, stretch_chunks = stretch_fields(plan)
    size = DTYPES[dtype]
    for lead in range(128 // size):  # elements between the line and the row's start in it
        chunks = -(-(lead + columns) * size // 16)
        assert stretches * stretch_chunks >= chunks
        assert (stretches - 1) * stretch_chunks < chunks + 8  # all of them hold a chunk, but for a short lead
    assert stretch_chunks % 8 == 0  # whole lines
    assert plan.entry == f"row_argmax_{dtype}"
    assert plan.grid == (rows, stretches, 1)
    assert plan.block == (THREADS, 1, 1)
    assert plan.shared_bytes == 0
    # Both arrays lie inside the workspace, aligned and apart.
    assert arrivals == WORKSPACE
    assert bests % 8 == 0
    assert bests >= arrivals + COUNTER_BYTES
    assert stretches == 1 or 4 * rows <= COUNTER_BYTES
    assert bests + 8 * rows * stretches <= WORKSPACE + plan.workspace_bytes
    assert plan.workspace_bytes == _host.row_argmax_workspace_size(rows)


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_a_block_of_16_rows_fills_the_gpu(device: _host.DeviceProperties) -> None:
    rows, stretches, _ = row_argmax_plan(16, 151936, "bfloat16", device).grid
    assert rows * stretches >= 2 * device.multiprocessors
    assert rows * stretches <= 6 * device.multiprocessors  # all of them resident at once


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_many_rows_do_not_meet(device: _host.DeviceProperties) -> None:
    assert row_argmax_plan(1024, 151936, "float32", device).grid == (1024, 1, 1)


def test_no_rows_need_no_launch() -> None:
    assert row_argmax_plan(0, 5, "float32", DEVICES[0]).grid[0] == 0
    params = _host.VerifyParams(batch=0, drafts=3, vocabulary=11, logits=1)
    assert _host.plan_verify_greedy(params, WORKSPACE, DEVICES[0]).grid[0] == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_verify_greedy_cuts_all_rows_of_all_requests(dtype: str) -> None:
    device = _host.known_device("H200")
    params = _host.VerifyParams(batch=2, drafts=7, vocabulary=151936, logits=1, dtype=getattr(_host.DType, dtype))
    plan = _host.plan_verify_greedy(params, WORKSPACE, device)
    assert plan.entry == f"verify_greedy_{dtype}"
    assert plan.grid == row_argmax_plan(16, 151936, dtype, device).grid
    assert stretch_fields(plan) == stretch_fields(row_argmax_plan(16, 151936, dtype, device))
    assert plan.workspace_bytes == _host.verify_greedy_workspace_size(2, 7)


@pytest.mark.parametrize(("batch", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (64, 16)])
def test_ids_take_a_warp_for_each_request(batch: int, blocks: int) -> None:
    params = _host.VerifyParams(batch=batch, drafts=15, target_ids=1)
    plan = _host.plan_verify_greedy(params, 0, DEVICES[0])
    assert (plan.entry, plan.grid, plan.block) == ("verify_greedy_ids", (blocks, 1, 1), (128, 1, 1))
    assert plan.workspace_bytes == 0
