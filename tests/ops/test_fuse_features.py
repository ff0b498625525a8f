from typing import Any

import pytest
import torch
from torch import Tensor

import dflash_ops
from dflash_ops import reference
from tests.cases.fuse_features import CASES, Case
from tests.ops.harness import (
    DTYPES,
    ISAS,
    assert_as_accurate,
    check_compiles,
    check_cuda_message,
    check_registration,
    cpu_isa,
)

SMALL = Case(3, 2, 16, 8)


def in_dtype(arguments: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    cast = {
        name: value.to(dtype)
        for name, value in arguments.items()
        if name in ("weight", "norm_weight") and value is not None
    }
    return arguments | cast | {"hidden_states": [states.to(dtype) for states in arguments["hidden_states"]]}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_the_definition(case: Case, dtype: torch.dtype, isa: str) -> None:
    """Rows past row_count keep what they held."""
    arguments = case.arguments(dtype)
    out = torch.full((case.rows + case.slack_rows, case.columns + 2), 7.0, dtype=dtype)
    with cpu_isa(isa):
        returned = dflash_ops.fuse_features(**arguments, out=out[:, 1:-1])
    assert returned.data_ptr() == out[:, 1:-1].data_ptr()
    assert (out[case.rows :] == 7.0).all()
    assert (out[:, [0, -1]] == 7.0).all()
    exact = reference.fuse_features(**in_dtype(arguments, torch.float64))
    plain = reference.fuse_features(**arguments)
    assert_as_accurate(returned[: case.rows], exact, plain)


@pytest.mark.parametrize("isa", ISAS)
def test_float16_does_not_overflow_before_the_norm(isa: str) -> None:
    """Sums near 80,000 (float16 ends at 65,504), as large taps and weights make them."""
    arguments = SMALL.arguments(torch.float16)
    arguments["hidden_states"] = [torch.full((3, 16), 250.0).half() for _ in range(2)]
    arguments["weight"] = torch.full((8, 32), 10.0).half()
    with cpu_isa(isa):
        out = dflash_ops.fuse_features(**arguments)
    assert_as_accurate(
        out, reference.fuse_features(**in_dtype(arguments, torch.float64)), arguments["norm_weight"].expand(3, 8)
    )
    assert not reference.fuse_features(**arguments).isfinite().any(), "the case is meant to overflow in float16"


def test_each_tap_meets_its_own_columns() -> None:
    states = [torch.zeros(2, 5) for _ in range(3)]
    states[1][0, 2] = 1.0
    weight = torch.arange(2 * 15.0).view(2, 15)
    out = dflash_ops.fuse_features(states, weight)
    assert out.tolist() == [[7.0, 22.0], [0.0, 0.0]]


def test_workspace_size_is_enough_and_needed() -> None:
    arguments = Case(70, 2, 24, 20).arguments(torch.float32)
    size = dflash_ops.fuse_features_workspace_size(70, 2, 24, 20)
    workspace = torch.full((size + 64,), 77, dtype=torch.uint8)
    expected = dflash_ops.fuse_features(**arguments)
    actual = dflash_ops.fuse_features(**arguments, workspace=workspace[:size])
    assert torch.equal(actual, expected)
    assert (workspace[size:] == 77).all()
    with pytest.raises(RuntimeError, match=f"fuse_features: workspace: expected at least {size} bytes"):
        dflash_ops.fuse_features(**arguments, workspace=workspace[: size - 1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_states": [torch.zeros(3, 16), torch.zeros(3, 15)]}, r"hidden_states\[1\]: expected shape \[3, 16\]"),
        ({"hidden_states": [torch.zeros(3, 16), torch.zeros(4, 16)]}, r"hidden_states\[1\]: expected shape \[3, 16\]"),
        (
            {"hidden_states": [torch.zeros(3, 16), torch.zeros(3, 16, dtype=torch.float16)]},
            r"hidden_states\[1\]: expected float32, got float16",
        ),
        ({"hidden_states": [torch.zeros(3, 16)] * 3}, r"weight: expected shape \[\*, 48\]"),
        ({"hidden_states": [torch.zeros(3, 32)[:, ::2]] * 2}, r"hidden_states\[0\]: expected stride 1"),
        ({"hidden_states": [torch.zeros(3, 0)] * 2}, r"hidden_states\[0\]: expected at least one column"),
        ({"weight": torch.zeros(8, 32, dtype=torch.bfloat16)}, "weight: expected float32, got bfloat16"),
        ({"weight": torch.zeros(32, 8).t()}, "weight: expected stride 1 in the last dimension"),
        ({"norm_weight": torch.zeros(9)}, r"norm_weight: expected shape \[8\]"),
        ({"row_count": torch.tensor([4], dtype=torch.int32)}, "row_count: expected 0 to 3 rows, got 4"),
        ({"row_count": torch.tensor([-1], dtype=torch.int32)}, "row_count: expected 0 to 3 rows, got -1"),
        ({"out": torch.zeros(3, 9)}, r"out: expected shape \[3, 8\]"),
        ({"out": torch.zeros(3, 8, dtype=torch.float16)}, "out: expected float32, got float16"),
        ({"out": torch.zeros(1, 8).expand(3, 8)}, "out: expected an output without overlapping elements"),
        ({"workspace": torch.zeros(10)}, "workspace: expected uint8, got float32"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, Any], message: str) -> None:
    arguments = SMALL.arguments(torch.float32) | {"out": torch.full((3, 8), 7.0)}
    with pytest.raises(RuntimeError, match=f"fuse_features: {message}"):
        dflash_ops.fuse_features(**(arguments | change))
    assert (arguments["out"] == 7.0).all()


def test_no_taps() -> None:
    with pytest.raises(RuntimeError, match="hidden_states: expected 1 to 64 tensors, got 0"):
        torch.ops.dflash_ops.fuse_features([], torch.zeros(1, 1), None, 1e-6, None, torch.zeros(1, 1), torch.zeros(0))


def test_registration() -> None:
    def args(case: Case) -> tuple[Any, ...]:
        size = dflash_ops.fuse_features_workspace_size(
            case.rows + case.slack_rows, case.taps, case.tap_columns, case.columns
        )
        out = torch.zeros(case.rows + case.slack_rows, case.columns)
        return (*case.arguments(torch.float32).values(), out, torch.zeros(size, dtype=torch.uint8))

    check_registration("fuse_features", args(SMALL))
    check_registration("fuse_features", args(Case(3, 2, 16, 8, norm=False, slack_rows=1)))
    check_cuda_message("fuse_features", args(SMALL))
    arguments = SMALL.arguments(torch.float32)
    weight, norm_weight = arguments["weight"], arguments["norm_weight"]

    def compiled(first: Tensor, second: Tensor) -> Tensor:
        return dflash_ops.fuse_features([first, second], weight, norm_weight)

    check_compiles(compiled, *arguments["hidden_states"])
