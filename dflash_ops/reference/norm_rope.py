"""RMS norm and rotation, the pieces that the definitions of several ops share."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotate(x: Tensor, cos_sin: Tensor, positions: Tensor, interleaved: bool) -> Tensor:
    """Rotary embedding of ``x [n, ..., D]``, row i at ``positions[i]``.

    ``cos_sin [P, R]`` holds the cosines of R/2 angles, then their sines. Channel pairs (i, i + R/2), or (2i, 2i + 1)
    if ``interleaved``, of the first R channels turn by the angle of pair i; the rest stays.
    """
    rotary_dim = cos_sin.shape[1]
    rows = cos_sin[positions].to(x.dtype).reshape(len(positions), *[1] * (x.dim() - 2), rotary_dim)
    cosines, sines = rows.chunk(2, dim=-1)
    turned, kept = x[..., :rotary_dim], x[..., rotary_dim:]
    if interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned.chunk(2, dim=-1)
    pair = (first * cosines - second * sines, second * cosines + first * sines)
    turned = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    return torch.cat([turned, kept], dim=-1)
