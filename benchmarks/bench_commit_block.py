"""commit_block against the same in torch's indexing ops; both are bound by the cost of calling ops."""

from collections.abc import Iterator

import torch

import dflash_ops
from benchmarks.compare import Comparison, Maker
from tests.cases.commit_block import least_traffic

BATCH, BLOCK, CAPACITY = 8, 16, 512


def comparisons() -> Iterator[Maker]:
    yield comparison


def comparison() -> Comparison:
    tokens = torch.arange(BATCH * BLOCK).view(BATCH, BLOCK)
    accepted = torch.arange(BATCH, dtype=torch.int32)
    slots = torch.arange(BATCH * BLOCK).view(BATCH, BLOCK)
    stops = torch.tensor([100_000, 100_001])
    limits = torch.full((BATCH,), CAPACITY, dtype=torch.int32)
    state = {
        "context_lens": torch.zeros(BATCH, dtype=torch.int32),
        "next_token": torch.zeros(BATCH, dtype=torch.int64),
        "output_ids": torch.zeros(BATCH, CAPACITY, dtype=torch.int64),
        "output_lens": torch.zeros(BATCH, dtype=torch.int32),
        "finished": torch.zeros(BATCH, dtype=torch.bool),
    }
    committed = torch.empty(BATCH, dtype=torch.int32)
    context_slots = torch.empty_like(slots)
    steps = torch.arange(BLOCK)

    def ours() -> object:
        state["output_lens"].zero_()
        return dflash_ops.commit_block(
            tokens,
            accepted,
            slots,
            stop_token_ids=stops,
            max_output_lens=limits,
            committed=committed,
            context_slots=context_slots,
            **state,
        )

    def plain() -> object:
        lens = state["output_lens"]
        lens.zero_()
        active = ~state["finished"] & (tokens[:, 0] >= 0)
        room = limits.clamp(max=CAPACITY) - lens
        count = torch.minimum(accepted + 1, room)
        stop = torch.isin(tokens, stops) & (steps < count[:, None])
        stopped = stop.any(1)
        count = torch.where(stopped, stop.int().argmax(1).int() + 1, count).where(active, 0)
        taken = steps < count[:, None]
        places = (lens[:, None] + steps).clamp(max=CAPACITY - 1)
        output = state["output_ids"]
        output.scatter_(1, places, torch.where(taken, tokens, output.gather(1, places)))
        state["finished"] |= active & (stopped | (count >= room))
        last = tokens.gather(1, (count - 1).clamp(min=0).long()[:, None]).squeeze(1)
        state["next_token"].copy_(torch.where(count > 0, last, state["next_token"]))
        lens += count
        state["context_lens"] += count
        return count, torch.where(taken, slots, -1)

    return Comparison(
        op="commit_block",
        shape=f"batch {BATCH}, block {BLOCK}, 2 stop tokens",
        dtype="int64",
        ours=ours,
        plain={"indexing": plain},
        # And the stop tokens and the bounds.
        bytes=least_traffic(BLOCK, [row + 1 for row in range(BATCH)]).total + stops.nbytes + limits.nbytes,
    )
