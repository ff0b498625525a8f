import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import dflash_ops
from dflash_ops import reference
from tests.cases.casting import in_dtype
from tests.cases.write_context_kv import CASES, Case
from tests.ops.harness import (
    DTYPES,
    ISAS,
    assert_as_accurate,
    check_compiles,
    check_cuda_message,
    check_registration,
    cpu_isa,
)

SMALL = Case(3, 2, 2, 16, page_size=4)


def run(case: Case, arguments: dict[str, Any], cache_dtype: torch.dtype) -> list[Tensor]:
    k_caches, v_caches = case.caches(cache_dtype)
    dflash_ops.write_context_kv(**arguments, k_caches=k_caches, v_caches=v_caches)
    return [*k_caches, *v_caches]


def expected(case: Case, arguments: dict[str, Any], dtype: torch.dtype, cache_dtype: torch.dtype) -> list[Tensor]:
    k_caches, v_caches = case.caches(cache_dtype)
    reference.write_context_kv(**in_dtype(arguments, dtype), k_caches=k_caches, v_caches=v_caches)
    return [*k_caches, *v_caches]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_the_definition(case: Case, dtype: torch.dtype, isa: str) -> None:
    """Every slot but the written ones stays NaN, wherever it lies."""
    arguments = case.arguments(dtype)
    with cpu_isa(isa):
        actual = run(case, arguments, dtype)
    exact = expected(case, arguments, torch.float64, torch.float64)
    plain = expected(case, arguments, dtype, dtype)
    for ours, wanted, torchs in zip(actual, exact, plain, strict=True):
        assert_as_accurate(ours, wanted, torchs)
    for ours, torchs in zip(actual[case.layers :], plain[case.layers :], strict=True):
        assert torch.equal(ours.nan_to_num(7.0), torchs.nan_to_num(7.0)), "values are copied"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dtype", "cache_dtype"), list(itertools.permutations(DTYPES, 2)))
@pytest.mark.parametrize("case", [CASES[3], CASES[4]], ids=str)
def test_the_cache_dtype_decides_what_is_stored(
    case: Case, dtype: torch.dtype, cache_dtype: torch.dtype, isa: str
) -> None:
    arguments = case.arguments(dtype)
    with cpu_isa(isa):
        actual = run(case, arguments, cache_dtype)
    exact = expected(case, arguments, torch.float64, torch.float64)
    plain = expected(case, arguments, dtype, cache_dtype)
    for ours, wanted, torchs in zip(actual, exact, plain, strict=True):
        assert_as_accurate(ours, wanted, torchs)
    for ours, torchs in zip(actual[case.layers :], plain[case.layers :], strict=True):
        assert torch.equal(ours.nan_to_num(7.0), torchs.nan_to_num(7.0)), "values are rounded once"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dtype", "cache_dtype"), list(itertools.product(DTYPES, DTYPES)))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_bounds_follow_what_is_written(case: Case, dtype: torch.dtype, cache_dtype: torch.dtype, isa: str) -> None:
    """To the last bit those of the rows in the cache, the stored ones of this call among them."""
    arguments = case.arguments(dtype)
    k_caches, v_caches = case.caches(cache_dtype)
    for seed, cache in enumerate(k_caches):
        cache.copy_(torch.randn(cache.shape, generator=torch.Generator().manual_seed(seed)))
    bounds = case.bounds(cache_dtype)
    with cpu_isa(isa):
        dflash_ops.write_context_kv(**arguments, k_caches=k_caches, v_caches=v_caches, k_bounds=bounds)
        without = run(case, arguments, cache_dtype)
    expected = case.bounds(cache_dtype)
    reference.update_page_bounds(k_caches, arguments["slot_mapping"], arguments["row_count"], expected)
    for ours, wanted in zip(bounds, expected, strict=True):
        assert torch.equal(ours, wanted)
    for cache, alone in zip([*k_caches, *v_caches], without, strict=True):
        written = ~alone.isnan()
        assert torch.equal(cache[written], alone[written])


