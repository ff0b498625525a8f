"""``remask``: confidence-ordered unmasking for iterative denoising."""

import torch
from torch import Tensor

from dflash_ops import _host
from dflash_ops._arguments import check_dims, register_out_variant


@torch.compiler.assume_constant_result
def remask_workspace_size(batch: int, positions: int) -> int:
    """Bytes of workspace that ``remask`` needs on CUDA for ``tokens [batch, positions]``."""
    return _host.remask_workspace_size(batch, positions)


def remask(
    logits: Tensor,
    tokens: Tensor,
    *,
    mask_token_id: int,
    keep: Tensor,
    confidence: Tensor | None = None,
    workspace: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Sets the ``keep`` most confident masked positions of each request to their argmax; the others stay masked.

    Confidence is the softmax probability of the choice. The mask token itself takes part in neither argmax nor softmax.

    Args:
        logits: ``[b, n, V]`` float32, float16 or bfloat16.
        tokens: int64 ``[b, n]``, changed in place where it holds ``mask_token_id``.
        mask_token_id: id of the mask token (may lie outside V).
        keep: int32 ``[b]``, how many positions to unmask; more than are masked means all. Ties: the lower position.
        confidence: float32 ``[b, n]`` output, allocated when absent.
        workspace: used on CUDA: uint8, ``remask_workspace_size(b, n)`` bytes, 64-byte aligned, **zero** before its
            first use; allocated when absent. One serves any CUDA ops with any sizes, one after another (calls leave its
            counters zero), but not two calls that may overlap.

    Returns:
        ``(tokens, confidence)``; confidence is 0 where the position was not masked.

    Raises:
        RuntimeError: a shape, dtype, stride or device is not as above, or (CPU) a keep is negative.
    """
    check_dims("remask", logits=(logits, 3), tokens=(tokens, 2))
    if confidence is None:
        confidence = logits.new_empty(tokens.shape, dtype=torch.float32)
    if workspace is None and logits.is_cuda:
        workspace = logits.new_zeros((remask_workspace_size(*tokens.shape),), dtype=torch.uint8)
    torch.ops.dflash_ops.remask(logits, tokens, mask_token_id, keep, confidence, workspace)
    return tokens, confidence


register_out_variant("remask")
