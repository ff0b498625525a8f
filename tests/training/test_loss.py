"""The chunked, weighted cross-entropy over a frozen head, against torch's own on dense logits."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from dflash_decoding.training.loss import (
    TrainingHead,
    chunked_cross_entropy,
    chunked_kl_divergence,
    default_gamma,
    position_weights,
)
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def dense(hidden: Tensor, weight: Tensor, targets: Tensor, row_weights: Tensor, bias: Tensor | None) -> Tensor:
    logits = hidden @ weight.t()
    if bias is not None:
        logits = logits + bias
    losses = F.cross_entropy(logits, targets, reduction="none")
    return (losses * row_weights).sum() / row_weights.sum()


@pytest.mark.parametrize("chunk_rows", [1, 7, 32, 1000])
@pytest.mark.parametrize("with_bias", [False, True])
def test_equals_dense_values_and_gradients(chunk_rows: int, with_bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(37, 24, generator=generator)
    weight = torch.randn(101, 24, generator=generator)
    bias = torch.randn(101, generator=generator) if with_bias else None
    targets = torch.randint(0, 101, (37,), generator=generator)
    row_weights = torch.rand(37, generator=generator)
    row_weights[5:9] = 0.0

    exact = hidden.double().requires_grad_()
    wanted = dense(exact, weight.double(), targets, row_weights.double(), None if bias is None else bias.double())
    (wanted * 3).backward()
    ours = hidden.clone().requires_grad_()
    actual = chunked_cross_entropy(ours, weight, targets, row_weights, bias=bias, chunk_rows=chunk_rows)
    (actual * 3).backward()
    plain = hidden.clone().requires_grad_()
    (dense(plain, weight, targets, row_weights, bias) * 3).backward()

    assert exact.grad is not None
    assert ours.grad is not None
    assert plain.grad is not None
    torch.testing.assert_close(actual.double(), wanted, rtol=2e-6, atol=0)
    allowed = 2 * (plain.grad.double() - exact.grad).abs().max() + 1e-7
    assert (ours.grad.double() - exact.grad).abs().max() <= allowed
    assert ours.grad[5:9].abs().max() == 0


def test_large_logits_stay_finite() -> None:
    hidden = torch.full((2, 4), 200.0, requires_grad=True)
    weight = torch.eye(4)[[0, 1]] * 100
    loss = chunked_cross_entropy(hidden, weight, torch.tensor([0, 1]), torch.ones(2))
    loss.backward()
    # Both logits are 20,000, where float32 steps by 0.002.
    torch.testing.assert_close(loss, torch.tensor(math.log(2.0)), rtol=0, atol=2e-3)
    assert hidden.grad is not None
    assert hidden.grad.isfinite().all()


def test_nothing_to_learn_gives_zero() -> None:
    weight = torch.randn(5, 4)
    for rows in (0, 3):
        hidden = torch.randn(rows, 4, requires_grad=True)
        loss = chunked_cross_entropy(hidden, weight, torch.zeros(rows, dtype=torch.int64), torch.zeros(rows))
        loss.backward()
        assert loss == 0
        assert hidden.grad is not None
        assert torch.equal(hidden.grad, torch.zeros(rows, 4))


def test_refuses_a_head_that_is_not_frozen() -> None:
    hidden, weight = torch.randn(3, 4), torch.randn(5, 4, requires_grad=True)
    with pytest.raises(ValueError, match="expected a frozen head"):
        chunked_cross_entropy(hidden, weight, torch.zeros(3, dtype=torch.int64), torch.ones(3))
    with pytest.raises(ValueError, match="chunk_rows: expected at least 1, got 0"):
        chunked_cross_entropy(hidden, weight.detach(), torch.zeros(3, dtype=torch.int64), torch.ones(3), chunk_rows=0)


class LargestTensor(TorchDispatchMode):
    """Elements of the largest tensor that any op returns while the mode is on, backward passes included."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


@pytest.mark.parametrize("loss", ["ce", "kl"])
def test_memory_is_bounded_by_the_chunk(loss: str) -> None:
    """Forward and backward hold nothing larger than chunk_rows x V, however many rows there are."""
    vocab, hidden_size, chunk_rows = 50, 4, 8
    largest = {}
    for rows in (16, 96):
        hidden = torch.randn(rows, hidden_size, requires_grad=True)
        weight, row_weights = torch.randn(vocab, hidden_size), torch.ones(rows)
        with LargestTensor() as mode:
            if loss == "kl":
                target_hidden = torch.randn(rows, hidden_size)
                value = chunked_kl_divergence(hidden, weight, target_hidden, row_weights, chunk_rows=chunk_rows)
            else:
                targets = torch.zeros(rows, dtype=torch.int64)
                value = chunked_cross_entropy(hidden, weight, targets, row_weights, chunk_rows=chunk_rows)
            value.backward()
        largest[rows] = mode.elements
    assert largest == {16: chunk_rows * vocab, 96: chunk_rows * vocab}


