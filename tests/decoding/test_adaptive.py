"""The adaptive decoder: with planted drafters and a clock that only models move, every choice can be foretold."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest
import torch
from dflash_decoding import AdaptiveOptions, DFlashDecoder, Generations, WindowContext
from dflash_decoding.adaptive import AdaptiveSpeculation
from dflash_decoding.draft_context import ContextAttention
from dflash_decoding.draft_context.window import WindowCache
from dflash_decoding.speculation import PLAIN_ROUND, RoundPlan
from dflash_decoding.target import Target, TargetOutput
from torch import Tensor

from tests.decoding.drafters import OracleDrafter, WatchedTarget, one_thread
from tests.decoding.tiny import VOCAB, tiny_drafter, tiny_target

BLOCK, NEW, PROMPT = 8, 120, 11
QUICK = AdaptiveOptions(trial_rounds=3, interval=6, max_interval=12, memory_rounds=4)


@pytest.fixture(autouse=True, scope="module")
def single_thread() -> Iterator[None]:
    with one_thread():
        yield


class Clock:
    """Stands still until someone moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedTarget(WatchedTarget):
    """Takes one second for a forward of any number of rows."""

    def __init__(self, target: Target, clock: Clock) -> None:
        super().__init__(target)
        self._clock = clock

    def forward(
        self, input_ids: Tensor, positions: Tensor, slot_mapping: Tensor, *args: Any, **kw: Any
    ) -> TargetOutput:
        self._clock.now += 1.0
        return super().forward(input_ids, positions, slot_mapping, *args, **kw)


class TimedOracle(OracleDrafter):
    """An oracle whose drafts cost what `seconds` says: (newest position of the first request, rows) -> seconds."""

    def __init__(
        self,
        target: TimedTarget,
        clock: Clock,
        seconds: Callable[[int, int], float],
        texts: Sequence[Sequence[int]],
        **kw: Any,
    ) -> None:
        super().__init__(target, texts, BLOCK, **kw)
        self._clock, self._seconds = clock, seconds
        self.drafted: list[tuple[int, int]] = []

    def draft(
        self, input_ids: Tensor, positions: Tensor, cache: Tensor, page_table: Tensor, context_lens: Tensor
    ) -> Tensor:
        newest, rows = int(context_lens[0]), input_ids.shape[1]
        self._clock.now += self._seconds(newest, rows)
        self.drafted.append((newest, rows))
        # The oracle drafts a full block; a smaller one is its beginning.
        full = torch.zeros(input_ids.shape[0], self.block_size, dtype=torch.int64)
        full[:, : input_ids.shape[1]] = input_ids
        return super().draft(full, positions, cache, page_table, context_lens)[:, : rows - 1]


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target()


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(8)
    return torch.randint(VOCAB, (3, PROMPT), generator=generator).tolist()


@pytest.fixture(scope="module")
def plain(target: Target, prompts: list[list[int]]) -> Generations:
    return DFlashDecoder(target).generate(prompts, max_new_tokens=NEW + 2 * BLOCK, stop_token_ids=())


def decode(
    target: Target,
    prompts: list[list[int]],
    plain: Generations,
    seconds: Callable[[int, int], float],
    spoil: Callable[[int, int], int] = lambda position, token: token,
    options: AdaptiveOptions = QUICK,
    count: int = 1,
) -> tuple[TimedOracle, Generations]:
    """Answers of an adaptive decoder, which must be the plain ones."""
    clock = Clock()
    timed = TimedTarget(target, clock)
    texts = [[*prompt, *answer.token_ids] for prompt, answer in zip(prompts, plain, strict=True)]
    oracle = TimedOracle(timed, clock, seconds, texts, spoil=spoil)
    decoder = DFlashDecoder(cast(Target, timed), oracle, adaptive=options, clock=clock)
    got = decoder.generate(prompts[:count], max_new_tokens=NEW, stop_token_ids=())
    assert [answer.token_ids for answer in got] == [answer.token_ids[:NEW] for answer in plain[:count]]
    return oracle, got


def wrong(position: int, token: int) -> int:
    return (token + 1) % VOCAB


