"""How a request chooses its tokens."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, replace

_SEED_LIMIT = 2**63


@dataclass(frozen=True)
class SamplingParams:
    """Greedy by default; a positive temperature samples from the target's own distribution.

    The number of a token within its request and the seed decide the random number it is drawn with, so a request's text
    depends neither on the block size nor on the requests decoded beside it.

    Attributes:
        temperature: divides the logits; 0 takes the most likely token (ties to the lowest id).
        top_k: only the k most likely tokens are drawn; 0 turns it off.
        top_p: only the most likely tokens that together reach this probability are drawn, after top_k; 1 turns it off.
        seed: 0..2**63-1; None draws a fresh one for each request.

    Raises:
        ValueError: a value out of its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature: expected a finite number >= 0, got {self.temperature!r}")
        if not (isinstance(self.top_k, int) and 0 <= self.top_k < 2**31):
            raise ValueError(f"top_k: expected an integer in 0..2**31-1, got {self.top_k!r}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: expected a number in (0, 1], got {self.top_p!r}")
        if self.seed is not None and not (isinstance(self.seed, int) and 0 <= self.seed < _SEED_LIMIT):
            raise ValueError(f"seed: expected an integer in 0..2**63-1 or None, got {self.seed!r}")

    @property
    def is_greedy(self) -> bool:
        """Whether tokens are chosen without randomness."""
        return self.temperature == 0

    def seeded(self) -> SamplingParams:
        """These parameters with a seed: their own, or a fresh one."""
        return self if self.seed is not None else replace(self, seed=secrets.randbelow(_SEED_LIMIT))
