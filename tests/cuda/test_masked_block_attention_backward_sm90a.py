"""The backward kernels of masked_block_attention that multiply by warpgroups: values where much is seen wholly, and what
they move and multiply, counted by the PTX interpreter against closed forms of the dense mask."""

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.cases.masked_block_attention import PACKED, PADDED, Case, spread
from tests.cuda.gpu import Gpu
from tests.cuda.test_masked_block_attention_backward import DTYPES, check, run
from tests.cuda.test_masked_block_attention_backward_work import counted, live, products, seen_by_rows, step
from tests.ptxsim import assert_count

TILE, GROUP = 128, 64  # rows and keys of a tile; of them, a warpgroup's own, and those that they meet at once
WARPS = 4  # of a warpgroup
# Products that land when they have to, or whenever they like.
GPUS = [
    Gpu("H100", completion="late", schedule="greedy"),
    Gpu("H200", completion="random", schedule="random", seed=11),
    Gpu("H100", completion="late", schedule="random", seed=12),
]
CASES = [
    # Groups of 8, 3, 4 and 1; blocks of 1, 7, 16 and 64.
    Case("anchor", 260, 16, spread(9, 260), q_heads=8, head_dim=128),
    Case("bidirectional", 300, documents=(0, 130, 290), q_heads=3, head_dim=128),
    Case("anchor", 200, 64, (*spread(2, 200), -1), (0, 90, 200), q_heads=8, kv_heads=2, head_dim=64),
    Case("block_causal", 330, 7, window=200, head_dim=64),
    Case("anchor", 300, 1, spread(40, 300), window=150, q_heads=4, head_dim=64),
    # Five steps and more: every stage of the ring is used again.
    Case("causal", 330, q_heads=2, head_dim=128),
]


@pytest.mark.parametrize("index", range(len(CASES)), ids=lambda index: str(CASES[index]))
def test_matches_the_definition(index: int) -> None:
    actual = check(GPUS[index % 3], CASES[index], CASES[index].tensors(DTYPES[index % 2]))
    for name in ("masked_backward_keys", "masked_backward_queries"):
        assert actual.reports[name].count("wgmma.mma_async") > 0, name


@dataclass(frozen=True)
class Cells:
    """How often warpgroups multiply a step wholly, and warps a part of one."""

    whole: int
    partial: int

    def __add__(self, other: "Cells") -> "Cells":
        return Cells(self.whole + other.whole, self.partial + other.partial)


