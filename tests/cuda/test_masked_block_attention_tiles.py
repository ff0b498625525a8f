"""What masked_block_attention visits: the tiles' launches against a dense mask, and what the forward pass multiplies and
moves, counted by the PTX interpreter."""

import dataclasses
import itertools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from dflash_ops import _host
from tests.cases.masked_block_attention import CASES, PACKED, PADDED, Case, spread
from tests.cuda.gpu import Gpu
from tests.cuda.simulated_masked_attention import OP, MaskedCall, masked_block_attention
from tests.cuda.test_block_attention import assert_same
from tests.cuda.test_masked_block_attention import on_tensor_cores, visible_keys
from tests.ptxsim import assert_count

SECTOR = 32
TRAINING = Case("anchor", 500, 16, spread(24, 500), q_heads=4, kv_heads=2, head_dim=64)
CHOSEN = [
    Case("anchor", 128, 6, PADDED, head_dim=64),
    Case("anchor", 128, 6, PADDED, PACKED, q_heads=3, head_dim=64),
    Case("anchor", 128, 6, PADDED, PACKED, causal=True, window=4, q_heads=6, kv_heads=2, head_dim=64),
    Case("anchor", 900, 16, (10, 850, 420, 860, 11), window=20, q_heads=8, head_dim=128),  # contexts far apart
    Case("anchor", 100, 130, (50, 100, 7), q_heads=3, window=40, head_dim=64),
    Case("block_causal", 300, 7, documents=(0, 13, 200, 260), q_heads=3, head_dim=64),
    Case("bidirectional", 300, documents=(0, 13, 200, 300), window=30, q_heads=2, head_dim=128),
    Case("causal", 450, q_heads=4, kv_heads=2, documents=(0, 300, 450), head_dim=64),
    Case("causal", 300, window=9, head_dim=128),
    Case("bidirectional", 60, documents=(0,), head_dim=64),
    TRAINING,
]


