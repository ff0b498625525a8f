"""Cases of norm_rope_qkv, shared by tests and benchmarks."""

from dataclasses import dataclass
from typing import Any

import torch

from tests.cases.rope import rope_table
from tests.cases.traffic import Traffic


@dataclass(frozen=True)
class Case:
    rows: int
    q_heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int | None = None  # head_dim when None, no rotation when 0
    interleaved: bool = False
    q_norm: bool = True
    k_norm: bool = True
    row_slack: int = 0  # extra NaN elements between rows of qkv
    max_positions: int = 5000

    def arguments(
        self, dtype: torch.dtype, *, table_dtype: torch.dtype = torch.float32, seed: int = 0
    ) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(seed)
        columns = (self.q_heads + 2 * self.kv_heads) * self.head_dim
        buffer = torch.full((self.rows, columns + self.row_slack), torch.nan, dtype=dtype)
        qkv = buffer[:, :columns]
        qkv.copy_(3 * torch.randn(self.rows, columns, generator=generator))
        rotary_dim = self.head_dim if self.rotary_dim is None else self.rotary_dim
        weights = 1 + 0.3 * torch.randn(2, self.head_dim, generator=generator)
        positions = torch.randint(0, self.max_positions, (self.rows,), generator=generator)
        if self.rows:
            positions[-1] = self.max_positions - 1
        return {
            "qkv": qkv,
            "q_norm_weight": weights[0].to(dtype) if self.q_norm else None,
            "k_norm_weight": weights[1].to(dtype) if self.k_norm else None,
            "cos_sin": rope_table(self.max_positions, rotary_dim).to(table_dtype) if rotary_dim else None,
            "positions": positions if rotary_dim else None,
            "eps": 1e-6,
            "interleaved": self.interleaved,
        }

    def least_traffic(self, dtype: torch.dtype, *, table_dtype: torch.dtype = torch.float32) -> Traffic:
        elements = self.rows * (self.q_heads + 2 * self.kv_heads) * self.head_dim
        rotary_dim = self.head_dim if self.rotary_dim is None else self.rotary_dim
        rotation = self.rows * (rotary_dim * table_dtype.itemsize + 8) if rotary_dim else 0
        weights = (self.q_norm + self.k_norm) * self.head_dim * dtype.itemsize
        return Traffic(elements * dtype.itemsize + rotation + weights, elements * dtype.itemsize)


CASES = [
    Case(0, 2, 1, 64),
    Case(1, 1, 1, 2),
    Case(7, 9, 3, 64, row_slack=3),
    Case(16, 32, 8, 128),
    Case(33, 16, 1, 128, q_norm=False),
    Case(3, 5, 1, 80, rotary_dim=20, k_norm=False),
    Case(3, 7, 1, 96, rotary_dim=36, interleaved=True),
    Case(4, 6, 2, 33, rotary_dim=30, interleaved=True, row_slack=1),
    Case(4, 6, 2, 72, interleaved=True, q_norm=False, k_norm=False),
    Case(4, 6, 2, 17, rotary_dim=0),
    Case(4, 6, 2, 17, rotary_dim=0, q_norm=False, k_norm=False),
]
