"""write_context_kv's kernel on the PTX interpreter."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from dflash_ops import reference
from tests.cases.casting import in_dtype
from tests.cases.write_context_kv import CASES, Case
from tests.cuda.gpu import GPUS, Gpu
from tests.cuda.simulated_context_ops import write_context_kv
from tests.ops.harness import DTYPES, assert_as_accurate
from tests.ptxsim import assert_count


def definition(case: Case, arguments: dict[str, Any], dtype: torch.dtype, cache_dtype: torch.dtype) -> list[Tensor]:
    k_caches, v_caches = case.caches(cache_dtype)
    reference.write_context_kv(**in_dtype(arguments, dtype), k_caches=k_caches, v_caches=v_caches)
    return [*k_caches, *v_caches]


def check(case: Case, dtype: torch.dtype, gpu: Gpu, *, cache_dtype: torch.dtype | None = None, **changes: Any) -> str:
    """Every slot but the written ones stays NaN. Returns the kernel's name."""
    cache_dtype = cache_dtype or dtype
    arguments = case.arguments(dtype) | changes
    k_caches, v_caches = case.caches(cache_dtype)
    plan = write_context_kv(gpu, **arguments, k_caches=k_caches, v_caches=v_caches)
    exact = definition(case, arguments, torch.float64, torch.float64)
    plain = definition(case, arguments, dtype, cache_dtype)
    for ours, wanted, torchs in zip([*k_caches, *v_caches], exact, plain, strict=True):
        assert_as_accurate(ours, wanted, torchs)
    for ours, torchs in zip(v_caches, plain[case.layers :], strict=True):
        assert torch.equal(ours.nan_to_num(7.0), torchs.nan_to_num(7.0)), "values are copied, or rounded once"
    return plan.entry


