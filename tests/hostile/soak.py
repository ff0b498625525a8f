"""A long run of the decoder: requests of random lengths, batches of 1 to 16, stops, cancellations and closed streams.

`python -m tests.hostile.soak --requests 2000` (`make soak`). Every answer has to be, token by token, what plain decoding
gives alone, or the beginning of it that a stop or a cancellation leaves; every call has to give all its pages back; and
the process must not grow.
"""

from __future__ import annotations

import argparse
import gc
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch
from weakref import ref

import torch
from dflash_decoding import Cancellation, DFlashDecoder, Generation
from dflash_decoding.cache import PagePool

from tests.decoding.drafters import OracleDrafter, WatchedTarget
from tests.decoding.tiny import VOCAB, tiny_drafter, tiny_target

LONGEST_PROMPT, LONGEST_ANSWER, BLOCK = 60, 40, 8
TEXTS = 12  # prompts whose beginnings and answers are drawn from, so that plain decoding is done once for each
MEGABYTE = 1 << 20
# What the process may grow by after the first quarter: allocators keep pages of theirs.
MOST_GROWTH = 24 * MEGABYTE


@dataclass
class Told:
    """What a soak did."""

    requests: int = 0
    calls: int = 0
    tokens: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    closed_streams: int = 0
    resident: list[int] = field(default_factory=list)  # bytes, after each call

    @property
    def growth(self) -> int:
        """From the end of the first quarter of the calls to the end of all."""
        return self.resident[-1] - self.resident[len(self.resident) // 4]


class Soak:
    """A target, two drafters, and plain answers to some prompts."""

    def __init__(self, seed: int = 0) -> None:
        self.random = Random(seed)
        self.target = tiny_target()
        prompts = [
            [self.random.randrange(VOCAB) for _ in range(self.random.randint(1, LONGEST_PROMPT))] for _ in range(TEXTS)
        ]
        plain = DFlashDecoder(self.target, max_batch=1)
        # One block longer than any answer, as the oracle reads ahead.
        answers = plain.generate(prompts, max_new_tokens=LONGEST_ANSWER + BLOCK, stop_token_ids=())
        self.texts = [(prompt, answer.token_ids) for prompt, answer in zip(prompts, answers, strict=True)]
        self.told = Told()

    def run(self, requests: int) -> Told:
        gc.collect()
        gc.freeze()  # what is there stays, so that a collection is a matter of milliseconds
        try:
            with _recorded_pools() as pools:
                while self.told.requests < requests:
                    closed = self.told.closed_streams
                    count = self.random.choice([1, self.random.randint(2, 24), self.random.randint(2, 24)])
                    self._call(min(count, requests - self.told.requests))
                    if closed == self.told.closed_streams:
                        assert all(pool.num_free_pages == pool.num_pages for pool in pools), "a call kept pages"
                    left = [ref(pool) for pool in pools]
                    pools.clear()
                    gc.collect()
                    assert all(pool() is None for pool in left), "a call left its pool behind"
                    self.told.resident.append(_resident_bytes())
        finally:
            gc.unfreeze()
        assert self.told.growth < MOST_GROWTH, f"the process grew by {self.told.growth / MEGABYTE:.0f} MB"
        return self.told

    def _decoder(self) -> DFlashDecoder:
        random = self.random
        options: dict[str, Any] = {
            "max_batch": random.randint(1, 16),
            "page_size": random.choice([1, 4, 16, 64]),
            "prefill_chunk": random.choice([7, 512]),
            # Room for few requests at a time, so that rows wait for pages.
            "max_tokens": random.choice([None, 256, 512]),
        }
        kind = random.randrange(3)
        if kind == 0:
            return DFlashDecoder(self.target, tiny_drafter(self.target), **options)
        watched = WatchedTarget(self.target)
        sequences = [[*prompt, *answer] for prompt, answer in self.texts]
        wrong = random.randint(2, 9)
        drafter = OracleDrafter(
            watched,
            sequences,
            BLOCK,
            spoil=lambda position, token: (token + 1) % VOCAB if kind == 1 and position % wrong == 0 else token,
        )
        target: Any = watched
        return DFlashDecoder(target, drafter, **options)

    def _call(self, count: int) -> None:
        random = self.random
        chosen = [random.randrange(TEXTS) for _ in range(count)]
        lengths = [random.choice([0, 1, random.randint(2, LONGEST_ANSWER)]) for _ in chosen]
        stops = tuple(random.sample(range(VOCAB), random.choice([0, 0, 1, 8])))
        decoder = self._decoder()
        self.told.calls += 1
        self.told.requests += count
        if count == 1 and lengths[0]:
            self._stream(decoder, chosen[0], lengths[0], stops)
            return
        cancellation = Cancellation()
        emitted: dict[int, list[int]] = {index: [] for index in range(count)}

        def hear(event: Any) -> None:
            if event.token_id is not None:
                emitted[event.request].append(event.token_id)
            if random.random() < 0.04:
                cancellation.cancel(random.randrange(count))

        answers = decoder.generate(
            [self.texts[text][0] for text in chosen],
            max_new_tokens=lengths,
            stop_token_ids=stops,
            on_token=hear,
            cancellation=cancellation,
        )
        assert len(answers) == count
        for index, (text, length, answer) in enumerate(zip(chosen, lengths, answers, strict=True)):
            assert list(answer.token_ids) == emitted[index], "the events tell another answer than the result"
            assert answer.finish_reason != "cancelled" or index in cancellation
            self._check(answer, text, length, stops)

    def _stream(self, decoder: DFlashDecoder, text: int, length: int, stops: Sequence[int]) -> None:
        """A single request, whose stream is closed at a random token half of the time."""
        prompt, whole = self.texts[text]
        last = self.random.choice([length, self.random.randint(0, length)])
        events = decoder.stream(prompt, max_new_tokens=length, stop_token_ids=stops)
        tokens: list[int] = []
        for event in events:
            assert event.token_id is not None
            tokens.append(event.token_id)
            if event.generation is not None:
                self._check(event.generation, text, length, stops)
            elif len(tokens) >= last:
                events.close()  # type: ignore[attr-defined]
                self.told.closed_streams += 1
                break
        assert tokens == list(whole[: len(tokens)])
        self.told.tokens += len(tokens)

    def _check(self, answer: Generation, text: int, length: int, stops: Sequence[int]) -> None:
        """The answer against the plain one, cut at its length, its first stop token, or where it was cancelled."""
        wanted = list(self.texts[text][1][:length])
        for place, token in enumerate(wanted):
            if token in stops:
                wanted = wanted[: place + 1]
                break
        got = list(answer.token_ids)
        if answer.finish_reason == "cancelled":
            assert got == wanted[: len(got)]
            assert len(got) < len(wanted) or not wanted
        else:
            assert got == wanted
            assert answer.finish_reason == ("stop_token" if wanted and wanted[-1] in stops else "length")
        self.told.tokens += len(got)
        self.told.finished[answer.finish_reason] = self.told.finished.get(answer.finish_reason, 0) + 1


@contextmanager
def _recorded_pools() -> Iterator[list[PagePool]]:
    """Every page pool made meanwhile."""
    pools: list[PagePool] = []
    original = PagePool.__init__

    def record(pool: PagePool, *arguments: Any, **options: Any) -> None:
        original(pool, *arguments, **options)
        pools.append(pool)

    with patch.object(PagePool, "__init__", record):
        yield pools


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.process_time()
    told = Soak(options.seed).run(options.requests)
    quarter = told.resident[len(told.resident) // 4]
    print(
        f"{told.requests} requests in {told.calls} calls, {told.tokens} tokens, ended by {told.finished}, "
        f"{told.closed_streams} streams closed; resident {quarter / MEGABYTE:.0f} MB after a quarter, "
        f"{told.resident[-1] / MEGABYTE:.0f} MB at the end; {time.process_time() - began:.0f} CPU seconds"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
