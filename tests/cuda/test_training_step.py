"""A training step of a tiny drafter with the CUDA kernels of masked_block_attention, on the PTX interpreter, against the
same step on the CPU."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.cuda.gpu import Gpu
from tests.cuda.simulated_masked_attention import masked_block_attention
from tests.cuda.simulated_masked_backward import masked_block_attention_backward
from tests.training.tiny import tiny_config, tiny_trainer

GPU = Gpu("H200", completion="random", schedule="random", seed=3)


class _KernelAttention(torch.autograd.Function):
    """The op as its autograd registration puts it together."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
        assert q.dtype == torch.bfloat16
        out, lse = masked_block_attention(GPU, q.detach(), k.detach(), v.detach(), **options)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.options = options
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, _grad_lse: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, k, v, out, lse = (x.detach() for x in ctx.saved_tensors)
        gradients = masked_block_attention_backward(GPU, grad_out, q, k, v, out, lse, **ctx.options)
        return *gradients.tensors(), None


def step_gradients(folder: Path, *, autocast: bool) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of the first training step: two layers, one with a window, over three packed chats."""
    config = tiny_config(head_dim=64)
    trainer = tiny_trainer(folder, config=config, autocast=autocast, anchors_per_chat=3)
    loss, _, _ = trainer._train_step(0)
    gradients = {name: x.grad for name, x in trainer.model.named_parameters() if x.grad is not None}
    assert len(gradients) > 10
    return loss, gradients


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, float]:
    return {name: float((one[name] - other[name]).norm() / other[name].norm()) for name in other}


def test_a_step_gives_the_same_loss_and_gradients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exact_loss, exact = step_gradients(tmp_path / "float32", autocast=False)
    loss, gradients = step_gradients(tmp_path / "bfloat16", autocast=True)
    calls = []

    def attention(q: Tensor, k: Tensor, v: Tensor, mode: str, **options: Any) -> tuple[Tensor, Tensor]:
        calls.append(mode)
        out, lse = _KernelAttention.apply(q, k, v, {"mode": mode, **options})  # type: ignore[no-untyped-call]
        return out, lse

    monkeypatch.setattr("dflash_ops.masked_block_attention", attention)
    kernel_loss, kernel_gradients = step_gradients(tmp_path / "kernels", autocast=True)
    assert calls == ["anchor", "anchor"]
    assert kernel_loss == pytest.approx(loss, rel=1e-3)
    assert kernel_loss == pytest.approx(exact_loss, rel=1e-2)
    assert kernel_gradients.keys() == gradients.keys() == exact.keys()
    of_kernels, of_cpu = distance(kernel_gradients, gradients), distance(gradients, exact)
    for name, far in of_kernels.items():
        # Both round to bfloat16 in between; they are closer to each other than either is to float32.
        assert far < max(0.01, of_cpu[name]), f"{name}: {far:.2e} apart, {of_cpu[name]:.2e} from float32"
