"""Definition of ``norm_rope_qkv``."""

from torch import Tensor

from dflash_ops.reference.norm_rope import rms_norm, rotate


def norm_rope_qkv(
    qkv: Tensor,
    q_norm_weight: Tensor | None,
    k_norm_weight: Tensor | None,
    cos_sin: Tensor | None,
    positions: Tensor | None,
    eps: float,
    interleaved: bool,
    num_q_heads: int,
    num_kv_heads: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """``qkv [n, (Hq + 2*Hkv)*D]`` -> q ``[n, Hq, D]``, k ``[n, Hkv, D]`` (both normed per head, rotated), v."""
    heads = qkv.unflatten(1, (num_q_heads + 2 * num_kv_heads, -1))
    q, k, v = heads.split([num_q_heads, num_kv_heads, num_kv_heads], dim=1)
    if q_norm_weight is not None:
        q = rms_norm(q, q_norm_weight, eps)
    if k_norm_weight is not None:
        k = rms_norm(k, k_norm_weight, eps)
    if cos_sin is not None:
        assert positions is not None
        q, k = rotate(q, cos_sin, positions, interleaved), rotate(k, cos_sin, positions, interleaved)
    return q, k, v
