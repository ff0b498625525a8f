"""How a draft's errors grow with its length: a serial chain beside a block drafter, on the target's own held-out texts.

    python benchmarks/error_accumulation.py --drafter block=FOLDER --drafter chain=FOLDER

From many places of each text every drafter drafts one block. What it says there at place i is compared with what the
same drafter says at place 1 of a block that begins i - 1 tokens later, where it knows all that lies before: both the
hidden state that the head reads (relative distance) and the token (right or not, whatever came before it). A chain is
run a second time with the text's own tokens put in place of its drafts, which leaves the error of its features alone.
`docs/what-is-dflash.md` says what this is about.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from dflash_decoding import PagePool, Target
from dflash_decoding.baselines.autoregressive_drafter import AutoregressiveDrafter
from dflash_decoding.baselines.kinds import load_drafter
from dflash_decoding.drafter import DFlashDrafter
from dflash_decoding.training.data import load_chats, split_chats
from torch import Tensor

PAGE_SIZE = 16


class Recorder:
    """Notes what the drafter's head reads and says in one draft; may answer with the text's tokens instead."""

    def __init__(self, drafter: DFlashDrafter) -> None:
        self._argmax = drafter._head_argmax
        drafter._head_argmax = self  # type: ignore[method-assign, assignment]
        self.begin(None)

    def begin(self, text: Tensor | None) -> None:
        """Starts a draft; `text`: tokens [n] to answer with, None: the drafter's own."""
        self.hidden: list[Tensor] = []
        self.tokens: list[Tensor] = []
        self._text = text

    def __call__(self, rows: Tensor) -> Tensor:
        ids = self._argmax(rows)
        begin = sum(map(len, self.tokens))
        self.hidden.append(rows.float().clone())
        self.tokens.append(ids.clone())
        return ids if self._text is None else self._text[begin : begin + len(ids)]


def drafts_of_text(
    drafter: DFlashDrafter, recorder: Recorder, target: Target, text: np.ndarray, first: int, forced: bool
) -> tuple[Tensor, Tensor]:
    """Drafts at every place of a text from `first` on that has a whole block before the text's end.

    Places are visited from the last to the first: a chain writes behind its place, which no earlier place reads.

    Returns:
        hidden float32 [places, n, H], tokens int64 [places, n] for blocks of n drafts.
    """
    tokens = torch.from_numpy(text.astype(np.int64))
    length, block = len(tokens), drafter.block_size
    pages = -(-(length + block) // PAGE_SIZE)
    pool = PagePool(pages, PAGE_SIZE, 1, pages)
    pool.allocate(0, length + block)
    positions = torch.arange(length)
    slots = pool.slot_mapping(0, 0, length)
    output = target.forward(
        tokens,
        positions,
        slots,
        target.new_cache(pool),
        pool.page_table,
        torch.zeros(1, dtype=torch.int32),
        tap_layers=drafter.tap_layers,
        logit_rows=None,
    )
    cache = drafter.new_cache(pool)
    drafter.inject(output.taps, positions, slots, cache)
    hidden, drafted = [], []
    for place in range(length - block, first - 1, -1):
        ids = torch.full((1, block), drafter.mask_token_id)
        ids[0, 0] = tokens[place]
        recorder.begin(tokens[place + 1 :] if forced else None)
        where = torch.arange(place, place + block)[None]
        drafter.draft(ids, where, cache, pool.page_table, torch.tensor([place], dtype=torch.int32))
        hidden.append(torch.cat(recorder.hidden))
        drafted.append(torch.cat(recorder.tokens))
    return torch.stack(hidden[::-1]), torch.stack(drafted[::-1])


def measure(drafter: DFlashDrafter, target: Target, texts: Sequence[tuple[np.ndarray, int]], forced: bool) -> Any:
    """Of each place of a block: median distance to the restarted drafter, share of right tokens, and of it restarted.

    The share counts a token as right by itself, not only where all before it were.
    """
    recorder = Recorder(drafter)
    distances: list[list[float]] = [[] for _ in range(drafter.num_draft_tokens)]
    right: list[list[float]] = [[] for _ in distances]
    for text, first in texts:
        hidden, tokens = drafts_of_text(drafter, recorder, target, text, first, forced)
        truth = torch.from_numpy(text.astype(np.int64))[first + 1 :]
        places = len(tokens) - len(distances)
        for i in range(len(distances)):
            restarted = hidden[i : i + places, 0]
            difference = (hidden[:places, i] - restarted).norm(dim=1) / restarted.norm(dim=1)
            distances[i] += difference.tolist()
            right[i] += (tokens[:places, i] == truth[i : i + places]).float().tolist()
    return {
        "distance": [float(np.median(values)) for values in distances],
        "right": [float(np.mean(values)) for values in right],
        "places": len(distances[0]),
    }


def table(results: dict[str, Any]) -> str:
    """The result as Markdown."""
    places = range(1, 1 + len(next(iter(results.values()))["distance"]))
    lines = ["| | " + " | ".join(f"place {i}" for i in places) + " |", "|---|" + "---|" * len(places)]
    for name, result in results.items():
        for what, form in (("distance", ".2f"), ("right", ".0%")):
            lines.append(f"| {name}, {what} | " + " | ".join(format(x, form) for x in result[what]) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafter", action="append", required=True, metavar="NAME=FOLDER")
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--chats", type=Path, default=Path("training_data") / "smollm2_chats.npz")
    parser.add_argument("--texts", type=int, default=8, help="held-out texts (default 8)")
    parser.add_argument("--tokens", type=int, default=96, help="most tokens of a text's answer (default 96)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    target = Target.from_pretrained(options.target)
    chats = load_chats(options.chats, target.vocab_size)
    _, held_out = split_chats(chats, 64 if len(chats) > 64 else options.texts, 0)
    texts = []
    for index in held_out[: options.texts]:
        prompt = int(chats.prompt_lens[index])
        texts.append((chats.chat(index)[: prompt + options.tokens], prompt))
    results = {}
    for named in options.drafter:
        name, _, folder = named.partition("=")
        for forced in (False, True):
            drafter = cast(DFlashDrafter, load_drafter(folder, target, target.dtype))
            chain = isinstance(drafter, AutoregressiveDrafter)
            if forced and not chain:
                continue  # a block drafter is never told its own tokens
            kind = f"{name}, given the text's tokens" if forced else name
            results[kind] = measure(drafter, target, texts, forced)
    print(table(results))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
