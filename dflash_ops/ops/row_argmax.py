"""``row_argmax``: the largest logit of each row."""

import torch
from torch import Tensor

from dflash_ops import _host
from dflash_ops._arguments import check_dims, register_out_variant


@torch.compiler.assume_constant_result
def row_argmax_workspace_size(rows: int) -> int:
    """Bytes of workspace that ``row_argmax`` needs on CUDA (n rows of logits)."""
    return _host.row_argmax_workspace_size(rows)


def row_argmax(
    logits: Tensor, *, ids: Tensor | None = None, values: Tensor | None = None, workspace: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Argmax over the last dimension, ties to the lowest index, NaN counted as the maximum (as ``torch.argmax``).

    Args:
        logits: ``[n, V]`` float32, float16 or bfloat16; rows may be strided.
        ids: int64 ``[n]`` output, allocated when absent.
        values: float32 ``[n]`` output, allocated when absent.
        workspace: used on CUDA: uint8, ``row_argmax_workspace_size(n)`` bytes, 64-byte aligned, **zero** before its
            first use; allocated when absent. One serves any CUDA ops with any sizes, one after another (calls leave its
            counters zero), but not two calls that may overlap.

    Returns:
        ``(ids, values)``; ids are always in ``[0, V)``.

    Raises:
        RuntimeError: a shape, dtype, stride or device is not as above, or V is 0 with n > 0.
    """
    check_dims("row_argmax", logits=(logits, 2))
    if ids is None:
        ids = logits.new_empty(logits.shape[:1], dtype=torch.int64)
    if values is None:
        values = logits.new_empty(logits.shape[:1], dtype=torch.float32)
    if workspace is None and logits.is_cuda:
        workspace = logits.new_zeros((row_argmax_workspace_size(logits.shape[0]),), dtype=torch.uint8)
    torch.ops.dflash_ops.row_argmax(logits, ids, values, workspace)
    return ids, values


register_out_variant("row_argmax")
