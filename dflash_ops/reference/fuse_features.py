"""Definition of ``fuse_features``."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash_ops.reference.norm_rope import rms_norm


def fuse_features(
    hidden_states: Sequence[Tensor], weight: Tensor, norm_weight: Tensor | None, eps: float, row_count: Tensor | None
) -> Tensor:
    """T tapped states ``[n, H_t]``, ``weight [H, T*H_t]`` -> RMSNorm of their joint projection, ``[rows, H]``."""
    rows = hidden_states[0].shape[0] if row_count is None else int(row_count)
    fused = torch.cat([states[:rows] for states in hidden_states], dim=1) @ weight.T
    return fused if norm_weight is None else rms_norm(fused, norm_weight, eps)
