"""lm_head_argmax's kernel on the PTX interpreter, and the weight streaming that it shares with fuse_features and
project_context_kv."""

import itertools

import pytest
import torch
from torch import Tensor

from dflash_ops import _host, reference
from tests.cases.lm_head_argmax import CASES, Case
from tests.cuda.gpu import COUNTER_BYTES, GPUS, Gpu, sparse_elements
from tests.cuda.simulated_stream_ops import lm_head_argmax
from tests.ops.harness import assert_as_accurate
from tests.ptxsim import assert_count

HALF_DTYPES = [torch.bfloat16, torch.float16]
# Tiles and units that fill no whole number of shares, rows that fill no whole group.
SPLIT = Case(17, 520, 300)


def check(case: Case, dtype: torch.dtype, gpu: Gpu, operands: tuple[Tensor, Tensor] | None = None) -> None:
    """Values within float32 error; the id is a column whose exact logit is that close to the largest."""
    hidden, weight = operands or case.operands(dtype)
    ids, values = lm_head_argmax(gpu, hidden, weight, vocab_offset=case.vocab_offset, softcap=case.softcap)
    exact_ids, exact = reference.lm_head_argmax(hidden.double(), weight.double(), case.vocab_offset, case.softcap)
    _, plain = reference.lm_head_argmax(hidden.float(), weight.float(), case.vocab_offset, case.softcap)
    assert_as_accurate(values, exact, plain)
    for row in (ids != exact_ids).nonzero().flatten().tolist():
        chosen = weight[int(ids[row]) - case.vocab_offset].double() @ hidden[row].double()
        best = weight[int(exact_ids[row]) - case.vocab_offset].double() @ hidden[row].double()
        assert best - chosen < 1e-5