@pytest.mark.parametrize("chunk_rows", [1, 7, 1000])
@pytest.mark.parametrize("with_bias", [False, True])
def test_kl_equals_dense_values_and_gradients(chunk_rows: int, with_bias: bool) -> None:
    """Against torch's own kl_div in float64."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(37, 24, generator=generator)
    target_hidden = torch.randn(37, 24, generator=generator)
    weight = torch.randn(101, 24, generator=generator)
    bias = torch.randn(101, generator=generator) if with_bias else None
    row_weights = torch.rand(37, generator=generator)
    row_weights[5:9] = 0.0

    exact = hidden.double().requires_grad_()
    added = 0.0 if bias is None else bias.double()
    log_q = (exact @ weight.double().t() + added).log_softmax(dim=1)
    log_p = (target_hidden.double() @ weight.double().t() + added).log_softmax(dim=1)
    rows = F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(dim=1)
    wanted = (rows * row_weights.double()).sum() / row_weights.double().sum()
    (wanted * 3).backward()
    ours = hidden.clone().requires_grad_()
    actual = chunked_kl_divergence(ours, weight, target_hidden, row_weights, bias=bias, chunk_rows=chunk_rows)
    (actual * 3).backward()

    assert exact.grad is not None
    assert ours.grad is not None
    torch.testing.assert_close(actual.double(), wanted, rtol=1e-5, atol=0)
    torch.testing.assert_close(ours.grad.double(), exact.grad, rtol=1e-4, atol=1e-6)
    same = chunked_kl_divergence(target_hidden, weight, target_hidden, row_weights, bias=bias, chunk_rows=chunk_rows)
    assert abs(float(same)) < 1e-6


def test_parts_of_a_loss_sum_to_the_whole() -> None:
    hidden, weight = torch.randn(20, 8), torch.randn(30, 8)
    targets, row_weights = torch.randint(0, 30, (20,)), torch.rand(20)
    whole = chunked_cross_entropy(hidden, weight, targets, row_weights)
    parts = [
        chunked_cross_entropy(hidden[part], weight, targets[part], row_weights[part], total_weight=row_weights.sum())
        for part in (slice(0, 3), slice(3, 20))
    ]
    torch.testing.assert_close(sum(parts), whole)


def test_weights_of_the_paper() -> None:
    assert [default_gamma(size) for size in (16, 10, 8)] == [7.0, 5.0, 4.0]
    expected = [math.exp(-(k - 1) / 4) for k in range(1, 8)]
    torch.testing.assert_close(position_weights(7, 4.0), torch.tensor(expected))
    with pytest.raises(ValueError, match="gamma"):
        position_weights(7, 0.0)


def head_and_targets(frequent: int, sampled: int) -> tuple[Tensor, TrainingHead, Tensor]:
    weight = torch.randn(60, 8, generator=torch.Generator().manual_seed(1))
    counts = np.arange(60)[::-1].copy()  # id 0 is the most frequent
    return weight, TrainingHead(weight, counts, frequent, sampled, seed=5), torch.tensor([3, 55, 19, 55, 20])


def test_restricted_head_keeps_frequent_ids_targets_and_a_sample() -> None:
    weight, head, targets = head_and_targets(frequent=20, sampled=6)
    rows, bias, index = head.select(targets, step=0)
    assert bias is not None
    assert torch.equal(rows[index], weight[targets])
    assert torch.equal(rows[:20], weight[:20])
    assert rows.shape[0] == len(bias) <= 20 + 2 + 6
    assert len(torch.unique(rows, dim=0)) == len(rows)
    sampled = (bias != 0).nonzero().squeeze(1)
    assert (index[:, None] != sampled[None]).all()
    torch.testing.assert_close(bias[sampled], torch.full((len(sampled),), math.log(38 / len(sampled))))


def test_sampled_rest_stands_for_the_whole() -> None:
    """Over many steps the restricted normaliser averages to that of the whole vocabulary."""
    weight, head, targets = head_and_targets(frequent=20, sampled=6)
    hidden = torch.randn(1, 8, generator=torch.Generator().manual_seed(2)) * 0.5
    whole = (hidden @ weight.t()).double().logsumexp(dim=1).exp()
    estimates = []
    for step in range(400):
        rows, bias, _ = head.select(targets[:1], step)
        assert bias is not None
        estimates.append((hidden @ rows.t() + bias).double().logsumexp(dim=1).exp())
    assert abs(torch.cat(estimates).mean() / whole - 1) < 0.03


@pytest.mark.parametrize(("frequent", "sampled"), [(0, 10), (50, 10), (60, 0)])
def test_whole_head_when_nothing_is_left_out(frequent: int, sampled: int) -> None:
    weight, head, targets = head_and_targets(frequent, sampled)
    rows, bias, index = head.select(targets, step=0)
    assert rows is weight
    assert bias is None
    assert torch.equal(index, targets)
