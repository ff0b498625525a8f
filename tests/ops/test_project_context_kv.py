from typing import Any

import pytest
import torch
from torch import Tensor

import dflash_ops
from dflash_ops import reference
from tests.cases import write_context_kv
from tests.cases.casting import in_dtype
from tests.cases.project_context_kv import CASES, Case
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

SMALL = Case(24, write_context_kv.Case(3, 2, 2, 16, page_size=4), bias=True)


def run(case: Case, arguments: dict[str, Any], cache_dtype: torch.dtype) -> list[Tensor]:
    k_caches, v_caches = case.write.caches(cache_dtype)
    dflash_ops.project_context_kv(**arguments, k_caches=k_caches, v_caches=v_caches)
    return [*k_caches, *v_caches]


def expected(case: Case, arguments: dict[str, Any], dtype: torch.dtype, cache_dtype: torch.dtype) -> list[Tensor]:
    k_caches, v_caches = case.write.caches(cache_dtype)
    reference.project_context_kv(**in_dtype(arguments, dtype), k_caches=k_caches, v_caches=v_caches)
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


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cache_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_cache_dtype_decides_what_is_stored(dtype: torch.dtype, cache_dtype: torch.dtype, isa: str) -> None:
    arguments = SMALL.arguments(dtype)
    with cpu_isa(isa):
        actual = run(SMALL, arguments, cache_dtype)
    exact = expected(SMALL, arguments, torch.float64, torch.float64)
    plain = expected(SMALL, arguments, dtype, cache_dtype)
    for ours, wanted, torchs in zip(actual, exact, plain, strict=True):
        assert_as_accurate(ours, wanted, torchs)


@pytest.mark.parametrize("isa", ISAS)
def test_is_the_product_and_then_write_context_kv(isa: str) -> None:
    """Also across a pass boundary, and row by row: no row depends on the others."""
    case = CASES[5]
    arguments = case.arguments(torch.float32)
    with cpu_isa(isa):
        together = run(case, arguments, torch.float32)
        k_caches, v_caches = case.write.caches(torch.float32)
        for first in range(0, 69, 23):
            names = ("features", "positions", "slot_mapping")
            part = {name: arguments[name][first : first + 23] for name in names}
            dflash_ops.project_context_kv(**(arguments | part), k_caches=k_caches, v_caches=v_caches)
    for ours, parts in zip(together, [*k_caches, *v_caches], strict=True):
        assert torch.equal(ours.nan_to_num(7.0), parts.nan_to_num(7.0))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_past_the_operands_is_read(dtype: torch.dtype, isa: str) -> None:
    case = Case(13, write_context_kv.Case(3, 2, 1, 10, rotary_dim=6), bias=True)
    arguments = case.arguments(dtype)
    guarded = {
        name: before_forbidden_memory(value)
        for name, value in arguments.items()
        if isinstance(value, Tensor) and value.is_floating_point()
    }
    with cpu_isa(isa):
        for ours, wanted in zip(run(case, arguments | guarded, dtype), run(case, arguments, dtype), strict=True):
            assert torch.equal(ours.nan_to_num(7.0), wanted.nan_to_num(7.0))


def test_float16_products_beyond_its_range_are_normed_first() -> None:
    case = Case(64, write_context_kv.Case(2, 1, 1, 16, rotary_dim=0))
    arguments = case.arguments(torch.float16)
    arguments["features"].fill_(200.0)
    arguments["kv_weight"].fill_(10.0)
    arguments["kv_weight"][:, 16:] = 0.01
    keys, values = run(case, arguments, torch.float16)
    slots = arguments["slot_mapping"]
    written = keys.view(-1, 16)[slots]
    assert torch.allclose(written.float(), arguments["k_norm_weight"][0].float().expand(2, 16), atol=2e-3)
    assert torch.allclose(values.view(-1, 16)[slots].float(), torch.tensor(128.0), rtol=2e-3)


