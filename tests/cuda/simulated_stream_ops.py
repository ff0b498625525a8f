"""lm_head_argmax, fuse_features and project_context_kv on the PTX interpreter: arguments of `dflash_ops.<op>`, plus the
GPU that runs the plan."""

import torch
from torch import Tensor

from dflash_ops import _host
from tests.cuda.gpu import Arguments, Gpu
from tests.cuda.simulated_ops import DTYPES


def stream_workspace(size: int, zero_size: int) -> Tensor:
    """Zero where the op asks for it; NaN where it must not read before it wrote."""
    workspace = torch.full((size,), 0xFF, dtype=torch.uint8)
    workspace[:zero_size] = 0
    return workspace


def lm_head_argmax(
    gpu: Gpu,
    hidden: Tensor,
    weight: Tensor,
    *,
    vocab_offset: int = 0,
    softcap: float = 0.0,
    ids: Tensor | None = None,
    values: Tensor | None = None,
    workspace: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    (rows, hidden_size), vocab_size = hidden.shape, weight.shape[0]
    ids = torch.empty(rows, dtype=torch.int64) if ids is None else ids
    values = torch.empty(rows) if values is None else values
    if workspace is None:
        size = _host.lm_head_argmax_cuda_workspace_size(rows, hidden_size, vocab_size)
        workspace = stream_workspace(size, _host.lm_head_argmax_cuda_zero_size(rows, hidden_size, vocab_size))
    arguments = Arguments()
    arguments.write("ids", ids)
    arguments.write("values", values)
    operands = Arguments()
    operands.read("hidden", hidden)
    operands.read("weight", weight)
    operands.update("workspace", workspace)
    both = Arguments()
    both.arguments = arguments.arguments + operands.arguments

    def plan(address: dict[str, int]) -> _host.LaunchPlan:
        activations = _host.GemmActivations(
            pieces=[(address["hidden"], hidden.stride(0))], piece_columns=hidden_size, rows=rows
        )
        weights = _host.GemmWeight(
            data=address["weight"], row_stride=weight.stride(0), layer_columns=vocab_size, columns=vocab_size
        )
        params = _host.LmHeadArgmaxParams(
            gemm=_host.SkinnyGemm(activations=activations, weight=weights, dtype=DTYPES[hidden.dtype]),
            vocab_offset=vocab_offset,
            softcap=softcap,
            workspace=address["workspace"],
            **arguments.fields(address),
        )
        return _host.plan_lm_head_argmax(params, gpu.device)

    gpu.run("lm_head_argmax", both, plan)
    return ids, values
