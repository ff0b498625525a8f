"""Scratch memory for ops that run one after another."""

from __future__ import annotations

import torch
from torch import Tensor


class Workspace:
    """One uint8 tensor that grows to the largest size asked for.

    It is zero when it is new, as the ops on CUDA want it (docs/cuda.md); they may then share it in any order, as long
    as no two of them overlap.
    """

    def __init__(self, device: torch.device) -> None:
        self._memory = torch.zeros(0, dtype=torch.uint8, device=device)

    def of(self, size: int) -> Tensor:
        """uint8 [at least `size`]."""
        if self._memory.numel() < size:
            self._memory = self._memory.new_zeros(size)
        return self._memory