@dataclass(frozen=True)
class Mask:
    """A case's dense mask in the order of the kernels."""

    order: list[int]  # of blocks; empty without anchors
    sees: Tensor  # bool [ordered queries, context keys then ordered block keys]
    documents: list[int]  # of an ordered query; -1: padding
    context: int

    @classmethod
    def of(cls, case: Case) -> "Mask":
        visible = visible_keys(case)
        starts = list(case.documents or (0, case.context))
        if case.mode != "anchor":
            documents = [max(i for i, start in enumerate(starts) if start <= token) for token in range(case.queries)]
            return cls([], visible, documents, case.context)
        anchors = case.anchors
        order = sorted(range(len(anchors)), key=lambda i: (anchors[i] < 0, anchors[i], i))
        rows = [block * case.block_size + row for block in order for row in range(case.block_size)]
        keys = [*range(case.context), *(case.context + row for row in rows)]
        documents = [
            -1 if anchors[block] < 0 else max(i for i, start in enumerate(starts[:-1]) if start <= anchors[block])
            for block in order
            for _ in range(case.block_size)
        ]
        return cls(order, visible[rows][:, keys] if rows else visible, documents, case.context)

    def segments(self, first: int, end: int) -> list[tuple[int, int]]:
        """Runs of queries of one document whose contexts touch."""
        starts = [first]
        seen = torch.zeros(self.context, dtype=torch.bool)
        for query in range(first, end):
            own = self.sees[query, : self.context]
            other_document = query > first and self.documents[query] != self.documents[query - 1]
            touches = not own.any() or not seen.any() or int(own.nonzero()[0]) <= int(seen.nonzero()[-1]) + 1
            if query > first and (other_document or not touches):
                starts.append(query)
                seen = torch.zeros_like(seen)
            seen = seen | own
        return list(itertools.pairwise([*starts, end]))

    def key_tiles(self, size: int) -> list[slice]:
        keys = self.sees.shape[1]
        parts = [range(0, self.context, size), range(self.context, keys, size)]
        ends = [self.context, keys]
        return [slice(i, min(i + size, end)) for part, end in zip(parts, ends, strict=True) for i in part]

    def row_tiles(self, group: int, size: int) -> list[tuple[int, int]]:
        """Ordered queries [first, end) that have rows in each row tile."""
        rows = self.sees.shape[0] * group
        return [(row // group, -(-min(rows, row + size) // group)) for row in range(0, rows, size)]


@dataclass(frozen=True)
class Tiles:
    """What the tiles' launches left in the workspace."""

    order: np.ndarray
    row_tiles: np.ndarray
    row_schedule: np.ndarray
    key_tiles: np.ndarray
    key_schedule: np.ndarray


def made_tiles(case: Case, rows: int, keys: int) -> Tiles:
    """Runs the launches in front of a pass with such tiles."""
    q, k, v, _ = case.tensors(torch.bfloat16)
    call = MaskedCall(Gpu(), q, k, v, **case.options())
    size = _host.mask_tiles_size(call.params({}), rows, keys, True)
    workspace = torch.full((size,), 0x7F, dtype=torch.uint8)
    arguments = call.arguments
    arguments.arguments = [argument for argument in arguments.arguments if argument.name != "workspace"]
    arguments.update("workspace", workspace, field=False)
    places: dict[str, int] = {}
    for number in itertools.count():
        plans: list[_host.LaunchPlan] = []

        def plan(
            address: dict[str, int], number: int = number, plans: list[_host.LaunchPlan] = plans
        ) -> _host.LaunchPlan:
            made, found = _host.plan_mask_tiles(call.params(address), rows, keys, True, address["workspace"])
            plans += made
            places.update({name: place - address["workspace"] for name, place in found.items()})
            return made[number]

        call.gpu.run(OP, arguments, plan)
        if number + 1 == len(plans):
            break
    words = workspace.view(torch.int32).numpy()
    group = case.q_heads // case.kv_heads
    row_count = -(-case.queries * group // rows)
    key_count = -(-case.context // keys) + (-(-case.queries // keys) if case.mode == "anchor" else 0)

    def part(name: str, count: int, width: int = 1) -> np.ndarray:
        first = places[name] // 4
        return (
            words[first : first + count * width].reshape(count, width).squeeze(1)
            if width == 1
            else words[first : first + count * width].reshape(count, width)
        )

    return Tiles(
        order=part("order", len(case.anchors)) if case.anchors else np.empty(0, np.int32),
        row_tiles=part("row_tiles", row_count, 8),
        row_schedule=part("row_schedule", row_count),
        key_tiles=part("key_tiles", key_count, 4),
        key_schedule=part("key_schedule", key_count),
    )


@pytest.mark.parametrize(("rows", "keys"), [(128, 64), (128, 32), (64, 64)])
@pytest.mark.parametrize("case", CHOSEN, ids=str)
def test_live_tiles_are_those_of_the_dense_mask(case: Case, rows: int, keys: int) -> None:
    mask, tiles = Mask.of(case), made_tiles(case, rows, keys)
    assert tiles.order.tolist() == mask.order
    ranges = mask.row_tiles(case.q_heads // case.kv_heads, rows)
    key_tiles = mask.key_tiles(keys)
    visits = [
        sum(bool(mask.sees[first:end, tile].any()) for first, end in mask.segments(*of_tile) for tile in key_tiles)
        for of_tile in ranges
    ]
    live = torch.tensor([[bool(mask.sees[first:end, tile].any()) for tile in key_tiles] for first, end in ranges])
    assert tiles.row_tiles[:, 4].tolist() == visits
    assert tiles.key_tiles[:, 2].tolist() == live.sum(dim=0).tolist()
    for number, column in enumerate(live.t()):
        first, end, _, gaps = tiles.key_tiles[number].tolist()
        places = column.nonzero().flatten().tolist()
        assert (first, end) == ((places[0], places[-1] + 1) if places else (0, 0))
        assert bool(gaps) == (len(places) != end - first)
    for row, (tile, seen) in enumerate(zip(tiles.row_tiles.tolist(), live, strict=True)):
        hull = [i for i, keys_of in enumerate(key_tiles) if _holds(tile, keys_of, mask.context)]
        assert set(seen.nonzero().flatten().tolist()) <= set(hull), row
        assert bool(tile[5]) == (len(hull) != int(seen.sum()))
    for schedule, costs in ((tiles.row_schedule, visits), (tiles.key_schedule, live.sum(dim=0).tolist())):
        assert schedule.tolist() == sorted(range(len(costs)), key=lambda i: (-costs[i], i))


def _holds(row_tile: list[int], keys: slice, context: int) -> bool:
    """Whether a key tile meets the hull of what a row tile sees."""
    of_blocks = keys.start >= context
    begin, end = (row_tile[2] + context, row_tile[3] + context) if of_blocks else (row_tile[0], row_tile[1])
    return max(begin, keys.start) < min(end, keys.stop)


def test_full_size_visits_the_closed_form_count() -> None:
    """512 anchors x 16 over 3,072 tokens, a group of 4: 64 rows of a block, two blocks a row tile. A tile's context ends at
    the later anchor of two neighbours in the order."""
    anchors = spread(512, 3071)
    case = Case("anchor", 3072, 16, anchors, q_heads=4, head_dim=64)
    tiles = made_tiles(case, 128, 32)
    later = sorted(anchors)[1::2]
    expected = [-(-anchor // 32) + 1 for anchor in later]  # and one tile with both blocks' own keys
    assert tiles.row_tiles[:, 4].tolist() == expected
    assert tiles.row_tiles[:, 5].max() == 0
    # About half of the context's tiles, and one diagonal of the blocks' 256 x 256.
    assert 0.45 < sum(expected) / (256 * 96) < 0.55
    assert tiles.key_tiles[96:, 2].tolist() == [1] * 256


def counted(case: Case, name: str) -> tuple[MaskedCall, Gpu]:
    """Runs the case; races are looked for elsewhere, counts are the same."""
    gpu = Gpu(name, completion="early", schedule="round_robin", races=False, warp_races=False)
    q, k, v, _ = case.tensors(torch.bfloat16)
    call = MaskedCall(gpu, q, k, v, **case.options())
    call.launch()
    return call, gpu


def queries_of(rows: range, group: int, segment: tuple[int, int]) -> list[int]:
    """Ordered queries of a segment that have one of these rows."""
    return sorted({row // group for row in rows} & set(range(*segment)))


def key_blocks(seen: Tensor) -> int:
    """Blocks of 16 keys of a tile between the first and the last that one of some rows sees."""
    keys = seen.any(dim=0).nonzero().flatten()
    return int(keys[-1]) // 16 - int(keys[0]) // 16 + 1 if len(keys) > 0 else 0


def products(case: Case) -> int:
    """Of 16 x 8 x 16 values: a warp's 32 rows of a segment with the blocks of each tile that they see."""
    mask, group = Mask.of(case), case.q_heads // case.kv_heads
    tiles = mask.key_tiles(64 if case.head_dim == 64 else 32)
    blocks = 0
    for number, (first, end) in enumerate(mask.row_tiles(group, 128)):
        for segment, row in itertools.product(mask.segments(first, end), range(128 * number, 128 * number + 128, 32)):
            seen = mask.sees[queries_of(range(row, row + 32), group, segment)]
            blocks += sum(key_blocks(seen[:, tile]) for tile in tiles)
    return case.kv_heads * blocks * 2 * (case.head_dim // 16) * 4


def warpgroup_products(case: Case) -> tuple[int, int]:
    """(of 64 x 64 x 16 values, of 16 x 8 x 16): 64 rows of a segment with tiles of which all see all, 16 rows of it with
    the blocks that they see of other tiles."""
    mask, group = Mask.of(case), case.q_heads // case.kv_heads
    whole = blocks = 0
    for number, (first, end) in enumerate(mask.row_tiles(group, 128)):
        for segment, row in itertools.product(mask.segments(first, end), range(128 * number, 128 * number + 128, 64)):
            of_warps = [mask.sees[queries_of(rows, group, segment)] for rows in warps_of(row)]
            of_warpgroup = torch.cat(of_warps)
            for tile in mask.key_tiles(64) if len(of_warpgroup) > 0 else []:
                if tile.stop - tile.start == 64 and of_warpgroup[:, tile].all():
                    whole += 1
                else:
                    blocks += sum(key_blocks(of_warp[:, tile]) for of_warp in of_warps)
    return case.kv_heads * whole * 2 * case.head_dim // 16, case.kv_heads * blocks * (case.head_dim // 16) * 4


def warps_of(row: int) -> list[range]:
    """The rows of a warpgroup's four warps."""
    return [range(first, first + 16) for first in range(row, row + 64, 16)]


def warpgroup_products_of(gpu: Gpu) -> int:
    """Of 64 x 64 x 16 values. An instruction counts in each of a warpgroup's four warps; one may be 128 columns wide."""
    narrow, wide = (gpu.report.count(f"wgmma.mma_async.sync.aligned.m64n{columns}k16") for columns in (64, 128))
    return (narrow + 2 * wide) // 4


@pytest.mark.parametrize(
    "case", [on_tensor_cores(case, i) for i, case in enumerate(CASES) if case.queries > 100][::4] + CHOSEN[:4], ids=str
)
def test_nothing_dead_is_multiplied(case: Case) -> None:
    _, gpu = counted(case, "A100")
    assert_count("products", gpu.report.count("mma"), products(case))


@pytest.mark.parametrize(
    "case",
    [CHOSEN[1], CHOSEN[3], CHOSEN[7], TRAINING, dataclasses.replace(CHOSEN[7], head_dim=128)],
    ids=str,
)
def test_warpgroups_multiply_what_is_whole(case: Case) -> None:
    _, gpu = counted(case, "H200")
    of_warpgroups, of_warps = warpgroup_products(case)
    assert_count("products of warpgroups", warpgroup_products_of(gpu), of_warpgroups)
    assert_count("products of warps", gpu.report.count("mma"), of_warps)


@pytest.mark.parametrize("name", ["A100", "H200"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_products_are_close_to_the_live_work(head_dim: int, name: str) -> None:
    """Pairs of a row and a key that it sees, in products of 16 x 8 x 16."""
    case = dataclasses.replace(TRAINING, head_dim=head_dim)
    _, gpu = counted(case, name)
    pairs = int(visible_keys(case).sum()) * case.q_heads
    done = gpu.report.count("mma") + 32 * warpgroup_products_of(gpu)
    assert_count("products", done, -(-pairs * 2 * head_dim // (16 * 8 * 16)), 1.1)
    if name == "H200":
        assert warpgroup_products_of(gpu) * 32 > 0.5 * done


@pytest.mark.parametrize("name", ["A100", "H200"])
@pytest.mark.parametrize("case", [TRAINING, dataclasses.replace(TRAINING, head_dim=128), CHOSEN[1]], ids=str)
def test_keys_and_queries_move_once_for_each_segment(case: Case, name: str) -> None:
    """Nothing outside what a segment sees is read; a group's heads share one sweep."""
    _, gpu = counted(case, name)
    mask = Mask.of(case)
    seen = sum(
        int(mask.sees[first:end].any(dim=0).sum())
        for of_tile in mask.row_tiles(case.q_heads // case.kv_heads, 128)
        for first, end in mask.segments(*of_tile)
    )
    row_bytes = case.kv_heads * case.head_dim * 2
    for name in ("k", "v"):
        gpu.assert_loads(name, seen * row_bytes, 1.0)
    results = case.queries * case.q_heads * case.head_dim * 2
    gpu.assert_loads("q", results, 1.0)
    gpu.assert_stores("out", results)
    report = gpu.report
    assert_count("wavefronts", report.total("wavefronts"), report.total("ideal_wavefronts"), 1.05)


def test_whole_context_tiles_come_in_boxes() -> None:
    """Of k and of v, one for each 64 channels; nothing does where heads lie too close to each other for TMA."""
    case = dataclasses.replace(TRAINING, head_dim=128)
    _, gpu = counted(case, "H200")
    mask, group = Mask.of(case), case.q_heads // case.kv_heads
    tiles = [tile for tile in mask.key_tiles(64) if tile.stop <= case.context and tile.stop - tile.start == 64]
    boxes = 0
    for first, end in mask.row_tiles(group, 128):
        for segment in mask.segments(first, end):
            seen = mask.sees[slice(*segment)].any(dim=0)
            boxes += sum(bool(seen[tile].all()) for tile in tiles)
    assert boxes > 20
    assert_count("boxes", gpu.report.count("cp.async.bulk.tensor"), 2 * 2 * case.kv_heads * boxes)
    q, k, v, _ = case.tensors(torch.bfloat16)
    expected = masked_block_attention(gpu, q, k, v, **case.options())
    heads_first = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (k, v)]
    assert_same(masked_block_attention(gpu, q, *heads_first, **case.options()), expected)
    assert_count("boxes", gpu.report.count("cp.async.bulk.tensor"), 0)


@pytest.mark.parametrize(("name", "entry"), [("A100", "bfloat16_64"), ("H200", "sm90a_bfloat16_64")])
def test_blocks_with_the_most_work_come_first(name: str, entry: str) -> None:
    """The last launch has a block for each row tile and kv head, in the order of their work."""
    call, _ = counted(TRAINING, name)
    plan = call.plans[-1]
    assert plan.entry == f"masked_block_attention_{entry}"
    assert plan.grid == (TRAINING.queries * 2 // 128 * 2, 1, 1)
    assert [each.entry.removeprefix("masked_block_attention_") for each in call.plans[:-1]] == [
        "order",
        "row_tiles",
        "schedule",
    ]
