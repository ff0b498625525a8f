"""Cases of row_argmax, shared by tests and benchmarks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tests.cases.traffic import Traffic


@dataclass(frozen=True)
class Case:
    rows: int
    columns: int
    row_slack: int = 0  # extra elements between rows, filled with NaN

    def logits(self, dtype: torch.dtype, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        buffer = torch.full((self.rows, self.columns + self.row_slack), torch.nan, dtype=dtype)
        logits = buffer[:, : self.columns]
        logits.copy_(torch.randn(self.rows, self.columns, generator=generator))
        return logits

    def least_traffic(self, dtype: torch.dtype) -> Traffic:
        return Traffic(self.rows * self.columns * dtype.itemsize, self.rows * (8 + 4))


CASES = [
    Case(0, 7),
    Case(1, 1),
    Case(3, 31, row_slack=5),
    Case(2, 32),
    Case(5, 33, row_slack=1),
    Case(4, 1000),
    Case(2, 49152),
    Case(1, 151936, row_slack=3),
]
