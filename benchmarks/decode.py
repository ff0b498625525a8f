"""Decoding on the same prompts in one run: plain autoregressive, Hugging Face `generate`, DFlash and other drafters.

    python benchmarks/decode.py --json FILE [--drafter NAME=FOLDER ...] [--batch 1 4 8] [--prompts N]
        [--max-new-tokens N] [--dtype float32] [--denoising-steps 2 3]

The methods take turns on every batch of prompts, so that a drifting machine hits all of them alike. Tokens per second
count the whole answer, prefill included; eta compares the decoding alone (see `dflash_decoding.speedup`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from dflash_decoding import DecodeStats, DFlashDecoder, DFlashDrafter, Drafter, Generations, Target
from dflash_decoding.baselines.denoising_drafter import DenoisingDrafter
from dflash_decoding.baselines.kinds import DFLASH, load_drafter
from dflash_decoding.baselines.storage import read_model_type
from dflash_decoding.cli import DTYPES, NO_DRAFTER, encode_prompt
from dflash_decoding.models import DEFAULT_MODEL, resolve_drafter, resolve_target
from dflash_decoding.training.command import DEFAULT_CHATS
from tqdm import tqdm
from transformers import AutoModelForCausalLM

# As a script, this file sees its own folder only; what it shares with the tests lies in the checkout's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dflash_ops
from benchmarks.decode_report import PLAIN, Answers, GreedyCheck, MethodResult, Report, print_acceptance, print_table
from benchmarks.prompts import DOMAINS, HELD_OUT, domain_prompts, held_out_prompts

DEFAULT_DOMAINS = ("humaneval", "mtbench", HELD_OUT)
TRANSFORMERS = "transformers"
Method = Callable[[Sequence[Sequence[int]], int], tuple[Answers, DecodeStats | None]]
Drafters = dict[str, Drafter]


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
    def __call__(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> tuple[Answers, None]:
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
        return [self._until_stop(row) for row in output[:, longest:].tolist()], None

    def _until_stop(self, tokens: list[int]) -> tuple[int, ...]:
        stops = [place for place, token in enumerate(tokens) if token in self._stops]
        return tuple(tokens[: stops[0] + 1] if stops else tokens)


def _generate(
    decoder: DFlashDecoder, block_size: int | None, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> tuple[Answers, DecodeStats]:
    generations: Generations
    if decoder.drafter is None:
        generations = decoder.generate_autoregressive(prompts, max_new_tokens=max_new_tokens)
    else:
        generations = decoder.generate(prompts, max_new_tokens=max_new_tokens, block_size=block_size)
    return [generation.token_ids for generation in generations], generations.stats


def measure(
    target: Target,
    drafters: Drafters,
    hugging_face: HuggingFaceGenerate | None,
    prompts: dict[str, list[list[int]]],
    max_new_tokens: int,
    *,
    batch: int = 1,
    block_size: int | None = None,
) -> Report:
    """Runs all methods on all prompts, by domain, `batch` at a time."""
    methods: dict[str, Method] = {PLAIN: partial(_generate, DFlashDecoder(target, max_batch=batch), None)}
    if hugging_face is not None:
        methods[TRANSFORMERS] = hugging_face
    for name, drafter in drafters.items():
        methods[name] = partial(_generate, DFlashDecoder(target, drafter, max_batch=batch), block_size)
    first = next(iter(prompts.values()))[:batch]
    for run in methods.values():  # warm-up
        run(first, 8)
    report = Report(batch, greedy={name: GreedyCheck() for name in drafters})
    with tqdm(total=sum(map(len, prompts.values())), desc=f"prompts, batch {batch}") as bar:
        for domain, domain_ids in prompts.items():
            for start in range(0, len(domain_ids), batch):
                chunk = domain_ids[start : start + batch]
                answers = {}
                for method, run in methods.items():
                    began = time.perf_counter()
                    answers[method], stats = run(chunk, max_new_tokens)
                    seconds = time.perf_counter() - began
                    report.add(domain, method, MethodResult(sum(map(len, answers[method])), seconds, stats))
                for name in drafters:
                    report.greedy[name].add(target, chunk, answers[PLAIN], answers[name])
                bar.update(len(chunk))
    return report


def sweep_block_sizes(
    target: Target, drafters: Drafters, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> list[dict[str, Any]]:
    """Every drafter at every block size up to the one it was trained with, one request at a time.

    Returns:
        for each: "method", "gamma" (tokens drafted per round), "t_draft" and "t_verify" in seconds, "tau".
    """
    results = []
    for name, drafter in drafters.items():
        decoder = DFlashDecoder(target, drafter, max_batch=1)
        undrafted = drafter.block_size - drafter.num_draft_tokens
        for block_size in tqdm(range(undrafted + 1, drafter.block_size + 1), desc=f"block sizes of {name}"):
            _generate(decoder, block_size, prompts[:1], 8)  # warm-up
            _, stats = _generate(decoder, block_size, prompts, max_new_tokens)
            numbers = {"t_draft": stats.t_draft, "t_verify": stats.t_verify, "tau": stats.tau}
            results.append({"method": name, "gamma": block_size - undrafted, **numbers})
    return results


def read_drafters(
    named: Sequence[str], target_name: str, target: Target, dtype: torch.dtype, denoising_steps: Sequence[int]
) -> Drafters:
    """Drafters by method name, from NAME=FOLDER or FOLDER; each DFlash drafter again for every number of steps.

    Raises:
        ValueError: two drafters of one name, or none given and none bundled for this target.
        OSError, ValueError: as `load_drafter`.
    """
    if not named and target_name != DEFAULT_MODEL:
        raise ValueError(f"--drafter: expected a drafter for this target, or '{NO_DRAFTER}', got none")
    drafters: Drafters = {}
    for text in named or [f"{DFLASH}={DEFAULT_MODEL}"]:
        if text == NO_DRAFTER:
            continue
        name, folder = text.split("=", 1) if "=" in text else (DFLASH, text)
        if name in (*drafters, PLAIN, TRANSFORMERS):
            raise ValueError(f"--drafter: expected a name of its own for each method, got {name} twice")
        path = resolve_drafter(folder).path
        drafters[name] = drafter = load_drafter(path, target, dtype)
        if isinstance(drafter, DFlashDrafter) and read_model_type(path) is None:
            for steps in denoising_steps:
                drafters[f"{name}_{steps}_steps"] = DenoisingDrafter(drafter, steps)
    return drafters


def read_prompts(target: Target, options: argparse.Namespace) -> dict[str, list[list[int]]]:
    """Token ids of the prompts of each domain asked for."""
    prompts = {}
    for domain in options.domains:
        if domain == HELD_OUT:
            prompts[domain] = held_out_prompts(
                options.chats, target.vocab_size, options.held_out, options.split_seed, options.prompts
            )
        else:
            prompts[domain] = [encode_prompt(target, prompt) for prompt in domain_prompts(domain, options.prompts)]
    return prompts


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Decoding: plain, Hugging Face generate, DFlash and other drafters.")
    parser.add_argument("--json", type=Path, help="file for the result")
    parser.add_argument("--prompts", type=int, default=8, help="prompts per domain (default 8)")
    parser.add_argument("--domains", nargs="+", choices=DOMAINS, default=list(DEFAULT_DOMAINS))
    parser.add_argument("--chats", type=Path, default=DEFAULT_CHATS, help=f"for {HELD_OUT} (default {DEFAULT_CHATS})")
    parser.add_argument("--held-out", type=int, default=64, help="--held-out of the training (default 64)")
    parser.add_argument("--split-seed", type=int, default=0, help="--seed of the training (default 0)")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument(
        "--batch", type=int, nargs="+", default=[1], help="prompts decoded at once, each number in turn (default 1)"
    )
    parser.add_argument("--block-size", type=int, help="rows per draft block (default: as trained)")
    parser.add_argument("--target", default=DEFAULT_MODEL)
    parser.add_argument(
        "--drafter",
        action="append",
        default=[],
        metavar="[NAME=]FOLDER",
        help="'smollm2', a folder or a hub id, under a name (default dflash) for the tables; repeatable; 'none' for "
        "plain decoding alone (default: the bundled one)",
    )
    parser.add_argument(
        "--denoising-steps", type=int, nargs="+", default=[], metavar="N", help="run DFlash with N forwards a block too"
    )
    parser.add_argument(
        "--sweep-prompts", type=int, default=0, metavar="N", help="also run N prompts at every block size (default 0)"
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, help="default: bfloat16 where the processor multiplies it, else float32"
    )
    parser.add_argument(
        "--row-invariant",
        action=argparse.BooleanOptionalAction,
        help="the target's few-row products on FewRowLinear (default: in float32)",
    )
    parser.add_argument("--no-transformers", action="store_true", help="leave Hugging Face's generate out")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    dtype = options.dtype or ("bfloat16" if dflash_ops.cpu_isa() == "avx512_bf16" else "float32")
    target = Target.from_pretrained(options.target, DTYPES[dtype], row_invariant=options.row_invariant)
    drafters = read_drafters(options.drafter, options.target, target, DTYPES[dtype], options.denoising_steps)
    prompts = read_prompts(target, options)
    hugging_face = None if options.no_transformers else HuggingFaceGenerate(options.target, target)
    runs = []
    for batch in options.batch:
        report = measure(
            target,
            drafters,
            hugging_face,
            prompts,
            options.max_new_tokens,
            batch=batch,
            block_size=options.block_size,
        ).to_dict()
        runs.append(report)
        for domain, methods in report["domains"].items():
            print_table(f"{domain}, batch {batch}", methods)
        print_table(f"all, batch {batch}", report["methods"])
        print_acceptance(report["methods"])
        for name, check in report["greedy"].items():
            print(
                f"{name}: {check['identical']} of {check['answers']} answers are plain decoding's, token for token; "
                f"largest logit gap where they part: {check['largest_gap']:.2g}"
            )
    swept = next(iter(prompts.values()))[: options.sweep_prompts]
    sweep = sweep_block_sizes(target, drafters, swept, options.max_new_tokens) if swept else []
    main_method = next(iter(drafters), PLAIN)
    main_numbers = runs[0]["methods"][main_method]
    numbers = {
        "target": options.target,
        "drafters": options.drafter or [options.target],
        "method": main_method,
        **{name: main_numbers.get(name, 1.0) for name in ("tau", "eta", "tokens_per_s")},
        "dtype": dtype,
        "row_invariant": options.row_invariant,
        "prompts": {domain: len(ids) for domain, ids in prompts.items()},
        "max_new_tokens": options.max_new_tokens,
        "threads": torch.get_num_threads(),
        "cpu_isa": dflash_ops.cpu_isa(),
        "torch": torch.__version__,
        "runs": runs,
        "block_sizes": sweep,
    }
    if options.json is not None:
        options.json.write_text(json.dumps(numbers, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
