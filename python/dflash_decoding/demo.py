"""`make demo`: SmolLM2 answers by DFlash, then the same answer by plain decoding, side by side."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch

from .cli import load_models
from .decoder import DFlashDecoder
from .exactness import compare_greedy
from .models import DEFAULT_MODEL
from .request import Generation
from .speedup import Speedup
from .stats import DecodeStats
from .target import Target
from .text import encode_prompt

PROMPT = "Explain what a rainbow is and how it forms, in a few sentences."
NEW_TOKENS = 128


def main(arguments: Sequence[str] | None = None) -> int:
    """Streams, compares and prints; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m dflash_decoding.demo", description=__doc__)
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--max-new-tokens", type=int, default=NEW_TOKENS)
    parser.add_argument("--drafter", default=DEFAULT_MODEL, help="'smollm2' (bundled, default), a folder or a hub id")
    options = parser.parse_args(arguments)
    print("Loading SmolLM2-135M-Instruct and its drafter (the first time converts the model, some 10 seconds) ...")
    try:
        # float32: here greedy texts must be identical, and a difference would be a mistake or a tie to be shown.
        target, drafter = load_models(DEFAULT_MODEL, options.drafter, torch.float32)
    except (ValueError, OSError) as error:
        print(f"demo: error: {error}", file=sys.stderr)
        return 2
    decoder = DFlashDecoder(target, drafter, max_batch=1)
    prompt = encode_prompt(target, options.prompt)
    # One short answer each first, so that what is timed pays for no first call.
    decoder.generate([prompt], max_new_tokens=8)
    decoder.generate_autoregressive([prompt], max_new_tokens=8)

    print(f"\nuser: {options.prompt}\nSmolLM2 by DFlash: ", end="", flush=True)
    drafted: Generation | None = None
    for event in decoder.stream(prompt, max_new_tokens=options.max_new_tokens):
        print(event.text, end="", flush=True)
        drafted = event.generation or drafted
    assert drafted is not None
    print("\n\nThe same prompt by plain autoregressive decoding ...", flush=True)
    plain = decoder.generate_autoregressive([prompt], max_new_tokens=options.max_new_tokens)[0]
    print("\n" + comparison_table(plain.stats, drafted.stats))
    print("\n" + verdict(target, plain, drafted))
    return 0


def comparison_table(plain: DecodeStats, drafted: DecodeStats) -> str:
    """Both ways of decoding, one line each; times are per round."""
    head = f"{'float32, greedy':<18} {'tokens/s':>9} {'tau':>6} {'T_draft':>10} {'T_verify':>10} {'eta':>6}"
    speedup = Speedup.of(drafted, plain)
    lines = [head, "-" * len(head)]
    for name, stats, eta in (("autoregressive", plain, 1.0), ("DFlash", drafted, speedup.measured)):
        draft = f"{1e3 * stats.t_draft:.2f} ms" if stats.draft_seconds else "-"
        verify = f"{1e3 * stats.t_verify:.2f} ms"
        lines.append(f"{name:<18} {stats.tokens_per_s:>9.1f} {stats.tau:>6.2f} {draft:>10} {verify:>10} {eta:>6.2f}")
    histogram = ", ".join(f"{count} x {accepted}" for accepted, count in enumerate(drafted.acceptance) if count)
    lines.append(f"\nrounds x accepted drafts: {histogram or 'none'}")
    lines.append(f"eta by T_ar * E[tau] / (T_draft + T_verify): {speedup.predicted:.2f}")
    return "\n".join(lines)


def verdict(target: Target, plain: Generation, drafted: Generation) -> str:
    """Whether the texts are identical; if not, how close to a tie the target was where they part."""
    difference = compare_greedy(target, plain.prompt, plain.token_ids, drafted.token_ids)
    if difference is None:
        return f"Both texts are identical, all {len(plain.token_ids)} tokens."
    return (
        f"The texts part at token {difference.index} (plain {difference.token_a}, DFlash {difference.token_b}): "
        f"the target's logits there are {difference.gap:.2e} apart, of a largest logit of {difference.top_logit:.2f}. "
        "A gap within float32 rounding is a tie; a larger one would be a mistake."
    )


if __name__ == "__main__":
    sys.exit(main())
