"""project_context_kv's kernel on the PTX interpreter."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dflash_ops import _host, reference
from tests.cases import write_context_kv
from tests.cases.casting import in_dtype
from tests.cases.project_context_kv import CASES, Case
from tests.cuda.gpu import COUNTER_BYTES, GPUS, Gpu, sparse_elements
from tests.cuda.simulated_stream_ops import fuse_features, project_context_kv
from tests.cuda.simulated_stream_ops import project_context_kv as run_op
from tests.ops.harness import DTYPES, assert_as_accurate
from tests.ptxsim import assert_count

HALF_DTYPES = [torch.bfloat16, torch.float16]
SMALL = Case(72, write_context_kv.Case(5, 2, 3, 64, slack_rows=2, skip_every=3), bias=True)


def run(case: Case, arguments: dict[str, Any], gpu: Gpu, cache_dtype: torch.dtype, **changes: Any) -> list[Tensor]:
    k_caches, v_caches = case.write.caches(cache_dtype)
    run_op(gpu, **arguments, k_caches=k_caches, v_caches=v_caches, **changes)
    return [*k_caches, *v_caches]


def definition(case: Case, arguments: dict[str, Any], dtype: torch.dtype, cache_dtype: torch.dtype) -> list[Tensor]:
    k_caches, v_caches = case.write.caches(cache_dtype)
    reference.project_context_kv(**in_dtype(arguments, dtype), k_caches=k_caches, v_caches=v_caches)
    return [*k_caches, *v_caches]


def check(case: Case, dtype: torch.dtype, gpu: Gpu, *, cache_dtype: torch.dtype | None = None, **changes: Any) -> None:
    """Every slot but the written ones stays NaN."""
    cache_dtype = cache_dtype or dtype
    arguments = case.arguments(dtype) | changes
    exact = definition(case, arguments, torch.float64, torch.float64)
    plain = definition(case, arguments, dtype, cache_dtype)
    for ours, wanted, torchs in zip(run(case, arguments, gpu, cache_dtype), exact, plain, strict=True):
        assert_as_accurate(ours, wanted, torchs)


@pytest.mark.parametrize("gpu", GPUS, ids=str)
@pytest.mark.parametrize("dtype", HALF_DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_the_definition(case: Case, dtype: torch.dtype, gpu: Gpu) -> None:
    check(case, dtype, gpu)


@pytest.mark.parametrize("gpu", GPUS, ids=str)
@pytest.mark.parametrize("rows", [1, 7, 16, 17, 64, 128])
def test_numbers_of_rows(rows: int, gpu: Gpu) -> None:
    """Tiles of several shares, with holes between the rows that are written."""
    check(Case(264, write_context_kv.Case(rows, 2, 2, 128, skip_every=4)), torch.bfloat16, gpu)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("kv_heads", "head_dim", "rotary_dim"), [(1, 128, 64), (5, 40, 40), (2, 96, 32), (3, 6, 4)])
def test_tiles_are_whole_heads(kv_heads: int, head_dim: int, rotary_dim: int, interleaved: bool) -> None:
    write = write_context_kv.Case(17, 2, kv_heads, head_dim, rotary_dim=rotary_dim, interleaved=interleaved)
    check(Case(136, write), torch.bfloat16, Gpu())


@pytest.mark.parametrize("layout", ["halves", "interleaved heads first", "padded"])
def test_caches_as_engines_lay_them_out(layout: str) -> None:
    write = write_context_kv.Case(9, 3, 2, 64, page_size=4, skip_every=4, slack_rows=3, cache_layout=layout)
    check(Case(72, write, bias=True, weight_slack=8), torch.float16, Gpu())


@pytest.mark.parametrize("cache_dtype", DTYPES)
@pytest.mark.parametrize("dtype", HALF_DTYPES)
def test_the_cache_dtype_decides_what_is_stored(dtype: torch.dtype, cache_dtype: torch.dtype) -> None:
    check(SMALL, dtype, Gpu(), cache_dtype=cache_dtype)
    padded = replace(SMALL, write=replace(SMALL.write, cache_layout="padded"))  # element by element
    check(padded, dtype, Gpu(), cache_dtype=cache_dtype)


@pytest.mark.parametrize("dtype", HALF_DTYPES)
def test_the_table_may_have_the_data_dtype(dtype: torch.dtype) -> None:
    check(SMALL, dtype, Gpu(), cos_sin=SMALL.arguments(dtype, table_dtype=dtype)["cos_sin"])


def test_layers_without_norm_and_rotation() -> None:
    write = write_context_kv.Case(6, 3, 2, 64, norm=False, rotary_dim=0)
    check(Case(72, write, bias=True), torch.bfloat16, Gpu())
    check(Case(72, replace(write, norm=True)), torch.bfloat16, Gpu())


def test_float16_does_not_overflow_before_the_norm() -> None:
    """Keys near 80,000, where float16 ends at 65,504."""
    case = Case(128, write_context_kv.Case(3, 1, 1, 64))
    arguments = case.arguments(torch.float16)
    arguments["features"] = torch.full((3, 128), 62.0).half()
    arguments["kv_weight"][:, :64] = 10.0
    arguments["kv_weight"][:, 64:] = 0.125
    keys, values = run(case, arguments, Gpu(), torch.float16)
    exact_keys, exact_values = definition(case, arguments, torch.float64, torch.float64)
    assert_as_accurate(keys, exact_keys, exact_keys.half())
    assert_as_accurate(values, exact_values, exact_values.half())


def test_a_row_is_the_same_bits_whatever_comes_with_it() -> None:
    case = Case(584, write_context_kv.Case(128, 1, 2, 128))
    arguments = case.arguments(torch.bfloat16)
    whole = [cache.flatten(0, 1) for cache in run(case, arguments, Gpu(), torch.bfloat16)]
    slots = arguments["slot_mapping"]
    for rows in (1, 7, 16, 17, 64):
        for chosen in (slice(0, rows), slice(128 - rows, 128)):
            some = arguments | {name: arguments[name][chosen] for name in ("features", "positions", "slot_mapping")}
            for part, all_rows in zip(run(case, some, Gpu(), torch.bfloat16), whole, strict=True):
                assert torch.equal(part.flatten(0, 1)[slots[chosen]], all_rows[slots[chosen]])


@pytest.mark.parametrize("row_count", [-3, 0, 1, 16, 17, 20, 21, 1000])
def test_row_count_is_read_on_the_device(row_count: int) -> None:
    """Counts outside 0..n, which no one could check before the launch, count as the nearest of the two. Rows past it are
    not even read."""
    case = Case(72, write_context_kv.Case(20, 2, 2, 32))
    gpu = Gpu()
    arguments = case.arguments(torch.bfloat16)
    count = torch.tensor([row_count], dtype=torch.int32)
    counted = run(case, arguments | {"row_count": count}, gpu, torch.bfloat16)
    wanted = run(case, arguments, Gpu(), torch.bfloat16)
    rows = min(max(row_count, 0), 20)
    assert_count("activations read", gpu.traffic("features").load_bytes, rows * 72 * 2, 4)  # once for each tile
    unwritten = arguments["slot_mapping"][rows:]
    for ours, all_rows in zip(counted, wanted, strict=True):
        all_rows.flatten(0, 1)[unwritten] = torch.nan
        assert torch.equal(ours.nan_to_num(7.0), all_rows.nan_to_num(7.0))


def test_what_no_one_could_check_is_not_followed() -> None:
    """A slot past the cache is skipped; a position outside the table gives NaN keys, which do not pass unnoticed."""
    case = Case(16, write_context_kv.Case(4, 1, 2, 32, rotary_dim=16))
    arguments = case.arguments(torch.bfloat16)
    arguments["slot_mapping"] = torch.tensor([2**40, 3, 17, -7])
    arguments["positions"] = torch.tensor([1, 5000, 2, 1])
    keys, values = run(case, arguments, Gpu(), torch.bfloat16)
    assert (~values.isnan()).flatten(2).any(-1).nonzero().tolist() == [[0, 3], [1, 1]]
    assert keys[0, 3, :, :16].isnan().all()
    assert not keys[0, 3, :, 16:].isnan().any()
    assert not keys[1, 1].isnan().any()


def test_offsets_past_2_31_elements() -> None:
    """A cache and a weight whose strides make offsets overflow int32."""
    case = Case(16, write_context_kv.Case(2, 2, 1, 8, page_size=1))
    arguments = case.arguments(torch.bfloat16)
    arguments["slot_mapping"] = torch.tensor([4, 1])
    expected = definition(case, arguments, torch.bfloat16, torch.bfloat16)
    stride = 2**31 // 3
    weight = sparse_elements(2**31 + 16 * 16, torch.bfloat16).as_strided((2, 16, 16), (2**31, 16, 1))
    arguments["kv_weight"] = weight.copy_(arguments["kv_weight"])
    keys = sparse_elements(4 * stride + 8, torch.bfloat16).as_strided((5, 1, 1, 8), (stride, 8, 8, 1))
    other, first, second = (torch.zeros(5, 1, 1, 8, dtype=torch.bfloat16) for _ in range(3))
    run_op(Gpu(), **arguments, k_caches=[keys, other], v_caches=[first, second])
    for ours, wanted in zip((keys, other, first, second), expected, strict=True):
        torch.testing.assert_close(ours[[4, 1]], wanted[[4, 1]], rtol=2e-2, atol=2e-2)


def test_the_workspace_serves_call_after_call() -> None:
    write = write_context_kv.Case(5, 1, 2, 64)
    size = _host.project_context_kv_cuda_workspace_size(5, 1032, 256)
    workspace = torch.zeros(size, dtype=torch.uint8)
    for seed in range(3):
        case = Case(1032, write)
        arguments = case.arguments(torch.bfloat16, seed=seed)
        exact = definition(case, arguments, torch.float64, torch.float64)
        plain = definition(case, arguments, torch.bfloat16, torch.bfloat16)
        ours = run(case, arguments, Gpu(), torch.bfloat16, workspace=workspace)
        for cache, wanted, torchs in zip(ours, exact, plain, strict=True):
            assert_as_accurate(cache, wanted, torchs)
        assert (workspace[:COUNTER_BYTES] == 0).all()


@pytest.mark.parametrize(("rows", "share"), [(16, 0.2), (64, 0.6)])
@pytest.mark.parametrize("interleaved", [False, True])
def test_every_weight_is_read_once(rows: int, share: float, interleaved: bool) -> None:
    """And every key and value is stored once, in whole sectors."""
    case = Case(512, write_context_kv.Case(rows, 2, 4, 128, interleaved=interleaved))
    arguments = case.arguments(torch.bfloat16)
    k_caches, v_caches = case.write.caches(torch.bfloat16)
    gpu = Gpu()
    project_context_kv(gpu, **arguments, k_caches=k_caches, v_caches=v_caches)
    weight, features = arguments["kv_weight"], arguments["features"]
    gpu.assert_loads("kv_weight", weight.nbytes, slack=1.0)
    assert_count("activations read", gpu.traffic("features").load_bytes, features.nbytes, share * 2048 / rows)
    for layer in range(2):
        gpu.assert_stores(f"k{layer}", rows * 4 * 128 * 2)
        gpu.assert_stores(f"v{layer}", rows * 4 * 128 * 2)
    assert_count("wavefronts", gpu.report.total("wavefronts"), gpu.report.total("ideal_wavefronts"), 1.05)


def test_the_context_takes_three_launches() -> None:
    """From the taps to the caches of all layers: products, norm of the features; products, norm, rotation and write."""
    gpu = Gpu()
    states = [torch.randn(3, 64).bfloat16() for _ in range(5)]
    weight, norm_weight = torch.randn(128, 320).bfloat16(), torch.ones(128, dtype=torch.bfloat16)
    features = torch.zeros(3, 128, dtype=torch.bfloat16)
    steps = fuse_features(gpu, states, weight, norm_weight, out=features)
    case = Case(128, write_context_kv.Case(3, 5, 1, 64))
    arguments = case.arguments(torch.bfloat16) | {"features": features}
    k_caches, v_caches = case.write.caches(torch.bfloat16)
    steps += project_context_kv(gpu, **arguments, k_caches=k_caches, v_caches=v_caches)
    assert len(steps) == len(gpu.reports) == 3
    assert not torch.stack(v_caches).flatten(1, 2)[:, arguments["slot_mapping"]].isnan().any()
