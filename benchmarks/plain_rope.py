"""Norm and rotation as one writes them in plain torch, for the comparisons of several ops."""

import torch
from torch import Tensor
from torch.nn import functional as F


def norm_rotate(x: Tensor, weight: Tensor, cosines: Tensor, sines: Tensor, eps: float) -> Tensor:
    """RMS norm over the last dimension, then half-split rotation of all of it.

    Args:
        x: [..., D].
        weight: [D], or with the dimensions before it.
        cosines, sines: broadcast to [..., D/2].
        eps: added to the mean square.
    """
    one_weight = weight.dim() == 1
    normed = F.rms_norm(x, x.shape[-1:], weight if one_weight else None, eps)
    first, second = (normed if one_weight else normed * weight).chunk(2, -1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)
