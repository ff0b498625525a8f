"""update_page_bounds' kernel on the PTX interpreter, alone and after write_context_kv."""

import pytest
import torch
from torch import Tensor

from dflash_ops import reference
from tests.cases import write_context_kv as write_cases
from tests.cases.update_page_bounds import CASES, Case
from tests.cuda.gpu import GPUS, Gpu
from tests.cuda.simulated_context_ops import write_context_kv
from tests.cuda.simulated_page_bounds import update_page_bounds
from tests.ops.harness import DTYPES
from tests.ptxsim import assert_count

MANY_PAGES = Case((0,), (600,), layers=7, kv_heads=1, head_dim=8, page_size=4)


def check(case: Case, dtype: torch.dtype, gpu: Gpu, **changes: Tensor) -> str:
    """Rows past the last written one are NaN and never seen; other pages' bounds stay 7. Returns the kernel's name."""
    arguments = case.arguments(dtype) | changes
    exact = [case.bounds(torch.float64) for _ in range(case.layers)]
    wide = [cache.double() for cache in arguments["k_caches"]]
    reference.update_page_bounds(wide, arguments["slot_mapping"], arguments["row_count"], exact)
    plan = update_page_bounds(gpu, **arguments)
    for ours, wanted in zip(arguments["k_bounds"], exact, strict=True):
        assert torch.equal(ours.double().nan_to_num(9.0), wanted.nan_to_num(9.0))
    return plan.entry


