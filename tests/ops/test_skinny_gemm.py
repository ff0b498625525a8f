"""The matrix product behind fuse_features, project_context_kv and lm_head_argmax, seen through fuse_features without
norm."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

import dflash_ops
from tests.ops.forbidden_memory import before_forbidden_memory
from tests.ops.harness import DTYPES, ISAS, assert_as_accurate, cpu_isa


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def product(states: list[Tensor], weight: Tensor) -> Tensor:
    return dflash_ops.fuse_features(states, weight)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_whatever_stands_beside_it(dtype: torch.dtype, isa: str) -> None:
    """To the last bit, for any number of rows and any place among them: drafts must not depend on the batch."""
    generator = torch.Generator().manual_seed(0)
    states = [torch.randn(130, 601, generator=generator).to(dtype) for _ in range(2)]
    weight = torch.randn(29, 1202, generator=generator).to(dtype)
    with cpu_isa(isa):
        together = product(states, weight)
        for first, count in [(0, 1), (5, 1), (1, 2), (3, 3), (60, 4), (63, 5), (2, 7), (10, 64), (1, 65), (0, 129)]:
            rows = slice(first, first + count)
            assert torch.equal(product([state[rows] for state in states], weight), together[rows])
        for first, count in [(0, 1), (1, 11), (13, 16)]:
            columns = slice(first, first + count)
            assert torch.equal(product(states, weight[columns]), together[:, columns])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_number_of_threads_changes_nothing(threads: int) -> None:
    states, weight = [torch.randn(9, 700)], torch.randn(301, 700)
    expected = product(states, weight)
    with torch_threads(threads):
        assert torch.equal(product(states, weight), expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inner", [1, 2, 15, 16, 17, 31, 32, 33, 575, 576, 577, 1151, 1152, 1153, 2305, 5000])
def test_inner_sizes(inner: int, dtype: torch.dtype, isa: str) -> None:
    """Around vector and chunk boundaries, of single values and of pairs. The memory around every row holds NaN."""
    generator = torch.Generator().manual_seed(inner)
    buffers = [torch.full((rows, inner + 2), torch.nan, dtype=dtype) for rows in (6, 5)]
    state, weight = (buffer[:, 1:-1] for buffer in buffers)
    state.copy_(torch.randn(6, inner, generator=generator))
    weight.copy_(torch.randn(5, inner, generator=generator))
    with cpu_isa(isa):
        actual = product([state], weight)
    assert_as_accurate(actual, state.double() @ weight.double().T, state @ weight.T, floor=5e-7)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 12])
def test_nothing_past_the_operands_is_read(rows: int, dtype: torch.dtype, isa: str) -> None:
    """A read past an end, even one whose result is dropped, would end the process."""
    for inner, columns in [(61, 5), (576, 13), (3, 12)]:
        state, weight = torch.randn(rows, inner).to(dtype), torch.randn(columns, inner).to(dtype)
        with cpu_isa(isa):
            expected = product([state], weight)
            assert torch.equal(product([before_forbidden_memory(state)], before_forbidden_memory(weight)), expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rows", [1, 2, 63, 64])
def test_a_row_is_the_same_when_threads_share_the_passes(rows: int, isa: str) -> None:
    """With many rows every thread takes whole passes; they are cut elsewhere than those of few rows."""
    state, weight = torch.randn(260, 700).to(torch.bfloat16), torch.randn(29, 700).to(torch.bfloat16)
    with cpu_isa(isa), torch_threads(2):
        together = product([state], weight)
        for first in range(0, 260 - rows, 37):
            assert torch.equal(product([state[first : first + rows]], weight), together[first : first + rows])
        with torch_threads(3):
            assert torch.equal(product([state], weight), together)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_infinity_stay_in_their_row_and_column(dtype: torch.dtype, isa: str) -> None:
    state, weight = torch.ones(6, 40, dtype=dtype), torch.ones(14, 40, dtype=dtype)
    state[2, 39] = torch.nan
    state[4, 0] = torch.inf
    weight[13, 7] = -torch.inf
    with cpu_isa(isa):
        actual = product([state], weight)
    expected = state.double() @ weight.double().T
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=0, equal_nan=True)


def test_weight_offsets_past_2_31_elements() -> None:
    """Rows so far apart that int32 offsets overflow, on memory that is mapped but never touched."""
    stride = 2**31 // 3
    weight = torch.empty(4 * stride + 8, dtype=torch.bfloat16).as_strided((5, 8), (stride, 1))
    small = torch.randn(5, 8).to(torch.bfloat16)
    weight.copy_(small)
    state = torch.randn(3, 8).to(torch.bfloat16)
    assert torch.equal(product([state], weight), product([state], small))
