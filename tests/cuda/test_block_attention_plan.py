"""How block_attention is cut into blocks on every known GPU, what its workspace takes, and what it refuses."""

import itertools
from typing import Any

import pytest

from dflash_ops import _host
from dflash_ops._host import DeviceProperties, LaunchPlan
from tests.cases.block_attention import TENSOR_CORE_CASES

DEVICES = _host.known_devices()
WORKSPACE = 1 << 20
GRID_LIMIT = 65535  # of y and z
every_device = pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)


def shape(
    batch: int,
    block: int,
    context: int,
    *,
    q_heads: int = 32,
    kv_heads: int = 8,
    head_dim: int = 128,
    page_size: int = 16,
    ragged: bool = False,
    **others: Any,
) -> dict[str, Any]:
    """Parameters of contiguous tensors. `ragged`: lengths only the device knows."""
    fields: dict[str, Any] = {
        "dtype": _host.DType.bfloat16,
        "batch": batch,
        "tokens": batch * block,
        "q_heads": q_heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "page_size": page_size,
        "max_pages": -(-context // page_size),
        "scale": 0.1,
        "cu_block_lens": 4096 if ragged else 0,
        "cu_block_lens_stride": 1,
    }
    for name, heads in (("q", q_heads), ("out", q_heads), ("k_block", kv_heads), ("v_block", kv_heads)):
        fields |= {name: 4096, f"{name}_token_stride": heads * head_dim, f"{name}_head_stride": head_dim}
    for name in ("k", "v"):
        fields |= {
            f"{name}_cache": 4096,
            f"{name}_page_stride": page_size * kv_heads * head_dim,
            f"{name}_slot_stride": kv_heads * head_dim,
            f"{name}_head_stride": head_dim,
        }
    return fields | others


def plan(fields: dict[str, Any], device: DeviceProperties) -> LaunchPlan:
    return _host.plan_block_attention(_host.BlockAttentionParams(**fields), WORKSPACE, device)


def workspace_size(fields: dict[str, Any], device: DeviceProperties) -> int:
    return _host.block_attention_cuda_workspace_size(
        **{name: fields[name] for name in ("tokens", "batch", "q_heads", "kv_heads", "head_dim")},
        max_context=fields["max_pages"] * fields["page_size"],
        num_splits=fields.get("num_splits", 0),
        multiprocessors=device.multiprocessors,
    )


def tile_rows(launch: LaunchPlan) -> int:
    return int(launch.entry.rsplit("_", 1)[1])


def resident_blocks(launch: LaunchPlan, device: DeviceProperties) -> int:
    """Blocks that shared memory and threads leave room for on the whole GPU; the system keeps 1 KiB of each."""
    threads = launch.block[0]
    by_shared = device.shared_bytes_per_multiprocessor // (launch.shared_bytes + 1024)
    return device.multiprocessors * min(by_shared, device.threads_per_multiprocessor // threads)


@every_device
@pytest.mark.parametrize("context", [32768, 131072])
@pytest.mark.parametrize(
    ("q_heads", "kv_heads", "block"), [(32, 8, 16), (8, 2, 8), (4, 1, 16), (16, 1, 8), (36, 12, 10)]
)
def test_one_long_context_fills_the_gpu(
    device: DeviceProperties, context: int, q_heads: int, kv_heads: int, block: int
) -> None:
    """In one wave: blocks that do not fit at once would wait for those that do."""
    launch = plan(shape(1, block, context, q_heads=q_heads, kv_heads=kv_heads), device)
    blocks, room = launch.grid[0] * launch.grid[1] * launch.grid[2], resident_blocks(launch, device)
    assert launch.grid[:2] == (1, kv_heads)
    assert device.multiprocessors <= blocks <= room
    if context * kv_heads >= 65536:  # otherwise splits of a size worth while are fewer
        assert blocks >= 0.9 * room


@every_device
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize(("batch", "block", "q_heads"), [(1, 16, 32), (3, 16, 8), (2, 4, 16)])
def test_small_batches_leave_no_multiprocessor_idle(
    device: DeviceProperties, head_dim: int, batch: int, block: int, q_heads: int
) -> None:
    launch = plan(shape(batch, block, 65536, q_heads=q_heads, kv_heads=q_heads // 4, head_dim=head_dim), device)
    blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
    room = resident_blocks(launch, device)
    assert 0.9 * min(2 * device.multiprocessors, room) <= blocks <= room


@every_device
@pytest.mark.parametrize("block", [8, 16, 32])
def test_ragged_batches_fill_the_gpu_as_well(device: DeviceProperties, block: int) -> None:
    """Where all blocks turn out to be equally long: tiles that ragged ones might need and these do not are not work."""
    for batch in (1, 2, 3, 8):
        launch = plan(shape(batch, block, 65536, ragged=True), device)
        working = batch * 8 * launch.grid[2] * -(-block * 4 // tile_rows(launch))
        assert 0.7 * min(2 * device.multiprocessors, resident_blocks(launch, device)) <= working
        assert working <= resident_blocks(launch, device)


@every_device
@pytest.mark.parametrize("ragged", [False, True])
def test_a_batch_that_fills_the_gpu_is_not_split(device: DeviceProperties, ragged: bool) -> None:
    for batch in (64, 100, 256):
        launch = plan(shape(batch, 16, 32768, ragged=ragged), device)
        assert launch.grid[0] * launch.grid[1] >= device.multiprocessors
        assert launch.grid[2] == 1
        assert launch.workspace_bytes == 0


@every_device
def test_a_short_context_is_not_cut_into_crumbs(device: DeviceProperties) -> None:
    """A block has to read more than it costs to write and to combine what it found."""
    for context in (16, 64, 256, 1024, 4096):
        launch = plan(shape(1, 16, context), device)
        assert launch.grid[2] <= max(1, -(-(context + 16) // 64))


@every_device
@pytest.mark.parametrize("ragged", [False, True])
def test_the_grid_covers_all_rows(device: DeviceProperties, ragged: bool) -> None:
    """Of every way in which tokens may be shared among requests, and the workspace query covers what the plan uses."""
    batches, blocks, groups = (1, 2, 5), (1, 7, 16, 40), (1, 3, 4, 16)
    for batch, block, group, splits in itertools.product(batches, blocks, groups, (0, 1, 2, 40)):
        fields = shape(batch, block, 500, q_heads=2 * group, kv_heads=2, ragged=ragged, num_splits=splits)
        launch = plan(fields, device)
        rows = tile_rows(launch)
        tokens = batch * block
        needed = most_tiles(batch, tokens, group, rows) if ragged else batch * -(-block * group // rows)
        assert launch.grid[0] >= needed
        assert launch.grid[0] <= needed + batch
        assert launch.grid[1] == 2
        assert launch.grid[2] == splits or splits == 0 or launch.grid[2] >= min(splits, 8)
        assert launch.workspace_bytes <= workspace_size(fields, device)
        assert (launch.workspace_bytes == 0) == (launch.grid[2] == 1)
        if rows == 64:
            assert group * (tokens if ragged else block) <= 64


def most_tiles(batch: int, tokens: int, group: int, rows: int) -> int:
    """The largest number of row tiles, over all ways to share tokens among requests."""
    most = [-1] * (tokens + 1)
    most[0] = 0
    for _ in range(batch):
        most = [
            max(most[total - part] - (-part * group // rows) for part in range(total + 1) if most[total - part] >= 0)
            for total in range(tokens + 1)
        ]
    return most[tokens]


@every_device
def test_the_workspace_is_neither_short_nor_far_too_large(device: DeviceProperties) -> None:
    for batch, context, kv_heads, head_dim, ragged in itertools.product(
        (1, 2, 8, 30, 64), (64, 1024, 32768), (1, 8), (64, 256), (False, True)
    ):
        fields = shape(batch, 16, context, q_heads=4 * kv_heads, kv_heads=kv_heads, head_dim=head_dim, ragged=ragged)
        used, asked = plan(fields, device).workspace_bytes, workspace_size(fields, device)
        assert used <= asked
        # Whatever is in flight holds 2 partial results of 128 rows for each multiprocessor at most.
        assert asked <= 4 * device.multiprocessors * 128 * (head_dim + 2) * 4 + (1 << 17)
    for splits in (2, 7, 64):
        fields = shape(4, 16, 4096, num_splits=splits, ragged=True)
        assert plan(fields, device).workspace_bytes <= workspace_size(fields, device)
        assert workspace_size(fields, device) <= 4 * splits * 4 * 16 * 32 * (128 + 2) * 4 + (1 << 17)


@every_device
def test_blocks_fit_a_multiprocessor(device: DeviceProperties) -> None:
    """Also where a block may have no more than 99 KiB of shared memory."""
    for head_dim, block in itertools.product((64, 96, 128, 256), (4, 16, 100)):
        launch = plan(shape(2, block, 1024, head_dim=head_dim), device)
        assert launch.shared_bytes <= device.shared_bytes_per_block
        assert launch.block[0] % 32 == 0
        assert launch.block[0] <= 1024


def test_limits_of_the_grid() -> None:
    """Splits and heads stay inside what CUDA takes, whatever the caller asks for."""
    launch = plan(shape(1, 16, 2_000_000, num_splits=1_000_000), DEVICES[0])
    assert 1 < launch.grid[2] <= GRID_LIMIT
    many = plan(shape(70_000, 1, 64, q_heads=1, kv_heads=1), DEVICES[0])
    assert many.grid[0] >= 70_000
    assert many.grid[1] <= GRID_LIMIT
    long = plan(shape(1, 4096, 64, ragged=True), DEVICES[0])
    assert long.grid[0] * tile_rows(long) >= 4096 * 4


def test_splits_meet_at_the_counters_of_the_workspace() -> None:
    """Its first 64 KiB, which all ops share, hold one for each tile of rows and kv head."""
    most = plan(shape(2048, 16, 4096, num_splits=2), DEVICES[0])
    assert most.grid[0] * most.grid[1] == 16384
    assert most.grid[2] == 2
    many = shape(2049, 16, 4096)
    assert plan(many, DEVICES[0]).grid[2] == 1
    assert plan(many | {"num_splits": 1}, DEVICES[0]).grid[2] == 1
    with pytest.raises(ValueError, match=r"num_splits: expected 1 for more than 16384 .*, got 2"):
        plan(many | {"num_splits": 2}, DEVICES[0])


def test_nothing_to_do_needs_no_launch() -> None:
    for fields in (shape(0, 16, 64), shape(3, 0, 64), shape(3, 0, 64, ragged=True), shape(0, 0, 0)):
        for device in DEVICES:
            assert plan(fields, device).grid[0] == 0
            assert plan(fields, device).workspace_bytes == 0
    assert plan(shape(2, 1, 0), DEVICES[0]).grid[0] > 0, "no context: the block alone"


def test_the_plan_does_not_look_at_lengths() -> None:
    """Their addresses belong to the GPU; reading them here would be a crash."""
    fields = shape(2, 16, 1024, ragged=True, context_lens=16, page_table=16, cu_block_lens=16)
    assert plan(fields, DEVICES[0]).grid[0] > 0


@pytest.mark.parametrize("fixed", [1, 2, 5])
def test_fixed_splits_are_the_same_on_every_gpu(fixed: int) -> None:
    for batch in (1, 7, 64):
        for device in DEVICES:
            assert plan(shape(batch, 16, 8192, num_splits=fixed), device).grid[2] == fixed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": _host.DType.float32}, "q: expected .*float16"),
        ({"head_dim": 80}, "head_dim"),
        ({"head_dim": 8}, "head_dim"),
        ({"k_page_stride": 2**36}, "k_cache: expected"),
        ({"v_head_stride": -128}, "v_cache: expected"),
        *(
            ({name: 4096 + 8}, f"{name}: expected .*16")
            for name in ("q", "k_block", "v_block", "k_cache", "v_cache", "out")
        ),
        *(
            ({name: 8 * 300 + 4}, f"{name.split('_')[0]}.*: expected .*8")
            for name in (
                "q_token_stride",
                "q_head_stride",
                "k_block_token_stride",
                "k_block_head_stride",
                "v_block_token_stride",
                "v_block_head_stride",
                "k_page_stride",
                "k_slot_stride",
                "k_head_stride",
                "v_page_stride",
                "v_slot_stride",
                "v_head_stride",
                "out_token_stride",
                "out_head_stride",
            )
        ),
    ],
    ids=str,
)
def test_what_has_no_kernel_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(shape(2, 16, 1024) | change, DEVICES[0])


def test_every_case_has_a_kernel() -> None:
    """The cases between them launch every combination of head size and rows of a tile."""
    entries = set()
    for case in TENSOR_CORE_CASES:
        uniform = isinstance(case.block, int)
        fields = shape(
            len(case.contexts),
            1,
            max(case.contexts, default=0),
            q_heads=case.q_heads,
            kv_heads=case.kv_heads,
            head_dim=case.head_dim,
            page_size=case.page_size,
            ragged=not uniform,
            num_splits=case.options.get("num_splits", 0),
            tokens=sum(case.blocks),
        )
        for dtype in ("float16", "bfloat16"):
            launch = plan(fields | {"dtype": getattr(_host.DType, dtype)}, DEVICES[0])
            if launch.grid[0] > 0:
                entries.add(launch.entry)
    assert entries == {
        f"block_attention_{dtype}_{dim}_{rows}"
        for dtype in ("float16", "bfloat16")
        for dim in (64, 96, 128, 256)
        for rows in (64, 128)
    }
