"""Stand-alone block diffusion: quality and speed against the number of denoising steps per block.

    python benchmarks/block_diffusion.py --model FOLDER --json FILE [--steps 1 2 4 8] [--chats N] [--max-new-tokens N]

On the chats a training with the same file, `--held-out` and seed 0 has held out:

- agreement: share of answer tokens found again, each block over the chat's own earlier blocks;
- nll: negative log-likelihood per token of freely generated answers under the target, in nats;
- repetition: share of 4-grams of those answers that the answer already had;
- tokens/s of that generation, prompts included, and tokens per forward of one request.

The last line is the chats' own answers: what the target says, one token a forward.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from dflash_decoding import PagePool, Target
from dflash_decoding.block_diffusion import BlockDiffusionDecoder, BlockDiffusionModel
from dflash_decoding.block_diffusion.batches import whole_blocks
from dflash_decoding.cli import DTYPES
from dflash_decoding.models import DEFAULT_MODEL
from dflash_decoding.training.command import DEFAULT_CHATS
from dflash_decoding.training.data import Chats, load_chats, split_chats
from tqdm import tqdm

# As a script, this file sees its own folder only; the library lies in the checkout's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dflash_ops

PAGE_SIZE = 16


@dataclass(frozen=True)
class TextQuality:
    """Of some answers. `nll` in nats per token; `repetition` a share of 4-grams; `tokens` of all answers together."""

    nll: float
    repetition: float
    tokens: int


@dataclass(frozen=True)
class StepResult:
    """With one number of denoising steps per block."""

    steps: int
    agreement: float
    text: TextQuality
    tokens_per_s: float
    tokens_per_forward: float


def repetition(answer: Sequence[int], length: int = 4) -> tuple[int, int]:
    """How many n-grams of the answer have occurred before in it, and how many there are."""
    grams = [tuple(answer[at : at + length]) for at in range(len(answer) - length + 1)]
    return len(grams) - len(set(grams)), len(grams)


def negative_log_likelihood(target: Target, prompt: Sequence[int], answer: Sequence[int]) -> float:
    """-log P(answer | prompt) in nats, in one forward of the target."""
    text = torch.tensor([*prompt, *answer[:-1]])
    pages = -(-len(text) // PAGE_SIZE)
    pool = PagePool(pages, PAGE_SIZE, 1, pages)
    pool.allocate(0, len(text))
    output = target.forward(
        text,
        torch.arange(len(text)),
        pool.slot_mapping(0, 0, len(text)),
        target.new_cache(pool),
        pool.page_table,
        pool.context_lens,
        logit_rows=torch.arange(len(prompt) - 1, len(text)),
    )
    assert output.logits is not None
    losses = torch.nn.functional.cross_entropy(output.logits.float(), torch.tensor(answer), reduction="sum")
    return float(losses)


def text_quality(target: Target, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> TextQuality:
    """Over all tokens and 4-grams of the answers, none of them empty."""
    tokens = sum(map(len, answers))
    losses = sum(negative_log_likelihood(target, p, a) for p, a in zip(prompts, answers, strict=True))
    repeated, grams = map(sum, zip(*map(repetition, answers), strict=True))
    return TextQuality(losses / tokens, repeated / max(1, grams), tokens)


def agreement(decoder: BlockDiffusionDecoder, chats: Chats, indices: Sequence[int], steps: int) -> float:
    """Share of answer tokens that teacher-forced denoising finds."""
    right, count = 0, 0
    for index in indices:
        blocks, learnt = whole_blocks(chats, index, decoder.config)
        answer = torch.from_numpy(learnt.ravel())
        found = decoder.denoise_text(blocks.ravel().tolist(), ~answer, steps)
        right += int((found == torch.from_numpy(blocks.ravel()))[answer].sum())
        count += int(answer.sum())
    return right / max(1, count)


def measure(
    decoder: BlockDiffusionDecoder,
    target: Target,
    chats: Chats,
    indices: Sequence[int],
    steps: int,
    max_new_tokens: int,
) -> StepResult:
    """One line of the table."""
    prompts = [chats.chat(index)[: chats.prompt_lens[index]].tolist() for index in indices]
    began = time.perf_counter()
    generations = decoder.generate(prompts, max_new_tokens=max_new_tokens, steps=steps)
    seconds = time.perf_counter() - began
    answers = [generation.token_ids for generation in generations]
    tokens = sum(map(len, answers))
    return StepResult(
        steps=steps,
        agreement=agreement(decoder, chats, indices, steps),
        text=text_quality(target, prompts, answers),
        tokens_per_s=tokens / seconds,
        tokens_per_forward=tokens / sum(generation.forwards for generation in generations),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Block diffusion: quality and speed against denoising steps.")
    parser.add_argument("--model", type=Path, required=True, help="checkpoint folder")
    parser.add_argument("--json", type=Path, help="file for the result")
    parser.add_argument("--steps", type=int, nargs="+", help="default: powers of two up to the block size")
    parser.add_argument("--target", default=DEFAULT_MODEL)
    parser.add_argument("--chats-file", type=Path, default=DEFAULT_CHATS)
    parser.add_argument("--held-out", type=int, default=64, help="as in training (default 64)")
    parser.add_argument("--chats", type=int, default=32, help="how many of them to use (default 32)")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--batch", type=int, default=1, help="prompts decoded at once (default 1)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    options = parser.parse_args(arguments)

    target = Target.from_pretrained(options.target, DTYPES[options.dtype])
    model = BlockDiffusionModel.from_folder(options.model, target.embed_weight, target.lm_head_weight)
    decoder = BlockDiffusionDecoder(model, max_batch=options.batch)
    size = model.config.block_size
    chats = load_chats(options.chats_file, target.vocab_size)
    _, held_out = split_chats(chats, options.held_out, 0)
    indices = held_out[: options.chats]
    prompts = [chats.chat(index)[: chats.prompt_lens[index]].tolist() for index in indices]
    own = [chats.chat(index)[chats.prompt_lens[index] :][: options.max_new_tokens].tolist() for index in indices]
    decoder.generate(prompts[:1], max_new_tokens=size)  # warm-up
    steps = options.steps or [1 << power for power in range(size.bit_length()) if 1 << power <= size]
    results = [
        measure(decoder, target, chats, indices, count, options.max_new_tokens)
        for count in tqdm(steps, desc="steps per block")
    ]
    numbers: dict[str, Any] = {
        "model": model.config.to_dict(),
        "target": options.target,
        "dtype": options.dtype,
        "batch": options.batch,
        "chats": len(indices),
        "max_new_tokens": options.max_new_tokens,
        "threads": torch.get_num_threads(),
        "cpu_isa": dflash_ops.cpu_isa(),
        "results": [asdict(result) for result in results],
        "reference": asdict(text_quality(target, prompts, own)),
    }
    print("| steps per block | agreement | nll | repetition | tokens/forward | tokens/s |\n|---|---|---|---|---|---|")
    for result in results:
        text = result.text
        print(
            f"| {result.steps} | {result.agreement:.3f} | {text.nll:.2f} | {text.repetition:.3f} | "
            f"{result.tokens_per_forward:.2f} | {result.tokens_per_s:.1f} |"
        )
    reference = numbers["reference"]
    print(f"| the chats' own | 1 | {reference['nll']:.2f} | {reference['repetition']:.3f} | | |")
    if options.json is not None:
        options.json.write_text(json.dumps(numbers, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
