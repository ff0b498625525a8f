"""remask's kernel on the PTX interpreter."""

import pytest
import torch
from torch import Tensor

from dflash_ops import reference
from tests.cases.remask import MASK, SHAPES, inputs
from tests.cuda.gpu import COUNTER_BYTES, GPUS, Gpu
from tests.cuda.simulated_context_ops import remask
from tests.ops.harness import DTYPES


def check(gpu: Gpu, logits: Tensor, tokens: Tensor, keep: Tensor, mask: int = MASK) -> None:
    expected, wanted = reference.remask(logits.double(), tokens, mask_token_id=mask, keep=keep)
    actual, confidence = remask(gpu, logits, tokens.clone(), mask_token_id=mask, keep=keep)
    assert torch.equal(actual, expected)
    torch.testing.assert_close(confidence.double(), wanted, rtol=1e-5, atol=0, equal_nan=True)


@pytest.mark.parametrize("gpu", GPUS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batch", "positions", "vocabulary"), SHAPES)
def test_matches_the_definition(batch: int, positions: int, vocabulary: int, dtype: torch.dtype, gpu: Gpu) -> None:
    check(gpu, *inputs(batch, positions, vocabulary, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", [0, 7, 8, 9000, 20000])
def test_the_mask_token_takes_no_part(mask: int, dtype: torch.dtype) -> None:
    """At the ends of a row, of a chunk, and past the row; every row starts at another element of its chunk."""
    buffer = torch.full((1, 9, 9001 + 8 * 128 + 1), torch.nan, dtype=dtype)
    logits = buffer[:, :, :9001]
    logits.copy_(3 * torch.randn(1, 9, 9001, generator=torch.Generator().manual_seed(2)))
    if mask < 9001:
        logits[:, :, mask] = 50.0
    check(Gpu(), logits, torch.full((1, 9), mask), torch.tensor([4], dtype=torch.int32), mask)


def test_special_values() -> None:
    """Rows of one value, of minus infinity, with an infinity, with NaN; the last three are the least confident."""
    logits = torch.zeros(1, 6, 20)
    logits[0, 1] = -torch.inf
    logits[0, 2, 5] = torch.inf
    logits[0, 3, 9] = torch.nan
    logits[0, 4, 3] = 4.0
    logits[0, 5, 1:] = -torch.inf
    for keep in range(8):
        check(Gpu(), logits, torch.full((1, 6), MASK), torch.tensor([keep], dtype=torch.int32))


def test_equal_confidences_go_to_the_lower_position() -> None:
    logits = torch.zeros(1, 40, 8)
    check(Gpu(), logits, torch.full((1, 40), MASK), torch.tensor([11], dtype=torch.int32))


def test_a_negative_keep_keeps_nothing() -> None:
    tokens, _ = remask(
        Gpu(),
        torch.randn(1, 3, 8),
        torch.full((1, 3), MASK),
        mask_token_id=MASK,
        keep=torch.tensor([-1], dtype=torch.int32),
    )
    assert (tokens == MASK).all()


def test_logits_of_other_positions_are_not_read() -> None:
    logits, tokens, keep = inputs(3, 16, 20000, torch.bfloat16)
    gpu = Gpu()
    remask(gpu, logits, tokens.clone(), mask_token_id=MASK, keep=keep)
    masked = int((tokens == MASK).sum())
    gpu.assert_loads("logits", masked * 20000 * 2)
    logits[tokens != MASK] = torch.nan
    check(gpu, logits, tokens, keep)


def test_the_workspace_serves_call_after_call() -> None:
    workspace = torch.zeros(COUNTER_BYTES + 65536, dtype=torch.uint8)
    for seed in range(3):
        logits, tokens, keep = inputs(2, 5 + seed, 3000, torch.float16)
        expected, _ = reference.remask(logits.double(), tokens, mask_token_id=MASK, keep=keep)
        actual, _ = remask(Gpu(), logits, tokens, mask_token_id=MASK, keep=keep, workspace=workspace)
        assert torch.equal(actual, expected)
        assert (workspace[:COUNTER_BYTES] == 0).all()