@pytest.mark.parametrize("gpu", GPUS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_definition(case: Case, dtype: torch.dtype, gpu: Gpu) -> None:
    check(case, dtype, gpu)


def test_vectors_are_used_where_they_fit() -> None:
    for case in CASES[2:5]:
        assert check(case, torch.bfloat16, Gpu()) == "update_page_bounds_bfloat16"
    for case in CASES[5:]:
        assert check(case, torch.bfloat16, Gpu()) == "update_page_bounds_unaligned"


def test_many_pages_and_layers_are_spread_over_blocks() -> None:
    """More pages than the GPU has places for: a block takes three layers, the last one only one."""
    check(MANY_PAGES, torch.bfloat16, Gpu("RTX 3090"))
    check(Case((3,), (2,), layers=1, kv_heads=5, head_dim=256), torch.float32, Gpu())  # more pieces than threads


def test_one_entry_of_a_page_leads_whatever_their_order() -> None:
    """Highest slot first, last, in the middle, and twice, with another page's entries between."""
    case = Case((0, 0), (16, 9), layers=1, head_dim=8)
    slots = case.arguments(torch.float32)["slot_mapping"].sort().values
    for order in (slots, slots.flip(0), slots.roll(5), torch.cat([slots, slots]), slots.repeat_interleave(2)):
        check(case, torch.float32, Gpu(), slot_mapping=order)


def test_a_page_is_cut_and_begun_anew() -> None:
    case = Case((0,), (16,), layers=1, head_dim=8)
    arguments = case.arguments(torch.float32)
    page = arguments["slot_mapping"].min()
    for last in (15, 4, 0, 9):
        slots = torch.stack([page + last])
        update_page_bounds(Gpu(), **(arguments | {"slot_mapping": slots}))
        rows = arguments["k_caches"][0][page // 16, : last + 1]
        assert torch.equal(arguments["k_bounds"][0][page // 16], torch.stack([rows.amin(0), rows.amax(0)], 1))


@pytest.mark.parametrize("row", range(6))
def test_nan_and_infinity_stay(row: int) -> None:
    case = Case((0,), (6,), page_size=8, head_dim=16, layers=1)
    arguments = case.arguments(torch.bfloat16)
    page = int(arguments["slot_mapping"][0]) // 8
    arguments["k_caches"][0][page, row, 0, [0, 9]] = torch.nan
    arguments["k_caches"][0][page, row, 1, 5] = -torch.inf
    update_page_bounds(Gpu(), **arguments)
    bounds = arguments["k_bounds"][0][page]
    assert bounds[0].isnan().nonzero().tolist() == [[0, 0], [0, 9], [1, 0], [1, 9]]
    assert not bounds[1].isnan().any()
    assert bounds[1, 0, 5] == -torch.inf


@pytest.mark.parametrize("row_count", [0, 1, 8, 9, 100, -3])
def test_row_count_is_read_on_the_device(row_count: int) -> None:
    """Counts outside 0..n count as the nearest of the two."""
    case = Case((0, 5), (4, 5), layers=1, head_dim=8)
    arguments = case.arguments(torch.float32)
    expected = [case.bounds(torch.float32)]
    count = torch.tensor([row_count], dtype=torch.int32)
    reference.update_page_bounds(arguments["k_caches"], arguments["slot_mapping"], count.clamp(0, 9), expected)
    update_page_bounds(Gpu(), **(arguments | {"row_count": count}))
    assert torch.equal(arguments["k_bounds"][0], expected[0])


def test_what_no_one_could_check_is_not_followed() -> None:
    case = Case((0,), (3,), layers=1, head_dim=8)
    arguments = case.arguments(torch.float32)
    slots = torch.tensor([2**40, case.pages * 16, -7, -1, -(2**40)])
    update_page_bounds(Gpu(), **(arguments | {"slot_mapping": slots}))
    assert (arguments["k_bounds"][0] == 7).all()


def test_offsets_past_2_31_elements() -> None:
    case = Case((0, 0), (3, 2), page_size=1, layers=1, kv_heads=1, head_dim=8)
    arguments = case.arguments(torch.bfloat16)
    expected = [bounds.clone() for bounds in arguments["k_bounds"]]
    reference.update_page_bounds(arguments["k_caches"], arguments["slot_mapping"], None, expected)
    stride = 2**31 // 3 // 8 * 8
    for name in ("k_caches", "k_bounds"):
        small = arguments[name][0]
        storage = torch.empty(stride * (small.shape[0] - 1) + 16, dtype=torch.bfloat16)
        arguments[name] = [storage.as_strided(small.shape, (stride, *small.stride()[1:])).copy_(small)]
    update_page_bounds(Gpu(), **arguments)
    assert torch.equal(arguments["k_bounds"][0], expected[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [16, 48])
def test_every_row_is_read_once(rows: int, dtype: torch.dtype) -> None:
    """Five layers of eight heads of 128, in the middle of a page: its rows and the page's earlier ones."""
    case = Case((8,), (rows,), layers=5, kv_heads=8, head_dim=128)
    arguments = case.arguments(dtype)
    arguments["slot_mapping"] = arguments["slot_mapping"].sort().values
    gpu = Gpu()
    update_page_bounds(gpu, **arguments)
    pages = -(-(8 + rows) // 16)
    row_bytes = 8 * 128 * dtype.itemsize
    buffers = gpu.report.buffers.values()
    least_loads, least_stores = 5 * row_bytes * (8 + rows), 5 * row_bytes * 2 * pages
    assert_count("bytes", sum(b.load_bytes + b.store_bytes for b in buffers), least_loads + least_stores, 1.02)
    for layer in range(5):
        gpu.assert_loads(f"k{layer}", least_loads // 5, slack=1.0)
        gpu.assert_stores(f"bounds{layer}", least_stores // 5)


@pytest.mark.parametrize("gpu", GPUS, ids=str)
@pytest.mark.parametrize(("dtype", "cache_dtype"), [(torch.float32, torch.float16), (torch.bfloat16, torch.bfloat16)])
@pytest.mark.parametrize("case", write_cases.CASES[1:7], ids=str)
def test_follows_the_write_of_the_rows(
    case: write_cases.Case, dtype: torch.dtype, cache_dtype: torch.dtype, gpu: Gpu
) -> None:
    """The two launches of write_context_kv with bounds."""
    arguments = case.arguments(dtype)
    k_caches, v_caches = case.caches(cache_dtype)
    for seed, cache in enumerate(k_caches):
        cache.copy_(torch.randn(cache.shape, generator=torch.Generator().manual_seed(seed)))
    bounds, expected = case.bounds(cache_dtype), case.bounds(cache_dtype)
    write_context_kv(gpu, **arguments, k_caches=k_caches, v_caches=v_caches)
    slots, count = arguments["slot_mapping"], arguments["row_count"]
    update_page_bounds(gpu, k_caches, slot_mapping=slots, k_bounds=bounds, row_count=count)
    reference.update_page_bounds(k_caches, slots, count, expected)
    for ours, wanted in zip(bounds, expected, strict=True):
        assert torch.equal(ours, wanted)
