"""Definition of ``project_context_kv``."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash_ops.reference.write_context_kv import write_context_kv


def project_context_kv(
    features: Tensor,
    kv_weight: Tensor,
    kv_bias: Tensor | None,
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
    """``features [n, H]`` times every layer's ``kv_weight [2*Hkv*D, H]``, then ``write_context_kv``."""
    kv = torch.einsum("nh,lch->nlc", features, kv_weight)
    if kv_bias is not None:
        kv = kv + kv_bias
    kv_heads, head_dim = k_caches[0].shape[2:]
    kv = kv.unflatten(2, (2, kv_heads, head_dim))
    write_context_kv(
        kv, k_norm_weight, cos_sin, positions, slot_mapping, row_count, eps, interleaved, k_caches, v_caches, k_bounds
    )
