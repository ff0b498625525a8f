"""The ops on the PTX interpreter: same arguments as `dflash_ops.<op>`, plus the GPU that runs the plan."""

import torch
from torch import Tensor

from dflash_ops import _host
from dflash_ops.ops.verify_greedy import verify_outputs
from tests.cuda.gpu import Arguments, Gpu

DTYPES = {
    torch.float32: _host.DType.float32,
    torch.float16: _host.DType.float16,
    torch.bfloat16: _host.DType.bfloat16,
}


def row_argmax(
    gpu: Gpu,
    logits: Tensor,
    *,
    ids: Tensor | None = None,
    values: Tensor | None = None,
    workspace: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    rows, columns = logits.shape
    ids = torch.empty(rows, dtype=torch.int64) if ids is None else ids
    values = torch.empty(rows) if values is None else values
    if workspace is None:
        workspace = torch.zeros(_host.row_argmax_workspace_size(rows), dtype=torch.uint8)
    arguments = Arguments()
    arguments.read("logits", logits, strided=False)
    arguments.write("ids", ids)
    arguments.write("values", values)
    arguments.update("workspace", workspace, field=False)

    def plan(address: dict[str, int]) -> _host.LaunchPlan:
        params = _host.RowArgmaxParams(
            dtype=DTYPES[logits.dtype],
            rows=rows,
            columns=columns,
            row_stride=logits.stride(0),
            **arguments.fields(address),
        )
        return _host.plan_row_argmax(params, address["workspace"], gpu.device)

    gpu.run("row_argmax", arguments, plan)
    return ids, values


def verify_greedy(
    gpu: Gpu,
    draft_tokens: Tensor,
    *,
    target_logits: Tensor | None = None,
    target_ids: Tensor | None = None,
    draft_lens: Tensor | None = None,
    accepted: Tensor | None = None,
    tokens: Tensor | None = None,
    next_token: Tensor | None = None,
    workspace: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, drafts = draft_tokens.shape
    accepted, tokens, next_token = verify_outputs(draft_tokens, accepted, tokens, next_token)
    if workspace is None:
        workspace = torch.zeros(_host.verify_greedy_workspace_size(batch, drafts), dtype=torch.uint8)
    arguments = Arguments()
    arguments.read("draft_tokens", draft_tokens, strided=False)
    arguments.read("draft_lens", draft_lens)
    arguments.read("logits", target_logits, strided=False)
    arguments.read("target_ids", target_ids)
    arguments.write("accepted", accepted)
    arguments.write("tokens", tokens)
    arguments.write("next_token", next_token)
    arguments.update("workspace", workspace, field=False)

    def plan(address: dict[str, int]) -> _host.LaunchPlan:
        params = _host.VerifyParams(
            draft_stride=draft_tokens.stride(0), batch=batch, drafts=drafts, **arguments.fields(address)
        )
        if target_logits is not None:
            params.dtype = DTYPES[target_logits.dtype]
            params.vocabulary = target_logits.shape[2]
            params.logits_batch_stride, params.logits_row_stride = target_logits.stride()[:2]
        return _host.plan_verify_greedy(params, address["workspace"], gpu.device)

    gpu.run("verify_greedy", arguments, plan)
    return accepted, tokens, next_token


def begin_block(
    gpu: Gpu,
    next_token: Tensor,
    context_lens: Tensor,
    page_table: Tensor,
    *,
    page_size: int,
    mask_token_id: int,
    block_size: int,
    finished: Tensor | None = None,
    input_ids: Tensor | None = None,
    positions: Tensor | None = None,
    slot_mapping: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    batch = next_token.shape[0]
    input_ids = torch.empty(batch, block_size, dtype=torch.int64) if input_ids is None else input_ids
    positions = torch.empty(batch, block_size, dtype=torch.int64) if positions is None else positions
    slot_mapping = torch.empty(batch, block_size, dtype=torch.int64) if slot_mapping is None else slot_mapping
    arguments = Arguments()
    arguments.read("next_token", next_token)
    arguments.read("context_lens", context_lens)
    arguments.read("page_table", page_table)
    arguments.read("finished", finished)
    arguments.write("input_ids", input_ids)
    arguments.write("positions", positions)
    arguments.write("slot_mapping", slot_mapping)

    def plan(address: dict[str, int]) -> _host.LaunchPlan:
        params = _host.BeginBlockParams(
            max_pages=page_table.shape[1],
            page_size=page_size,
            mask_token_id=mask_token_id,
            batch=batch,
            block=block_size,
            **arguments.fields(address),
        )
        return _host.plan_begin_block(params)

    gpu.run("begin_block", arguments, plan)
    return input_ids, positions, slot_mapping


def commit_block(
    gpu: Gpu,
    tokens: Tensor,
    accepted: Tensor,
    slot_mapping: Tensor,
    *,
    context_lens: Tensor,
    next_token: Tensor,
    output_ids: Tensor,
    output_lens: Tensor,
    finished: Tensor,
    stop_token_ids: Tensor | None = None,
    max_output_lens: Tensor | None = None,
    committed: Tensor | None = None,
    context_slots: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    batch, block = tokens.shape
    committed = torch.empty(batch, dtype=torch.int32) if committed is None else committed
    context_slots = torch.empty(batch, block, dtype=torch.int64) if context_slots is None else context_slots
    arguments = Arguments()
    for name, tensor in (
        ("tokens", tokens),
        ("accepted", accepted),
        ("slot_mapping", slot_mapping),
        ("max_output_lens", max_output_lens),
    ):
        arguments.read(name, tensor)
    for name, tensor in (
        ("context_lens", context_lens),
        ("next_token", next_token),
        ("output_ids", output_ids),
        ("output_lens", output_lens),
        ("finished", finished),
    ):
        arguments.update(name, tensor)
    arguments.write("committed", committed)
    arguments.write("context_slots", context_slots)
    arguments.read("stop_token_ids", stop_token_ids, strided=False)

    def plan(address: dict[str, int]) -> _host.LaunchPlan:
        params = _host.CommitBlockParams(
            stop_tokens=0 if stop_token_ids is None else stop_token_ids.numel(),
            batch=batch,
            block=block,
            capacity=output_ids.shape[1],
            **arguments.fields(address),
        )
        return _host.plan_commit_block(params)

    gpu.run("commit_block", arguments, plan)
    return committed, context_slots
