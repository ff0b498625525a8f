"""``fuse_features``: tapped hidden states of the target, projected together and normed."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash_ops import _host
from dflash_ops._arguments import check_dims, register_out_variant, tensor_list
from dflash_ops._workspace import stream_workspace


@torch.compiler.assume_constant_result
def fuse_features_workspace_size(
    rows: int, taps: int, tap_columns: int, columns: int, device: torch.device | str = "cpu"
) -> int:
    """Bytes of workspace that ``fuse_features`` needs.

    Args:
        rows: n, rows of the hidden states.
        taps: T, the number of hidden states.
        tap_columns: H_t, columns of each.
        columns: H, columns of the output.
        device: where the op will run; any GPU is as good as another.
    """
    if torch.device(device).type == "cuda":
        return _host.fuse_features_cuda_workspace_size(rows, taps, tap_columns, columns)
    return _host.fuse_features_workspace_size(rows, taps, tap_columns, columns)


def fuse_features(
    hidden_states: Sequence[Tensor],
    weight: Tensor,
    norm_weight: Tensor | None = None,
    *,
    eps: float = 1e-6,
    row_count: Tensor | None = None,
    out: Tensor | None = None,
    workspace: Tensor | None = None,
) -> Tensor:
    """RMSNorm of the sum over taps of ``hidden_t @ weight_t^T``, float32 until after the norm.

    The states are read where they lie, without being concatenated. The projection reaches 12,800 in checkpoints in use,
    which float16 sums would not survive; nothing is rounded to the data's dtype before the norm.

    Args:
        hidden_states: T tensors ``[n, H_t]`` float32, float16 or bfloat16, rows may be strided.
        weight: ``[H, T*H_t]``; columns ``t*H_t ..`` belong to tap t.
        norm_weight: ``[H]``; None: no norm.
        eps: added to the mean square.
        row_count: int32, one element: rows at or past it are not written, and count for nothing. None: all rows.
        out: ``[n, H]`` output, allocated when absent.
        workspace: uint8, at least ``fuse_features_workspace_size(n, T, H_t, H, device=...)`` bytes, 64-byte
            aligned; allocated when absent. On CUDA **zero** before its first use; one serves any CUDA ops with any sizes,
            one after another (calls leave its counters zero), but not two calls that may overlap.

    Returns:
        ``out``.

    Raises:
        RuntimeError: a shape, dtype, stride or device is not as above; on CPU also a row count above n.
    """
    hidden_states = tensor_list("fuse_features", "hidden_states", hidden_states)
    if not hidden_states:
        raise RuntimeError("fuse_features: hidden_states: expected at least one tensor, got none")
    check_dims("fuse_features", hidden_states=(hidden_states[0], 2), weight=(weight, 2))
    rows, tap_columns = hidden_states[0].shape
    if out is None:
        out = weight.new_empty((rows, weight.shape[0]))
    if workspace is None:
        size = fuse_features_workspace_size(
            rows, len(hidden_states), tap_columns, weight.shape[0], device=weight.device
        )
        workspace = stream_workspace(weight, size)
    torch.ops.dflash_ops.fuse_features(hidden_states, weight, norm_weight, eps, row_count, out, workspace)
    return out


register_out_variant("fuse_features")
