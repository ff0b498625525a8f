"""``verify_sampled``: sample from the target, match against the draft."""

import torch
from torch import Tensor

from dflash_ops.ops.verify_greedy import verify_outputs


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

    Returns:
        ``(accepted, tokens, next_token)`` as ``verify_greedy``.

    Raises:
        RuntimeError: a shape, dtype, stride or device is not as above, or (CPU) a length, temperature, top_k or top_p is
            out of range.
    """
    accepted, tokens, next_token = verify_outputs(draft_tokens, accepted, tokens, next_token)
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
    )
    return accepted, tokens, next_token


@torch.library.register_fake("dflash_ops::verify_sampled")
def _(
    draft_tokens: Tensor,
    draft_lens: Tensor | None,
    target_logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seed: Tensor,
    offset: Tensor,
    accepted: Tensor,
    tokens: Tensor,
    next_token: Tensor,
) -> None:
    return None
