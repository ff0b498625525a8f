"""Acceptance over all places of an answer against the places where rounds start: `python benchmarks/round_starts.py`.

Held-out chats, teacher-forced: every place of the answer is an anchor, and rounds are simulated by going on from each
accepted length. Rounds start behind a token that the drafter missed, so they meet harder places than the average one.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from dflash_decoding.config import DraftConfig
from dflash_decoding.models import DEFAULT_MODEL, resolve_drafter
from dflash_decoding.target import Target
from dflash_decoding.training.command import DEFAULT_CHATS
from dflash_decoding.training.data import Chats, load_chats, make_batch, possible_anchors, split_chats
from dflash_decoding.training.model import TrainableDrafter, block_shape
from dflash_decoding.training.taps import target_taps
from dflash_decoding.training.warm_start import copy_drafter

import dflash_ops


@torch.no_grad()
def accepted_lengths(model: TrainableDrafter, target: Target, chats: Chats, index: int) -> list[int]:
    """Drafts accepted by a round that starts at each place of the chat's answer."""
    batch = make_batch(chats, [index], [possible_anchors(chats, index)], block_shape(model.config))
    taps = target_taps(target, model.config.target_layer_ids)([chats.chat(index)])[0]
    hidden = model(taps, batch)[:, -batch.targets.shape[1] :]
    drafts = dflash_ops.lm_head_argmax(hidden.flatten(0, 1), target.lm_head_weight)[0].view_as(batch.targets)
    hits = (drafts == batch.targets) & batch.valid
    return [int(length) for length in hits.long().cumprod(dim=1).sum(dim=1)]


def simulated_rounds(accepted: Sequence[int], limit: int | None = None) -> tuple[int, int]:
    """(tokens, rounds) of decoding up to `limit` tokens: each round commits its accepted drafts and one token more."""
    end = len(accepted) if limit is None else min(limit, len(accepted))
    place = rounds = 0
    while place < end:
        place += accepted[place] + 1
        rounds += 1
    return place, rounds


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="tau over all places against tau over simulated rounds.")
    parser.add_argument("--target", default=DEFAULT_MODEL)
    parser.add_argument("--drafter", default=DEFAULT_MODEL)
    parser.add_argument("--chats-file", type=Path, default=DEFAULT_CHATS)
    parser.add_argument("--chats", type=int, default=16, help="held-out chats to use (default 16)")
    options = parser.parse_args(arguments)
    target = Target.from_pretrained(options.target, torch.bfloat16)
    folder = resolve_drafter(options.drafter).path
    config = DraftConfig.from_pretrained(folder)
    chats = load_chats(options.chats_file, target.vocab_size)
    _, held_out = split_chats(chats, 64, 0)
    longest = max(chats.length(index) for index in held_out) + config.block_size
    model = TrainableDrafter(config, target.embed_weight, max_positions=longest, autocast=True)
    copy_drafter(model, folder)
    answers = [accepted_lengths(model, target, chats, index) for index in held_out[:: max(1, 64 // options.chats)]]
    places = sum(map(len, answers))
    print(f"{len(answers)} chats, {places} places: tau {1 + sum(map(sum, answers)) / places:.3f} over all places")
    for name, limit in (("first 64 tokens", 64), ("whole answers", None)):
        tokens, rounds = (sum(counts) for counts in zip(*(simulated_rounds(a, limit) for a in answers), strict=True))
        print(f"rounds over {name}: {tokens} tokens in {rounds} rounds, tau {tokens / rounds:.3f}")


if __name__ == "__main__":
    main()
