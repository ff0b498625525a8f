"""masked_block_attention's backward pass on the PTX interpreter."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dflash_ops import _host
from tests.cuda.gpu import Arguments, Gpu
from tests.cuda.simulated_masked_attention import mask_params
from tests.ptxsim import Report

NAMES = ("grad_q", "grad_k", "grad_v")


@dataclass(frozen=True)
class Gradients:
    """What the launches wrote, and their reports by the kernels' names without dtype and head size."""

    grad_q: Tensor
    grad_k: Tensor
    grad_v: Tensor
    reports: dict[str, Report]

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.grad_q, self.grad_k, self.grad_v


def masked_block_attention_backward(
    gpu: Gpu,
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    grad_q: Tensor | None = None,
    grad_k: Tensor | None = None,
    grad_v: Tensor | None = None,
    **options: Any,
) -> Gradients:
    """Rows of the gradients that no kernel wrote are NaN, and so is the workspace at first."""
    gradients = {
        name: torch.full_like(like, torch.nan, memory_format=torch.contiguous_format) if given is None else given
        for name, given, like in zip(NAMES, (grad_q, grad_k, grad_v), (q, k, v), strict=True)
    }
    fields = mask_params(q, k, **options)
    arguments = Arguments()
    inputs = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "grad_out": grad_out}
    for name, tensor in inputs.items():
        arguments.read(name, tensor, strided=False)
    for name, optional in (("anchors", options.get("anchors")), ("cu_seqlens", options.get("cu_seqlens"))):
        arguments.read(name, optional, strided=False)
    for name, tensor in gradients.items():
        arguments.write(name, tensor, strided=False)
    for name, tensor in (inputs | gradients).items():
        fields |= {f"{name}_row_stride": tensor.stride(0), f"{name}_head_stride": tensor.stride(1)}
    size = _host.masked_block_attention_backward_workspace_size(_host.MaskedBlockAttentionParams(**fields), gpu.device)
    workspace = torch.full((size,), 255, dtype=torch.uint8)
    arguments.update("workspace", workspace, field=False)

    def plans(address: dict[str, int]) -> list[_host.LaunchPlan]:
        params = _host.MaskedBlockAttentionParams(**(fields | arguments.fields(address)))
        return _host.plan_masked_block_attention_backward(params, address["workspace"], gpu.device)

    reports = {}
    for step, plan in enumerate(plans({argument.name: 0 for argument in arguments.arguments})):
        assert plan.workspace_bytes <= size
        module = "masked_block_attention"
        if plan.entry.startswith("masked_backward"):
            module = "masked_block_attention_backward" + ("_sm90a" if "_sm90a_" in plan.entry else "")
        gpu.run(module, arguments, lambda address, step=step: plans(address)[step])  # type: ignore[misc]
        reports[plan.entry.replace("_sm90a", "").split("_float16")[0].split("_bfloat16")[0]] = gpu.report
    return Gradients(**gradients, reports=reports)
