"""Cost of a draft layer's attention against the context's length: dense, with a selection of pages each round, with a
second level of bounds, and with a selection kept for several rounds. One process, all candidates in turns.

python benchmarks/long_context_ops.py --json docs/long_context_ops.json [--seconds 20]

Keys and queries are random. `uniform`: no page differs from others, so group bounds pass over nothing. `clustered`: every
1,024 tokens have a mean of their own, eight times as large as what differs within them, and all queries of the block
share a direction, twice as large as what differs between them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

# As a script, this file sees its own folder only; what it shares with the tests lies in the checkout's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dflash_ops
from tests.cases.page_selection import last_slots

CONTEXTS = (16384, 32768, 65536, 131072)
BLOCK, HEADS, KV_HEADS, DIM, PAGE, GROUP_PAGES = 16, 32, 8, 128, 16, 16
BUDGETS = {"page_size": PAGE, "budget_tokens": 2048, "sink_tokens": 64, "local_tokens": 256}
SUBJECT_TOKENS = 1024


class Context:
    """The longest context's cache and bounds; shorter ones are its beginning."""

    def __init__(self, clustered: bool, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(0)
        pages = CONTEXTS[-1] // PAGE
        keys = torch.randn(pages, PAGE, KV_HEADS, DIM, generator=generator)
        if clustered:
            subjects = 8 * torch.randn(CONTEXTS[-1] // SUBJECT_TOKENS, 1, KV_HEADS, DIM, generator=generator)
            keys += subjects.repeat_interleave(SUBJECT_TOKENS // PAGE, 0)
        self.order = torch.randperm(pages, generator=generator)
        self.k_cache, self.v_cache = (torch.empty(pages, PAGE, KV_HEADS, DIM, dtype=dtype) for _ in range(2))
        self.k_cache[self.order] = keys.to(dtype)
        self.v_cache.normal_(generator=generator)
        queries = torch.randn(BLOCK, HEADS, DIM, generator=generator)
        if clustered:  # heads of a group look for the same
            common = torch.randn(1, KV_HEADS, DIM, generator=generator).repeat_interleave(HEADS // KV_HEADS, 1)
            queries = common + queries / 2
        self.q = queries.to(dtype)
        self.block = torch.randn(2, BLOCK, KV_HEADS, DIM, generator=generator).to(dtype)
        self.k_bounds = torch.empty(pages, KV_HEADS, 2, DIM, dtype=dtype)

    def candidates(self, context: int) -> dict[str, Callable[[], Tensor]]:
        """What is timed, by name."""
        pages = context // PAGE
        table = self.order[None, :pages].int().contiguous()
        lens = torch.tensor([context], dtype=torch.int32)
        groups = torch.empty(1, -(-pages // GROUP_PAGES), KV_HEADS, 2, DIM, dtype=self.q.dtype)
        dflash_ops.update_page_bounds(
            [self.k_cache],
            slot_mapping=last_slots(table, lens, PAGE),
            k_bounds=[self.k_bounds],
            group_bounds=[groups],
            page_table=table,
            context_lens=lens,
            group_pages=GROUP_PAGES,
        )
        width = dflash_ops.select_pages_width(pages, **BUDGETS)
        lists = {
            "selected_pages": torch.empty(1, KV_HEADS, width, dtype=torch.int32),
            "selected_counts": torch.empty(1, KV_HEADS, dtype=torch.int32),
        }
        size = dflash_ops.sparse_block_attention_workspace_size(BLOCK, 1, HEADS, KV_HEADS, DIM, pages, PAGE)
        size = max(size, dflash_ops.select_pages_workspace_size(1, KV_HEADS, pages))
        workspace = torch.empty(size, dtype=torch.uint8)
        attention = {
            "q": self.q,
            "k_block": self.block[0],
            "v_block": self.block[1],
            "k_cache": self.k_cache,
            "v_cache": self.v_cache,
            "page_table": table,
            "context_lens": lens,
            "out": torch.empty_like(self.q),
            "lse": torch.empty(BLOCK, HEADS),
            "workspace": workspace,
        }

        def select(group_bounds: Tensor | None) -> None:
            dflash_ops.select_pages(
                self.q,
                self.k_bounds,
                table,
                lens,
                **BUDGETS,
                group_bounds=group_bounds,
                group_pages=GROUP_PAGES,
                **lists,
                workspace=workspace,
            )

        def attend() -> Tensor:
            return dflash_ops.sparse_block_attention(**attention, **lists)[0]

        def round_of(group_bounds: Tensor | None) -> Tensor:
            select(group_bounds)
            return attend()

        def kept_rounds(group_bounds: Tensor | None, rounds: int) -> Tensor:
            select(group_bounds)
            for _ in range(rounds - 1):
                attend()
            return attend()

        assert torch.equal(round_of(None), round_of(groups)), "both levels select the same"
        return {
            "dense": lambda: dflash_ops.block_attention(**attention)[0],
            "one_level": lambda: round_of(None),
            "two_levels": lambda: round_of(groups),
            "kept_4_rounds": lambda: kept_rounds(None, 4),
            "kept_8_rounds": lambda: kept_rounds(None, 8),
            "two_levels_kept_4_rounds": lambda: kept_rounds(groups, 4),
        }


def rounds_of(name: str) -> int:
    """That a candidate runs at once."""
    return int(name.split("_")[-2]) if name.endswith("_rounds") else 1


Timed = dict[int, dict[str, Callable[[], Tensor]]]  # by the context's length and by name


def median_times(timed: Timed, seconds: float) -> dict[int, dict[str, float]]:
    """Milliseconds of a round. All lengths and candidates take turns, at least five times, so that drift of the machine
    hits them alike."""
    samples: dict[tuple[int, str], list[float]] = {(length, name): [] for length in timed for name in timed[length]}
    start = time.perf_counter()
    while any(len(values) < 5 for values in samples.values()) or time.perf_counter() - start < seconds:
        for (length, name), values in samples.items():
            begin = time.perf_counter()
            timed[length][name]()
            values.append((time.perf_counter() - begin) / rounds_of(name))
    medians = {place: 1e3 * sorted(values)[len(values) // 2] for place, values in samples.items()}
    return {length: {name: medians[length, name] for name in timed[length]} for length in timed}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each kind of keys (default 20)")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    options = parser.parse_args(arguments)
    torch.set_num_threads(2)
    rows = []
    for keys in ("uniform", "clustered"):
        context = Context(keys == "clustered", getattr(torch, options.dtype))
        timed = {length: context.candidates(length) for length in CONTEXTS}
        for length, milliseconds in median_times(timed, options.seconds).items():
            rows.append({"keys": keys, "context": length, "milliseconds": milliseconds})
            print(keys, length, {name: round(value, 2) for name, value in milliseconds.items()}, flush=True)
    result = {
        "shape": f"block {BLOCK}, heads {HEADS}/{KV_HEADS} of {DIM}, pages of {PAGE}, groups of {GROUP_PAGES} pages",
        "dtype": options.dtype,
        "threads": 2,
        **BUDGETS,
        "rows": rows,
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
