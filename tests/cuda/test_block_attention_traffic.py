"""What block_attention's kernel moves and multiplies, counted by the PTX interpreter."""

from typing import Any

import pytest
import torch

from tests.cases.block_attention import CAUSAL, Case
from tests.cuda.gpu import Gpu
from tests.cuda.simulated_attention import AttentionCall
from tests.ptxsim import assert_count

KEYS_VALUES = ("k_cache", "v_cache", "k_block", "v_block")
SECTOR = 32
CONTEXTS = (1000, 1037, 961)


def counted(case: Case, dtype: torch.dtype = torch.bfloat16, **changes: Any) -> tuple[AttentionCall, Gpu]:
    """Runs the case; races are looked for elsewhere, counts are the same."""
    gpu = Gpu("H200", completion="early", schedule="round_robin", races=False, warp_races=False)
    call = AttentionCall(gpu, **(case.inputs(dtype) | changes))
    call.launch()
    return call, gpu


def loads(gpu: Gpu, names: tuple[str, ...] = KEYS_VALUES) -> tuple[int, int]:
    """Bytes and sectors loaded of some storages."""
    buffers = [gpu.report.buffers[name] for name in names if name in gpu.report.buffers]
    return sum(buffer.load_bytes for buffer in buffers), sum(buffer.load_sectors for buffer in buffers)


def key_value_bytes(case: Case, sweeps: int = 1) -> int:
    """K and V of every position that a row sees, `sweeps` times for each kv head, in 16-bit data."""
    keys = sum(end - begin for begin, end in map(case.visible, range(len(case.contexts))))
    return sweeps * 2 * keys * case.kv_heads * case.head_dim * 2


def assert_one_sweep(case: Case, gpu: Gpu, sweeps: int = 1) -> None:
    least = key_value_bytes(case, sweeps)
    loaded, sectors = loads(gpu)
    assert_count("bytes of K and V", loaded, least, 1.02)
    assert_count("sectors of K and V, in bytes", sectors * SECTOR, least, 1.02)


@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize("block", [16, (16, 9, 12)], ids=str)
def test_keys_and_values_move_once(block: int | tuple[int, ...], page_size: int) -> None:
    """Blocks of 16 for a group of 4: the shape of the published drafters, whether or not the host knows the lengths."""
    case = Case(CONTEXTS, block, q_heads=8, kv_heads=2, head_dim=128, page_size=page_size)
    call, gpu = counted(case)
    assert call.plan is not None
    assert call.plan.grid[2] > 1
    assert_one_sweep(case, gpu)
    report = gpu.report
    assert_count("wavefronts", report.total("wavefronts"), report.total("ideal_wavefronts"), 1.05)
    assert_count("products", report.count("mma"), least_products(case), padding(case))
    results = sum(case.blocks) * 8 * 128 * 2
    assert_count("bytes of results", report.buffers["out"].store_bytes, results)
    assert_count("sectors of results, in bytes", report.buffers["out"].store_sectors * SECTOR, results)
    assert_count("bytes of queries", report.buffers["q"].load_bytes, results, call.plan.grid[2])
    assert_count("sectors of queries, in bytes", report.buffers["q"].load_sectors * SECTOR, results, call.plan.grid[2])
    others = sum(count.load_sectors for name, count in report.buffers.items() if name not in ("q", "workspace"))
    least = case.least_traffic(torch.bfloat16).loads - results
    assert_count("sectors of all else but the workspace, in bytes", others * SECTOR, least, 1.03)


