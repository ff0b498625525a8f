from typing import Any

import pytest
import torch
from torch import Tensor

import dflash_ops
from dflash_ops import reference
from tests.cases.lm_head_argmax import CASES, Case
from tests.ops.harness import (
    DTYPES,
    ISAS,
    assert_as_accurate,
    check_compiles,
    check_cuda_message,
    check_registration,
    cpu_isa,
)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_the_definition(case: Case, dtype: torch.dtype, isa: str) -> None:
    """Values within float32 error, and the id is a column whose exact logit is that close to the largest."""
    hidden, weight = case.operands(dtype)
    with cpu_isa(isa):
        ids, values = dflash_ops.lm_head_argmax(hidden, weight, vocab_offset=case.vocab_offset, softcap=case.softcap)
    exact_ids, exact = reference.lm_head_argmax(hidden.double(), weight.double(), case.vocab_offset, case.softcap)
    _, plain = reference.lm_head_argmax(hidden.float(), weight.float(), case.vocab_offset, case.softcap)
    assert_as_accurate(values, exact, plain)
    for row in (ids != exact_ids).nonzero().flatten().tolist():
        chosen = weight[int(ids[row]) - case.vocab_offset].double() @ hidden[row].double()
        best = weight[int(exact_ids[row]) - case.vocab_offset].double() @ hidden[row].double()
        assert best - chosen < 1e-5


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("vocab_size", [1, 7, 12, 192, 193, 1000])
def test_special_values_follow_torch(vocab_size: int, isa: str) -> None:
    """Ties to the lowest id, the first NaN wins, ids stay below V: with one hidden channel, logits are the weights."""
    inf, nan = float("inf"), float("nan")
    columns = torch.randn(8, vocab_size, generator=torch.Generator().manual_seed(1))
    columns[0] = -inf
    columns[1] = inf
    columns[2, vocab_size // 2] = nan
    columns[3, vocab_size - 1] = nan
    columns[4] = 2.0
    columns[5, vocab_size - 1] = inf
    columns[6, vocab_size // 3 :] = nan
    columns[7] = nan
    for row in columns:
        with cpu_isa(isa):
            ids, values = dflash_ops.lm_head_argmax(torch.ones(1, 1), row[:, None].contiguous())
        assert int(ids) == int(row.argmax())
        torch.testing.assert_close(values[0], row[row.argmax()], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("isa", ISAS)
def test_ties_between_tasks_and_rows_of_a_pass(isa: str) -> None:
    weight = torch.zeros(3000, 8)
    weight[37::411] = 1.0
    hidden = torch.ones(9, 8)
    hidden[4] = -1.0
    with cpu_isa(isa):
        ids, values = dflash_ops.lm_head_argmax(hidden, weight)
    assert ids.tolist() == [37, 37, 37, 37, 0, 37, 37, 37, 37]
    assert values.tolist() == [8.0, 8.0, 8.0, 8.0, 0.0, 8.0, 8.0, 8.0, 8.0]


def test_shards_combine_to_the_whole() -> None:
    hidden, weight = Case(6, 32, 1000).operands(torch.float32)
    whole_ids, whole_values = dflash_ops.lm_head_argmax(hidden, weight)
    shards = [
        dflash_ops.lm_head_argmax(hidden, weight[first : first + 300], vocab_offset=first)
        for first in range(0, 1000, 300)
    ]
    values, best = torch.stack([value for _, value in shards]).max(0)
    assert torch.equal(torch.stack([ids for ids, _ in shards]).gather(0, best[None])[0], whole_ids)
    assert torch.equal(values, whole_values)


def test_softcap_bounds_the_values_and_keeps_the_ids() -> None:
    hidden, weight = Case(5, 64, 700).operands(torch.float32)
    ids, values = dflash_ops.lm_head_argmax(hidden * 50, weight)
    capped_ids, capped = dflash_ops.lm_head_argmax(hidden * 50, weight, softcap=10.0)
    assert torch.equal(ids, capped_ids)
    torch.testing.assert_close(capped, 10 * torch.tanh(values / 10))


def test_float16_logits_beyond_its_range() -> None:
    hidden, weight = torch.full((1, 64), 200.0).half(), torch.full((3, 64), 10.0).half()
    weight[1] = 11.0
    ids, values = dflash_ops.lm_head_argmax(hidden, weight)
    assert ids.tolist() == [1]
    assert values.tolist() == [200.0 * 11 * 64]


def test_strided_outputs_and_no_values() -> None:
    hidden, weight = Case(4, 16, 50).operands(torch.float32)
    expected_ids, expected_values = dflash_ops.lm_head_argmax(hidden, weight)
    ids, values = torch.full((4, 3), -7), torch.full((4, 2), -7.0)
    dflash_ops.lm_head_argmax(hidden, weight, ids=ids[:, 1], values=values[:, 0])
    assert torch.equal(ids[:, 1], expected_ids)
    assert torch.equal(values[:, 0], expected_values)
    assert (ids[:, [0, 2]] == -7).all()
    assert (values[:, 1] == -7).all()
    size = dflash_ops.lm_head_argmax_workspace_size(4, 16, 50)
    torch.ops.dflash_ops.lm_head_argmax(hidden, weight, 3, 0.0, ids[:, 0], None, torch.zeros(size, dtype=torch.uint8))
    assert torch.equal(ids[:, 0], expected_ids + 3)


def test_workspace_size_is_enough_and_needed() -> None:
    hidden, weight = Case(70, 20, 900).operands(torch.float32)
    size = dflash_ops.lm_head_argmax_workspace_size(70, 20, 900)
    workspace = torch.full((size + 64,), 77, dtype=torch.uint8)
    ids, values = dflash_ops.lm_head_argmax(hidden, weight, workspace=workspace[:size])
    expected_ids, expected_values = dflash_ops.lm_head_argmax(hidden, weight)
    assert torch.equal(ids, expected_ids)
    assert torch.equal(values, expected_values)
    assert (workspace[size:] == 77).all()
    with pytest.raises(RuntimeError, match=f"lm_head_argmax: workspace: expected at least {size} bytes"):
        dflash_ops.lm_head_argmax(hidden, weight, workspace=workspace[: size - 1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": torch.zeros(2, 3, dtype=torch.float64)}, "hidden: expected float32, float16 or bfloat16"),
        ({"hidden": torch.zeros(3, 2).t()}, "hidden: expected stride 1 in the last dimension"),
        ({"hidden": torch.zeros(2, 4)}, r"weight: expected shape \[\*, 4\]"),
        ({"weight": torch.zeros(5, 3, dtype=torch.float16)}, "weight: expected float32, got float16"),
        ({"weight": torch.zeros(0, 3)}, "weight: expected at least one row"),
        ({"softcap": -1.0}, "softcap: expected 0"),
        ({"ids": torch.zeros(2, dtype=torch.int32)}, "ids: expected int64, got int32"),
        ({"ids": torch.zeros(3, dtype=torch.int64)}, r"ids: expected shape \[2\], got int64 \[3\]"),
        ({"ids": torch.zeros(1, dtype=torch.int64).expand(2)}, "ids: expected an output without overlapping elements"),
        ({"values": torch.zeros(2, dtype=torch.float16)}, "values: expected float32, got float16"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"hidden": torch.zeros(2, 3), "weight": torch.zeros(5, 3)}
    with pytest.raises(RuntimeError, match=f"lm_head_argmax: {message}"):
        dflash_ops.lm_head_argmax(**(arguments | change))


def test_registration() -> None:
    hidden, weight = Case(3, 8, 20).operands(torch.float32)
    workspace = torch.zeros(dflash_ops.lm_head_argmax_workspace_size(3, 8, 20), dtype=torch.uint8)
    args = (hidden, weight, 0, 0.0, torch.zeros(3, dtype=torch.int64), torch.zeros(3), workspace)
    check_registration("lm_head_argmax", args)
    check_registration("lm_head_argmax", (*args[:5], None, workspace))
    check_cuda_message("lm_head_argmax", args)

    def compiled(rows: Tensor) -> tuple[Tensor, Tensor]:
        return dflash_ops.lm_head_argmax(rows, weight, softcap=5.0)

    check_compiles(compiled, hidden)
