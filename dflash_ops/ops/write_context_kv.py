"""``write_context_kv``: context keys and values of all draft layers into their paged caches."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash_ops._arguments import register_out_variant, tensor_list


def write_context_kv(
    kv: Tensor,
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
) -> None:
    """Norms and rotates the keys of every draft layer and writes keys and values to the paged caches.

    For engines that own the projection's matrix product; ``project_context_kv`` does both.

    Args:
        kv: ``[n, L, 2, Hkv, D]`` float32, float16 or bfloat16: keys, then values, before norm and rotation.
        k_norm_weight: ``[L, D]`` in kv's dtype; None: no norm.
        cos_sin: ``[P, R]`` cosines then sines, float32 or kv's dtype, R even and at most D; None: no rotation.
        positions: int64 ``[n]``, rows of ``cos_sin``.
        slot_mapping: int64 ``[n]``, ``page * page_size + offset``, or -1 to skip the row. A slot may appear once.
        k_caches, v_caches: L tensors ``[pages, page_size, Hkv, D]`` each, of one shape and dtype (any of the three; it
            decides what is stored), page_size a power of two up to 256, page, slot and head strides free.
        k_bounds: L tensors ``[pages, Hkv, 2, D]`` in the caches' dtype; the bounds of every page written to are computed
            anew, as ``update_page_bounds`` does. None: no bounds are kept.
        row_count: int32, one element: rows at or past it are neither read nor written. None: all rows.
        eps: added to the mean square.
        interleaved: pairs (2i, 2i + 1) rotate instead of (i, i + R/2).

    Raises:
        RuntimeError: a shape, dtype, stride or device is not as above; on CPU also a slot past the cache, a position
            outside ``cos_sin`` or a row count above n. Nothing is written then.
    """
    torch.ops.dflash_ops.write_context_kv(
        kv,
        k_norm_weight,
        cos_sin,
        positions,
        slot_mapping,
        row_count,
        eps,
        interleaved,
        tensor_list("write_context_kv", "k_caches", k_caches),
        tensor_list("write_context_kv", "v_caches", v_caches),
        tensor_list("write_context_kv", "k_bounds", () if k_bounds is None else k_bounds),
    )


register_out_variant("write_context_kv")
