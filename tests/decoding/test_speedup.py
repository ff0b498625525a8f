"""The speedup model against hand-made numbers."""

from __future__ import annotations

import json

import pytest
from dflash_decoding import DecodeStats, Speedup
from dflash_decoding.speedup import expected_tau, position_acceptance, prefix_acceptance, token_latency


def run(block_size: int, rounds: list[tuple[int, int]], phases: dict[str, float], seconds: float) -> DecodeStats:
    """One request whose rounds accept and emit as given, each with the same times."""
    stats = DecodeStats(block_size)
    for accepted, emitted in rounds:
        stats.add_round(accepted, emitted)
        stats.add_step(phases, seconds, "4 rows")
    return stats


def test_acceptance_by_position() -> None:
    histogram = [2, 1, 0, 5]  # of 8 rounds: none right, the first one right, all three right
    assert prefix_acceptance(histogram) == (6 / 8, 5 / 8, 5 / 8)
    assert position_acceptance(histogram) == (6 / 8, 5 / 6, 1.0)
    assert expected_tau(prefix_acceptance(histogram)) == pytest.approx((2 * 1 + 1 * 2 + 5 * 4) / 8)
    assert position_acceptance([4, 0, 0]) == (0.0, 0.0)
    assert prefix_acceptance([0, 0]) == (0.0,)


def test_eta() -> None:
    plain = run(1, [(0, 1)] * 6, {"verify": 0.025}, 0.03)
    # The last round's four tokens are cut to one by a stop; E[tau] is not moved by that, the measurement is.
    drafted = run(4, [(3, 4), (0, 1), (3, 1)], {"draft": 0.01, "verify": 0.03}, 0.05)
    speedup = Speedup.of(drafted, plain)
    assert speedup.tau == pytest.approx(3.0)
    assert speedup.latency == pytest.approx(0.04 / 3) == token_latency(0.01, 0.03, 3.0)
    assert speedup.predicted == pytest.approx(0.025 / (0.04 / 3))
    assert speedup.measured == pytest.approx((6 / 0.15) / (1 / 0.03))
    assert speedup.difference == pytest.approx(speedup.predicted / 1.2 - 1)
    numbers = json.loads(json.dumps(speedup.to_dict()))
    assert numbers["eta"] == pytest.approx(1.2)
    assert numbers["eta_predicted"] == pytest.approx(1.875)
    assert Speedup.of(plain, plain).predicted == pytest.approx(1)
    assert Speedup.of(DecodeStats(4), plain) == Speedup(1.0, 0.0, 0.0, 0.0)


def test_requests_that_share_a_round() -> None:
    """Two requests side by side in the plain run, one after the other in the drafted one: half of the speedup is lost."""
    plain = DecodeStats(1)
    for _ in range(4):
        plain.add_round(0, 1)
        plain.add_round(0, 1)
        plain.add_step({"verify": 0.02}, 0.02, "plain")
    drafted = run(2, [(1, 2)] * 4, {"draft": 0.01, "verify": 0.01}, 0.02)
    speedup = Speedup.of(drafted, plain)
    assert speedup.predicted == pytest.approx(1.0) == speedup.measured
