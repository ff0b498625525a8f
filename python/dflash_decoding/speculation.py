"""What is decided before every round: whether it drafts, how large a block, and how much context the drafter reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class RoundPlan:
    """One round.

    Attributes:
        block_rows: rows that draft; 0: the round is one of plain decoding.
        verify_rows: rows that the target verifies: the newest token and the draft tokens.
        budget_tokens: of the draft context; None: as it comes.
    """

    block_rows: int
    verify_rows: int
    budget_tokens: int | None = None

    @property
    def name(self) -> str:
        """For statistics."""
        if not self.block_rows:
            return "plain"
        return f"{self.block_rows} rows" + ("" if self.budget_tokens is None else f", budget {self.budget_tokens}")


PLAIN_ROUND = RoundPlan(0, 1)


class Speculation(Protocol):
    """Plans the rounds of one call of the decoder and is told what became of them."""

    def next_round(self) -> RoundPlan:
        """What to do in the round that begins."""

    def record(self, tokens: float, seconds: float) -> None:
        """The round planned last committed `tokens` per request on average and took so long on the device."""


class FixedSpeculation:
    """Every round as the first."""

    def __init__(self, plan: RoundPlan) -> None:
        self._plan = plan

    def next_round(self) -> RoundPlan:
        return self._plan

    def record(self, tokens: float, seconds: float) -> None:
        """Nothing depends on it."""
