"""The speedup model of speculative decoding: what acceptance and times predict (DFlash, arXiv 2602.06036, section 3).

A round costs T_draft + T_verify and emits tau tokens, so a token costs L = (T_draft + T_verify) / tau, and the speedup
over plain decoding at T_ar per token is eta = T_ar / L. tau follows from the acceptance of draft tokens alone: a round
emits the target's own token, and draft token k if it and all before it are right, so E[tau] = 1 + sum of the shares of
rounds whose first k drafts are all accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .stats import DecodeStats


def prefix_acceptance(histogram: Sequence[int]) -> tuple[float, ...]:
    """Share of rounds whose first k drafts are all accepted, k = 1.., from how many rounds accepted 0, 1, .. drafts."""
    rounds = sum(histogram)
    return tuple(_ratio(sum(histogram[k:]), rounds) for k in range(1, len(histogram)))


def position_acceptance(histogram: Sequence[int]) -> tuple[float, ...]:
    """Share of draft k that is accepted where all before it were, k = 1..; 0 where that never happened."""
    return tuple(_ratio(sum(histogram[k:]), sum(histogram[k - 1 :])) for k in range(1, len(histogram)))


def expected_tau(prefix: Sequence[float]) -> float:
    """E[tau] = 1 + sum of the prefix acceptance: tokens per round, stops and limits aside."""
    return 1.0 + sum(prefix)


def token_latency(t_draft: float, t_verify: float, tau: float) -> float:
    """L: seconds per token, of one request alone."""
    return _ratio(t_draft + t_verify, tau)


@dataclass(frozen=True)
class Speedup:
    """Predicted and measured speedup of a drafted run over a plain one on the same prompts.

    Attributes:
        tau: E[tau] by acceptance. latency: L in seconds, of one request.
        predicted: eta of the model: E[tau], the times of a round's parts, and in a batch how many requests share a round
            on average, in both runs.
        measured: ratio of tokens per second of decoding, by the wall clock.
    """

    tau: float
    latency: float
    predicted: float
    measured: float

    @classmethod
    def of(cls, drafted: DecodeStats, plain: DecodeStats) -> Speedup:
        """From the statistics of both runs; all numbers 0 where one of them had no round."""
        tau = expected_tau(prefix_acceptance(drafted.acceptance))
        latency = token_latency(drafted.t_draft, drafted.t_verify, tau)
        # A round serves all active requests. In a batch of unequal answers, fewer and fewer share it.
        sharing = _ratio(_ratio(drafted.rounds, drafted.steps), _ratio(plain.rounds, plain.steps))
        return cls(
            tau=tau,
            latency=latency,
            predicted=_ratio(plain.t_verify, latency) * sharing,
            measured=_ratio(drafted.tokens_per_s, plain.tokens_per_s),
        )

    @property
    def difference(self) -> float:
        """How far the prediction is off: predicted / measured - 1; 0 without a measurement."""
        return _ratio(self.predicted - self.measured, self.measured)

    def to_dict(self) -> dict[str, Any]:
        """Numbers for JSON."""
        return {
            "expected_tau": self.tau,
            "latency": self.latency,
            "eta_predicted": self.predicted,
            "eta": self.measured,
            "eta_difference": self.difference,
        }


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0
