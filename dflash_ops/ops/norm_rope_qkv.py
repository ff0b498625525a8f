"""``norm_rope_qkv``: the block's own queries, keys and values."""

import torch
from torch import Tensor

from dflash_ops._arguments import check_count, check_dims, register_out_variant


def norm_rope_qkv(
    qkv: Tensor,
    q_norm_weight: Tensor | None = None,
    k_norm_weight: Tensor | None = None,
    cos_sin: Tensor | None = None,
    positions: Tensor | None = None,
    *,
    num_q_heads: int | None = None,
    num_kv_heads: int | None = None,
    eps: float = 1e-6,
    interleaved: bool = False,
    q: Tensor | None = None,
    k: Tensor | None = None,
    v: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Splits the projection's output into heads, RMS-norms queries and keys per head and rotates them.

    Args:
        qkv: ``[n, (Hq + 2*Hkv) * D]`` float32, float16 or bfloat16: all query heads, key heads, value heads.
        q_norm_weight, k_norm_weight: ``[D]`` in qkv's dtype; None: no norm.
        cos_sin: ``[P, R]`` cosines then sines, float32 or qkv's dtype, R even and at most D; None: no rotation.
        positions: int64 ``[n]``, rows of ``cos_sin``.
        num_q_heads, num_kv_heads: Hq and Hkv, needed where the outputs are absent.
        eps: added to the mean square.
        interleaved: pairs (2i, 2i + 1) rotate instead of (i, i + R/2).
        q, k, v: outputs ``[n, Hq, D]``, ``[n, Hkv, D]``, ``[n, Hkv, D]`` in qkv's dtype; all or none.

    Returns:
        ``(q, k, v)``.

    Raises:
        ValueError: some outputs are missing, or all are and the head counts too.
        RuntimeError: a shape, dtype, stride or device is not as above; on CPU also a position outside ``cos_sin``.
    """
    check_dims("norm_rope_qkv", qkv=(qkv, 2))
    if q is None or k is None or v is None:
        if q is not None or k is not None or v is not None:
            raise ValueError("norm_rope_qkv: q, k, v: expected all three outputs or none, got some")
        if num_q_heads is None or num_kv_heads is None:
            raise ValueError("norm_rope_qkv: num_q_heads, num_kv_heads: expected both without outputs, got None")
        check_count("norm_rope_qkv", "num_q_heads", num_q_heads, least=1)
        check_count("norm_rope_qkv", "num_kv_heads", num_kv_heads)
        head_dim = qkv.shape[1] // (num_q_heads + 2 * num_kv_heads)
        q = qkv.new_empty((qkv.shape[0], num_q_heads, head_dim))
        k = qkv.new_empty((qkv.shape[0], num_kv_heads, head_dim))
        v = torch.empty_like(k)
    torch.ops.dflash_ops.norm_rope_qkv(qkv, q_norm_weight, k_norm_weight, cos_sin, positions, eps, interleaved, q, k, v)
    return q, k, v


register_out_variant("norm_rope_qkv")
