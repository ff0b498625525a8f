"""What masked_block_attention's backward kernels move and multiply, counted by the PTX interpreter against closed forms
of the dense mask; and what their plan refuses."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dflash_ops import _host
from tests.cases.masked_block_attention import PACKED, PADDED, Case, spread
from tests.cuda.gpu import Gpu
from tests.cuda.simulated_masked_attention import mask_params
from tests.cuda.test_masked_block_attention_backward import run, visible_keys
from tests.ptxsim import assert_count

TILE = 64  # rows and keys of a tile


def seen_by_rows(case: Case) -> list[Tensor]:
    """bool ``[rows, keys]`` of context keys and of block keys, as the kernels count them: blocks in the order of their
    anchors, padding last; a query's rows of the group next to each other."""
    visible = visible_keys(case)
    parts = [visible]
    if case.mode == "anchor":
        blocks = range(len(case.anchors))
        order = sorted(blocks, key=lambda i: (case.anchors[i] < 0, max(0, case.anchors[i]), i))
        queries = torch.tensor(
            [i * case.block_size + row for i in order for row in range(case.block_size)], dtype=torch.int64
        )
        visible = visible[queries]
        parts = [visible[:, : case.context], visible[:, case.context :][:, queries]]
    return [part.repeat_interleave(case.q_heads // case.kv_heads, dim=0) for part in parts]


def live(seen: Tensor, rows: int, keys: int) -> Tensor:
    """bool ``[row tiles, key tiles]``: some row of the tile sees some key of it."""
    padded = F.pad(seen, (0, -seen.shape[1] % keys, 0, -seen.shape[0] % rows))
    return padded.view(padded.shape[0] // rows, rows, padded.shape[1] // keys, keys).any(dim=3).any(dim=1)


def step(head_dim: int) -> int:
    """Rows or keys that a warp's own 16 keys or rows meet at once."""
    return 64 if head_dim == 64 else 32


def products(cells: int, head_dim: int) -> int:
    """mma of 16 x 8 x 16 in a product of 16 rows with a step over head_dim channels, for so many such pairs."""
    return cells * step(head_dim) // 8 * head_dim // 16


def counted(name: str = "A100") -> Gpu:
    """Races are looked for elsewhere; counts are the same."""
    return Gpu(name, completion="early", schedule="round_robin", races=False, warp_races=False)


@pytest.mark.parametrize(
    "case",
    [
        Case("anchor", 300, 16, (*spread(9, 300), -1), (0, 110, 290), q_heads=4, head_dim=64),
        Case("anchor", 200, 4, (*PADDED, 121), PACKED, window=40, q_heads=6, kv_heads=2, head_dim=128),
        Case("block_causal", 230, 40, documents=(0, 70, 230), q_heads=2, head_dim=128),
        Case("causal", 300, window=70, q_heads=1, head_dim=64),
        Case("bidirectional", 200, documents=(0, 40, 170), q_heads=3, head_dim=64),
    ],
    ids=str,
)
def test_live_tiles_alone_are_moved_and_multiplied(case: Case) -> None:
    reports = run(counted(), case, case.tensors(torch.bfloat16)).reports
    seen = seen_by_rows(case)
    row_bytes = case.kv_heads * case.head_dim * 2
    moved_rows = moved_keys = key_cells = query_cells = 0
    for part in seen:
        tiles = live(part, TILE, TILE)
        rows = torch.tensor([min(TILE, part.shape[0] - i * TILE) for i in range(tiles.shape[0])])
        keys = torch.tensor([min(TILE, part.shape[1] - i * TILE) for i in range(tiles.shape[1])])
        moved_rows += int((tiles * rows[:, None]).sum())
        moved_keys += int((tiles * keys[None]).sum())
        key_cells += int(live(part, step(case.head_dim), 16).sum())
        query_cells += int(live(part, 16, step(case.head_dim)).sum())
    of_keys, of_queries = reports["masked_backward_keys"], reports["masked_backward_queries"]
    for name in ("q", "grad_out"):
        assert_count(f"bytes of {name}", of_keys.buffers[name].load_bytes, moved_rows * row_bytes)
    for name in ("k", "v"):
        assert_count(f"bytes of {name}", of_queries.buffers[name].load_bytes, moved_keys * row_bytes)
    assert_count("products of keys", of_keys.count("mma"), 4 * case.kv_heads * products(key_cells, case.head_dim))
    assert_count("products of rows", of_queries.count("mma"), 3 * case.kv_heads * products(query_cells, case.head_dim))


@pytest.mark.parametrize("head_dim", [64, 128])
def test_products_of_a_full_sequence(head_dim: int) -> None:
    """512 anchors x 16 over 3,072 tokens, groups of 4: seven products, within 1.1 of what rows see. The closed form is
    the one that the interpreter's counts equal."""
    group, block, context = 4, 16, 3072
    anchors = torch.tensor(spread(512, context)).sort().values.repeat_interleave(block)
    of_context = torch.arange(context)[None] < anchors[:, None]
    owner = torch.arange(512).repeat_interleave(block)
    # The tiles of the blocks' keys repeat themselves: 32 blocks stand for all.
    of_blocks = owner[:512, None] == owner[None, :512]
    multiplied = 0
    for part, times in ((of_context, 1), (of_blocks, 16)):
        key_cells = int(live(part, step(head_dim) // group, 16).sum())
        query_cells = int(live(part, 16 // group, step(head_dim)).sum())
        multiplied += times * (4 * products(key_cells, head_dim) + 3 * products(query_cells, head_dim))
    least = 7 * group * int(of_context.sum() + 16 * of_blocks.sum()) * head_dim // (16 * 8 * 16)
    assert least <= multiplied <= 1.1 * least


@pytest.mark.parametrize("gpu", ["A100", "H200"])
def test_accesses_are_coalesced_and_free_of_conflicts(gpu: str) -> None:
    case = Case("anchor", 130, 16, (*spread(11, 130), -1), q_heads=8, kv_heads=2, head_dim=128)
    reports = run(counted(gpu), case, case.tensors(torch.bfloat16)).reports
    for name, report in reports.items():
        if name.startswith("masked_backward"):
            # Rows of 8 bytes each are written by one lane of 16.
            assert report.total("sectors") <= 1.15 * report.total("ideal_sectors"), name
            assert report.total("wavefronts") <= 1.05 * report.total("ideal_wavefronts"), name
    results = {"grad_q": case.queries * 8, "grad_k": case.keys * 2, "grad_v": case.keys * 2}
    for name, rows in results.items():
        stored = sum(report.buffers[name].store_bytes for report in reports.values() if name in report.buffers)
        assert_count(f"bytes of {name}", stored, rows * case.head_dim * 2)


def tensors(dtype: torch.dtype, head_dim: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(32, 4, head_dim, dtype=dtype), torch.zeros(32, 2, head_dim, dtype=dtype)


def plan(gpu: str, fields: dict[str, Any]) -> list[_host.LaunchPlan]:
    params = _host.MaskedBlockAttentionParams(**fields)
    return _host.plan_masked_block_attention_backward(params, 0, _host.known_device(gpu))


@pytest.mark.parametrize(
    ("dtype", "head_dim", "change", "message"),
    [
        (torch.float32, 64, {}, "q: expected float16 or bfloat16 on CUDA, got float32"),
        (torch.float16, 96, {}, "head_dim: expected 64 or 128 on CUDA, got 96"),
        (torch.float16, 64, {"grad_k": 8}, "grad_k: expected 16-byte aligned rows"),
        (torch.float16, 64, {"v_row_stride": 68}, "v: expected strides that are multiples of 8 elements, got 68"),
    ],
)
def test_the_plan_refuses_what_has_no_kernel(
    dtype: torch.dtype, head_dim: int, change: dict[str, int], message: str
) -> None:
    fields = mask_params(*tensors(dtype, head_dim), mode="causal") | change
    with pytest.raises(ValueError, match=message):
        plan("A100", fields)


@pytest.mark.parametrize(("gpu", "tile"), [("A100", TILE), ("H200", 2 * TILE)])
def test_workspaces_are_linear_in_the_sequence(gpu: str, tile: int) -> None:
    """And splits fill a GPU with few context tiles, never one with many."""
    case = Case("anchor", 3072, 16, head_dim=128, q_heads=32, kv_heads=8)
    sizes = []
    for times in (1, 2, 4):
        longer = replace(case, context=3072 * times)
        q = torch.empty(512 * times * 16, 32, 128, dtype=torch.bfloat16, device="meta")
        k = torch.empty(longer.context + q.shape[0], 8, 128, dtype=torch.bfloat16, device="meta")
        fields = mask_params(q, k, mode="anchor", block_size=16)
        params = _host.MaskedBlockAttentionParams(**fields)
        device = _host.known_device(gpu)
        sizes.append(_host.masked_block_attention_backward_workspace_size(params, device))
        grid = next(x.grid[0] for x in plan(gpu, fields) if x.entry.startswith("masked_backward_keys"))
        tiles = -(-longer.context // tile) + -(-q.shape[0] // tile)
        assert grid == tiles * 8 * (2 if times == 1 else 1)
    assert sizes[0] < 64 * 2**20  # 50 MB of partial sums, 2 MB of terms
    assert sizes[2] < 2.1 * sizes[1]
