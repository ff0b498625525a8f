"""One rank of `test_tensor_parallel.py`: `python -m tests.decoding.tensor_parallel_process FOLDER RANK`.

Does everything in one start, since a process takes longer to import torch than to draft; what it found goes to a file.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from dflash_decoding import DFlashDecoder
from dflash_decoding.config import DraftConfig
from dflash_decoding.drafter import DFlashDrafter
from dflash_decoding.drafter_weights import BlockBuffers
from dflash_decoding.tensor_parallel import ShardedHead, TensorParallelDrafter, largest_of_ranks
from torch import Tensor

from tests.decoding.drafter_world import random_weights
from tests.decoding.tiny import tiny_drafter, tiny_target

RANKS = 3
PROMPTS = [[1, 2, 3], list(range(40, 70)), [9]]
# Three K/V heads and 50 columns: shares are uneven for two ranks, and for three in the MLP and the vocabulary of 260.
SHAPE: dict[str, Any] = {"num_attention_heads": 6, "num_key_value_heads": 3, "intermediate_size": 50}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": SHAPE,
    "bias": {**SHAPE, "attention_bias": True},
    "own vocabulary": {**SHAPE, "draft_vocab_size": 50, "sample_from_anchor": True},
}
# What the ranks of a vocabulary in three parts may find for five rows: ties of two and three, NaN, infinities.
VALUES = torch.tensor(
    [[1.0, 2.0, 2.0, torch.nan, -torch.inf], [1.0, 2.0, 3.0, 9.0, -torch.inf], [1.0, 1.0, 3.0, torch.nan, -torch.inf]]
)
IDS = torch.tensor([[3, 1, 4, 2, 0], [13, 11, 14, 12, 10], [2**52 + i for i in range(5)]])


def variant(name: str) -> tuple[DraftConfig, dict[str, Tensor], Any]:
    """A drafter's config and whole weights, and the target it belongs to."""
    target = tiny_target()
    changes = VARIANTS[name]
    config = tiny_drafter(target, **changes).config
    return config, random_weights(config, torch.Generator().manual_seed(5)), target


def answers(drafter: DFlashDrafter, target: Any) -> tuple[list[list[int]], list[list[int]]]:
    """Texts of all prompts, and every draft that was made on the way."""
    drafts: list[list[int]] = []
    draft = drafter.draft

    def recorded(*arguments: Any) -> Tensor:
        result = draft(*arguments)
        drafts.extend(result.tolist())
        return result

    drafter.draft = recorded  # type: ignore[method-assign]
    generations = DFlashDecoder(target, drafter).generate(PROMPTS, max_new_tokens=20)
    return [list(generation.token_ids) for generation in generations], drafts


class DisagreeingDrafter(TensorParallelDrafter):
    """One whose hidden states differ from rank to rank, as other roundings might make them."""

    def _add_projected(self, buffers: BlockBuffers) -> None:
        super()._add_projected(buffers)
        generator = torch.Generator().manual_seed(dist.get_rank())
        buffers.residual.add_(0.2 * torch.randn(buffers.residual.shape, generator=generator))


def found_by(group: dist.ProcessGroup | None) -> dict[str, Any]:
    """All that the test looks at, of a group that this rank is in."""
    found: dict[str, Any] = {}
    for kind in (TensorParallelDrafter, DisagreeingDrafter):
        for name in VARIANTS:
            config, weights, target = variant(name)
            drafter = kind(config, weights, target.embed_weight, target.lm_head_weight, group=group)
            found[f"{kind.__name__} {name}"] = answers(drafter, target)
    generator = torch.Generator().manual_seed(9)
    head = torch.randn(101, 32, generator=generator)
    head[60:64] = head[3:7]  # logits that tie between ranks
    hidden = torch.cat([torch.randn(20, 32, generator=generator), 10 * head[60:64]]).bfloat16()
    found["head"] = ShardedHead(head.bfloat16(), group).argmax(hidden).tolist()
    rank = dist.get_rank(group)
    found["largest"] = largest_of_ranks(VALUES[rank], IDS[rank], group).tolist()
    try:
        ShardedHead(head[: dist.get_world_size(group) - 1], group)
    except ValueError as error:
        found["refused"] = str(error)
    return found


def main(folder: Path, rank: int) -> None:
    """Runs a group of two ranks, then all three, and writes what they found."""
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=RANKS)
    pair = dist.new_group([0, 1])
    found = {2: found_by(pair) if rank < 2 else None, 3: found_by(None)}
    torch.save(found, folder / f"rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]))