def least_products(case: Case) -> int:
    """Tensor-core products 16 x 8 x 16, for Q K^T and for P V, of whole fragments."""
    products = 0
    for context, rows in zip(case.contexts, case.blocks, strict=True):
        row_fragments = -(-rows * case.group // 16)
        products += case.kv_heads * row_fragments * -(-(context + rows) // 16) * 2 * 2 * (case.head_dim // 16)
    return products


def padding(case: Case, tile: int = 64) -> float:
    """Context and block may each end within a tile, and a warp may have two fragments of rows."""
    padded = exact = 0.0
    for context, rows in zip(case.contexts, case.blocks, strict=True):
        used = case.group * rows
        exact += -(-used // 16) * 16 * (context + rows)
        padded += -(-used // 32) * 32 * (context + rows + 2 * tile)
    return padded / exact


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("head_dim", "q_heads", "kv_heads", "block"),
    [
        *((dim, 4, 1, 16) for dim in (64, 96, 256)),
        *((dim, 8, 1, 16) for dim in (64, 96, 256)),
        *((128, group, 1, 16) for group in (1, 5, 6, 7)),
        (128, 16, 1, 8),
        (64, 8, 2, 16),
    ],
)
def test_up_to_128_rows_are_one_sweep(
    head_dim: int, q_heads: int, kv_heads: int, block: int, dtype: torch.dtype
) -> None:
    """Any group packs with the block; shared memory without conflicts for every head size and both heights of a tile."""
    case = Case((517,), block, q_heads=q_heads, kv_heads=kv_heads, head_dim=head_dim, page_size=32)
    _, gpu = counted(case, dtype)
    assert_one_sweep(case, gpu)
    assert_count("wavefronts", gpu.report.total("wavefronts"), gpu.report.total("ideal_wavefronts"), 1.05)
    assert_count("products", gpu.report.count("mma"), least_products(case), padding(case))


def test_more_rows_take_the_fewest_sweeps() -> None:
    """16 heads of 16 rows are 256 rows: two tiles."""
    case = Case((517,), 16, q_heads=16, kv_heads=1, head_dim=128)
    _, gpu = counted(case)
    assert_one_sweep(case, gpu, sweeps=2)


def test_a_batch_of_ragged_blocks_takes_no_more_sweeps() -> None:
    """Each request's rows start a tile of their own."""
    case = Case((300, 0, 411, 64), (16, 3, 7, 16), q_heads=7, kv_heads=1, head_dim=128)
    _, gpu = counted(case)
    assert_one_sweep(case, gpu)


def test_causal_tiles_stop_at_their_last_row() -> None:
    """A prefill chunk: half of the square is never loaded and never multiplied."""
    case = Case((0,), 512, q_heads=1, kv_heads=1, head_dim=128, options=CAUSAL)
    _, gpu = counted(case)
    tiles = range(128, 513, 128)
    assert_count("bytes of K and V", loads(gpu)[0], 2 * sum(tiles) * 256, 1.02)
    assert_count("products", gpu.report.count("mma"), 2 * 2 * 8 * sum(end * 128 // 256 for end in tiles) * 7 // 10, 1.5)


@pytest.mark.parametrize("layout", ["separate", "halves", "heads_first"])
def test_pages_of_one_token_cost_little_more(layout: str) -> None:
    """Token pools: the page table is as long as the context, and read once."""
    sectors = {}
    for page_size in (1, 64):
        case = Case(CONTEXTS, 16, q_heads=8, kv_heads=2, head_dim=128, page_size=page_size, layout=layout)
        _, gpu = counted(case)
        sectors[page_size] = sum(buffer.load_sectors for buffer in gpu.report.buffers.values())
        assert_one_sweep(case, gpu)
    assert sectors[1] <= 1.1 * sectors[64]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("page_size", "window"), [(16, 100), (64, 100), (1, 77), (256, 300)])
def test_windows_touch_only_their_pages(page_size: int, window: int, causal: bool) -> None:
    options = {"window": window, "causal": causal}
    case = Case((1000, 700), 8, q_heads=4, kv_heads=1, head_dim=128, page_size=page_size, options=options)
    _, gpu = counted(case)
    rows = 0
    for request, context in enumerate(case.contexts):
        first_page = case.visible(request)[0] // page_size
        rows += context + 8 - first_page * page_size
    assert loads(gpu)[0] <= 2 * rows * 256
    assert loads(gpu)[0] >= key_value_bytes(case)
    kept = 2 * rows * 2 * 2 * 8 // 16 * 2  # two fragments of rows
    assert gpu.report.count("mma") <= kept + 2 * 2 * 64 * 4


def test_work_follows_the_lengths_on_the_device() -> None:
    """A plan for 2000 tokens of context that finds 100 moves and multiplies what 100 take."""
    case = Case((2000,), 16, q_heads=4, kv_heads=1, head_dim=128)
    short = Case((100,), 16, q_heads=4, kv_heads=1, head_dim=128)
    _, gpu = counted(case, context_lens=torch.tensor([100], dtype=torch.int32))
    assert_count("bytes of K and V", loads(gpu)[0], key_value_bytes(short), 1.02)
    assert_count("products", gpu.report.count("mma"), least_products(short), padding(short))


def test_one_split_uses_no_workspace() -> None:
    case = Case((500, 300), 16, q_heads=4, kv_heads=1, head_dim=128, options={"num_splits": 1})
    call, gpu = counted(case)
    assert call.plan is not None
    assert call.plan.workspace_bytes == 0
    assert "workspace" not in gpu.report.buffers or gpu.report.buffers["workspace"].load_bytes == 0


def test_partial_results_move_once() -> None:
    """Four splits of 64 rows: results in float32 with a maximum and a sum of each row, written once and read once."""
    case = Case((1000,), 16, q_heads=4, kv_heads=1, head_dim=128, options={"num_splits": 4})
    _, gpu = counted(case)
    partials = 4 * 64 * (128 + 2) * 4
    workspace = gpu.report.buffers["workspace"]
    assert_count("bytes of partial results stored", workspace.store_bytes, partials - 64 * 130 * 4, 1.5)
    assert_count("bytes of partial results loaded", workspace.load_bytes, partials - 64 * 130 * 4, 1.5)
    assert workspace.store_sectors * SECTOR <= 1.05 * workspace.store_bytes + 64 * SECTOR
    assert workspace.load_sectors * SECTOR <= 1.05 * workspace.load_bytes + 64 * SECTOR