@pytest.mark.parametrize("table_dtype", DTYPES)
def test_the_table_is_float32_or_the_data_dtype(table_dtype: torch.dtype) -> None:
    case = Case(6, 2, 2, 64, max_positions=300)
    arguments = case.arguments(table_dtype, table_dtype=table_dtype)
    actual = run(case, arguments, table_dtype)
    exact = expected(case, arguments, torch.float64, torch.float64)
    plain = expected(case, arguments, table_dtype, table_dtype)
    for ours, wanted, torchs in zip(actual, exact, plain, strict=True):
        assert_as_accurate(ours, wanted, torchs)


@pytest.mark.parametrize("isa", ISAS)
def test_a_row_does_not_depend_on_the_others(isa: str) -> None:
    case = Case(9, 2, 3, 64)
    arguments = case.arguments(torch.float32)
    with cpu_isa(isa):
        together = run(case, arguments, torch.float32)
        apart_k, apart_v = case.caches(torch.float32)
        for row in range(9):
            one = {name: arguments[name][row : row + 1] for name in ("kv", "positions", "slot_mapping")}
            dflash_ops.write_context_kv(**(arguments | one), k_caches=apart_k, v_caches=apart_v)
    for ours, alone in zip(together, [*apart_k, *apart_v], strict=True):
        assert torch.equal(ours.nan_to_num(7.0), alone.nan_to_num(7.0))


