"""Cases of remask, shared by its tests."""

import torch
from torch import Tensor

from tests.cases.traffic import Traffic

MASK = 6
SHAPES = [(0, 4, 9), (1, 1, 8), (3, 16, 200), (2, 33, 4099), (2, 5, 6)]


def inputs(batch: int, positions: int, vocabulary: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(batch + positions)
    buffer = torch.full((batch, positions, vocabulary + 3), torch.nan, dtype=dtype)
    logits = buffer[:, :, :vocabulary]
    logits.copy_(3 * torch.randn(logits.shape, generator=generator))
    tokens = torch.randint(0, 5, (batch, positions), generator=generator)
    tokens[torch.rand(batch, positions, generator=generator) < 0.6] = MASK
    keep = torch.randint(0, positions + 2, (batch,), generator=generator).int()
    return logits, tokens, keep


def least_traffic(logits: Tensor, tokens: Tensor) -> Traffic:
    """Logits of masked positions; of the tokens all are read, and at most the masked ones written."""
    masked = int((tokens == MASK).sum())
    loads = masked * logits.shape[2] * logits.dtype.itemsize + 8 * tokens.numel() + 4 * len(tokens)
    return Traffic(loads, 8 * masked + 4 * tokens.numel())
