"""Greedy DFlash against greedy plain decoding on HumanEval, token for token.

    python benchmarks/exactness.py --json FILE [--prompts N] [--batch 1 8] [--drafters real random oracle planted]

Every prompt is answered once without a drafter; then every drafter, at every batch size, has to give the same tokens:
the bundled (or named) drafter, one that is never right, one that always is, and one that is wrong at chosen places,
whose acceptance is then known exactly. Where an answer differs, the gap between the target's logits must show a tie
within numeric error. Exits with 1 on any other difference.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty
from typing import cast

import torch
from dflash_decoding import DFlashDecoder, Drafter, Generations, Target, compare_greedy
from dflash_decoding.cli import NO_DRAFTER, load_models
from dflash_decoding.models import DEFAULT_MODEL
from tqdm import tqdm

# As a script, this file sees its own folder only; what it shares with the tests lies in the checkout's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.prompts import humaneval_prompts
from tests.decoding.drafters import OracleDrafter, RandomDrafter, WatchedTarget, planted_acceptance

DRAFTERS = ("real", "random", "oracle", "planted")

# Logits that differ by less are a tie: between a row computed alone and the same row among others, those of SmolLM2 in
# float32 differ by up to some 1e-4.
TIE_GAP = 1e-3

_PLANTED_BLOCK = 8


@dataclass
class Outcome:
    """What one drafter at one batch size did to all prompts.

    Attributes:
        ties: [prompt, token number, gap] where an answer left the plain one at a tie.
        wrong: the same where it is no tie: must be empty.
        acceptance_as_planned: for oracle and planted, whether the histogram is exactly the one that follows from the
            plan; None for the others.
    """

    drafter: str
    batch: int
    prompts: int
    identical: int = 0
    ties: list[tuple[int, int, float]] = field(default_factory=list)
    wrong: list[tuple[int, int, float]] = field(default_factory=list)
    acceptance_as_planned: bool | None = None
    tau: float = 0.0
    acceptance: list[int] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether nothing but ties differs and acceptance is as planned (not asked for where a tie moved the text)."""
        return not self.wrong and (bool(self.ties) or self.acceptance_as_planned is not False)


class Exactness:
    """Prompts, their plain answers, and checks of drafters against them.

    Args:
        real_drafter: drafter for "real"; None where it is not asked for.
        prompts: token ids.
        max_new_tokens: compared per prompt.
        progress: show a bar while the plain answers are computed.
    """

    def __init__(
        self,
        target: Target,
        real_drafter: Drafter | None,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        progress: bool = False,
    ) -> None:
        self.target = target
        self.real_drafter = real_drafter
        self.prompts = [list(prompt) for prompt in prompts]
        self.max_new_tokens = max_new_tokens
        # Longer than compared, so that the oracle knows what follows to the end of the last block.
        length = max_new_tokens + _PLANTED_BLOCK
        decoder = DFlashDecoder(target, max_batch=1)
        self.plain: list[tuple[int, ...]] = []
        for prompt in tqdm(self.prompts, desc="plain", disable=not progress):
            self.plain.append(decoder.generate([prompt], max_new_tokens=length, stop_token_ids=())[0].token_ids)

    def first(self, count: int) -> Exactness:
        """The same for the first prompts only; nothing is computed again."""
        part = copy.copy(self)
        part.prompts, part.plain = self.prompts[:count], self.plain[:count]
        return part

    def check(self, name: str, batch: int, progress: bool = False) -> Outcome:
        """Decodes all prompts with one drafter and compares."""
        outcome = Outcome(name, batch, len(self.prompts))
        began = time.perf_counter()
        with tqdm(total=len(self.prompts), desc=f"{name}, batch {batch}", disable=not progress) as bar:
            answers, is_wrong = self._decode(name, batch, bar)
        outcome.seconds = time.perf_counter() - began
        outcome.tau = answers.stats.tau
        outcome.acceptance = answers.stats.acceptance
        for index, (prompt, answer) in enumerate(zip(self.prompts, answers, strict=True)):
            expected = self.plain[index][: self.max_new_tokens]
            difference = compare_greedy(self.target, prompt, expected, answer.token_ids)
            if difference is None:
                outcome.identical += 1
            else:
                entries = outcome.ties if difference.gap <= TIE_GAP else outcome.wrong
                entries.append((index, difference.index, difference.gap))
        if is_wrong is not None:
            planned = [0] * _PLANTED_BLOCK
            for prompt in self.prompts:
                last = len(prompt) + self.max_new_tokens - 1
                counts, _ = planted_acceptance(len(prompt), last, _PLANTED_BLOCK - 1, is_wrong)
                planned = [a + b for a, b in zip(planned, counts, strict=True)]
            outcome.acceptance_as_planned = planned == outcome.acceptance
        return outcome

    def _decode(self, name: str, batch: int, bar: tqdm[None]) -> tuple[Generations, Callable[[int], bool] | None]:
        """All answers, and where the drafts were made wrong (None when that is not known)."""
        target, drafter, is_wrong = self.target, self.real_drafter, None
        if name == "random":
            drafter = RandomDrafter(target.vocab_size, _PLANTED_BLOCK)
        elif name in ("oracle", "planted"):
            is_wrong = _nowhere if name == "oracle" else _here_and_there
            target = cast(Target, WatchedTarget(self.target))
            drafter = self._oracle(cast(WatchedTarget, target), is_wrong)
        if drafter is None:
            raise ValueError("drafter: expected a real one, got None")
        answers = DFlashDecoder(target, drafter, max_batch=batch).generate(
            self.prompts,
            max_new_tokens=self.max_new_tokens,
            stop_token_ids=(),
            on_token=lambda event: bar.update(event.generation is not None),
        )
        return answers, is_wrong

    def _oracle(self, target: WatchedTarget, is_wrong: Callable[[int], bool]) -> OracleDrafter:
        texts = [[*prompt, *answer] for prompt, answer in zip(self.prompts, self.plain, strict=True)]
        vocab_size = self.target.vocab_size
        return OracleDrafter(
            target,
            texts,
            _PLANTED_BLOCK,
            spoil=lambda position, token: (token + 1) % vocab_size if is_wrong(position) else token,
            strict=False,
        )


