"""write_context_kv, norm_rope_qkv, remask and verify_sampled on the PTX interpreter: arguments of `dflash_ops.<op>`, plus
the GPU that runs the plan."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from dflash_ops import _host
from dflash_ops.ops.verify_greedy import verify_outputs
from tests.cuda.gpu import Arguments, Gpu
from tests.cuda.simulated_ops import DTYPES


def rope_table(
    address: dict[str, int], cos_sin: Tensor | None, positions: Tensor | None, interleaved: bool
) -> _host.RopeTable:
    if cos_sin is None or positions is None:
        return _host.RopeTable(interleaved=interleaved)
    return _host.RopeTable(
        cos_sin=address["cos_sin"],
        dtype=DTYPES[cos_sin.dtype],
        table_rows=cos_sin.shape[0],
        row_stride=cos_sin.stride(0),
        rotary_dim=cos_sin.shape[1],
        interleaved=interleaved,
        positions=address["positions"],
        positions_stride=positions.stride(0),
    )


def context_caches(
    address: dict[str, int], k_caches: Sequence[Tensor], v_caches: Sequence[Tensor], slot_mapping: Tensor
) -> _host.ContextCaches:
    """Of the arguments slot_mapping, k0, v0, k1, ..."""
    pages, page_size, kv_heads, head_dim = k_caches[0].shape
    return _host.ContextCaches(
        dtype=DTYPES[k_caches[0].dtype],
        pages=pages,
        page_size=page_size,
        kv_heads=kv_heads,
        head_dim=head_dim,
        slot_mapping=address["slot_mapping"],
        slot_mapping_stride=slot_mapping.stride(0),
        layers=[
            _host.ContextCacheLayer(
                **{
                    f"{part}{suffix}": value
                    for part, cache in (("k", k), ("v", v))
                    for suffix, value in (
                        ("", address[f"{part}{layer}"]),
                        ("_page_stride", cache.stride(0)),
                        ("_slot_stride", cache.stride(1)),
                        ("_head_stride", cache.stride(2)),
                    )
                }
            )
            for layer, (k, v) in enumerate(zip(k_caches, v_caches, strict=True))
        ],
    )


def write_context_kv(
    gpu: Gpu,
    kv: Tensor,
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
) -> _host.LaunchPlan:
    """Returns the plan it ran."""
    arguments = Arguments()
    for name, tensor in (
        ("kv", kv),
        ("k_norm_weight", k_norm_weight),
        ("cos_sin", cos_sin),
        ("positions", positions),
        ("slot_mapping", slot_mapping),
        ("row_count", row_count),
    ):
        arguments.read(name, tensor)
    for layer, (k, v) in enumerate(zip(k_caches, v_caches, strict=True)):
        arguments.update(f"k{layer}", k)
        arguments.update(f"v{layer}", v)
    plans = []

    def plan(address: dict[str, int]) -> _host.LaunchPlan:
        caches = context_caches(address, k_caches, v_caches, slot_mapping)
        params = _host.WriteContextKvParams(
            kv=address["kv"],
            dtype=DTYPES[kv.dtype],
            row_stride=kv.stride(0),
            layer_stride=kv.stride(1),
            part_stride=kv.stride(2),
            head_stride=kv.stride(3),
            rows=kv.shape[0],
            row_count=address["row_count"],
            k_norm_weight=address["k_norm_weight"],
            weight_dtype=DTYPES[kv.dtype],
            k_norm_layer_stride=0 if k_norm_weight is None else k_norm_weight.stride(0),
            rope=rope_table(address, cos_sin, positions, interleaved),
            caches=caches,
            eps=eps,
        )
        plans.append(_host.plan_write_context_kv(params, gpu.device))
        return plans[0]

    gpu.run("write_context_kv", arguments, plan)
    return plans[0]


def norm_rope_qkv(
    gpu: Gpu,
    qkv: Tensor,
    q_norm_weight: Tensor | None = None,
    k_norm_weight: Tensor | None = None,
    cos_sin: Tensor | None = None,
    positions: Tensor | None = None,
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    eps: float = 1e-6,
    interleaved: bool = False,
) -> None:
    arguments = Arguments()
    for name, tensor in (
        ("qkv", qkv),
        ("q_norm_weight", q_norm_weight),
        ("k_norm_weight", k_norm_weight),
        ("cos_sin", cos_sin),
        ("positions", positions),
    ):
        arguments.read(name, tensor)
    for name, output in (("q", q), ("k", k), ("v", v)):
        arguments.write(name, output)

    def plan(address: dict[str, int]) -> _host.LaunchPlan:
        params = _host.NormRopeQkvParams(
            qkv=address["qkv"],
            qkv_row_stride=qkv.stride(0),
            dtype=DTYPES[qkv.dtype],
            rows=qkv.shape[0],
            q_heads=q.shape[1],
            kv_heads=k.shape[1],
            head_dim=q.shape[2],
            q_norm_weight=address["q_norm_weight"],
            k_norm_weight=address["k_norm_weight"],
            rope=rope_table(address, cos_sin, positions, interleaved),
            eps=eps,
            q=address["q"],
            q_row_stride=q.stride(0),
            q_head_stride=q.stride(1),
            k=address["k"],
            k_row_stride=k.stride(0),
            k_head_stride=k.stride(1),
            v=address["v"],
            v_row_stride=v.stride(0),
            v_head_stride=v.stride(1),
        )
        return _host.plan_norm_rope_qkv(params, gpu.device)

    gpu.run("norm_rope_qkv", arguments, plan)


def remask(
    gpu: Gpu,
    logits: Tensor,
    tokens: Tensor,
    *,
    mask_token_id: int,
    keep: Tensor,
    confidence: Tensor | None = None,
    workspace: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    batch, positions, vocabulary = logits.shape
    confidence = torch.empty(tokens.shape) if confidence is None else confidence
    if workspace is None:
        workspace = torch.zeros(_host.remask_workspace_size(batch, positions), dtype=torch.uint8)
    arguments = Arguments()
    arguments.read("logits", logits, strided=False)
    arguments.update("tokens", tokens)
    arguments.read("keep", keep)
    arguments.write("confidence", confidence)
    arguments.update("workspace", workspace, field=False)

    def plan(address: dict[str, int]) -> _host.LaunchPlan:
        params = _host.RemaskParams(
            dtype=DTYPES[logits.dtype],
            batch=batch,
            positions=positions,
            vocabulary=vocabulary,
            logits_batch_stride=logits.stride(0),
            logits_row_stride=logits.stride(1),
            mask_token_id=mask_token_id,
            **arguments.fields(address),
        )
        return _host.plan_remask(params, address["workspace"], gpu.device)

    gpu.run("remask", arguments, plan)
    return tokens, confidence


def verify_sampled(
    gpu: Gpu,
    draft_tokens: Tensor,
    *,
    target_logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seed: Tensor,
    offset: Tensor,
    draft_lens: Tensor | None = None,
    accepted: Tensor | None = None,
    tokens: Tensor | None = None,
    next_token: Tensor | None = None,
    workspace: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, drafts = draft_tokens.shape
    vocabulary = target_logits.shape[2]
    accepted, tokens, next_token = verify_outputs(draft_tokens, accepted, tokens, next_token)
    if workspace is None:
        workspace = torch.zeros(_host.verify_sampled_workspace_size(batch, drafts, vocabulary), dtype=torch.uint8)
    verify, sampling = Arguments(), Arguments()
    verify.read("draft_tokens", draft_tokens, strided=False)
    verify.read("draft_lens", draft_lens)
    verify.read("logits", target_logits, strided=False)
    verify.write("accepted", accepted)
    verify.write("tokens", tokens)
    verify.write("next_token", next_token)
    verify.update("workspace", workspace, field=False)
    for name, tensor in (("temperature", temperature), ("top_k", top_k), ("top_p", top_p), ("seed", seed)):
        sampling.read(name, tensor)
    sampling.update("offset", offset)
    both = Arguments()
    both.arguments = verify.arguments + sampling.arguments

    def plan(step: int, address: dict[str, int]) -> _host.LaunchPlan:
        params = _host.VerifyParams(
            draft_stride=draft_tokens.stride(0),
            batch=batch,
            drafts=drafts,
            dtype=DTYPES[target_logits.dtype],
            vocabulary=vocabulary,
            logits_batch_stride=target_logits.stride(0),
            logits_row_stride=target_logits.stride(1),
            **verify.fields(address),
        )
        samplings = _host.SamplingParams(**sampling.fields(address))
        return _host.plan_verify_sampled(params, samplings, address["workspace"], gpu.device)[step]

    for step in range(3):
        gpu.run("verify_sampled", both, partial(plan, step))
    return accepted, tokens, next_token
