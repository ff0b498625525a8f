"""``project_context_kv``: context keys and values of all draft layers from fused features, in one op."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash_ops import _host
from dflash_ops._arguments import check_dims, register_out_variant, tensor_list
from dflash_ops._workspace import stream_workspace


@torch.compiler.assume_constant_result
def project_context_kv_workspace_size(
    rows: int, hidden_size: int, columns: int, device: torch.device | str = "cpu"
) -> int:
    """Bytes of workspace that ``project_context_kv`` needs.

    Args:
        rows: n, rows of the features.
        hidden_size: H, their columns.
        columns: ``L * 2 * Hkv * D``, weight rows of all layers.
        device: where the op will run; any GPU is as good as another.
    """
    if torch.device(device).type == "cuda":
        return _host.project_context_kv_cuda_workspace_size(rows, hidden_size, columns)
    return _host.project_context_kv_workspace_size(rows, hidden_size, columns)


def project_context_kv(
    features: Tensor,
    kv_weight: Tensor,
    kv_bias: Tensor | None = None,
    k_norm_weight: Tensor | None = None,
    cos_sin: Tensor | None = None,
    positions: Tensor | None = None,
    *,
    slot_mapping: Tensor,
    k_caches: Sequence[Tensor],
    v_caches: Sequence[Tensor],
    k_bounds: Sequence[Tensor] | None = None,
    row_count: Tensor | None = None,
    eps: float = 1e-6,
    interleaved: bool = False,
    workspace: Tensor | None = None,
) -> None:
    """Projects features to the keys and values of every draft layer, norms and rotates the keys, writes both.

    Keys and values stay float32 until they are stored.

    Args:
        features: ``[n, H]`` float32, float16 or bfloat16, rows may be strided.
        kv_weight: ``[L, 2*Hkv*D, H]``, for each layer the key rows of all heads, then the value rows.
        kv_bias: ``[L, 2*Hkv*D]``; None: no bias.
        k_norm_weight: ``[L, D]``; None: no norm.
        cos_sin: ``[P, R]`` cosines then sines, float32 or the features' dtype, R even and at most D; None: no rotation.
        positions: int64 ``[n]``, rows of ``cos_sin``.
        slot_mapping: int64 ``[n]``, ``page * page_size + offset``, or -1 to skip the row. A slot may appear once.
        k_caches, v_caches: L tensors ``[pages, page_size, Hkv, D]`` each, of one shape and dtype (any of the three; it
            decides what is stored), page_size a power of two up to 256, page, slot and head strides free.
        k_bounds: L tensors ``[pages, Hkv, 2, D]`` in the caches' dtype; the bounds of every page written to are computed
            anew, as ``update_page_bounds`` does. None: no bounds are kept.
        row_count: int32, one element: rows at or past it are not written, and count for nothing. None: all rows.
        eps: added to the mean square.
        interleaved: pairs (2i, 2i + 1) rotate instead of (i, i + R/2).
        workspace: uint8, at least ``project_context_kv_workspace_size(n, H, L*2*Hkv*D, device=...)`` bytes, 64-byte
            aligned; allocated when absent. On CUDA **zero** before its first use; one serves any CUDA ops with any sizes,
            one after another (calls leave its counters zero), but not two calls that may overlap.

    Raises:
        RuntimeError: a shape, dtype, stride or device is not as above; on CPU also a slot past the cache, a position
            outside ``cos_sin`` or a row count above n. Nothing is written then.
    """
    check_dims("project_context_kv", features=(features, 2), kv_weight=(kv_weight, 3))
    if workspace is None:
        columns = kv_weight.shape[0] * kv_weight.shape[1]
        size = project_context_kv_workspace_size(features.shape[0], features.shape[1], columns, device=features.device)
        workspace = stream_workspace(features, size)
    torch.ops.dflash_ops.project_context_kv(
        features,
        kv_weight,
        kv_bias,
        k_norm_weight,
        cos_sin,
        positions,
        slot_mapping,
        row_count,
        eps,
        interleaved,
        tensor_list("project_context_kv", "k_caches", k_caches),
        tensor_list("project_context_kv", "v_caches", v_caches),
        tensor_list("project_context_kv", "k_bounds", () if k_bounds is None else k_bounds),
        workspace,
    )


register_out_variant("project_context_kv")