@pytest.mark.parametrize("gpu", GPUS, ids=str)
@pytest.mark.parametrize("dtype", HALF_DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_the_definition(case: Case, dtype: torch.dtype, gpu: Gpu) -> None:
    check(case, dtype, gpu)


@pytest.mark.parametrize("gpu", GPUS, ids=str)
@pytest.mark.parametrize("rows", [7, 16, 17, 64, 128])
def test_shares_of_parts_of_tiles(rows: int, gpu: Gpu) -> None:
    check(Case(rows, 1032, 300), torch.bfloat16, gpu)


@pytest.mark.parametrize(("hidden_size", "vocab_size"), [(72, 850), (264, 600), (392, 640), (528, 700)])
def test_shares_may_begin_or_end_with_a_tile(hidden_size: int, vocab_size: int) -> None:
    """Where equal shares are no whole number of units, and one of these rounded borders is a tile's."""
    check(Case(3, hidden_size, vocab_size), torch.bfloat16, Gpu())


@pytest.mark.parametrize("dtype", HALF_DTYPES)
@pytest.mark.parametrize("hidden_size", [1, 7, 64, 71, 328])
def test_special_values_follow_torch(hidden_size: int, dtype: torch.dtype) -> None:
    """With one channel that counts, logits are the weights."""
    inf, nan = float("inf"), float("nan")
    columns = torch.randn(10, 300, generator=torch.Generator().manual_seed(1)).to(dtype)
    columns[0] = -inf
    columns[1] = inf
    columns[2, 150] = nan
    columns[3, 299] = nan
    columns[4] = 2.0
    columns[5, 299] = inf
    columns[6, 100:] = nan
    columns[7] = nan
    columns[8] = -3.0
    columns[9, 129], columns[9, 257] = 9.0, 9.0
    for column in columns:
        weight = torch.zeros(300, hidden_size, dtype=dtype)
        weight[:, -1] = column
        hidden = torch.zeros(2, hidden_size, dtype=dtype)
        hidden[:, -1] = 1.0
        ids, values = lm_head_argmax(Gpu(), hidden, weight)
        assert ids.tolist() == [int(column.argmax())] * 2
        torch.testing.assert_close(values, column[column.argmax()].float().expand(2), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("gpu", GPUS, ids=str)
def test_ties_go_to_the_lowest_id(gpu: Gpu) -> None:
    """Between lanes, warps, tiles and blocks."""
    for first, step in itertools.product((3, 37, 128), (1, 8, 32, 128, 411)):
        weight = torch.zeros(1000, 8, dtype=torch.bfloat16)
        weight[first::step] = 1.0
        hidden = torch.ones(9, 8, dtype=torch.bfloat16)
        hidden[4] = -1.0
        ids, values = lm_head_argmax(gpu, hidden, weight)
        assert ids.tolist() == [0 if row == 4 else first for row in range(9)]
        assert values.tolist() == [0.0 if row == 4 else 8.0 for row in range(9)]


@pytest.mark.parametrize("dtype", HALF_DTYPES)
def test_a_row_is_the_same_bits_whatever_comes_with_it(dtype: torch.dtype) -> None:
    """Whatever the number of rows and the row's place among them, up to 128; and past them."""
    case = Case(128, 1096, 300)
    hidden, weight = case.operands(dtype)
    ids, values = lm_head_argmax(Gpu(), hidden, weight)
    for rows in (1, 7, 16, 17, 64):
        for chosen in (slice(0, rows), slice(128 - rows, 128)):
            some_ids, some_values = lm_head_argmax(Gpu(), hidden[chosen], weight)
            assert torch.equal(some_ids, ids[chosen])
            assert torch.equal(some_values, values[chosen])
    many = torch.cat([hidden, hidden])
    many_ids, many_values = lm_head_argmax(Gpu(), many, weight)
    assert torch.equal(many_values[:128], many_values[128:])
    assert torch.equal(many_ids[:100], lm_head_argmax(Gpu(), many[28:228], weight)[0][100:])


def test_order_of_blocks_and_copies_leaves_no_trace() -> None:
    hidden, weight = Case(9, 1032, 300).operands(torch.float16)  # four parts a tile
    results = [
        lm_head_argmax(Gpu(completion=completion, schedule=schedule, seed=seed), hidden, weight)[1]
        for completion, schedule, seed in (("early", "random", 3), ("late", "greedy", 1), ("random", "random", 9))
    ]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_float16_logits_beyond_its_range() -> None:
    hidden, weight = torch.full((1, 64), 200.0).half(), torch.full((3, 64), 10.0).half()
    weight[1] = 11.0
    ids, values = lm_head_argmax(Gpu(), hidden, weight)
    assert ids.tolist() == [1]
    assert values.tolist() == [200.0 * 11 * 64]


def test_strides_are_honoured() -> None:
    hidden, weight = Case(4, 16, 50).operands(torch.bfloat16)
    expected_ids, expected_values = lm_head_argmax(Gpu(), hidden, weight)
    ids, values = torch.full((4, 3), -7), torch.full((4, 2), -7.0)
    lm_head_argmax(Gpu(), hidden, weight, ids=ids[:, 1], values=values[:, 0])
    assert torch.equal(ids[:, 1], expected_ids)
    assert torch.equal(values[:, 0], expected_values)
    assert (ids[:, [0, 2]] == -7).all()
    assert (values[:, 1] == -7).all()


@pytest.mark.parametrize("shift", [1, 2, 4, 8])
def test_operands_may_start_anywhere(shift: int) -> None:
    """Whole chunks are copied only where both operands allow it."""
    case = Case(5, 72, 140)
    hidden, weight = case.operands(torch.bfloat16)

    def moved(tensor: Tensor) -> Tensor:
        storage = torch.full((tensor.numel() + shift,), torch.nan, dtype=tensor.dtype)
        storage[shift:] = tensor.flatten()
        return storage[shift:].view(tensor.shape)

    copies = []
    for operands in ((moved(hidden), weight), (hidden, moved(weight))):
        gpu = Gpu()
        check(case, torch.bfloat16, gpu, operands)
        copies.append(gpu.report.count("cp.async.cg"))
    assert all(count > 0 for count in copies) if shift == 8 else copies == [0, 0]


def test_operands_of_more_than_2_31_elements() -> None:
    case = Case(2, 8, 3)
    hidden, weight = case.operands(torch.bfloat16)
    wide = sparse_elements(2**31 + 8, torch.bfloat16).as_strided((2, 8), (2**31, 1)).copy_(hidden)
    tall = sparse_elements(2**32 + 8, torch.bfloat16).as_strided((3, 8), (2**31, 1)).copy_(weight)
    check(case, torch.bfloat16, Gpu(), (wide, weight))
    check(case, torch.bfloat16, Gpu(), (hidden, tall))


def test_the_workspace_serves_call_after_call() -> None:
    """As a graph's replays do: what has to be zero is so after each."""
    size = _host.lm_head_argmax_cuda_workspace_size(17, 520, 300)
    workspace = torch.zeros(size, dtype=torch.uint8)
    for seed in range(3):
        hidden, weight = SPLIT.operands(torch.bfloat16, seed)
        ids, _ = lm_head_argmax(Gpu(), hidden, weight, workspace=workspace)
        assert ids.tolist() == reference.lm_head_argmax(hidden.double(), weight.double(), 0, 0.0)[0].tolist()
        assert (workspace[:COUNTER_BYTES] == 0).all()
        assert (workspace[COUNTER_BYTES:] != 0).any()


@pytest.mark.parametrize("dtype", HALF_DTYPES)
@pytest.mark.parametrize(("rows", "share"), [(1, 0.01), (16, 0.2), (64, 0.6), (128, 1.0)])
def test_every_weight_is_read_once(rows: int, share: float, dtype: torch.dtype) -> None:
    """In whole sectors; activations are read again for each tile; shared memory without conflicts."""
    gpu = Gpu()
    hidden, weight = Case(rows, 1088, 1280).operands(dtype)
    lm_head_argmax(gpu, hidden, weight)
    gpu.assert_loads("weight", weight.nbytes, slack=1.0)
    assert_count("activations read", gpu.traffic("hidden").load_bytes, hidden.nbytes, share * 1280 / rows)
    assert_count("wavefronts", gpu.report.total("wavefronts"), gpu.report.total("ideal_wavefronts"), 1.05)
    assert_count("sectors", gpu.report.total("sectors"), gpu.report.total("ideal_sectors"), 1.05)
    groups = -(-rows // 16)
    assert_count("matrix instructions", gpu.report.count("mma"), groups * 10 * 17 * 4 * 16)
