"""``lm_head_argmax``: greedy tokens from hidden states, the logits never stored."""

import torch
from torch import Tensor

from dflash_ops import _host
from dflash_ops._arguments import check_dims, register_out_variant
from dflash_ops._workspace import stream_workspace


@torch.compiler.assume_constant_result
def lm_head_argmax_workspace_size(
    rows: int, hidden_size: int, vocab_size: int, device: torch.device | str = "cpu"
) -> int:
    """Bytes of workspace that ``lm_head_argmax`` needs.

    Args:
        rows: n, rows of the hidden states.
        hidden_size: H, their columns.
        vocab_size: V, rows of the weight.
        device: where the op will run; any GPU is as good as another.
    """
    if torch.device(device).type == "cuda":
        return _host.lm_head_argmax_cuda_workspace_size(rows, hidden_size, vocab_size)
    return _host.lm_head_argmax_workspace_size(rows, hidden_size, vocab_size)


def lm_head_argmax(
    hidden: Tensor,
    weight: Tensor,
    *,
    vocab_offset: int = 0,
    softcap: float = 0.0,
    ids: Tensor | None = None,
    values: Tensor | None = None,
    workspace: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Argmax of ``hidden @ weight^T`` in float32, ties to the lowest id, NaN counted as the maximum.

    Args:
        hidden: ``[n, H]`` float32, float16 or bfloat16 (on CUDA the last two), rows may be strided.
        weight: ``[V, H]`` in hidden's dtype: the whole vocabulary, or one tensor-parallel rank's rows of it.
        vocab_offset: id of the weight's first row. Ranks combine their ``(value, id)`` pairs: larger value, then
            lower id.
        softcap: logits become ``softcap * tanh(logit / softcap)``; 0 for none. It grows with the logit, so it changes
            the values only.
        ids: int64 ``[n]`` output, allocated when absent.
        values: float32 ``[n]`` output, allocated when absent.
        workspace: uint8, at least ``lm_head_argmax_workspace_size(n, H, V, device=...)`` bytes, 64-byte
            aligned; allocated when absent. On CUDA **zero** before its first use; one serves any CUDA ops with any sizes,
            one after another (calls leave its counters zero), but not two calls that may overlap.

    Returns:
        ``(ids, values)``; ids are always in ``[vocab_offset, vocab_offset + V)``.

    Raises:
        RuntimeError: a shape, dtype, stride or device is not as above, or V is 0 with n > 0.
    """
    check_dims("lm_head_argmax", hidden=(hidden, 2), weight=(weight, 2))
    rows = hidden.shape[0]
    if ids is None:
        ids = hidden.new_empty((rows,), dtype=torch.int64)
    if values is None:
        values = hidden.new_empty((rows,), dtype=torch.float32)
    if workspace is None:
        size = lm_head_argmax_workspace_size(rows, hidden.shape[1], weight.shape[0], device=hidden.device)
        workspace = stream_workspace(hidden, size)
    torch.ops.dflash_ops.lm_head_argmax(hidden, weight, vocab_offset, softcap, ids, values, workspace)
    return ids, values


register_out_variant("lm_head_argmax")
