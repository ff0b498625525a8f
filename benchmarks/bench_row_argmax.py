"""row_argmax against torch.argmax."""

from collections.abc import Iterator

import torch

import dflash_ops
from benchmarks.compare import Comparison


def comparisons() -> Iterator[Comparison]:
    for dtype in (torch.bfloat16, torch.float32):
        logits = torch.randn(128, 151936).to(dtype)
        ids = torch.empty(128, dtype=torch.int64)
        values = torch.empty(128)
        yield Comparison(
            op="row_argmax",
            shape="[8*16, 151936]",
            dtype=str(dtype).removeprefix("torch."),
            ours=lambda: dflash_ops.row_argmax(logits, ids=ids, values=values),  # noqa: B023
            plain={"argmax": lambda: logits.argmax(-1)},  # noqa: B023
            bytes=logits.numel() * logits.element_size(),
        )
