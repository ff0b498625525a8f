"""row_argmax's kernel on the PTX interpreter."""

import pytest
import torch
from torch import Tensor

from dflash_ops import _host, reference
from tests.cases.row_argmax import CASES, Case
from tests.cuda.gpu import COUNTER_BYTES, GPUS, Gpu, sparse_elements
from tests.cuda.simulated_ops import row_argmax
from tests.cuda.test_argmax_plans import stretch_fields
from tests.ops.harness import DTYPES
from tests.ptxsim import assert_count


def check(gpu: Gpu, logits: Tensor) -> None:
    ids, values = row_argmax(gpu, logits)
    expected_ids, expected_values = reference.row_argmax(logits.double())
    assert ids.tolist() == expected_ids.tolist()
    torch.testing.assert_close(values.double(), expected_values, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("gpu", GPUS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_the_definition(case: Case, dtype: torch.dtype, gpu: Gpu) -> None:
    check(gpu, case.logits(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 2, 7, 9, 15, 16, 17, 4500])
def test_a_row_may_start_anywhere(columns: int, dtype: torch.dtype) -> None:
    """Rows at every element of a 16-byte chunk, their maximum at either end and in between, NaN around them."""
    buffer = torch.full((9, columns + 23), torch.nan, dtype=dtype)
    for start in range(8):
        logits = buffer[:, start : start + columns]  # 9 rows, each at another element of its chunk
        logits.copy_(torch.randn(9, columns, generator=torch.Generator().manual_seed(start)))
        logits[0, 0] = logits[1, -1] = logits[2, columns // 2] = 9.0
        check(Gpu(), logits)
        buffer.fill_(torch.nan)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 5, 64, 9000])
def test_special_values_follow_torch(columns: int, dtype: torch.dtype) -> None:
    inf, nan = float("inf"), float("nan")
    rows = torch.randn(9, columns, generator=torch.Generator().manual_seed(1)).to(dtype)
    rows[0] = -inf
    rows[1] = inf
    rows[2, columns // 2] = nan
    rows[3, columns - 1] = nan
    rows[4] = 2.0  # all equal
    rows[5, columns - 1] = inf
    rows[6, columns // 3 :] = nan
    rows[7] = -0.0
    rows[7, columns // 2 :] = 0.0  # equal to the minus zeros before it
    bits = rows.view(torch.int32 if dtype == torch.float32 else torch.int16)
    bits[8, columns // 2] = -1  # a NaN with the sign bit and another payload
    check(Gpu(), rows)
    ids, _ = row_argmax(Gpu(), rows)
    assert ids[[0, 1, 4, 7]].tolist() == [0, 0, 0, 0]


def test_ties_go_to_the_lowest_index() -> None:
    logits = torch.zeros(16, 9000)
    for row in range(16):
        logits[row, row * 500 :: 7] = 1.0
    ids, _ = row_argmax(Gpu(), logits)
    assert ids.tolist() == [row * 500 for row in range(16)]


def test_strides_are_honoured() -> None:
    logits = torch.randn(10, 10)[::2]
    ids = torch.full((5, 3), -7, dtype=torch.int64)
    values = torch.full((5, 2), -7.0)
    row_argmax(Gpu(), logits, ids=ids[:, 1], values=values[:, 0])
    assert torch.equal(ids[:, 1], logits.argmax(1))
    assert torch.equal(values[:, 0], logits.amax(1))
    assert (ids[:, [0, 2]] == -7).all()
    assert (values[:, 1] == -7).all()


def test_one_row_repeated_needs_no_copy() -> None:
    logits = torch.randn(1, 5000).expand(3, 5000)
    ids, _ = row_argmax(Gpu(), logits)
    assert ids.tolist() == logits.argmax(1).tolist()


def test_logits_of_more_than_2_31_elements() -> None:
    logits = sparse_elements(2**31 + 50, torch.bfloat16).as_strided((2, 50), (2**31, 1))
    logits.copy_(torch.randn(2, 50, generator=torch.Generator().manual_seed(1)))
    check(Gpu(), logits)


def test_the_workspace_serves_call_after_call() -> None:
    """As a graph's replays do, and with more rows: the counters are back at zero after each."""
    workspace = torch.zeros(COUNTER_BYTES + 16384, dtype=torch.uint8)
    for seed in range(3):
        logits = torch.randn(4 + 9 * seed, 6000, generator=torch.Generator().manual_seed(seed))
        ids, _ = row_argmax(Gpu(), logits, workspace=workspace)
        assert ids.tolist() == logits.argmax(1).tolist()
        assert (workspace[:COUNTER_BYTES] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [49152, 49157])
def test_each_logit_is_read_once(columns: int, dtype: torch.dtype) -> None:
    gpu = Gpu()
    logits = torch.randn(3, columns).to(dtype)
    row_argmax(gpu, logits)
    gpu.assert_loads("logits", logits.nbytes)


@pytest.mark.parametrize(("rows", "columns"), [(40, 20011), (8, 80011)])
def test_blocks_meet_without_gaps(rows: int, columns: int) -> None:
    """The maximum at either side of the borders between blocks, which may be more than a warp has lanes."""
    params = _host.RowArgmaxParams(rows=rows, columns=columns, row_stride=columns + 5, dtype=_host.DType.float32)
    stretches, stretch_chunks = stretch_fields(_host.plan_row_argmax(params, 0, Gpu().device))[2:]
    logits = torch.zeros(rows, columns + 5)[:, :columns]  # every row starts at another element of its line
    step = max(1, 2 * stretches // rows)
    for row in range(rows):
        lead = row * (columns + 5) % 32
        border = (row // 2 * step % stretches + step) * stretch_chunks * 4 - lead
        logits[row, min(border - row % 2, columns - 1)] = 1.0
    check(Gpu(), logits)


def test_a_row_may_end_with_its_last_block() -> None:
    """One of these rows ends in the very chunk its only stretch ends with."""
    logits = torch.zeros(32, 65)[:, :30]
    logits[:, -1] = 1.0
    check(Gpu(), logits)


def test_every_kind_of_nan_counts() -> None:
    """The sign and the payload of a NaN say nothing."""
    logits = torch.zeros(4, 3000)
    bits = logits.view(torch.int32)
    bits[0, 7], bits[1, 2999], bits[2, 5], bits[3, 2000] = -1, 0x7F800001, -0x400000, 0x7FFFFFFF
    bits[2, 9] = 0x7FFFFFFF
    ids, values = row_argmax(Gpu(), logits)
    assert ids.tolist() == [7, 2999, 5, 2000]
    assert values.isnan().all()


def test_only_what_is_needed_is_stored() -> None:
    gpu = Gpu()
    logits = torch.randn(3, 49152)
    workspace = torch.zeros(COUNTER_BYTES + 16384, dtype=torch.uint8)
    row_argmax(gpu, logits, workspace=workspace)
    params = _host.RowArgmaxParams(rows=3, columns=49152, row_stride=49152, dtype=_host.DType.float32)
    stretches = stretch_fields(_host.plan_row_argmax(params, 0, gpu.device))[2]
    assert_count("bytes stored in the workspace", gpu.traffic("workspace").store_bytes, 3 * stretches * (8 + 4))
