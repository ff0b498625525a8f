"""Rotation tables for the cases of several ops."""

import torch
from torch import Tensor


def rope_table(max_positions: int, rotary_dim: int, theta: float = 1e6) -> Tensor:
    """float32 [max_positions, rotary_dim]: cosines of all angles, then sines."""
    frequencies = theta ** (-torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
    angles = torch.arange(max_positions, dtype=torch.float64)[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=1).float()
