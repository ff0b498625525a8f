from typing import Any

import pytest
import torch
from torch import Tensor

import dflash_ops
from dflash_ops import reference
from tests.cases.casting import in_dtype
from tests.cases.norm_rope_qkv import CASES, Case
from tests.ops.forbidden_memory import before_forbidden_memory
from tests.ops.harness import (
    DTYPES,
    ISAS,
    assert_as_accurate,
    check_compiles,
    check_cuda_message,
    check_registration,
    cpu_isa,
)

SMALL = Case(3, 2, 1, 16)


def expected(case: Case, arguments: dict[str, Any], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    return reference.norm_rope_qkv(**in_dtype(arguments, dtype), num_q_heads=case.q_heads, num_kv_heads=case.kv_heads)


def run(case: Case, arguments: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    return dflash_ops.norm_rope_qkv(**arguments, num_q_heads=case.q_heads, num_kv_heads=case.kv_heads)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_the_definition(case: Case, dtype: torch.dtype, isa: str) -> None:
    arguments = case.arguments(dtype)
    with cpu_isa(isa):
        actual = run(case, arguments)
    exact = expected(case, arguments, torch.float64)
    plain = expected(case, arguments, dtype)
    for ours, wanted, torchs in zip(actual, exact, plain, strict=True):
        assert_as_accurate(ours, wanted, torchs)
    assert torch.equal(actual[2], plain[2])


@pytest.mark.parametrize("table_dtype", DTYPES)
def test_the_table_is_float32_or_the_data_dtype(table_dtype: torch.dtype) -> None:
    case = Case(6, 2, 2, 64, max_positions=300)
    arguments = case.arguments(table_dtype, table_dtype=table_dtype)
    exact = expected(case, arguments, torch.float64)
    plain = expected(case, arguments, table_dtype)
    for ours, wanted, torchs in zip(run(case, arguments), exact, plain, strict=True):
        assert_as_accurate(ours, wanted, torchs)


@pytest.mark.parametrize("isa", ISAS)
def test_a_row_does_not_depend_on_the_others(isa: str) -> None:
    case = Case(40, 8, 2, 64)
    arguments = case.arguments(torch.float32)
    with cpu_isa(isa):
        together = run(case, arguments)
        for row in (0, 17, 39):
            one = {name: arguments[name][row : row + 1] for name in ("qkv", "positions")}
            for ours, alone in zip(together, run(case, arguments | one), strict=True):
                assert torch.equal(ours[row : row + 1], alone)


def test_strided_outputs_are_honoured() -> None:
    """Outputs that are slices of one larger tensor; everything around them stays as it was."""
    arguments = SMALL.arguments(torch.bfloat16)
    storage = torch.full((3, 6, 18), 7.0, dtype=torch.bfloat16)
    q, k, v = storage[:, 0:3:2, 1:17], storage[:, 3:4, :16], storage[:, 5:6, 2:]
    dflash_ops.norm_rope_qkv(**arguments, q=q, k=k, v=v)
    for ours, wanted in zip((q, k, v), run(SMALL, arguments), strict=True):
        assert torch.equal(ours, wanted)
    untouched = storage.clone()
    untouched[:, 0:3:2, 1:17] = untouched[:, 3:4, :16] = untouched[:, 5:6, 2:] = 7.0
    assert (untouched == 7.0).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_past_the_operands_is_read_or_written(dtype: torch.dtype, isa: str) -> None:
    case = Case(3, 3, 1, 18, rotary_dim=10)
    arguments = case.arguments(dtype)
    guarded = {
        name: before_forbidden_memory(value)
        for name, value in arguments.items()
        if isinstance(value, Tensor) and value.is_floating_point()
    }
    with cpu_isa(isa):
        expected = run(case, arguments)
        outputs = dict(zip("qkv", (before_forbidden_memory(output) for output in expected), strict=True))
        for output in outputs.values():
            output.zero_()
        dflash_ops.norm_rope_qkv(**(arguments | guarded), **outputs)
    for ours, wanted in zip(outputs.values(), expected, strict=True):
        assert torch.equal(ours, wanted)


def test_nan_stays_in_its_head() -> None:
    arguments = SMALL.arguments(torch.float32)
    arguments["qkv"][1, 3] = torch.nan
    q, k, v = run(SMALL, arguments)
    assert q[1, 0].isnan().all()
    assert q.isnan().sum() == 16
    assert not k.isnan().any()
    assert not v.isnan().any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qkv": torch.zeros(3, 63)}, r"qkv: expected 64 columns \(all heads of q, k and v\)"),
        ({"qkv": torch.zeros(64, 3).t()}, "qkv: expected stride 1 in the last dimension"),
        ({"qkv": torch.zeros(3, 64, dtype=torch.int32)}, "qkv: expected float32, float16 or bfloat16, got int32"),
        ({"q_norm_weight": torch.zeros(8)}, r"q_norm_weight: expected shape \[16\]"),
        ({"k_norm_weight": torch.zeros(16, dtype=torch.float16)}, "k_norm_weight: expected float32, got float16"),
        ({"cos_sin": torch.zeros(9, 17)}, "cos_sin: expected an even number of columns"),
        ({"positions": None}, "positions: expected int64"),
        ({"positions": torch.tensor([0, 1, 5000])}, r"positions\[2\]: expected 0 to 4999 .*got 5000"),
        ({"q": torch.zeros(3, 2, 16, dtype=torch.bfloat16)}, "q: expected float32, got bfloat16"),
        ({"k": torch.zeros(3, 1, 8)}, r"k: expected shape \[3, 1, 16\]"),
        ({"v": torch.zeros(3, 2, 16)}, r"v: expected shape \[3, 1, 16\]"),
        ({"v": torch.zeros(1, 1, 16).expand(3, 1, 16)}, "v: expected an output without overlapping elements"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, Any], message: str) -> None:
    outputs = {"q": torch.zeros(3, 2, 16), "k": torch.zeros(3, 1, 16), "v": torch.zeros(3, 1, 16)}
    with pytest.raises(RuntimeError, match=f"norm_rope_qkv: {message}"):
        dflash_ops.norm_rope_qkv(**(SMALL.arguments(torch.float32) | outputs | change))
    with pytest.raises(ValueError, match="expected all three outputs or none"):
        dflash_ops.norm_rope_qkv(torch.zeros(3, 64), q=outputs["q"])
    with pytest.raises(ValueError, match="num_q_heads"):
        dflash_ops.norm_rope_qkv(torch.zeros(3, 64), num_q_heads=2)


def test_registration() -> None:
    def args(case: Case) -> tuple[Any, ...]:
        outputs = [
            torch.zeros(case.rows, heads, case.head_dim) for heads in (case.q_heads, case.kv_heads, case.kv_heads)
        ]
        return (*case.arguments(torch.float32).values(), *outputs)

    check_registration("norm_rope_qkv", args(SMALL))
    check_registration("norm_rope_qkv", args(Case(3, 2, 1, 16, q_norm=False, k_norm=False, rotary_dim=0)))
    check_cuda_message("norm_rope_qkv", args(SMALL))
    arguments = SMALL.arguments(torch.float32)
    check_compiles(lambda qkv: run(SMALL, arguments | {"qkv": qkv}), arguments["qkv"])
