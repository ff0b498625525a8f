import pytest
import torch

import dflash_ops
from dflash_ops import reference
from tests.cases.row_argmax import CASES, Case
from tests.ops.harness import DTYPES, ISAS, check_compiles, check_cuda_message, check_registration, cpu_isa


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_the_definition(case: Case, dtype: torch.dtype, isa: str) -> None:
    logits = case.logits(dtype)
    with cpu_isa(isa):
        ids, values = dflash_ops.row_argmax(logits)
    expected_ids, expected_values = reference.row_argmax(logits.double())
    assert torch.equal(ids, expected_ids)
    assert torch.equal(values.double(), expected_values)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("columns", [1, 5, 64, 200, 1025])
def test_special_values_follow_torch(columns: int, isa: str) -> None:
    inf, nan = float("inf"), float("nan")
    rows = torch.randn(7, columns, generator=torch.Generator().manual_seed(1))
    rows[0] = -inf
    rows[1] = inf
    rows[2, columns // 2] = nan
    rows[3, columns - 1] = nan
    rows[4] = 2.0  # all equal
    rows[5, columns - 1] = inf
    rows[6, columns // 3 :] = nan
    with cpu_isa(isa):
        ids, values = dflash_ops.row_argmax(rows)
    expected_ids, expected_values = reference.row_argmax(rows.double())
    assert ids.tolist() == expected_ids.tolist()
    assert ids[0] == 0
    assert ids[1] == 0
    assert ids[4] == 0
    torch.testing.assert_close(values.double(), expected_values, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("isa", ISAS)
def test_ties_go_to_the_lowest_index(isa: str) -> None:
    logits = torch.zeros(64, 300)
    for row in range(64):
        logits[row, row * 4 :: 7] = 1.0
    with cpu_isa(isa):
        ids, _ = dflash_ops.row_argmax(logits)
    assert ids.tolist() == [row * 4 for row in range(64)]


def test_strided_outputs_are_honoured() -> None:
    logits = torch.randn(4, 10)
    ids = torch.full((4, 3), -7, dtype=torch.int64)
    values = torch.full((4, 2), -7.0)
    dflash_ops.row_argmax(logits, ids=ids[:, 1], values=values[:, 0])
    assert torch.equal(ids[:, 1], logits.argmax(1))
    assert (ids[:, [0, 2]] == -7).all()
    assert (values[:, 1] == -7).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"logits": torch.zeros(2, 3, dtype=torch.float64)},
            "logits: expected float32, float16 or bfloat16",
        ),
        ({"logits": torch.zeros(3, 2).t()}, "logits: expected stride 1 in the last dimension"),
        ({"logits": torch.zeros(6)}, "logits: expected 2 dimensions"),
        ({"logits": torch.zeros(2, 0)}, "logits: expected at least one column"),
        ({"ids": torch.zeros(2, dtype=torch.int32)}, "ids: expected int64, got int32"),
        ({"ids": torch.zeros(3, dtype=torch.int64)}, r"ids: expected shape \[2\], got int64 \[3\]"),
        ({"ids": torch.zeros(1, dtype=torch.int64).expand(2)}, "ids: expected an output without overlapping elements"),
        ({"values": torch.zeros(2, dtype=torch.float16)}, "values: expected float32, got float16"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, torch.Tensor], message: str) -> None:
    args = {"logits": torch.zeros(2, 3), "ids": torch.zeros(2, dtype=torch.int64), "values": torch.zeros(2)} | change
    with pytest.raises(RuntimeError, match=f"row_argmax: {message}"):
        torch.ops.dflash_ops.row_argmax(args["logits"], args["ids"], args["values"])


def test_registration() -> None:
    args = (torch.randn(3, 5), torch.zeros(3, dtype=torch.int64), torch.zeros(3))
    check_registration("row_argmax", args)
    check_registration("row_argmax", (*args[:2], None))
    check_cuda_message("row_argmax", args)
    check_compiles(lambda logits: dflash_ops.row_argmax(logits), torch.randn(3, 5))