def _nowhere(position: int) -> bool:
    return False


def _here_and_there(position: int) -> bool:
    """Runs of different lengths between the wrong tokens, some longer than a block."""
    return position % 11 in (0, 1, 4) and position % 3 != 0


def merge(parts: Sequence[Outcome]) -> Outcome:
    """One outcome of the same check over consecutive shards of the prompts."""
    merged = Outcome(parts[0].drafter, parts[0].batch, 0, acceptance_as_planned=parts[0].acceptance_as_planned)
    merged.acceptance = [0] * len(parts[0].acceptance)
    for part in parts:
        for differing, entries in ((part.ties, merged.ties), (part.wrong, merged.wrong)):
            entries.extend((merged.prompts + index, token, gap) for index, token, gap in differing)
        merged.prompts += part.prompts
        merged.identical += part.identical
        merged.acceptance = [a + b for a, b in zip(merged.acceptance, part.acceptance, strict=True)]
        merged.seconds = max(merged.seconds, part.seconds)
        if merged.acceptance_as_planned is not None:
            merged.acceptance_as_planned = merged.acceptance_as_planned and bool(part.acceptance_as_planned)
    rounds = sum(merged.acceptance)
    emitted = sum((accepted + 1) * count for accepted, count in enumerate(merged.acceptance))
    merged.tau = emitted / rounds if rounds else 0.0
    return merged


def run_shard(options: argparse.Namespace, shard: int, outcomes: Queue[Outcome]) -> None:
    """The work of one process: every check over its share of the prompts."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // options.processes))
    drafter_name = options.drafter if "real" in options.drafters else NO_DRAFTER
    target, drafter = load_models(options.target, drafter_name, torch.float32)
    texts = humaneval_prompts()[: options.prompts]
    share = texts[len(texts) * shard // options.processes : len(texts) * (shard + 1) // options.processes]
    prompts = [target.tokenizer(text)["input_ids"] for text in share]
    exactness = Exactness(target, drafter, prompts, options.max_new_tokens, progress=shard == 0)
    for batch in options.batch:
        for name in options.drafters:
            outcomes.put(exactness.check(name, batch, progress=shard == 0))


def _end_with_parent() -> None:
    """Ends this process when the one that started it is gone, even if that one was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Greedy DFlash against greedy plain decoding on HumanEval.")
    parser.add_argument("--json", type=Path, help="file for the result, rewritten after every check")
    parser.add_argument("--prompts", type=int, help="first N prompts (all 164)")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--drafters", nargs="+", choices=DRAFTERS, default=list(DRAFTERS))
    parser.add_argument("--target", default=DEFAULT_MODEL)
    parser.add_argument("--drafter", default=DEFAULT_MODEL)
    parser.add_argument("--processes", type=int, default=2, help="shards of the prompts, each with its share of cores")
    options = parser.parse_args(arguments)

    context = multiprocessing.get_context("spawn")
    queues: list[Queue[Outcome]] = [context.Queue() for _ in range(options.processes)]
    shards = [
        context.Process(target=run_shard, args=(options, shard, queue), daemon=True)
        for shard, queue in enumerate(queues)
    ]
    for process in shards:
        process.start()
    outcomes: list[Outcome] = []
    for _ in range(len(options.batch) * len(options.drafters)):
        outcome = merge([receive(process, queue) for process, queue in zip(shards, queues, strict=True)])
        outcomes.append(outcome)
        print(
            f"{outcome.drafter}, batch {outcome.batch}: {outcome.identical} of {outcome.prompts} identical, "
            f"{len(outcome.ties)} ties, {len(outcome.wrong)} wrong, tau {outcome.tau:.2f}, "
            f"acceptance as planned: {outcome.acceptance_as_planned}, {outcome.seconds:.0f} s",
            flush=True,
        )
        if options.json is not None:
            result = {
                "target": options.target,
                "drafter": options.drafter,
                "dtype": "float32",
                "max_new_tokens": options.max_new_tokens,
                "tie_gap": TIE_GAP,
                "passed": all(outcome.passed for outcome in outcomes),
                "outcomes": [asdict(outcome) for outcome in outcomes],
            }
            options.json.write_text(json.dumps(result, indent=2) + "\n")
    for process in shards:
        process.join()
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def receive(process: BaseProcess, queue: Queue[Outcome]) -> Outcome:
    """The next outcome of a shard; an error if its process died instead of giving one."""
    while True:
        try:
            return queue.get(timeout=1)
        except Empty:
            if not process.is_alive() and queue.empty():
                raise RuntimeError(f"a shard ended with exit code {process.exitcode} before its results") from None


if __name__ == "__main__":
    sys.exit(main())
