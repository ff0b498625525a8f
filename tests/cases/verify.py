"""Cases of verify_greedy and verify_sampled, shared by tests and benchmarks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tests.cases.traffic import Traffic


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

    def least_traffic(self, dtype: torch.dtype, *, sampled: bool = False) -> Traffic:
        """Of verify_greedy from logits, or of verify_sampled: logits of the rows up to each draft length, ids of the
        drafts; accepted counts, tokens and next tokens. The parameters of a sampling take 28 bytes a request, 8 of
        them (the offset) written as well."""
        lens = (self.drafts,) * self.batch if self.lens is None else self.lens
        rows, drafts = sum(length + 1 for length in lens), sum(max(length, 0) for length in lens)
        loads = rows * self.vocabulary * dtype.itemsize + 8 * drafts + (0 if self.lens is None else 4 * self.batch)
        stores = self.batch * (4 + 8 * (self.drafts + 1) + 8)
        return Traffic(loads + 28 * self.batch, stores + 8 * self.batch) if sampled else Traffic(loads, stores)


CASES = [
    Case(0, 3, 11),
    Case(1, 0, 7),
    Case(1, 15, 1000),
    Case(3, 7, 129, lens=(7, 0, -1), slack=3),
    Case(5, 1, 33, lens=(0, 1, 1, -1, 1)),
    Case(8, 15, 500, slack=1),
    Case(1, 3, 40001),
]


def sampling_parameters(batch: int, seed: int = 3) -> dict[str, torch.Tensor]:
    """Every mix of temperature, top-k and top-p, seeds of both signs and offsets past 2^32."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "temperature": torch.tensor([1.0, 0.0, 0.7, 1.3, 0.05])[torch.arange(batch) % 5],
        "top_k": torch.tensor([0, 0, 5, 1, 50], dtype=torch.int32)[torch.arange(batch) % 5],
        "top_p": torch.tensor([1.0, 0.9, 0.8, 1.0, 0.5])[(torch.arange(batch) + seed) % 5],
        "seed": torch.randint(-(2**62), 2**62, (batch,), generator=generator),
        "offset": torch.randint(0, 2**40, (batch,), generator=generator),
    }


HARD_SAMPLINGS = [
    (1.0, 0, 1.0),
    (0.7, 50, 1.0),
    (1.0, 0, 0.9),
    (0.8, 20, 0.95),
    (3.0, 0, 0.99),
    (1.0, 700, 1.0),
    (2.0, 3000, 0.6),
    (1e30, 5999, 0.5),
    (1e-40, 30, 0.9),
    (1e-30, 0, 1.0),
]


def hard_to_cut_logits(kind: str, rows: int, vocabulary: int) -> Tensor:
    """float32 ``[rows, 1, vocabulary]`` whose cuts need several narrowings: "ties", "two levels" (all equal but one),
    "holes" (ids that cannot be drawn); "spread" is none of them."""
    generator = torch.Generator().manual_seed(11)
    logits = 3 * torch.randn(rows, 1, vocabulary, generator=generator)
    if kind == "ties":
        logits = logits.round()
    elif kind == "two levels":
        logits = (logits == logits.amax(-1, keepdim=True)).float()
    elif kind == "holes":
        logits[torch.rand(logits.shape, generator=generator) < 0.95] = -torch.inf
    return logits
