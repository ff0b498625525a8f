"""norm_rope_qkv's kernel on the PTX interpreter."""

from typing import Any

import pytest
import torch
from torch import Tensor

from dflash_ops import reference
from tests.cases.casting import in_dtype
from tests.cases.norm_rope_qkv import CASES, Case
from tests.cuda.gpu import GPUS, Gpu
from tests.cuda.simulated_context_ops import norm_rope_qkv
from tests.ops.harness import DTYPES, assert_as_accurate
from tests.ptxsim import assert_count


def outputs(case: Case, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """q and k with strides of their own, v plain."""
    q = torch.full((case.rows, case.q_heads + 1, case.head_dim), torch.nan, dtype=dtype)[:, 1:]
    k = torch.full((case.kv_heads, case.rows, case.head_dim), torch.nan, dtype=dtype).transpose(0, 1)
    return q, k, torch.full((case.rows, case.kv_heads, case.head_dim), torch.nan, dtype=dtype)


def definition(case: Case, arguments: dict[str, Any], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    return reference.norm_rope_qkv(**in_dtype(arguments, dtype), num_q_heads=case.q_heads, num_kv_heads=case.kv_heads)


def check(case: Case, dtype: torch.dtype, gpu: Gpu, arguments: dict[str, Any]) -> None:
    actual = outputs(case, dtype)
    q, k, v = actual
    norm_rope_qkv(gpu, **arguments, q=q, k=k, v=v)
    plain = definition(case, arguments, dtype)
    for ours, wanted, torchs in zip(actual, definition(case, arguments, torch.float64), plain, strict=True):
        assert_as_accurate(ours, wanted, torchs)
    assert torch.equal(v, plain[2]), "values are copied"


@pytest.mark.parametrize("gpu", GPUS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_the_definition(case: Case, dtype: torch.dtype, gpu: Gpu) -> None:
    check(case, dtype, gpu, case.arguments(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_table_may_have_the_data_dtype(dtype: torch.dtype) -> None:
    case = Case(5, 4, 2, 64, max_positions=300)
    check(case, dtype, Gpu(), case.arguments(dtype, table_dtype=dtype))


def test_many_rows_share_a_block() -> None:
    """More rows than two blocks for each multiprocessor of the smallest GPU; the last block has fewer than the others."""
    case = Case(2 * 82 * 2 + 3, 1, 1, 8)
    check(case, torch.float32, Gpu("RTX 3090"), case.arguments(torch.float32))


def test_a_position_outside_the_table_gives_nan() -> None:
    case = Case(3, 2, 1, 16, rotary_dim=8)
    arguments = case.arguments(torch.float32)
    arguments["positions"] = torch.tensor([5000, 0, -1])
    q, k, v = outputs(case, torch.float32)
    norm_rope_qkv(Gpu(), **arguments, q=q, k=k, v=v)
    for rotated in (q, k):
        assert rotated[[0, 2], :, :8].isnan().all()
        assert not rotated[1].isnan().any()
        assert not rotated[:, :, 8:].isnan().any()
    assert not v.isnan().any()


def test_eps_counts() -> None:
    case = Case(3, 2, 1, 16)
    for dtype in (torch.float32, torch.bfloat16):
        check(case, dtype, Gpu(), case.arguments(dtype) | {"eps": 9.0})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
def test_every_byte_moves_once(dtype: torch.dtype, interleaved: bool) -> None:
    """The heads of the published 8B drafter; shared memory without conflicts."""
    case = Case(16, 32, 8, 128, interleaved=interleaved)
    arguments = case.arguments(dtype)
    q, k, v = (torch.empty(16, heads, 128, dtype=dtype) for heads in (32, 8, 8))
    gpu = Gpu()
    norm_rope_qkv(gpu, **arguments, q=q, k=k, v=v)
    gpu.assert_loads("qkv", arguments["qkv"].nbytes, slack=1.0)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        gpu.assert_stores(name, tensor.nbytes)
    gpu.assert_loads("cos_sin", 16 * 128 * 4, slack=1.0)
    assert_count("wavefronts", gpu.report.total("wavefronts"), gpu.report.total("ideal_wavefronts"), 1.05)
