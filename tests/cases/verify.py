"""Cases of verify_greedy and verify_sampled, shared by tests and benchmarks."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    batch: int
    drafts: int
    vocabulary: int
    lens: tuple[int, ...] | None = None  # draft_lens; None: absent
    slack: int = 0  # NaN elements between rows of the logits

    def draft_lens(self) -> Tensor | None:
        return None if self.lens is None else torch.tensor(self.lens, dtype=torch.int32)

    def logits(self, dtype: torch.dtype, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        shape = (self.batch, self.drafts + 1, self.vocabulary)
        buffer = torch.full((*shape[:2], self.vocabulary + self.slack), torch.nan, dtype=dtype)
        logits = buffer[:, :, : self.vocabulary]
        logits.copy_(3 * torch.randn(shape, generator=generator))
        return logits

    def drafts_matching(self, target_ids: Tensor, seed: int = 0) -> Tensor:
        """Drafts whose leading run of correct tokens has a random length, wrong and again right ones after it."""
        generator = torch.Generator().manual_seed(seed)
        drafts = target_ids[:, : self.drafts].clone()
        for b in range(self.batch):
            wrong = int(torch.randint(0, self.drafts + 1, (), generator=generator))
            if wrong < self.drafts:
                drafts[b, wrong] = (drafts[b, wrong] + 1) % max(self.vocabulary, 2)
        return drafts


CASES = [
    Case(0, 3, 11),
    Case(1, 0, 7),
    Case(1, 15, 1000),
    Case(3, 7, 129, lens=(7, 0, -1), slack=3),
    Case(5, 1, 33, lens=(0, 1, 1, -1, 1)),
    Case(8, 15, 500, slack=1),
    Case(1, 3, 40001),
]
