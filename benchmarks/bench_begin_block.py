"""begin_block against the same in torch's indexing ops; both are bound by the cost of calling ops."""

from collections.abc import Iterator

import torch
from torch import Tensor

import dflash_ops
from benchmarks.compare import Comparison, Maker
from tests.cases.begin_block import Case

BATCH, BLOCK, PAGES, PAGE_SIZE, MASK = 8, 16, 256, 16, 151669


def comparisons() -> Iterator[Maker]:
    yield comparison


def comparison() -> Comparison:
    case = Case(PAGES, PAGE_SIZE, tuple(100 * row for row in range(BATCH)), BLOCK)
    next_token, context_lens, table = case.state()
    finished = torch.zeros(BATCH, dtype=torch.bool)
    outputs = [torch.empty(BATCH, BLOCK, dtype=torch.int64) for _ in range(3)]
    steps = torch.arange(BLOCK)

    def plain() -> tuple[Tensor, Tensor, Tensor]:
        done = finished[:, None]
        ids = torch.full((BATCH, BLOCK), MASK, device=steps.device)
        ids[:, 0] = torch.where(finished, MASK, next_token)
        positions = context_lens.long()[:, None] + steps
        entries = positions // PAGE_SIZE
        pages = table.gather(1, entries.clamp(max=PAGES - 1)).long()
        slots = torch.where((entries < PAGES) & ~done, pages * PAGE_SIZE + positions % PAGE_SIZE, -1)
        return ids, positions.masked_fill(done, 0), slots

    return Comparison(
        op="begin_block",
        shape=f"batch {BATCH}, block {BLOCK}, page {PAGE_SIZE}",
        dtype="int64",
        ours=lambda: dflash_ops.begin_block(
            next_token,
            context_lens,
            table,
            page_size=PAGE_SIZE,
            mask_token_id=MASK,
            finished=finished,
            input_ids=outputs[0],
            positions=outputs[1],
            slot_mapping=outputs[2],
        ),
        plain={"indexing": plain},
        bytes=case.least_traffic().total + BATCH,  # and the flags of finished requests
    )
