"""Decoding on the same prompts in one run: plain autoregressive, Hugging Face `generate`, and DFlash.

    python benchmarks/decode.py --json FILE [--prompts N] [--batch B] [--max-new-tokens N] [--dtype float32]

The methods take turns on every batch of prompts, so that a drifting machine hits all of them alike. Tokens per second
count the whole answer, prefill included; eta compares the decoding alone (see `dflash_decoding.stats`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from dflash_decoding import DecodeStats, DFlashDecoder, Generations, Target, compare_greedy
from dflash_decoding.cli import DTYPES, encode_prompt, load_models
from dflash_decoding.models import DEFAULT_MODEL, resolve_target
from tqdm import tqdm
from transformers import AutoModelForCausalLM

# As a script, this file sees its own folder only; what it shares with the tests lies in the checkout's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dflash_ops
from benchmarks.prompts import DOMAINS, domain_prompts

Answers = list[tuple[int, ...]]
Method = Callable[[Sequence[Sequence[int]], int], tuple[Answers, DecodeStats | None]]


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
        """Numbers for JSON; `plain` is what etas compare with."""
        numbers: dict[str, Any] = {"tokens_per_s": self.tokens / self.seconds if self.seconds else 0.0}
        if self.stats is not None:
            of_stats = self.stats.to_dict(plain)
            numbers["decode_tokens_per_s"] = of_stats.pop("tokens_per_s")
            numbers.update(of_stats)
        return {**numbers, "tokens": self.tokens, "seconds": self.seconds}


@dataclass
class Report:
    """Results by domain and method, and how the greedy texts compare."""

    domains: dict[str, dict[str, MethodResult]] = field(default_factory=dict)
    identical: int = 0
    answers: int = 0
    largest_gap: float = 0.0

    def add(self, domain: str, method: str, result: MethodResult) -> None:
        self.domains.setdefault(domain, {}).setdefault(method, MethodResult()).add(result)

    def compare(self, target: Target, prompts: Sequence[Sequence[int]], plain: Answers, dflash: Answers) -> None:
        """Counts answers of DFlash that equal plain decoding, and keeps the largest logit gap of those that do not."""
        for prompt, a, b in zip(prompts, plain, dflash, strict=True):
            difference = compare_greedy(target, prompt, a, b)
            self.answers += 1
            self.identical += difference is None
            if difference is not None:
                self.largest_gap = max(self.largest_gap, difference.gap)

    def totals(self) -> dict[str, MethodResult]:
        totals: dict[str, MethodResult] = {}
        for methods in self.domains.values():
            for method, result in methods.items():
                totals.setdefault(method, MethodResult()).add(result)
        return totals

    def to_dict(self) -> dict[str, Any]:
        total = _numbers(self.totals())
        dflash = total.get("dflash", total["autoregressive"])
        return {
            "tau": dflash["tau"],
            "eta": dflash.get("eta", 1.0),
            "tokens_per_s": {method: numbers["tokens_per_s"] for method, numbers in total.items()},
            "methods": total,
            "domains": {domain: _numbers(methods) for domain, methods in self.domains.items()},
            "greedy": {"answers": self.answers, "identical": self.identical, "largest_gap": self.largest_gap},
        }


def _numbers(methods: dict[str, MethodResult]) -> dict[str, dict[str, Any]]:
    plain = methods["autoregressive"].stats
    return {method: result.to_dict(None if method == "autoregressive" else plain) for method, result in methods.items()}


class HuggingFaceGenerate:
    """transformers' own greedy `generate` on its default attention, prompts padded on the left."""

    def __init__(self, name: str, target: Target) -> None:
        source = resolve_target(name)
        named: dict[str, Any] = {"gguf_file": source.gguf_file} if source.gguf_file else {"use_safetensors": True}
        self._model = AutoModelForCausalLM.from_pretrained(
            source.path, dtype=target.dtype, local_files_only=source.is_local, **named
        ).eval()
        self._stops = list(target.eos_token_ids)

    @torch.no_grad()
    def __call__(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> Answers:
        longest = max(map(len, prompts))
        padding = self._stops[0] if self._stops else 0
        ids = torch.tensor([[padding] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        output = self._model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=max_new_tokens,
            do_sample=False,
            pad_token_id=padding,
            eos_token_id=self._stops or None,
        )
        return [self._until_stop(row) for row in output[:, longest:].tolist()]

    def _until_stop(self, tokens: list[int]) -> tuple[int, ...]:
        stops = [place for place, token in enumerate(tokens) if token in self._stops]
        return tuple(tokens[: stops[0] + 1] if stops else tokens)


def _ours(generations: Generations) -> tuple[Answers, DecodeStats]:
    return [generation.token_ids for generation in generations], generations.stats


def measure(
    decoder: DFlashDecoder,
    hugging_face: HuggingFaceGenerate | None,
    prompts: dict[str, list[list[int]]],
    max_new_tokens: int,
    block_size: int | None = None,
) -> Report:
    """Runs all methods on all prompts, by domain, `decoder.max_batch` at a time."""
    methods: dict[str, Method] = {
        "autoregressive": lambda batch, new: _ours(decoder.generate_autoregressive(batch, max_new_tokens=new))
    }
    if hugging_face is not None:
        methods["transformers"] = lambda batch, new: (hugging_face(batch, new), None)
    if decoder.drafter is not None:
        methods["dflash"] = lambda batch, new: _ours(decoder.generate(batch, max_new_tokens=new, block_size=block_size))
    size = decoder.max_batch
    first = next(iter(prompts.values()))[:size]
    for run in methods.values():  # warm-up
        run(first, 8)
    report = Report()
    with tqdm(total=sum(map(len, prompts.values())), desc="prompts") as bar:
        for domain, domain_ids in prompts.items():
            for start in range(0, len(domain_ids), size):
                batch = domain_ids[start : start + size]
                answers = {}
                for method, run in methods.items():
                    began = time.perf_counter()
                    answers[method], stats = run(batch, max_new_tokens)
                    seconds = time.perf_counter() - began
                    report.add(domain, method, MethodResult(sum(map(len, answers[method])), seconds, stats))
                if "dflash" in answers:
                    report.compare(decoder.target, batch, answers["autoregressive"], answers["dflash"])
                bar.update(len(batch))
    return report


def _print_table(title: str, methods: dict[str, dict[str, Any]]) -> None:
    print(f"\n{title}")
    print(f"  {'method':<16}{'tokens/s':>9}{'tau':>7}{'T_draft':>10}{'T_verify':>10}{'eta':>7}{'predicted':>11}")
    for method, numbers in methods.items():
        cells = f"  {method:<16}{numbers['tokens_per_s']:>9.1f}"
        if "tau" in numbers:
            cells += f"{numbers['tau']:>7.2f}{1e3 * numbers['t_draft']:>7.1f} ms{1e3 * numbers['t_verify']:>7.1f} ms"
        if "eta" in numbers:
            cells += f"{numbers['eta']:>7.2f}{numbers['eta_predicted']:>11.2f}"
        print(cells)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Decoding: plain autoregressive, Hugging Face generate, and DFlash.")
    parser.add_argument("--json", type=Path, help="file for the result")
    parser.add_argument("--prompts", type=int, default=8, help="prompts per domain (default 8)")
    parser.add_argument("--domains", nargs="+", choices=DOMAINS, default=list(DOMAINS))
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, default=1, help="prompts decoded at once (default 1)")
    parser.add_argument("--block-size", type=int, help="rows per draft block (default: as trained)")
    parser.add_argument("--target", default=DEFAULT_MODEL)
    parser.add_argument("--drafter", help="'smollm2', a local folder, a hub id, or 'none' (default: the bundled one)")
    parser.add_argument(
        "--dtype", choices=DTYPES, help="default: bfloat16 where the processor multiplies it, else float32"
    )
    parser.add_argument("--no-transformers", action="store_true", help="leave Hugging Face's generate out")
    options = parser.parse_args(arguments)

    dtype = options.dtype or ("bfloat16" if dflash_ops.cpu_isa() == "avx512_bf16" else "float32")
    target, drafter = load_models(options.target, options.drafter, DTYPES[dtype])
    prompts = {
        domain: [encode_prompt(target, prompt) for prompt in domain_prompts(domain, options.prompts)]
        for domain in options.domains
    }
    hugging_face = None if options.no_transformers else HuggingFaceGenerate(options.target, target)
    decoder = DFlashDecoder(target, drafter, max_batch=options.batch)
    report = measure(decoder, hugging_face, prompts, options.max_new_tokens, options.block_size)
    numbers = {
        "target": options.target,
        "drafter": options.drafter or options.target,
        "dtype": dtype,
        "batch": options.batch,
        "prompts_per_domain": options.prompts,
        "max_new_tokens": options.max_new_tokens,
        "threads": torch.get_num_threads(),
        "cpu_isa": dflash_ops.cpu_isa(),
        "torch": torch.__version__,
        **report.to_dict(),
    }
    for domain, methods in numbers["domains"].items():
        _print_table(domain, methods)
    _print_table("all", numbers["methods"])
    greedy = numbers["greedy"]
    print(
        f"\n{greedy['identical']} of {greedy['answers']} answers of DFlash are plain decoding's, token for token; "
        f"largest logit gap where they part: {greedy['largest_gap']:.2g}"
    )
    if options.json is not None:
        options.json.write_text(json.dumps(numbers, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
