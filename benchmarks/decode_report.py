"""What `decode.py` measures of each method, in numbers and in tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash_decoding import DecodeStats, Speedup, Target, compare_greedy
from dflash_decoding.speedup import position_acceptance, prefix_acceptance

PLAIN = "autoregressive"
Answers = list[tuple[int, ...]]
# The prediction of the speedup model may be off by this share of the measured eta.
ETA_BAR = 0.1


@dataclass
class MethodResult:
    """One method on one domain, or on all of them.

    Attributes:
        stats: of our own loop, None for Hugging Face's.
    """

    tokens: int = 0
    seconds: float = 0.0
    stats: DecodeStats | None = None

    def add(self, other: MethodResult) -> None:
        """Counts another run."""
        self.tokens += other.tokens
        self.seconds += other.seconds
        if other.stats is not None:
            if self.stats is None:
                self.stats = DecodeStats(other.stats.block_size)
            self.stats.merge(other.stats)

    def to_dict(self, plain: DecodeStats | None) -> dict[str, Any]:
        """Numbers for JSON; `plain` is what a drafted run's etas compare with."""
        numbers: dict[str, Any] = {"tokens_per_s": self.tokens / self.seconds if self.seconds else 0.0}
        if self.stats is not None:
            of_stats = self.stats.to_dict()
            numbers["decode_tokens_per_s"] = of_stats.pop("tokens_per_s")
            numbers.update(of_stats)
            if plain is not None:
                numbers.update(Speedup.of(self.stats, plain).to_dict())
                numbers["prefix_acceptance"] = list(prefix_acceptance(self.stats.acceptance))
                numbers["position_acceptance"] = list(position_acceptance(self.stats.acceptance))
        return {**numbers, "tokens": self.tokens, "seconds": self.seconds}


@dataclass
class GreedyCheck:
    """How a drafter's greedy answers compare with plain decoding's."""

    answers: int = 0
    identical: int = 0
    largest_gap: float = 0.0

    def add(self, target: Target, prompts: Sequence[Sequence[int]], plain: Answers, drafted: Answers) -> None:
        """Counts equal answers, and keeps the largest logit gap of those that are not."""
        for prompt, a, b in zip(prompts, plain, drafted, strict=True):
            difference = compare_greedy(target, prompt, a, b)
            self.answers += 1
            self.identical += difference is None
            if difference is not None:
                self.largest_gap = max(self.largest_gap, difference.gap)


@dataclass
class Report:
    """Results of one batch size, by domain and method."""

    batch: int
    domains: dict[str, dict[str, MethodResult]] = field(default_factory=dict)
    greedy: dict[str, GreedyCheck] = field(default_factory=dict)

    def add(self, domain: str, method: str, result: MethodResult) -> None:
        """Counts one method's answers to one batch of prompts."""
        self.domains.setdefault(domain, {}).setdefault(method, MethodResult()).add(result)

    def totals(self) -> dict[str, MethodResult]:
        """Results by method, all domains together."""
        totals: dict[str, MethodResult] = {}
        for methods in self.domains.values():
            for method, result in methods.items():
                totals.setdefault(method, MethodResult()).add(result)
        return totals

    def to_dict(self) -> dict[str, Any]:
        """Numbers for JSON."""
        return {
            "batch": self.batch,
            "methods": _numbers(self.totals()),
            "domains": {domain: _numbers(methods) for domain, methods in self.domains.items()},
            "greedy": {method: vars(check) for method, check in self.greedy.items()},
        }


def _numbers(methods: dict[str, MethodResult]) -> dict[str, dict[str, Any]]:
    plain = methods[PLAIN].stats
    return {method: result.to_dict(None if method == PLAIN else plain) for method, result in methods.items()}


def print_table(title: str, methods: dict[str, dict[str, Any]]) -> None:
    """One line per method. x plain: tokens per second, prefill included, as a multiple of plain decoding's."""
    width = max(map(len, methods))
    print(f"\n{title}")
    print(
        f"  {'method':<{width}}{'tokens/s':>10}{'x plain':>9}{'tau':>7}{'T_draft':>11}{'T_verify':>11}"
        f"{'eta':>7}{'predicted':>11}{'off by':>9}"
    )
    plain = methods[PLAIN]["tokens_per_s"]
    for method, numbers in methods.items():
        rate = numbers["tokens_per_s"]
        cells = f"  {method:<{width}}{rate:>10.1f}{rate / plain if plain else 0.0:>9.2f}"
        if "tau" in numbers:
            cells += f"{numbers['tau']:>7.2f}{1e3 * numbers['t_draft']:>8.1f} ms{1e3 * numbers['t_verify']:>8.1f} ms"
        if "eta" in numbers:
            difference = numbers["eta_difference"]
            cells += f"{numbers['eta']:>7.2f}{numbers['eta_predicted']:>11.2f}{100 * difference:>+8.1f}%"
            cells += "" if abs(difference) <= ETA_BAR else "  (beyond 10 %)"
        print(cells)


def print_acceptance(methods: dict[str, dict[str, Any]]) -> None:
    """Share of rounds whose first k drafts are all right, by drafter."""
    drafted = {method: numbers for method, numbers in methods.items() if "prefix_acceptance" in numbers}
    if drafted:
        width = max(map(len, drafted))
        print("\nfirst k drafts all accepted, k = 1, 2, ..")
        for method, numbers in drafted.items():
            print(f"  {method:<{width}}  " + " ".join(f"{share:.3f}" for share in numbers["prefix_acceptance"]))
