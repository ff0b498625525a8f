"""Long prompts, each answered by plain decoding and by DFlash with every draft context.

    python benchmarks/long_context.py --json docs/long_context.json [--markdown docs/long_context.md]
        [--lengths 1024 2048 4096 8000] [--prompts N] [--max-new-tokens N] [--dtype float32]

The target's prefill of a prompt is computed once and used by all methods; rates and times are those of decoding. With
--clock cpu they are CPU seconds of the process, which on one thread do not count the time others had the processor.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from dflash_decoding import (
    AdaptiveOptions,
    CacheFreeContext,
    DecodeStats,
    DFlashDecoder,
    DFlashDrafter,
    DraftContext,
    FullContext,
    SparseContext,
    Target,
    WindowContext,
    compare_greedy,
)
from dflash_decoding.cli import DTYPES
from dflash_decoding.models import DEFAULT_MODEL, resolve_drafter
from tqdm import tqdm

# As a script, this file sees its own folder only; what it shares with the tests lies in the checkout's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dflash_ops
from benchmarks.long_context_report import PLAIN, tables, write_between_marks
from benchmarks.long_prompts import long_prompt
from benchmarks.remembered_prefill import RememberedPrefill

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
# A prompt and its answer must fit the 8,192 positions of the model, so the longest prompt is somewhat shorter.
LENGTHS = (1024, 2048, 4096, 8000)
FAR = 131072
PAGE_SIZE = 16


@dataclass(frozen=True)
class Mode:
    """One way to decode."""

    context: DraftContext
    adaptive: AdaptiveOptions | None = None


MODES = {
    "full": Mode(FullContext()),
    "sparse_1024": Mode(SparseContext(1024)),
    "sparse_512": Mode(SparseContext(512)),
    "sparse_512_every_4": Mode(SparseContext(512, round_interval=4)),
    "window_1024": Mode(WindowContext(1024)),
    "cache_free_256": Mode(CacheFreeContext(256)),
    "adaptive_sparse": Mode(SparseContext(1024), AdaptiveOptions()),
}


@dataclass
class Result:
    """One method on the prompts of one length."""

    stats: DecodeStats | None = None
    answers: int = 0
    identical: int = 0
    largest_gap: float = 0.0
    prompt_tokens: list[int] = field(default_factory=list)

    def add(self, stats: DecodeStats, gap: float | None) -> None:
        """Counts an answer; `gap`: of the logits where it leaves plain decoding's, None where it does not."""
        if self.stats is None:
            self.stats = DecodeStats(stats.block_size)
        self.stats.merge(stats)
        self.answers += 1
        self.identical += gap is None
        self.largest_gap = max(self.largest_gap, gap or 0.0)

    def to_dict(self) -> dict[str, Any]:
        assert self.stats is not None
        return {
            **self.stats.to_dict(),
            "answers": self.answers,
            "identical": self.identical,
            "largest_gap": self.largest_gap,
        }


def measure(
    target: Target,
    drafter: DFlashDrafter,
    length: int,
    prompts: int,
    max_new_tokens: int,
    clock: Callable[[], float],
    modes: dict[str, Mode],
) -> Iterator[dict[str, Result]]:
    """Answers `prompts` prompts of `length` tokens by plain decoding and every mode; the results after each prompt."""
    remembered = RememberedPrefill(target, tuple(drafter.tap_layers))
    as_target = cast(Target, remembered)
    results = {name: Result() for name in (PLAIN, *modes)}
    for index in tqdm(range(prompts), desc=f"prompts of {length} tokens"):
        prompt = long_prompt(target, length, index).tokens
        limits: dict[str, Any] = {"max_new_tokens": max_new_tokens, "stop_token_ids": ()}
        plain = DFlashDecoder(as_target, clock=clock).generate_autoregressive([prompt], **limits)
        results[PLAIN].add(plain.stats, None)
        for name, mode in modes.items():
            decoder = DFlashDecoder(as_target, drafter, draft_context=mode.context, adaptive=mode.adaptive, clock=clock)
            got = decoder.generate([prompt], **limits)
            difference = compare_greedy(target, prompt, plain[0].token_ids, got[0].token_ids)
            results[name].add(got.stats, None if difference is None else difference.gap)
        remembered.forget()
        yield results


def memory(drafter: DFlashDrafter, modes: dict[str, Mode], lengths: Sequence[int], page_size: int) -> dict[str, Any]:
    """Bytes of the draft cache of one request, by mode and length; computed, nothing is allocated."""
    return {
        name: {str(length): mode.context.request_bytes(drafter, length, page_size) for length in lengths}
        for name, mode in modes.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the result")
    parser.add_argument("--markdown", type=Path, help="document whose tables are to be replaced")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="tokens per prompt")
    parser.add_argument("--prompts", type=int, default=2, help="prompts per length (default 2)")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--target", default=DEFAULT_MODEL)
    parser.add_argument("--drafter", default=DEFAULT_MODEL, help="a DFlash drafter (default: the bundled one)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="wall (default) or cpu seconds")
    options = parser.parse_args(arguments)
    dtype = DTYPES[options.dtype]
    target = Target.from_pretrained(options.target, dtype)
    drafter = DFlashDrafter.from_pretrained(
        resolve_drafter(options.drafter).path, target.embed_weight, target.lm_head_weight, dtype=dtype
    )
    modes = {name: MODES[name] for name in options.modes}
    runs: list[dict[str, Any]] = []
    numbers = {
        "target": options.target,
        "drafter": options.drafter,
        "dtype": options.dtype,
        "clock": options.clock,
        "threads": torch.get_num_threads(),
        "cpu_isa": dflash_ops.cpu_isa(),
        "torch": torch.__version__,
        "max_new_tokens": options.max_new_tokens,
        "modes": {name: {"context": mode.context.name, **asdict(mode.context)} for name, mode in modes.items()},
        "runs": runs,
        "computed_bytes": memory(drafter, modes, (8192, FAR), PAGE_SIZE),
    }
    for length in options.lengths:
        run: dict[str, Any] = {"length": length}
        runs.append(run)
        for results in measure(
            target, drafter, length, options.prompts, options.max_new_tokens, CLOCKS[options.clock], modes
        ):
            run["methods"] = {name: result.to_dict() for name, result in results.items()}
            if options.json is not None:  # after every prompt, as long ones take long
                options.json.write_text(json.dumps(numbers, indent=2) + "\n")
    text = tables(numbers)
    print(text)
    if options.markdown is not None:
        write_between_marks(options.markdown, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