def met_wholly(seen: Tensor, size: tuple[int, int]) -> Tensor:
    """bool ``[tiles of rows, tiles of keys]``: every row there is, and there is one, sees every key of the tile."""
    rows, keys = size
    padded = F.pad(seen, (0, -seen.shape[1] % keys, 0, 0))
    padded = F.pad(padded, (0, 0, 0, -seen.shape[0] % rows), value=True)
    return padded.view(padded.shape[0] // rows, rows, padded.shape[1] // keys, keys).all(dim=3).all(dim=1)


def cells_of(seen: Tensor, part: tuple[int, int], group: int = 1) -> Cells:
    """`part`: the rows and keys of a warp's partial product; each row of `seen` stands for `group` rows."""
    whole = met_wholly(seen, (GROUP // group, GROUP))
    rows, keys = part[0] // group, part[1]
    partial = live(seen, rows, keys)
    spread_out = whole.repeat_interleave(GROUP // part[0], dim=0).repeat_interleave(GROUP // keys, dim=1)
    return Cells(int(whole.sum()), int((partial & ~spread_out[: partial.shape[0], : partial.shape[1]]).sum()))


def multiply_adds(cells: Cells, head_dim: int, times: int) -> int:
    """Of `times` products of a warpgroup's 64 rows with 64, or of a warp's 16 with a part of a step."""
    return times * head_dim * (cells.whole * GROUP * GROUP + cells.partial * 16 * step(head_dim))


@pytest.mark.parametrize(
    "case",
    [
        Case("anchor", 300, 16, (*spread(9, 300), -1), (0, 110, 290), q_heads=4, head_dim=64),
        Case("anchor", 200, 4, (*PADDED, 121), PACKED, window=40, q_heads=6, kv_heads=2, head_dim=128),
        Case("causal", 300, window=190, q_heads=1, head_dim=64),
        Case("bidirectional", 200, documents=(0, 40, 170), q_heads=3, head_dim=128),
    ],
    ids=str,
)
def test_live_tiles_alone_are_moved_and_multiplied(case: Case) -> None:
    reports = run(counted("H200"), case, case.tensors(torch.bfloat16)).reports
    row_bytes = case.kv_heads * case.head_dim * 2
    moved_rows = moved_keys = 0
    of_keys = of_queries = Cells(0, 0)
    for seen in seen_by_rows(case):
        tiles = live(seen, TILE, TILE)
        rows = torch.tensor([min(TILE, seen.shape[0] - i * TILE) for i in range(tiles.shape[0])])
        moved_rows += int((tiles * rows[:, None]).sum())
        for row_tile, key_tile in tiles.nonzero().tolist():
            # Of a tile's keys, those halves that lie between the first and the last that its rows see.
            columns = seen[row_tile * TILE :][:TILE].any(dim=0).nonzero()
            for first in range(key_tile * TILE, min(seen.shape[1], (key_tile + 1) * TILE), GROUP):
                if columns.min() < first + GROUP and columns.max() >= first:
                    moved_keys += min(GROUP, seen.shape[1] - first)
        of_keys += cells_of(seen, (step(case.head_dim), 16))
        of_queries += cells_of(seen, (16, step(case.head_dim)))
    key_report, query_report = reports["masked_backward_keys"], reports["masked_backward_queries"]
    for name in ("q", "grad_out"):
        assert_count(f"bytes of {name}", key_report.buffers[name].load_bytes, moved_rows * row_bytes)
    for name in ("k", "v"):
        assert_count(f"bytes of {name}", query_report.buffers[name].load_bytes, moved_keys * row_bytes)
    for name, report, cells, sums in (("keys", key_report, of_keys, 2), ("rows", query_report, of_queries, 1)):
        whole = case.kv_heads * cells.whole * WARPS * (2 * case.head_dim // 16 + sums * GROUP // 16)
        partial = case.kv_heads * (2 + sums) * products(cells.partial, case.head_dim)
        assert_count(f"wgmma of {name}", report.count("wgmma.mma_async"), whole)
        assert_count(f"mma of {name}", report.count("mma"), partial)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_products_of_a_full_sequence(head_dim: int) -> None:
    """512 anchors x 16 over 3,072 tokens, groups of 4: seven products, within 1.1 of what rows see, nearly all of them
    by warpgroups. The closed form is the one that the interpreter's counts equal."""
    group, block, context = 4, 16, 3072
    anchors = torch.tensor(spread(512, context)).sort().values.repeat_interleave(block)
    of_context = torch.arange(context)[None] < anchors[:, None]
    owner = torch.arange(512).repeat_interleave(block)
    # The tiles of the blocks' keys repeat themselves: 32 blocks stand for all.
    of_blocks = owner[:512, None] == owner[None, :512]
    multiplied = by_warpgroups = 0
    for seen, times in ((of_context, 1), (of_blocks, 16)):
        of_keys = cells_of(seen, (step(head_dim), 16), group)
        of_queries = cells_of(seen, (16, step(head_dim)), group)
        multiplied += times * (multiply_adds(of_keys, head_dim, 4) + multiply_adds(of_queries, head_dim, 3))
        by_warpgroups += times * (4 * of_keys.whole + 3 * of_queries.whole) * GROUP * GROUP * head_dim
    least = 7 * group * int(of_context.sum() + 16 * of_blocks.sum()) * head_dim
    assert least <= multiplied <= 1.1 * least
    assert by_warpgroups >= 0.94 * multiplied
