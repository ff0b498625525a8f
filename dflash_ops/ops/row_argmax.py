"""``row_argmax``: the largest logit of each row."""

import torch
from torch import Tensor


def row_argmax(logits: Tensor, *, ids: Tensor | None = None, values: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Argmax over the last dimension, ties to the lowest index, NaN counted as the maximum (as ``torch.argmax``).

    Args:
        logits: ``[n, V]`` float32, float16 or bfloat16; rows may be strided.
        ids: int64 ``[n]`` output, allocated when absent.
        values: float32 ``[n]`` output, allocated when absent.

    Returns:
        ``(ids, values)``; ids are always in ``[0, V)``.

    Raises:
        RuntimeError: a shape, dtype, stride or device is not as above, or V is 0 with n > 0.
    """
    if ids is None:
        ids = logits.new_empty(logits.shape[:1], dtype=torch.int64)
    if values is None:
        values = logits.new_empty(logits.shape[:1], dtype=torch.float32)
    torch.ops.dflash_ops.row_argmax(logits, ids, values)
    return ids, values


@torch.library.register_fake("dflash_ops::row_argmax")
def _(logits: Tensor, ids: Tensor, values: Tensor | None) -> None:
    return None
