"""Cases of lm_head_argmax, shared by tests and benchmarks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tests.cases.traffic import Traffic


@dataclass(frozen=True)
class Case:
    rows: int
    hidden_size: int
    vocab_size: int
    slack: int = 0  # extra NaN elements between rows of both operands
    vocab_offset: int = 0
    softcap: float = 0.0

    def operands(self, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)

        def strided(rows: int, scale: float) -> Tensor:
            buffer = torch.full((rows, self.hidden_size + self.slack), torch.nan, dtype=dtype)
            buffer[:, : self.hidden_size] = scale * torch.randn(rows, self.hidden_size, generator=generator)
            return buffer[:, : self.hidden_size]

        return strided(self.rows, 1.0), strided(self.vocab_size, 3 * self.hidden_size**-0.5)

    def least_traffic(self, dtype: torch.dtype) -> Traffic:
        elements = (self.rows + self.vocab_size) * self.hidden_size
        return Traffic(elements * dtype.itemsize, self.rows * (8 + 4))


CASES = [
    Case(0, 16, 10),
    Case(1, 1, 1),
    Case(1, 64, 500, vocab_offset=151936),
    Case(2, 33, 193, slack=3),
    Case(7, 576, 2000, vocab_offset=-5),
    Case(15, 128, 1537, softcap=30.0),
    Case(67, 40, 11, slack=1, softcap=2.0),
    Case(130, 24, 400),
]
