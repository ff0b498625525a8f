"""``verify_greedy``: argmax, compare and commit in one op."""

import torch
from torch import Tensor

from dflash_ops import _host
from dflash_ops._arguments import check_dims, register_out_variant


@torch.compiler.assume_constant_result
def verify_greedy_workspace_size(batch: int, drafts: int) -> int:
    """Bytes of workspace that ``verify_greedy`` needs on CUDA for ``target_logits [batch, drafts + 1, V]``."""
    return _host.verify_greedy_workspace_size(batch, drafts)


def verify_outputs(
    draft_tokens: Tensor, accepted: Tensor | None, tokens: Tensor | None, next_token: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The three outputs of the verify ops, allocated where the caller gave none."""
    check_dims("verify", draft_tokens=(draft_tokens, 2))
    batch, drafts = draft_tokens.shape
    if accepted is None:
        accepted = draft_tokens.new_empty((batch,), dtype=torch.int32)
    if tokens is None:
        tokens = draft_tokens.new_empty((batch, drafts + 1))
    if next_token is None:
        next_token = draft_tokens.new_empty((batch,))
    return accepted, tokens, next_token


def verify_greedy(
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
    """Accepts the leading drafts that equal the target's own choice and adds its next token (DFlash, arXiv 2602.06036).

    With t_i the target's choice after row i, ``accepted`` is the length of the leading run ``draft_i == t_i``.

    Args:
        draft_tokens: int64 ``[b, n]``.
        target_logits: float32, float16 or bfloat16 ``[b, n+1, V]``; t_i is the argmax (ties to the lowest id).
        target_ids: int64 ``[b, n+1]``, instead of the logits: the t_i themselves.
        draft_lens: int32 ``[b]``, how many drafts a request has (-1: it sits this round out); None: n.
        accepted, tokens, next_token: outputs, allocated when absent.
        workspace: used on CUDA with logits: uint8, ``verify_greedy_workspace_size(b, n)`` bytes, 64-byte aligned,
            **zero** before its first use; allocated when absent. One serves any CUDA ops with any sizes, one after
            another (calls leave its counters zero), but not two calls that may overlap.

    Returns:
        ``accepted`` int32 ``[b]``; ``tokens`` int64 ``[b, n+1]``: accepted drafts, the target's next token, then -1;
        ``next_token`` int64 ``[b]``: the last of them (-1 for an idle request).

    Raises:
        RuntimeError: an argument's shape, dtype, stride or device is not as above, both or neither of logits and ids are
            given, or (CPU) a draft length is outside -1..n.
    """
    accepted, tokens, next_token = verify_outputs(draft_tokens, accepted, tokens, next_token)
    if workspace is None and draft_tokens.is_cuda and target_logits is not None:
        workspace = draft_tokens.new_zeros((verify_greedy_workspace_size(*draft_tokens.shape),), dtype=torch.uint8)
    torch.ops.dflash_ops.verify_greedy(
        draft_tokens, draft_lens, target_logits, target_ids, accepted, tokens, next_token, workspace
    )
    return accepted, tokens, next_token


register_out_variant("verify_greedy")
