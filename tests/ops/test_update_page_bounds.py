from typing import Any

import pytest
import torch
from torch import Tensor

import dflash_ops
from dflash_ops import reference
from tests.cases.update_page_bounds import CASES, Case
from tests.ops.harness import DTYPES, ISAS, check_compiles, check_cuda_message, check_registration, cpu_isa

SMALL = Case((0, 3), (5, 2), page_size=4, head_dim=8)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_definition(case: Case, dtype: torch.dtype, isa: str) -> None:
    """To the last bit; rows past the last written one are NaN and never seen, other pages' bounds stay 7."""
    arguments = case.arguments(dtype)
    exact = [case.bounds(torch.float64) for _ in range(case.layers)]
    wide = [cache.double() for cache in arguments["k_caches"]]
    reference.update_page_bounds(wide, arguments["slot_mapping"], arguments["row_count"], exact)
    with cpu_isa(isa):
        dflash_ops.update_page_bounds(**arguments)
    for ours, wanted in zip(arguments["k_bounds"], exact, strict=True):
        assert torch.equal(ours.double(), wanted)
        assert not ours.isnan().any()


@pytest.mark.parametrize("isa", ISAS)
def test_the_life_of_a_page(isa: str) -> None:
    """Grown, cut, overwritten and given to another request: the bounds hold the valid rows' extremes, no others'."""
    page_size, generator = 8, torch.Generator().manual_seed(1)
    cache = torch.full((2, page_size, 1, 16), torch.nan)
    bounds = torch.full((2, 1, 2, 16), torch.nan)

    def write(offsets: range, scale: float) -> None:
        cache[1, offsets.start : offsets.stop] = scale * torch.randn(len(offsets), 1, 16, generator=generator)
        slots = torch.tensor([page_size + offset for offset in reversed(offsets)])
        dflash_ops.update_page_bounds([cache], slot_mapping=slots, k_bounds=[bounds])

    def assert_bounds(length: int) -> None:
        rows = cache[1, :length]
        assert torch.equal(bounds[1], torch.stack([rows.amin(0), rows.amax(0)], 1))

    with cpu_isa(isa):
        write(range(3), 1.0)
        assert_bounds(3)
        write(range(3, 8), 100.0)  # drafts that are rejected
        assert_bounds(8)
        write(range(4, 6), 1.0)  # the context was cut to 4 rows before
        assert_bounds(6)
        write(range(3, 4), 1.0)  # and to 3
        assert_bounds(4)
        dflash_ops.update_page_bounds([cache], slot_mapping=torch.tensor([page_size + 2]), k_bounds=[bounds])
        assert_bounds(3)  # cut without a write
        write(range(2), 0.01)  # another request's page now
        assert_bounds(2)
    assert bounds[0].isnan().all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_infinity_stay(dtype: torch.dtype, isa: str) -> None:
    case = Case((0,), (6,), page_size=8, head_dim=40, layers=1)
    for row in range(6):
        arguments = case.arguments(dtype)
        page = int(arguments["slot_mapping"][0]) // 8
        arguments["k_caches"][0][page, row, 0, [0, 17, 39]] = torch.nan
        arguments["k_caches"][0][page, row, 1, 5] = torch.inf
        arguments["k_caches"][0][page, row, 1, 39] = -torch.inf
        with cpu_isa(isa):
            dflash_ops.update_page_bounds(**arguments)
        bounds = arguments["k_bounds"][0][page]
        assert bounds[0].isnan().nonzero().tolist() == [[part, d] for part in (0, 1) for d in (0, 17, 39)]
        assert not bounds[1].isnan().any()
        assert (bounds[1, 1, 5], bounds[1, 0, 39]) == (torch.inf, -torch.inf)


def test_offsets_past_2_31_elements() -> None:
    case = Case((0, 0), (3, 2), page_size=1, layers=1, kv_heads=1, head_dim=8)
    arguments = case.arguments(torch.bfloat16)
    expected = [bounds.clone() for bounds in arguments["k_bounds"]]
    reference.update_page_bounds(arguments["k_caches"], arguments["slot_mapping"], None, expected)
    stride = 2**31 // 3
    for name in ("k_caches", "k_bounds"):
        small = arguments[name][0]
        storage = torch.empty(stride * (small.shape[0] - 1) + 16, dtype=torch.bfloat16)
        wide = storage.as_strided(small.shape, (stride, *small.stride()[1:]))
        arguments[name] = [wide.copy_(small)]
    dflash_ops.update_page_bounds(**arguments)
    assert torch.equal(arguments["k_bounds"][0], expected[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k_caches": []}, "k_caches: expected at least one cache"),
        ({"k_caches": [torch.zeros(6, 4, 2, 8)]}, "k_bounds: expected one tensor for each of 1 layers, got 2"),
        ({"k_caches": [torch.zeros(6, 3, 2, 8)] * 2}, r"k_caches\[0\]: expected a page size that is a power of two"),
        ({"k_caches": [torch.zeros(6, 4, 2, 8, dtype=torch.int32)] * 2}, r"k_caches\[0\]: expected float32, float16"),
        ({"k_caches": [torch.zeros(6, 4, 2, 16)[..., ::2]] * 2}, r"k_caches\[0\]: expected stride 1"),
        ({"k_bounds": [torch.zeros(6, 2, 2, 8).half()] * 2}, r"k_bounds\[0\]: expected float32, got float16"),
        ({"k_bounds": [torch.zeros(6, 2, 8, 2)] * 2}, r"k_bounds\[0\]: expected shape \[6, 2, 2, 8\]"),
        (
            {"k_bounds": [torch.zeros(1, 2, 2, 8).expand(6, -1, -1, -1)] * 2},
            r"k_bounds\[0\]: expected an output without",
        ),
        ({"slot_mapping": torch.zeros(2, dtype=torch.int32)}, "slot_mapping: expected int64, got int32"),
        ({"slot_mapping": torch.tensor([1, 24])}, r"slot_mapping\[1\]: expected -1 \(skip\) or a slot below 24"),
        ({"slot_mapping": torch.tensor([1, -2])}, r"slot_mapping\[1\]: expected -1 .*got -2"),
        ({"row_count": torch.tensor([8], dtype=torch.int32)}, "row_count: expected 0 to 7 rows, got 8"),
        ({"row_count": torch.tensor([8])}, "row_count: expected int32, got int64"),
    ],
)
def test_bad_arguments_are_named_before_anything_is_written(change: dict[str, Any], message: str) -> None:
    arguments = SMALL.arguments(torch.float32)
    bounds = arguments["k_bounds"]
    with pytest.raises(RuntimeError, match=f"update_page_bounds: {message}"):
        dflash_ops.update_page_bounds(**(arguments | change))
    assert all((tensor == 7).all() for tensor in bounds)


def test_registration() -> None:
    arguments = SMALL.arguments(torch.float32)
    given = [arguments[name] for name in ("k_caches", "slot_mapping", "row_count")]
    given += [None, None, 16, arguments["k_bounds"], []]
    check_registration("update_page_bounds", tuple(given))
    check_cuda_message("update_page_bounds", tuple(given))

    def compiled(cache: Tensor) -> Tensor:
        bounds = torch.zeros(5, 2, 2, 8)
        dflash_ops.update_page_bounds([cache], slot_mapping=torch.tensor([3, 9]), k_bounds=[bounds])
        return bounds

    check_compiles(compiled, torch.randn(5, 4, 2, 8))
