"""Cases of fuse_features, shared by tests and benchmarks."""

from dataclasses import dataclass
from typing import Any

import torch

from tests.cases.traffic import Traffic


@dataclass(frozen=True)
class Case:
    rows: int
    taps: int
    tap_columns: int
    columns: int
    norm: bool = True
    row_slack: int = 0  # extra NaN elements between rows of the states
    tap_slack: int = 1  # as many more for each further tap
    weight_slack: int = 0  # the same between rows of the weight
    slack_rows: int = 0  # NaN rows past row_count
    scale: float = 1.0  # of the states

    def arguments(self, dtype: torch.dtype, seed: int = 0) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(seed)

        def strided(rows: int, columns: int, slack: int, scale: float) -> torch.Tensor:
            buffer = torch.full((rows, columns + slack), torch.nan, dtype=dtype)
            buffer[:, :columns] = scale * torch.randn(rows, columns, generator=generator)
            return buffer[:, :columns]

        states = [
            strided(self.rows + self.slack_rows, self.tap_columns, self.row_slack + tap * self.tap_slack, self.scale)
            for tap in range(self.taps)
        ]
        for state in states:
            state[self.rows :] = torch.nan
        inner = self.taps * self.tap_columns
        return {
            "hidden_states": states,
            "weight": strided(self.columns, inner, self.weight_slack, inner**-0.5),
            "norm_weight": (1 + 0.3 * torch.randn(self.columns, generator=generator)).to(dtype) if self.norm else None,
            "eps": 1e-6,
            "row_count": torch.tensor([self.rows], dtype=torch.int32) if self.slack_rows else None,
        }

    def least_traffic(self, dtype: torch.dtype) -> Traffic:
        weights = self.columns * self.taps * self.tap_columns + (self.columns if self.norm else 0)
        states = self.rows * self.taps * self.tap_columns
        count = 4 if self.slack_rows else 0
        return Traffic((weights + states) * dtype.itemsize + count, self.rows * self.columns * dtype.itemsize)


CASES = [
    Case(0, 2, 8, 8),
    Case(1, 1, 1, 1),
    Case(1, 3, 40, 37),
    Case(2, 2, 17, 13, row_slack=3),
    Case(3, 5, 577, 31, weight_slack=1),
    Case(4, 4, 576, 24, norm=False),
    Case(7, 3, 64, 100, slack_rows=2),
    Case(16, 5, 260, 96, row_slack=5, weight_slack=7, slack_rows=1),
    Case(67, 2, 33, 25),
    Case(130, 1, 100, 12, norm=False, slack_rows=70),
]
