"""Definition of ``write_context_kv``."""

from collections.abc import Sequence

from torch import Tensor

from dflash_ops.reference.norm_rope import rms_norm, rotate
from dflash_ops.reference.update_page_bounds import update_page_bounds


def write_context_kv(
    kv: Tensor,
    k_norm_weight: Tensor | None,
    cos_sin: Tensor | None,
    positions: Tensor | None,
    slot_mapping: Tensor,
    row_count: Tensor | None,
    eps: float,
    interleaved: bool,
    k_caches: Sequence[Tensor],
    v_caches: Sequence[Tensor],
    k_bounds: Sequence[Tensor] = (),
) -> None:
    """Norms and rotates keys of ``kv [n, L, 2, Hkv, D]``; writes both to ``caches[l][slot // size, slot % size]``.

    With ``k_bounds`` the bounds of the written pages follow.
    """
    rows = kv.shape[0] if row_count is None else int(row_count)
    written = (slot_mapping[:rows] >= 0).nonzero().squeeze(1)
    k, v = kv[written].unbind(2)  # [m, L, Hkv, D]
    if k_norm_weight is not None:
        k = rms_norm(k, k_norm_weight[:, None], eps)
    if cos_sin is not None:
        assert positions is not None
        k = rotate(k, cos_sin, positions[written], interleaved)
    for layer, (k_cache, v_cache) in enumerate(zip(k_caches, v_caches, strict=True)):
        page, offset = slot_mapping[written] // k_cache.shape[1], slot_mapping[written] % k_cache.shape[1]
        k_cache[page, offset] = k[:, layer].to(k_cache.dtype)
        v_cache[page, offset] = v[:, layer].to(v_cache.dtype)
    if k_bounds:
        update_page_bounds(k_caches, slot_mapping, row_count, k_bounds)
