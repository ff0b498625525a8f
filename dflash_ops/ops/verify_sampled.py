"""``verify_sampled``: sample from the target, match against the draft."""

import torch
from torch import Tensor

from dflash_ops import _host
from dflash_ops._arguments import register_out_variant
from dflash_ops.ops.verify_greedy import verify_outputs


@torch.compiler.assume_constant_result
def verify_sampled_workspace_size(batch: int, drafts: int, vocabulary: int) -> int:
    """Bytes of workspace that ``verify_sampled`` needs on CUDA for ``target_logits [batch, drafts + 1, vocabulary]``."""
    return _host.verify_sampled_workspace_size(batch, drafts, vocabulary)


def verify_sampled(
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
    """As ``verify_greedy`` with t_i sampled from the target's (temperature, top-k, top-p) distribution.

    Exact, since the draft is deterministic: whatever it proposes, the emitted tokens follow the target's distribution. The
    token that a request emits as its number ``offset + i`` uses the random number ``u(seed, offset + i)`` (Philox4x32-10),
    so a text depends on the seed alone: not on the block size, the batch, the device's threads or whether drafts are used.
    A row whose largest logit is not finite gives its argmax.

    Args:
        draft_tokens: int64 ``[b, n]``.
        target_logits: float32, float16 or bfloat16 ``[b, n+1, V]``.
        temperature: float32 ``[b]``; 0 = argmax.
        top_k: int32 ``[b]``; exactly k tokens stay, larger logits first, equal ones by lower id; 0 = off.
        top_p: float32 ``[b]``; of these the shortest such prefix whose probability reaches top_p; 1 = off.
        seed: int64 ``[b]``.
        offset: int64 ``[b]``, advanced in place by the number of emitted tokens; an idle request's stays.
        draft_lens: int32 ``[b]``, how many drafts a request has (-1: it sits this round out); None: n.
        accepted, tokens, next_token: outputs, allocated when absent.
        workspace: used on CUDA: uint8, ``verify_sampled_workspace_size(b, n, V)`` bytes, 64-byte aligned, **zero**
            before its first use; allocated when absent. One serves any CUDA ops with any sizes, one after another
            (calls leave its counters zero), but not two calls that may overlap.

    Returns:
        ``(accepted, tokens, next_token)`` as ``verify_greedy``.

    Raises:
        RuntimeError: a shape, dtype, stride or device is not as above, or (CPU) a length, temperature, top_k or top_p is
            out of range.
    """
    accepted, tokens, next_token = verify_outputs(draft_tokens, accepted, tokens, next_token)
    if workspace is None and draft_tokens.is_cuda:
        size = verify_sampled_workspace_size(*draft_tokens.shape, target_logits.shape[2])
        workspace = draft_tokens.new_zeros((size,), dtype=torch.uint8)
    torch.ops.dflash_ops.verify_sampled(
        draft_tokens,
        draft_lens,
        target_logits,
        temperature,
        top_k,
        top_p,
        seed,
        offset,
        accepted,
        tokens,
        next_token,
        workspace,
    )
    return accepted, tokens, next_token


register_out_variant("verify_sampled")