def test_workspace_size_is_enough_and_needed() -> None:
    arguments = SMALL.arguments(torch.float32)
    size = dflash_ops.project_context_kv_workspace_size(3, 24, 2 * 2 * 2 * 16)
    workspace = torch.full((size + 64,), 77, dtype=torch.uint8)
    actual = run(SMALL, arguments | {"workspace": workspace[:size]}, torch.float32)
    for ours, wanted in zip(actual, run(SMALL, arguments, torch.float32), strict=True):
        assert torch.equal(ours.nan_to_num(7.0), wanted.nan_to_num(7.0))
    assert (workspace[size:] == 77).all()
    with pytest.raises(RuntimeError, match=f"workspace: expected at least {size} bytes"):
        run(SMALL, arguments | {"workspace": workspace[: size - 1]}, torch.float32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", [CASES[2], CASES[5], CASES[6]], ids=str)
def test_bounds_follow_what_is_written(case: Case, dtype: torch.dtype, isa: str) -> None:
    """Rows of a page come in several passes of the product: the bounds are those of all."""
    arguments = case.arguments(dtype)
    k_caches, v_caches = case.write.caches(torch.bfloat16)
    for seed, cache in enumerate(k_caches):
        cache.copy_(torch.randn(cache.shape, generator=torch.Generator().manual_seed(seed)))
    bounds, expected = case.write.bounds(torch.bfloat16), case.write.bounds(torch.bfloat16)
    with cpu_isa(isa):
        dflash_ops.project_context_kv(**arguments, k_caches=k_caches, v_caches=v_caches, k_bounds=bounds)
    reference.update_page_bounds(k_caches, arguments["slot_mapping"], arguments["row_count"], expected)
    for ours, wanted in zip(bounds, expected, strict=True):
        assert torch.equal(ours, wanted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": torch.zeros(24, 3).t()}, "features: expected stride 1 in the last dimension"),
        ({"features": torch.zeros(3, 23)}, r"kv_weight: expected shape \[\*, \*, 23\]"),
        ({"kv_weight": torch.zeros(2, 63, 24)}, "kv_weight: expected 64 rows a layer"),
        ({"kv_weight": torch.zeros(2, 64, 24, dtype=torch.float16)}, "kv_weight: expected float32, got float16"),
        ({"kv_weight": torch.zeros(3, 64, 24)}, r"kv_bias: expected shape \[3, 64\]"),
        (
            {"kv_weight": torch.zeros(3, 64, 24), "kv_bias": None, "k_norm_weight": None},
            "k_caches: expected one cache for",
        ),
        ({"kv_bias": torch.zeros(2, 32)}, r"kv_bias: expected shape \[2, 64\]"),
        ({"k_norm_weight": torch.zeros(2, 8)}, r"k_norm_weight: expected shape \[2, 16\]"),
        ({"positions": torch.tensor([0, 5000, 1])}, r"positions\[1\]: expected 0 to 4999 .*got 5000"),
        ({"slot_mapping": torch.tensor([0, 12, 1])}, r"slot_mapping\[1\]: expected -1 \(skip\) or a slot below 12"),
        ({"row_count": torch.tensor([4], dtype=torch.int32)}, "row_count: expected 0 to 3 rows, got 4"),
        ({"k_bounds": [torch.zeros(3, 2, 2, 16)]}, "k_bounds: expected one tensor for each of 2 layers, got 1"),
        ({"k_caches": []}, "k_caches: expected at least one cache, got none"),
        (
            {"k_caches": [torch.zeros(3, 4, 2, 16, dtype=torch.float64)] * 2},
            r"k_caches\[0\]: expected float32, float16",
        ),
    ],
)
def test_bad_arguments_are_named_before_anything_is_written(change: dict[str, Any], message: str) -> None:
    k_caches, v_caches = SMALL.write.caches(torch.float32)
    arguments = SMALL.arguments(torch.float32) | {"k_caches": k_caches, "v_caches": v_caches}
    with pytest.raises(RuntimeError, match=f"project_context_kv: {message}"):
        dflash_ops.project_context_kv(**(arguments | change))
    assert all(cache.isnan().all() for cache in (*k_caches, *v_caches))


def test_registration() -> None:
    def args(case: Case, *bounds: Tensor) -> tuple[Any, ...]:
        arguments = case.arguments(torch.float32)
        k_caches, v_caches = (
            [torch.zeros_like(cache) for cache in caches] for caches in case.write.caches(torch.float32)
        )
        rows, columns = arguments["features"].shape[0], arguments["kv_weight"].shape[:2].numel()
        size = dflash_ops.project_context_kv_workspace_size(rows, case.hidden_size, columns)
        return (*arguments.values(), k_caches, v_caches, list(bounds), torch.zeros(size, dtype=torch.uint8))

    check_registration("project_context_kv", args(SMALL))
    check_registration("project_context_kv", args(SMALL, *SMALL.write.bounds(torch.float32)))
    check_registration(
        "project_context_kv", args(Case(8, write_context_kv.Case(3, 1, 1, 8, norm=False, rotary_dim=0, slack_rows=1)))
    )
    check_cuda_message("project_context_kv", args(SMALL))
    arguments = SMALL.arguments(torch.float32)

    def compiled(features: Tensor) -> tuple[Tensor, ...]:
        caches = [torch.zeros(3, 4, 2, 16) for _ in range(4)]
        bounds = [torch.zeros(3, 2, 2, 16) for _ in range(2)]
        changed = arguments | {"features": features, "k_caches": caches[:2], "v_caches": caches[2:]}
        dflash_ops.project_context_kv(**changed)
        dflash_ops.project_context_kv(**changed, k_bounds=bounds)
        return (*caches, *bounds)

    check_compiles(compiled, arguments["features"])
