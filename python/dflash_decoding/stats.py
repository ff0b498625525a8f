"""What a decoding run measures: acceptance and times. What they say about the speedup: `speedup.py`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

# Seconds since some moment.
Clock: TypeAlias = Callable[[], float]


@dataclass
class DecodeStats:
    """Counts and times of one request, or of all requests of one call.

    Times of a request are those of the rounds it took part in, shared with the requests beside it; the stats of a call
    count each round once.

    Attributes:
        block_size: rows the target verifies per round, 1 for plain autoregressive decoding.
        requests: number of requests.
        prompt_tokens: tokens prefilled.
        rounds: verify rounds, counted once per request that took part.
        steps: verify rounds, counted once each.
        tokens: tokens generated, the first one (chosen by the prefill) included.
        round_tokens: tokens emitted by verify rounds; what lies past a stop or a limit is not counted.
        acceptance: `acceptance[k]` is the number of rounds that accepted k draft tokens, even if a stop cut them off.
        prefill_seconds: target prefill and injection of the prompt.
        draft_seconds: drafting, and injecting what was accepted.
        verify_seconds: target forward, verification and commit.
        draft_cache_bytes: size of the draft cache of the call, for all requests decoded at once; 0 where unknown.
        plans: verify rounds by what was planned for them: "plain", or rows of the block and the draft context's budget.
        decode_seconds: wall time of all rounds with the host's part (text, bookkeeping), callbacks excluded.
    """

    block_size: int
    requests: int = 0
    prompt_tokens: int = 0
    rounds: int = 0
    steps: int = 0
    tokens: int = 0
    round_tokens: int = 0
    acceptance: list[int] = field(default_factory=list)
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    decode_seconds: float = 0.0
    draft_cache_bytes: int = 0
    plans: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.acceptance:
            self.acceptance = [0] * self.block_size

    def add_round(self, accepted: int, emitted: int) -> None:
        """Counts one round of one request."""
        self.rounds += 1
        self.tokens += emitted
        self.round_tokens += emitted
        self.acceptance[accepted] += 1

    def add_step(self, phases: dict[str, float], decode_seconds: float, plan: str) -> None:
        """Counts the times of one round, by phase ("draft", "verify"), and its plan."""
        self.steps += 1
        self.plans[plan] = self.plans.get(plan, 0) + 1
        self.draft_seconds += phases.get("draft", 0.0)
        self.verify_seconds += phases.get("verify", 0.0)
        self.decode_seconds += decode_seconds

    def add_prefill(self, prompt_tokens: int, emitted: int, seconds: float) -> None:
        """Counts the prefill of one request and the token it chose."""
        self.requests += 1
        self.prompt_tokens += prompt_tokens
        self.tokens += emitted
        self.prefill_seconds += seconds

    def merge(self, other: DecodeStats) -> None:
        """Adds the counts and times of another run, one that did not overlap in time.

        Raises:
            ValueError: the block sizes differ.
        """
        if other.block_size != self.block_size:
            raise ValueError(f"block_size: expected {self.block_size}, got {other.block_size}")
        self.acceptance = [a + b for a, b in zip(self.acceptance, other.acceptance, strict=True)]
        self.draft_cache_bytes = max(self.draft_cache_bytes, other.draft_cache_bytes)
        for plan, steps in other.plans.items():
            self.plans[plan] = self.plans.get(plan, 0) + steps
        for name in (
            "requests", "prompt_tokens", "rounds", "steps", "tokens", "round_tokens",
            "prefill_seconds", "draft_seconds", "verify_seconds", "decode_seconds",
        ):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def tau(self) -> float:
        """Mean tokens emitted per verify round and request; 0 before the first round."""
        return _ratio(self.round_tokens, self.rounds)

    @property
    def mean_accepted(self) -> float:
        """Mean draft tokens accepted per round, unaffected by stops and limits."""
        return _ratio(sum(k * count for k, count in enumerate(self.acceptance)), self.rounds)

    @property
    def t_draft(self) -> float:
        """Seconds of drafting per round."""
        return _ratio(self.draft_seconds, self.steps)

    @property
    def t_verify(self) -> float:
        """Seconds of verification per round; of a plain autoregressive run, its T_ar."""
        return _ratio(self.verify_seconds, self.steps)

    @property
    def t_prefill(self) -> float:
        """Seconds of prefill per request."""
        return _ratio(self.prefill_seconds, self.requests)

    @property
    def tokens_per_s(self) -> float:
        """Tokens the rounds emitted per second of decoding, prefill excluded."""
        return _ratio(self.round_tokens, self.decode_seconds)

    def to_dict(self) -> dict[str, Any]:
        """Numbers for JSON. Times in seconds."""
        return {
            "block_size": self.block_size,
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
            "rounds": self.rounds,
            "draft_cache_bytes": self.draft_cache_bytes,
            "plans": dict(self.plans),
            "tokens": self.tokens,
            "tau": self.tau,
            "mean_accepted": self.mean_accepted,
            "acceptance": list(self.acceptance),
            "t_prefill": self.t_prefill,
            "t_draft": self.t_draft,
            "t_verify": self.t_verify,
            "prefill_seconds": self.prefill_seconds,
            "decode_seconds": self.decode_seconds,
            "tokens_per_s": self.tokens_per_s,
        }


class PhaseTimer:
    """Times consecutive phases on the device that runs them.

    On the CPU, `clock` is read. On CUDA, events are recorded in the stream and read only after the caller has waited
    for the stream anyway, so that measuring adds no synchronisation.
    """

    def __init__(self, device: torch.device, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._cuda = device.type == "cuda"
        self._marks: list[tuple[str, Any]] = []

    def mark(self, phase: str) -> None:
        """Ends the current phase; what follows belongs to `phase`."""
        self._marks.append((phase, self._now()))

    def stop(self) -> None:
        """Ends the current phase."""
        self.mark("")

    def seconds(self) -> dict[str, float]:
        """Seconds of each phase since the last call; on CUDA, legal only once the stream has reached `stop`."""
        seconds: dict[str, float] = {}
        for (phase, begin), (_, end) in zip(self._marks, self._marks[1:], strict=False):
            elapsed = begin.elapsed_time(end) / 1e3 if self._cuda else end - begin
            seconds[phase] = seconds.get(phase, 0.0) + elapsed
        self._marks.clear()
        return seconds

    def _now(self) -> Any:
        if not self._cuda:
            return self._clock()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0
