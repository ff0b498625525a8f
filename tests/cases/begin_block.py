"""Cases of begin_block."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tests.cases.traffic import Traffic


@dataclass(frozen=True)
class Case:
    max_pages: int
    page_size: int
    lens: tuple[int, ...]
    block: int

    @property
    def batch(self) -> int:
        return len(self.lens)

    def state(self) -> tuple[Tensor, Tensor, Tensor]:
        """next_token, context_lens, page_table."""
        generator = torch.Generator().manual_seed(self.batch)
        table = torch.randperm(self.batch * self.max_pages, generator=generator).to(torch.int32)
        lens = torch.tensor(self.lens, dtype=torch.int32)
        return torch.arange(self.batch) + 100, lens, table.view(self.batch, self.max_pages)

    def least_traffic(self) -> Traffic:
        """Without flags of finished requests: tokens, lengths and the entries of the pages that blocks lie in."""
        pages = sum(len({(length + i) // self.page_size for i in range(self.block)}) for length in self.lens)
        return Traffic(self.batch * (8 + 4) + 4 * pages, 3 * 8 * self.batch * self.block)


CASES = [
    Case(4, 16, (), 8),
    Case(3, 1, (0,), 5),
    Case(4, 4, (0, 3, 9), 8),
    Case(2, 256, (511, 100), 16),
    Case(0, 16, (0, 5), 3),
    Case(3, 5, (14, 15), 1),
]
