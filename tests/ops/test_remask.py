import pytest
import torch

import dflash_ops
from dflash_ops import reference
from tests.cases.remask import MASK, SHAPES, inputs
from tests.ops.harness import DTYPES, ISAS, check_compiles, check_cuda_message, check_registration, cpu_isa


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batch", "positions", "vocabulary"), SHAPES)
def test_matches_the_definition(batch: int, positions: int, vocabulary: int, dtype: torch.dtype, isa: str) -> None:
    logits, tokens, keep = inputs(batch, positions, vocabulary, dtype)
    expected, confidence = reference.remask(logits.double(), tokens, mask_token_id=MASK, keep=keep)
    with cpu_isa(isa):
        actual, actual_confidence = dflash_ops.remask(logits, tokens.clone(), mask_token_id=MASK, keep=keep)
    assert torch.equal(actual, expected)
    torch.testing.assert_close(actual_confidence.double(), confidence, rtol=1e-5, atol=0)


def test_the_most_confident_come_first_and_ties_go_to_the_lower_position() -> None:
    logits = torch.zeros(1, 5, 8)
    logits[0, :, MASK] = 100.0  # the mask token never wins, whatever its logit
    logits[0, 1, 2] = 3.0
    logits[0, 3, 4] = 3.0
    logits[0, 4, 1] = 9.0
    tokens = torch.tensor([[MASK, MASK, 0, MASK, MASK]])
    steps = []
    for _ in range(4):
        dflash_ops.remask(logits, tokens, mask_token_id=MASK, keep=torch.tensor([1], dtype=torch.int32))
        steps.append(tokens[0].tolist())
    assert steps == [
        [MASK, MASK, 0, MASK, 1],
        [MASK, 2, 0, MASK, 1],
        [MASK, 2, 0, 4, 1],
        [0, 2, 0, 4, 1],
    ]


def test_a_nan_row_is_the_least_confident() -> None:
    logits = torch.zeros(1, 2, 8)
    logits[0, 0, 3] = float("nan")
    tokens = torch.tensor([[MASK, MASK]])
    dflash_ops.remask(logits, tokens, mask_token_id=MASK, keep=torch.tensor([1], dtype=torch.int32))
    assert tokens.tolist() == [[MASK, 0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.zeros(2, 3)}, "logits: expected 3 dimensions"),
        ({"tokens": torch.zeros(2, 4, dtype=torch.int64)}, "tokens: expected shape"),
        ({"mask_token_id": -1}, "mask_token_id: expected a token id"),
        ({"keep": torch.tensor([0, -1], dtype=torch.int32)}, r"keep\[1\]: expected 0 or more, got -1"),
        ({"keep": torch.tensor([0, 1])}, "keep: expected int32"),
        ({"logits": torch.zeros(2, 3, 1), "mask_token_id": 0}, "logits: expected at least one column besides"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, object], message: str) -> None:
    args: dict[str, object] = {
        "logits": torch.zeros(2, 3, 8),
        "tokens": torch.zeros(2, 3, dtype=torch.int64),
        "mask_token_id": MASK,
        "keep": torch.zeros(2, dtype=torch.int32),
    } | change
    with pytest.raises(RuntimeError, match=f"remask: {message}"):
        torch.ops.dflash_ops.remask(*args.values(), None)


def test_registration() -> None:
    logits, tokens, keep = inputs(2, 5, 9, torch.float32)
    check_registration("remask", (logits, tokens, MASK, keep, torch.zeros(2, 5)))
    check_cuda_message("remask", (logits, tokens, MASK, keep, None))
    check_compiles(lambda a, b, c: dflash_ops.remask(a, b.clone(), mask_token_id=MASK, keep=c), logits, tokens, keep)
