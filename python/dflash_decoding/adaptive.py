"""Chooses block size and context budget by what they bring, plain decoding among the choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .speculation import PLAIN_ROUND, RoundPlan

# What was known of a plan before a trial counts so much beside what the trial says.
_OLD_KNOWLEDGE = 0.25


@dataclass(frozen=True)
class AdaptiveOptions:
    """How an adaptive decoder tries and judges. A plan is what a round does: block rows and budget, or plain decoding.

    Attributes:
        trial_rounds: rounds of a trial. The first one is not counted: it makes buffers, selections, caches warm.
        interval: rounds between a change of plan and the next trial of another. Every trial that is lost doubles it, so
            that what does not pay is tried ever more rarely, ...
        max_interval: ... up to so many rounds.
        margin: another plan is taken if its tokens per second are better by this share.
        memory_rounds: rounds after which the knowledge of the plan in use has faded to 1/e.

    Raises:
        ValueError: a number is out of its range.
    """

    trial_rounds: int = 6
    interval: int = 32
    max_interval: int = 256
    margin: float = 0.05
    memory_rounds: float = 16.0

    def __post_init__(self) -> None:
        least = {"trial_rounds": 2, "interval": 1, "max_interval": self.interval, "margin": 0.0, "memory_rounds": 1.0}
        for name, lowest in least.items():
            if getattr(self, name) < lowest:
                raise ValueError(f"{name}: expected at least {lowest}, got {getattr(self, name)}")


@dataclass
class _Experience:
    """Tokens and seconds of the rounds of a plan, older ones faded."""

    tokens: float = 0.0
    seconds: float = 0.0

    def fade(self, share: float) -> None:
        self.tokens *= share
        self.seconds *= share

    @property
    def rate(self) -> float:
        """Tokens per second; 0 without any experience."""
        return self.tokens / self.seconds if self.seconds else 0.0


class AdaptiveSpeculation:
    """Uses the plan with the most tokens per second (tau / (T_draft + T_verify)) of those it has tried.

    It begins with the largest block and budget and tries plain decoding first. From then on it tries the neighbours of
    the plan in use (one block size or budget up or down) and plain decoding in turn; while it decodes plainly, the
    first plan and the cheapest one of each block size. A trial comes at once when the plan in use falls behind what is
    known of plain decoding. Nothing here reads a clock or a random number: same times, same plans.

    Args:
        block_plans: for each block size, the largest first, its plans by budget, the greatest first.
    """

    def __init__(self, block_plans: Sequence[Sequence[RoundPlan]], options: AdaptiveOptions) -> None:
        self._grid = [list(plans) for plans in block_plans]
        self._options = options
        self._experience = {plan: _Experience() for plan in (PLAIN_ROUND, *(p for plans in block_plans for p in plans))}
        self.current = self._grid[0][0]
        self._trial: RoundPlan | None = None
        self._rounds_left = 0
        self._turn = 0
        self._interval = options.interval
        # Rounds since the last trial; the first one waits until the first plan is known.
        self._quiet = options.interval - options.trial_rounds
        self._last: RoundPlan | None = None

    def next_round(self) -> RoundPlan:
        if self._trial is None:
            self._trial = self._due_trial()
            if self._trial is not None:
                self._rounds_left = self._options.trial_rounds
                self._experience[self._trial].fade(_OLD_KNOWLEDGE)
        return self._trial or self.current

    def record(self, tokens: float, seconds: float) -> None:
        plan = self._trial or self.current
        if plan == self._last:
            experience = self._experience[plan]
            experience.fade(1.0 - 1.0 / self._options.memory_rounds)
            experience.tokens += tokens
            experience.seconds += seconds
        self._last = plan
        if self._trial is None:
            self._quiet += 1
            return
        self._rounds_left -= 1
        if not self._rounds_left:
            self._judge(self._trial)
            self._trial = None
            self._quiet = 0

    def _judge(self, tried: RoundPlan) -> None:
        if self._experience[tried].rate > (1.0 + self._options.margin) * self._experience[self.current].rate:
            self.current = tried
            self._turn = 0
            self._interval = self._options.interval
        else:
            self._interval = min(2 * self._interval, self._options.max_interval)

    def _due_trial(self) -> RoundPlan | None:
        if self._quiet >= self._interval:
            candidates = self._candidates()
            self._turn += 1
            return candidates[(self._turn - 1) % len(candidates)]
        plain, own = self._experience[PLAIN_ROUND].rate, self._experience[self.current].rate
        behind = self.current != PLAIN_ROUND and own < plain
        return PLAIN_ROUND if behind and self._quiet >= self._options.trial_rounds else None

    def _candidates(self) -> list[RoundPlan]:
        """Plans to try beside the one in use, in turn."""
        if self.current == PLAIN_ROUND:
            return list(dict.fromkeys([self._grid[0][0], *(plans[-1] for plans in self._grid)]))
        block, budget = next(
            (i, j) for i, plans in enumerate(self._grid) for j, plan in enumerate(plans) if plan == self.current
        )
        places = ((block + 1, budget), (block, budget + 1), (block - 1, budget), (block, budget - 1))
        inside = [(i, j) for i, j in places if 0 <= i < len(self._grid) and 0 <= j < len(self._grid[block])]
        return [PLAIN_ROUND, *(self._grid[i][j] for i, j in inside)]