def test_strided_kv_and_offsets_past_2_31_elements() -> None:
    """A cache whose page stride makes offsets overflow int32, on memory that is mapped but never touched."""
    case = Case(2, 1, 1, 8, page_size=1)
    arguments = case.arguments(torch.bfloat16)
    wide = torch.full((2, 1, 3, 1, 11), torch.nan, dtype=torch.bfloat16)
    wide[:, :, ::2, :, 3:] = arguments["kv"]
    arguments["kv"] = wide[:, :, ::2, :, 3:]
    page_stride = 2**31 // 3
    storage = torch.empty(4 * page_stride + 8, dtype=torch.bfloat16)
    cache = storage.as_strided((5, 1, 1, 8), (page_stride, 8, 8, 1))
    values = torch.zeros(5, 1, 1, 8, dtype=torch.bfloat16)
    arguments["slot_mapping"] = torch.tensor([4, 1])
    dflash_ops.write_context_kv(**arguments, k_caches=[cache], v_caches=[values])
    small_k, small_v = torch.zeros_like(values), torch.zeros_like(values)
    dflash_ops.write_context_kv(**arguments, k_caches=[small_k], v_caches=[small_v])
    assert torch.equal(cache[[4, 1]], small_k[[4, 1]])
    assert torch.equal(values, small_v)
    assert small_k[4].abs().sum() > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv": torch.zeros(3, 2, 3, 2, 16)}, "kv: expected size 2 in dimension 2"),
        ({"kv": torch.zeros(3, 2, 2, 2, 16, dtype=torch.float64)}, "kv: expected float32, float16 or bfloat16"),
        ({"kv": torch.zeros(3, 2, 2, 2, 32)[..., ::2]}, "kv: expected stride 1 in the last dimension"),
        ({"k_norm_weight": torch.zeros(2, 16, dtype=torch.float16)}, "k_norm_weight: expected float32, got float16"),
        ({"k_norm_weight": torch.zeros(16)}, r"k_norm_weight: expected shape \[2, 16\]"),
        ({"cos_sin": torch.zeros(9, 18)}, "cos_sin: expected an even number of columns, at most head_dim 16"),
        ({"cos_sin": torch.zeros(9, 5)}, "cos_sin: expected an even number of columns"),
        ({"cos_sin": torch.zeros(9, 8, dtype=torch.float16)}, "cos_sin: expected float32 or the dtype of the data"),
        ({"positions": None}, r"positions: expected int64 \[3\] where cos_sin is given, got None"),
        ({"positions": torch.zeros(3, dtype=torch.int32)}, "positions: expected int64, got int32"),
        ({"positions": torch.tensor([0, 5000, 1])}, r"positions\[1\]: expected 0 to 4999 .*got 5000"),
        ({"positions": torch.tensor([0, 1, -1])}, r"positions\[2\]: expected 0 to 4999 .*got -1"),
        ({"slot_mapping": torch.tensor([0, 1])}, r"slot_mapping: expected shape \[3\]"),
        ({"slot_mapping": torch.tensor([0, 12, 1])}, r"slot_mapping\[1\]: expected -1 \(skip\) or a slot below 12"),
        ({"slot_mapping": torch.tensor([0, 1, -2])}, r"slot_mapping\[2\]: expected -1 .*got -2"),
        ({"row_count": torch.tensor([4], dtype=torch.int32)}, "row_count: expected 0 to 3 rows, got 4"),
        ({"row_count": torch.tensor([3])}, "row_count: expected int32, got int64"),
        ({"row_count": torch.tensor([1, 2], dtype=torch.int32)}, "row_count: expected one element"),
        ({"k_caches": [torch.zeros(3, 4, 2, 16)]}, "k_caches: expected one cache for each of 2 layers, got 1"),
        (
            {"k_caches": [torch.zeros(3, 4, 2, 16), torch.zeros(3, 4, 2, 16, dtype=torch.float16)]},
            r"k_caches\[1\]: expected float32, got float16",
        ),
        (
            {"v_caches": [torch.zeros(3, 4, 2, 16), torch.zeros(4, 4, 2, 16)]},
            r"v_caches\[1\]: expected shape \[3, 4, 2, 16\]",
        ),
        (
            {"v_caches": [torch.zeros(3, 4, 1, 16).expand(-1, -1, 2, -1)] * 2},
            r"v_caches\[0\]: expected an output without overlapping elements",
        ),
        ({"k_bounds": [torch.zeros(3, 2, 2, 16)]}, "k_bounds: expected one tensor for each of 2 layers, got 1"),
        ({"k_bounds": [torch.zeros(3, 2, 2, 16).half()] * 2}, r"k_bounds\[0\]: expected float32, got float16"),
        ({"k_bounds": [torch.zeros(3, 2, 16, 2)] * 2}, r"k_bounds\[0\]: expected shape \[3, 2, 2, 16\]"),
        ({"k_caches": [torch.zeros(4, 3, 2, 16)] * 2}, r"k_caches\[0\]: expected a page size that is a power of two"),
    ],
)
def test_bad_arguments_are_named_before_anything_is_written(change: dict[str, Any], message: str) -> None:
    k_caches, v_caches = SMALL.caches(torch.float32)
    arguments = SMALL.arguments(torch.float32) | {"k_caches": k_caches, "v_caches": v_caches}
    with pytest.raises(RuntimeError, match=f"write_context_kv: {message}"):
        dflash_ops.write_context_kv(**(arguments | change))
    assert all(cache.isnan().all() for cache in (*k_caches, *v_caches))


def test_registration() -> None:
    def args(case: Case, *bounds: Tensor) -> tuple[Any, ...]:
        arguments = case.arguments(torch.float32)
        k_caches, v_caches = ([torch.zeros_like(cache) for cache in caches] for caches in case.caches(torch.float32))
        return (*arguments.values(), k_caches, v_caches, list(bounds))

    check_registration("write_context_kv", args(SMALL))
    check_registration("write_context_kv", args(Case(3, 2, 2, 16, norm=False, rotary_dim=0, slack_rows=1)))
    check_registration("write_context_kv", args(SMALL, *SMALL.bounds(torch.float32)))
    check_cuda_message("write_context_kv", args(SMALL))
    arguments = SMALL.arguments(torch.float32)

    def compiled(kv: Tensor) -> tuple[Tensor, ...]:
        caches = [torch.zeros(3, 4, 2, 16) for _ in range(4)]
        bounds = [torch.zeros(3, 2, 2, 16) for _ in range(2)]
        changed = arguments | {"kv": kv, "k_caches": caches[:2], "v_caches": caches[2:]}
        dflash_ops.write_context_kv(**changed)
        dflash_ops.write_context_kv(**changed, k_bounds=bounds)
        return (*caches, *bounds)

    check_compiles(compiled, arguments["kv"])
