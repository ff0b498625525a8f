"""lm_head_argmax, fuse_features and project_context_kv on the PTX interpreter: arguments of `dflash_ops.<op>`, plus the
GPU that runs the plan."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash_ops import _host
from tests.cuda.gpu import COUNTER_BYTES, Arguments, Gpu
from tests.cuda.simulated_context_ops import context_caches, rope_table
from tests.cuda.simulated_ops import DTYPES


def op_of(entry: str) -> str:
    """The op whose file has a kernel."""
    return "project_context_kv" if entry.startswith(("project_context_kv", "write_products")) else "fuse_features"


def stream_workspace(size: int) -> Tensor:
    """Counters at zero; NaN where the op must not read before it wrote."""
    workspace = torch.full((size,), 0xFF, dtype=torch.uint8)
    workspace[:COUNTER_BYTES] = 0
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
        workspace = stream_workspace(size)
    arguments = Arguments()
    arguments.write("ids", ids)
    arguments.write("values", values)
    operands = Arguments()
    operands.read("hidden", hidden)
    operands.read("weight", weight, settled=True)
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


def fuse_features(
    gpu: Gpu,
    hidden_states: Sequence[Tensor],
    weight: Tensor,
    norm_weight: Tensor | None = None,
    *,
    out: Tensor,
    eps: float = 1e-6,
    row_count: Tensor | None = None,
    workspace: Tensor | None = None,
) -> list[_host.OpStep]:
    """Returns the steps it ran."""
    (rows, tap_columns), columns, taps = hidden_states[0].shape, weight.shape[0], len(hidden_states)
    if workspace is None:
        size = _host.fuse_features_cuda_workspace_size(rows, taps, tap_columns, columns)
        workspace = stream_workspace(size)
    arguments = Arguments()
    for tap, states in enumerate(hidden_states):
        arguments.read(f"tap{tap}", states)
    arguments.read("weight", weight, settled=True)
    arguments.read("norm_weight", norm_weight)
    arguments.read("row_count", row_count)
    arguments.update("out", out)
    arguments.update("workspace", workspace)

    def steps(address: dict[str, int]) -> list[_host.OpStep]:
        activations = _host.GemmActivations(
            pieces=[(address[f"tap{tap}"], states.stride(0)) for tap, states in enumerate(hidden_states)],
            piece_columns=tap_columns,
            rows=rows,
        )
        weights = _host.GemmWeight(
            data=address["weight"], row_stride=weight.stride(0), layer_columns=columns, columns=columns
        )
        params = _host.FuseFeaturesParams(
            gemm=_host.SkinnyGemm(activations=activations, weight=weights, dtype=DTYPES[weight.dtype]),
            row_count=address["row_count"],
            norm_weight=address["norm_weight"],
            eps=eps,
            out=address["out"],
            out_row_stride=out.stride(0),
            workspace=address["workspace"],
        )
        return _host.plan_fuse_features(params, gpu.device)

    return gpu.run_steps(op_of, arguments, steps)


def project_context_kv(
    gpu: Gpu,
    features: Tensor,
    kv_weight: Tensor,
    kv_bias: Tensor | None = None,
    k_norm_weight: Tensor | None = None,
    cos_sin: Tensor | None = None,
    positions: Tensor | None = None,
    *,
    slot_mapping: Tensor,
    k_caches: Sequence[Tensor],
    v_caches: Sequence[Tensor],
    row_count: Tensor | None = None,
    eps: float = 1e-6,
    interleaved: bool = False,
    workspace: Tensor | None = None,
) -> list[_host.OpStep]:
    """Returns the steps it ran."""
    (rows, hidden_size), (layers, layer_columns) = features.shape, kv_weight.shape[:2]
    columns = layers * layer_columns
    if workspace is None:
        size = _host.project_context_kv_cuda_workspace_size(rows, hidden_size, columns)
        workspace = stream_workspace(size)
    arguments = Arguments()
    for name, tensor in (
        ("features", features),
        ("kv_bias", kv_bias),
        ("k_norm_weight", k_norm_weight),
        ("cos_sin", cos_sin),
        ("positions", positions),
        ("slot_mapping", slot_mapping),
        ("row_count", row_count),
    ):
        arguments.read(name, tensor)
    arguments.read("kv_weight", kv_weight, settled=True)
    arguments.update("workspace", workspace)
    for layer, (k, v) in enumerate(zip(k_caches, v_caches, strict=True)):
        arguments.update(f"k{layer}", k)
        arguments.update(f"v{layer}", v)

    def steps(address: dict[str, int]) -> list[_host.OpStep]:
        activations = _host.GemmActivations(
            pieces=[(address["features"], features.stride(0))], piece_columns=hidden_size, rows=rows
        )
        weights = _host.GemmWeight(
            data=address["kv_weight"],
            layer_stride=kv_weight.stride(0),
            row_stride=kv_weight.stride(1),
            bias=address["kv_bias"],
            bias_layer_stride=0 if kv_bias is None else kv_bias.stride(0),
            layer_columns=layer_columns,
            columns=columns,
        )
        dtype = DTYPES[features.dtype]
        write = _host.WriteContextKvParams(
            rows=rows,
            row_count=address["row_count"],
            k_norm_weight=address["k_norm_weight"],
            weight_dtype=dtype,
            k_norm_layer_stride=0 if k_norm_weight is None else k_norm_weight.stride(0),
            rope=rope_table(address, cos_sin, positions, interleaved),
            caches=context_caches(address, k_caches, v_caches, slot_mapping),
            eps=eps,
        )
        gemm = _host.SkinnyGemm(activations=activations, weight=weights, dtype=dtype)
        params = _host.ProjectContextKvParams(gemm=gemm, write=write, workspace=address["workspace"])
        return _host.plan_project_context_kv(params, gpu.device)

    return gpu.run_steps(op_of, arguments, steps)
