"""`python -m dflash_decoding make-data`: options and the run."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from tqdm import tqdm

from dflash_decoding.decoder import DFlashDecoder
from dflash_decoding.models import DEFAULT_MODEL
from dflash_decoding.target import Target
from dflash_decoding.text import encode_prompt

from .answers import generate_chats, journal_path, read_prompts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "--prompts",
        required=True,
        type=Path,
        metavar="FILE",
        help="UTF-8; .jsonl: objects with 'prompt', any other: one prompt per line",
    )
    parser.add_argument(
        "--output",
        required=True,
        type=Path,
        metavar="FILE.npz",
        help="chats to train on. After a kill, the same command goes on with the answers it had finished",
    )
    parser.add_argument("--target", default=DEFAULT_MODEL, help="'smollm2' (default), a local folder or a hub id")
    parser.add_argument("--raw", action="store_true", help="continue the prompts themselves, without the chat template")
    parser.add_argument("--max-new-tokens", type=int, default=240, metavar="N", help="per answer (default 240)")
    parser.add_argument("--max-prompt-tokens", type=int, metavar="N", help="leave out longer prompts")
    parser.add_argument("--batch", type=int, default=16, metavar="N", help="answers in work at a time (default 16)")
    parser.add_argument("--overwrite", action="store_true", help="replace an output file that exists")


def run(arguments: argparse.Namespace, dtype: torch.dtype) -> int:
    """Answers the prompts as the options say.

    Raises:
        ValueError, OSError: an option, a file or the target is not usable.
    """
    output: Path = arguments.output
    if output.suffix != ".npz":
        raise ValueError(f"--output: expected a name that ends in .npz, got {output}")
    if output.exists() and not arguments.overwrite and not journal_path(output).exists():
        raise ValueError(f"--output: expected no such file yet (or --overwrite), got {output}")
    texts = read_prompts(arguments.prompts)
    target = Target.from_pretrained(arguments.target, dtype)
    prompts = [encode_prompt(target, text, raw=arguments.raw) for text in texts]
    positions = getattr(target.config, "max_position_embeddings", None)
    limits = [arguments.max_prompt_tokens, None if positions is None else positions - arguments.max_new_tokens]
    longest = min((limit for limit in limits if limit is not None), default=None)
    if longest is not None:
        kept = [prompt for prompt in prompts if len(prompt) <= longest]
        if not kept:
            raise ValueError(f"--prompts: expected one of at most {longest} tokens, got none in {arguments.prompts}")
        if len(kept) < len(prompts):
            print(f"left out {len(prompts) - len(kept)} prompts of more than {longest} tokens")
        prompts = kept
    decoder = DFlashDecoder(target, max_batch=arguments.batch)
    tokens, began = 0, time.perf_counter()
    with tqdm(total=len(prompts), unit="answer") as bar:

        def show(new_tokens: int) -> None:
            nonlocal tokens
            tokens += new_tokens
            bar.update()
            bar.set_postfix(tokens=tokens, rate=f"{tokens / (time.perf_counter() - began):.1f} tokens/s")

        generate_chats(
            decoder,
            prompts,
            output,
            target_name=str(arguments.target),
            max_new_tokens=arguments.max_new_tokens,
            on_answer=show,
        )
    print(f"chats: {output} ({len(prompts)} chats, {tokens} answer tokens in this run)")
    return 0