@pytest.mark.parametrize("gpu", GPUS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_the_definition(case: Case, dtype: torch.dtype, gpu: Gpu) -> None:
    check(case, dtype, gpu)


@pytest.mark.parametrize(("dtype", "cache_dtype"), list(itertools.permutations(DTYPES, 2)))
@pytest.mark.parametrize("case", [CASES[3], CASES[4]], ids=str)
def test_the_cache_dtype_decides_what_is_stored(case: Case, dtype: torch.dtype, cache_dtype: torch.dtype) -> None:
    check(case, dtype, Gpu(), cache_dtype=cache_dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", [CASES[3], Case(5, 2, 3, 64, interleaved=True, rotary_dim=32)], ids=str)
def test_the_table_may_have_the_data_dtype(case: Case, dtype: torch.dtype) -> None:
    check(case, dtype, Gpu(), cos_sin=case.arguments(dtype, table_dtype=dtype)["cos_sin"])


def test_vectors_are_used_where_they_fit() -> None:
    vectors = "write_context_kv_bfloat16_bfloat16"
    for case in (CASES[2], CASES[3], CASES[4], CASES[8]):
        assert check(case, torch.bfloat16, Gpu()) == vectors
    for case in (CASES[5], CASES[6], CASES[7], Case(3, 2, 2, 96, rotary_dim=40)):
        assert check(case, torch.bfloat16, Gpu()) == "write_context_kv_unaligned"


@pytest.mark.parametrize("shift", [4, 8])
def test_vectors_need_aligned_keys_and_values(shift: int) -> None:
    """The same data at an address no 16-byte access may have."""
    case = Case(3, 2, 2, 64)
    kv = case.arguments(torch.bfloat16)["kv"]
    storage = torch.full((kv.numel() + shift,), torch.nan, dtype=torch.bfloat16)
    storage[shift:] = kv.flatten()
    moved = storage[shift:].view(kv.shape)
    entry = check(case, torch.bfloat16, Gpu(), kv=moved)
    assert entry == ("write_context_kv_unaligned" if shift == 4 else "write_context_kv_bfloat16_bfloat16")


@pytest.mark.parametrize("row_count", [0, 1, 9, 11, 100, -3])
def test_row_count_is_read_on_the_device(row_count: int) -> None:
    """Counts outside 0..n, which no one could check before the launch, count as the nearest of the two. The last block
    has fewer rows than the others."""
    case = Case(11, 2, 2, 32, slack_rows=0)
    count = torch.tensor([row_count], dtype=torch.int32)
    arguments = case.arguments(torch.float32)
    k_caches, v_caches = case.caches(torch.float32)
    write_context_kv(Gpu(), **(arguments | {"row_count": count}), k_caches=k_caches, v_caches=v_caches)
    bounded = arguments | {"row_count": count.clamp(0, 11)}
    for ours, wanted in zip(k_caches, definition(case, bounded, torch.float32, torch.float32), strict=False):
        torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-6, equal_nan=True)
    for ours, wanted in zip(v_caches, definition(case, bounded, torch.float32, torch.float32)[2:], strict=True):
        assert torch.equal(ours.nan_to_num(7.0), wanted.nan_to_num(7.0))


def test_what_no_one_could_check_is_not_followed() -> None:
    """A slot past the cache is skipped; a position outside the table gives NaN keys, which do not pass unnoticed."""
    case = Case(4, 1, 2, 32, rotary_dim=16)
    arguments = case.arguments(torch.float32)
    k_caches, v_caches = case.caches(torch.float32)
    arguments["slot_mapping"] = torch.tensor([2**40, 3, 17, -7])
    arguments["positions"] = torch.tensor([1, 5000, 2, 1])
    write_context_kv(Gpu(), **arguments, k_caches=k_caches, v_caches=v_caches)
    assert (~v_caches[0].isnan()).flatten(2).any(-1).nonzero().tolist() == [[0, 3], [1, 1]]
    assert k_caches[0][0, 3, :, :16].isnan().all()
    assert not k_caches[0][0, 3, :, 16:].isnan().any()
    assert not k_caches[0][1, 1].isnan().any()


def test_many_layers_and_rows_are_spread_over_blocks() -> None:
    check(Case(150, 3, 1, 8, page_size=64), torch.bfloat16, Gpu("RTX 3090"))
    check(Case(2, 70, 1, 128), torch.bfloat16, Gpu())  # more weights than a block holds
    check(Case(3, 1, 1, 600, rotary_dim=512), torch.bfloat16, Gpu())  # a lane takes several units of a head


def test_offsets_past_2_31_elements() -> None:
    """A cache whose page stride makes offsets overflow int32, on memory that is mapped but never touched."""
    case = Case(2, 1, 1, 8, page_size=1)
    arguments = case.arguments(torch.bfloat16)
    page_stride = 2**31 // 3
    storage = torch.empty(4 * page_stride + 8, dtype=torch.bfloat16)
    cache = storage.as_strided((5, 1, 1, 8), (page_stride, 8, 8, 1))
    values = torch.zeros(5, 1, 1, 8, dtype=torch.bfloat16)
    arguments["slot_mapping"] = torch.tensor([4, 1])
    write_context_kv(Gpu(), **arguments, k_caches=[cache], v_caches=[values])
    expected = torch.zeros_like(values)
    reference.write_context_kv(**arguments, k_caches=[expected], v_caches=[torch.zeros_like(values)])
    torch.testing.assert_close(cache[[4, 1]], expected[[4, 1]], rtol=1e-2, atol=1e-2)
    assert expected[4].abs().sum() > 0


def test_rows_past_2_31_elements() -> None:
    case = Case(2, 1, 1, 8)
    kv = case.arguments(torch.bfloat16)["kv"]
    wide = torch.empty(2**31 + 16, dtype=torch.bfloat16).as_strided(kv.shape, (2**31, 16, 8, 8, 1))
    check(case, torch.bfloat16, Gpu(), kv=wide.copy_(kv))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "interleaved"), [(16, False), (24, False), (16, True)])
def test_every_byte_moves_once(rows: int, interleaved: bool, dtype: torch.dtype) -> None:
    """Five layers of eight heads of 128: the shape of the published 8B drafter. Shared memory without conflicts."""
    case = Case(rows, 5, 8, 128, interleaved=interleaved)
    arguments = case.arguments(dtype)
    k_caches, v_caches = case.caches(dtype)
    gpu = Gpu()
    write_context_kv(gpu, **arguments, k_caches=k_caches, v_caches=v_caches)
    buffers = gpu.report.buffers.values()
    kv, weight = arguments["kv"], arguments["k_norm_weight"]
    table_bytes = rows * arguments["cos_sin"].shape[1] * 4
    least = 2 * kv.nbytes + weight.nbytes + table_bytes + 2 * rows * 8
    assert_count("bytes", sum(buffer.load_bytes + buffer.store_bytes for buffer in buffers), least, 1.02)
    assert_count("bytes stored in sectors", sum(buffer.store_sectors for buffer in buffers) * 32, kv.nbytes)
    gpu.assert_loads("kv", kv.nbytes, slack=1.0)
    assert_count("wavefronts", gpu.report.total("wavefronts"), gpu.report.total("ideal_wavefronts"), 1.05)


def test_eps_counts() -> None:
    check(Case(3, 2, 1, 16), torch.float32, Gpu(), eps=2.0)