def test_a_drafter_that_pays_is_kept(target: Target, prompts: list[list[int]], plain: Generations) -> None:
    """All drafts right, half a second for them: 8 tokens in 1.5 s against 1 in 1 s."""
    oracle, got = decode(target, prompts, plain, lambda newest, rows: 0.5)
    assert got.stats.plans["plain"] <= 2 * QUICK.trial_rounds
    assert got.stats.plans["8 rows"] >= 8
    assert sum(got.stats.plans.values()) == got.stats.steps
    assert len(oracle.drafted) == got.stats.steps - got.stats.plans["plain"]


def test_falls_back_where_drafting_loses(target: Target, prompts: list[list[int]], plain: Generations) -> None:
    """No draft is right: plain decoding after the first trial, and rare trials from then on."""
    oracle, got = decode(target, prompts, plain, lambda newest, rows: 0.5, wrong)
    drafted = len(oracle.drafted)
    # At first as many rounds as a trial has, then trials after 6, 12, 12, .. rounds.
    assert got.stats.plans["plain"] == got.stats.steps - drafted
    assert drafted <= QUICK.trial_rounds * (2 + NEW // (QUICK.max_interval + QUICK.trial_rounds))
    assert got.stats.plans["plain"] > 0.7 * got.stats.steps
    # The cost of looking: at most a half second for each drafted round beside the second of the target.
    assert got.stats.decode_seconds == pytest.approx(got.stats.steps + 0.5 * drafted)


def test_falls_back_when_the_draft_grows_slow_and_returns_when_it_is_quick_again(
    target: Target, prompts: list[list[int]], plain: Generations
) -> None:
    """Half of the drafts are right. Between two positions drafting takes 20 s, as on a context that has grown."""
    slow = range(PROMPT + 30, PROMPT + 75)

    def seconds(newest: int, rows: int) -> float:
        return 20.0 if newest in slow else 0.2

    def every_fourth_wrong(position: int, token: int) -> int:
        return wrong(position, token) if position % 4 == 0 else token

    oracle, _ = decode(target, prompts, plain, seconds, every_fourth_wrong)
    during = [newest for newest, _ in oracle.drafted if newest in slow]
    after = [newest for newest, _ in oracle.drafted if newest >= slow.stop]
    # Into the slow stretch it drafts for a round or two, and then in trials only.
    assert len(during) <= 3 * QUICK.trial_rounds
    # After it, plain decoding ends with the first trial that begins there; from then on a round is 4 tokens.
    returned = next(newest for newest in after)
    assert returned <= slow.stop + QUICK.max_interval + QUICK.trial_rounds
    assert len(after) >= (PROMPT + NEW - returned) // 4 - 2 * QUICK.trial_rounds
    assert len(after) > 4


def test_takes_a_smaller_block_where_it_is_cheaper(
    target: Target, prompts: list[list[int]], plain: Generations
) -> None:
    """Two drafts are right, the rest wrong, and every drafted row costs: a block of 4 wins over 8 and 2."""
    options = AdaptiveOptions(trial_rounds=3, interval=4, max_interval=16, memory_rounds=4)

    def every_third_wrong(position: int, token: int) -> int:
        return wrong(position, token) if position % 3 == PROMPT % 3 else token

    _, got = decode(target, prompts, plain, lambda newest, rows: 0.1 * rows, every_third_wrong, options)
    plans = got.stats.plans
    assert plans["4 rows"] == max(plans.values())
    assert plans["4 rows"] > sum(plans.values()) / 2


def test_batch(target: Target, prompts: list[list[int]], plain: Generations) -> None:
    _, got = decode(target, prompts, plain, lambda newest, rows: 0.5, wrong, count=3)
    assert got.stats.plans["plain"] > 0.7 * got.stats.steps


def test_real_drafter_with_budgets(
    target: Target, prompts: list[list[int]], plain: Generations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every plan there is gets its turn when times are as good as random; the text stays the plain one."""
    ticks = itertools.accumulate(float(number * 7919 % 101) for number in itertools.count())
    decoder = DFlashDecoder(
        target,
        tiny_drafter(target, layer_types=("full_attention",) * 2),
        page_size=4,
        draft_context=WindowContext(32),
        adaptive=AdaptiveOptions(trial_rounds=2, interval=2, max_interval=2, margin=0.0),
        clock=lambda: next(ticks),
    )
    budgets: Counter[str] = Counter()
    begin = WindowCache.begin

    def counted(cache: WindowCache, page_table: Tensor, context_lens: Tensor) -> ContextAttention:
        budgets[f"budget {cache.budget_tokens}"] += 1
        return begin(cache, page_table, context_lens)

    monkeypatch.setattr(WindowCache, "begin", counted)
    got = decoder.generate(prompts, max_new_tokens=NEW, stop_token_ids=())
    assert [answer.token_ids for answer in got] == [answer.token_ids[:NEW] for answer in plain]
    planned: Counter[str] = Counter()
    for plan, rounds_of_plan in got.stats.plans.items():
        planned[plan.rpartition(", ")[2]] += rounds_of_plan
    del planned["plain"]
    assert budgets == planned
    assert len(budgets) > 1
    assert sum(got.stats.plans.values()) == got.stats.steps


def rounds(speculation: AdaptiveSpeculation, rate: Callable[[RoundPlan], float], count: int) -> list[RoundPlan]:
    plans = []
    for _ in range(count):
        plan = speculation.next_round()
        speculation.record(rate(plan), 1.0)
        plans.append(plan)
    return plans


def grid() -> list[list[RoundPlan]]:
    return [[RoundPlan(rows, rows, budget) for budget in (1024, 512, 256)] for rows in (16, 8, 4, 2)]


@pytest.mark.parametrize("best", [(0, 0), (1, 1), (3, 2)])
def test_finds_the_best_plan_over_its_neighbours(best: tuple[int, int]) -> None:
    place = {plan: (i, j) for i, plans in enumerate(grid()) for j, plan in enumerate(plans)}

    def rate(plan: RoundPlan) -> float:
        if plan == PLAIN_ROUND:
            return 1.0
        block, budget = place[plan]
        return 10.0 - abs(block - best[0]) - abs(budget - best[1])

    speculation = AdaptiveSpeculation(grid(), AdaptiveOptions())
    rounds(speculation, rate, 2000)
    assert place[speculation.current] == best
    # Trials cost little: of the last rounds few are not of the best plan.
    assert sum(plan != speculation.current for plan in rounds(speculation, rate, 1000)) <= 30


def test_what_was_lost_for_long_is_not_held_against_a_plan() -> None:
    """Even with a long memory, the first trial of the first plan after the change leads back to it."""
    options = AdaptiveOptions(interval=8, max_interval=16, memory_rounds=1000.0)
    speculation = AdaptiveSpeculation(grid()[:1], options)
    rounds(speculation, lambda plan: 1.0 if plan == PLAIN_ROUND else 0.5, 600)
    assert speculation.current == PLAIN_ROUND
    rounds(speculation, lambda plan: 1.0 if plan == PLAIN_ROUND else 3.0, 2 * (16 + options.trial_rounds))
    assert speculation.current != PLAIN_ROUND


def test_same_numbers_same_plans() -> None:
    def run() -> list[RoundPlan]:
        noise = torch.Generator().manual_seed(1)
        return rounds(
            AdaptiveSpeculation(grid(), AdaptiveOptions()),
            lambda plan: 1.0 + float(torch.rand((), generator=noise)),
            300,
        )

    assert run() == run()


def test_begins_with_the_largest_plan_and_tries_plain_decoding_first() -> None:
    plans = rounds(AdaptiveSpeculation(grid(), AdaptiveOptions(trial_rounds=4)), lambda plan: 1.0, 9)
    assert plans == [grid()[0][0]] * 4 + [PLAIN_ROUND] * 4 + [grid()[0][0]]


def test_options_out_of_range() -> None:
    for name, value in {
        "trial_rounds": 1,
        "interval": 0,
        "max_interval": 31,
        "margin": -0.1,
        "memory_rounds": 0.5,
    }.items():
        with pytest.raises(ValueError, match=f"{name}: expected at least"):
            AdaptiveOptions(**cast(Any, {name: value}))
