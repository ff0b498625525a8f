"""select_pages' kernel on the PTX interpreter."""

from typing import Any

import pytest
import torch

from dflash_ops import _host
from tests.cases.page_selection import Attention, Case
from tests.cuda.gpu import GPUS, Gpu, sparse_elements
from tests.cuda.simulated_page_selection import SelectPagesCall, select_pages
from tests.ops.test_select_pages import all_scores, define, width_of
from tests.ptxsim import assert_count

DTYPES = [torch.float16, torch.bfloat16]
SENTINEL = 2147480000
CASES = [
    Case(Attention((), 0), 64),
    Case(Attention((0, 5, 0), (3, 0, 8)), 64),
    Case(Attention((300, 0, 17, 64), (16, 1, 0, 7), head_dim=128), 64, sink=1, local=20),
    Case(Attention((400,), 8), 0, sink=40, local=100),  # what is always kept is more than the budget
    Case(Attention((500, 90), 4, head_dim=96), 5000, sink=4, local=8),  # and the budget more than the context
    Case(Attention((300, 200), (0, 5), head_dim=128, page_size=4), 80, sink=8, local=16),  # a request without rows
    Case(Attention((700,), 16, q_heads=1, kv_heads=1, head_dim=128, page_size=4), 100),
    Case(Attention((900, 10), 5, q_heads=3, kv_heads=1, page_size=2), 512, sink=64, local=256),
    Case(
        Attention((600, 431), 7, q_heads=5, kv_heads=1, head_dim=96, page_size=4, slack_rows=0), 128, sink=16, local=9
    ),
    Case(Attention((400,), 16, q_heads=8, kv_heads=1, head_dim=128, page_size=2), 96, sink=3),  # 128 rows: one tile
    Case(Attention((300,), (15,), q_heads=21, kv_heads=3, head_dim=64, page_size=4, slack_rows=3), 64),
    Case(Attention((300, 90), (40, 3), q_heads=8, kv_heads=2, head_dim=128, page_size=4), 64),  # 160 rows: two tiles
    Case(Attention((260,), 150, q_heads=2, kv_heads=1, page_size=2), 40, local=3),  # 300 rows: three
    Case(Attention((200, 123), (9, 16), q_heads=16, kv_heads=2, head_dim=256, page_size=4), 48, sink=4),
    Case(Attention((120,), 3, q_heads=2, kv_heads=2, head_dim=256, page_size=1), 33, sink=2, local=10),
    Case(Attention((900,), 3, page_size=1, q_heads=2, kv_heads=1), 600, sink=2, local=10),
    Case(Attention((3000,), 2, page_size=64, q_heads=2, kv_heads=1), 640, sink=64, local=64),
    Case(Attention((3000, 2047), 2, page_size=256, q_heads=2, kv_heads=2, layout="heads_first"), 1024, sink=1),
]
SMALL = Case(Attention((500, 90), 4, page_size=4), 96, sink=5, local=9)
LONG = Case(Attention((4099, 2000), 4, q_heads=2, kv_heads=2, page_size=4), 1024, sink=16, local=16)


def check(case: Case, dtype: torch.dtype, gpu: Gpu, **changes: Any) -> None:
    """On whole numbers, where scores are exact and many are equal: the very same pages. Bounds of pages that no one owns
    are NaN, table entries past a context garbage."""
    inputs = case.inputs(dtype, whole=True) | changes
    expected, counts = define(inputs, width_of(inputs))
    selected, actual_counts = select_pages(gpu, **inputs)
    assert torch.equal(actual_counts, counts)
    assert torch.equal(selected, expected)


@pytest.mark.parametrize("mode", range(2))
@pytest.mark.parametrize("index", range(len(CASES)), ids=lambda index: str(CASES[index]))
def test_equals_the_definition(index: int, mode: int) -> None:
    """Both dtypes of each case, in two of the three orders of copies and warps."""
    check(CASES[index], DTYPES[(index + mode) % 2], GPUS[(index + mode) % 3])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index", [8, 9, 13])
def test_differs_from_the_definition_only_between_scores_that_are_as_good_as_equal(
    index: int, dtype: torch.dtype
) -> None:
    """Sums of products of any numbers, rounded in an order of the kernel's own."""
    inputs = CASES[index].inputs(dtype)
    selected, counts = select_pages(Gpu(), **inputs)
    expected, expected_counts = define(inputs, selected.shape[2])
    assert torch.equal(counts, expected_counts)
    scores = all_scores(inputs) if inputs["cu_block_lens"] is None else None
    for place, (ours, wanted) in enumerate(zip(selected.flatten(0, 1), expected.flatten(0, 1), strict=True)):
        differing = set(ours.tolist()) ^ set(wanted.tolist())
        if differing:
            assert scores is not None
            values = scores[place][sorted(differing)]
            assert values.max() - values.min() < 1e-5 * scores[place].nan_to_num().abs().max()


def test_many_stretches_whatever_the_order_of_events() -> None:
    """More blocks than a multiprocessor has places for; the last to arrive finds the others' keys."""
    for gpu in (*GPUS, Gpu("B200", completion="late", schedule="greedy"), Gpu(seed=9)):
        check(LONG, torch.bfloat16, gpu)


@pytest.mark.parametrize("gpu", GPUS, ids=str)
@pytest.mark.parametrize("tokens", [5, 40])
def test_few_stretches_of_many_tiles(tokens: int, gpu: Gpu) -> None:
    """So many requests that a long one gets two or three blocks: all stages are used again, by several row tiles."""
    check(few_stretches(tokens), torch.bfloat16, gpu)


def few_stretches(tokens: int) -> Case:
    contexts, blocks = (1500, *(0,) * 81), (tokens, *(0,) * 81)
    return Case(Attention(contexts, blocks, q_heads=4, kv_heads=1, page_size=2), 256, sink=4)


def test_all_keys_equal() -> None:
    """Ties go to the lower page, wherever blocks and threads meet."""
    inputs = LONG.inputs(torch.bfloat16, whole=True)
    inputs["k_bounds"].fill_(1.0)
    selected, counts = select_pages(Gpu(), **inputs)
    expected, expected_counts = define(inputs, selected.shape[2])
    assert torch.equal(selected, expected)
    assert torch.equal(counts, expected_counts)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_scores_of_every_size_and_sign(sign: float) -> None:
    """Keys of pages spread over all digits: powers of two and their neighbours, few of them equal."""
    inputs = LONG.inputs(torch.bfloat16, whole=True)
    pages = torch.arange(inputs["k_bounds"].shape[0])
    values = sign * torch.exp2((pages * 7 % 40 - 20).float()) * (1 + (pages % 3).float() / 4)
    inputs["q"].zero_()[..., 3] = 1.0
    inputs["k_bounds"].zero_()[:, :, :, 3] = values[:, None, None].bfloat16()
    selected, _ = select_pages(Gpu(), **inputs)
    expected, _ = define(inputs, selected.shape[2])
    assert torch.equal(selected, expected)


def test_scores_that_differ_in_their_last_bits() -> None:
    """1024 and 0 to 255 units of the last place of its float32, from two channels."""
    inputs = LONG.inputs(torch.bfloat16, whole=True)
    pages = torch.arange(inputs["k_bounds"].shape[0])
    inputs["q"].zero_()[..., [3, 40]] = 1.0
    inputs["k_bounds"].zero_()[:, :, :, 3] = 1024.0
    inputs["k_bounds"][:, :, :, 40] = ((pages * 37 % 256).float() * 2.0**-13)[:, None, None].bfloat16()
    selected, _ = select_pages(Gpu(), **inputs)
    expected, _ = define(inputs, selected.shape[2])
    assert torch.equal(selected, expected)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_page_with_nan_or_infinite_keys_counts_as_the_greatest(dtype: torch.dtype, value: float) -> None:
    case = Case(Attention((800,), 4), 48, local=1)
    inputs = case.inputs(dtype)
    inputs["k_bounds"][inputs["page_table"][0, 33].long(), 1, 1 if value == torch.inf else 0, 5] = value
    selected, _ = select_pages(Gpu(), **inputs)
    assert 33 in selected[0, 1].tolist()


def test_a_row_of_nan_stays_with_its_request() -> None:
    """And one of zeros, also of minus zeros: every score counts, the negative ones too."""
    case = Case(Attention((300, 260), 5, q_heads=2, kv_heads=1, page_size=4), 64)
    inputs = case.inputs(torch.bfloat16, whole=True)
    expected, _ = define(inputs, width_of(inputs))
    inputs["q"][:5] = torch.nan
    selected, _ = select_pages(Gpu(), **inputs)
    assert selected[0, 0].tolist() == [*range(15), 74]  # all NaN: equal
    assert torch.equal(selected[1], expected[1])
    inputs["q"].abs_()
    inputs["q"][:, :, ::2] = -0.0
    inputs["q"][:5] = -1.0
    inputs["k_bounds"].abs_()  # the first request's scores are negative, and rows past its last are not
    expected, _ = define(inputs, width_of(inputs))
    assert torch.equal(select_pages(Gpu(), **inputs)[0], expected)


def test_only_bounds_between_the_sinks_and_the_local_pages_are_read() -> None:
    inputs = SMALL.inputs(torch.bfloat16, whole=True)
    expected = select_pages(Gpu(), **inputs)
    local = (500 - 9) // 4
    inputs["k_bounds"][inputs["page_table"][0, [0, 1, local, 124]].long()] = torch.nan
    inputs["page_table"][0, [0, 1, *range(local, 125)]] = SENTINEL
    inputs["page_table"][1, [0, 1, 21, 22]] = -1
    actual = select_pages(Gpu(), **inputs)
    assert torch.equal(actual[0], expected[0])
    assert torch.equal(actual[1], expected[1])


def test_a_plan_serves_other_lengths() -> None:
    """As in a CUDA graph: the workspace stays as the last launch left it, its counters at zero."""
    case = Case(Attention((900, 900, 900), (4, 4, 4), q_heads=2, kv_heads=2, page_size=2), 128, sink=4, local=9)
    inputs = case.inputs(torch.bfloat16, whole=True)
    inputs["k_bounds"].nan_to_num_(1.0)
    call = SelectPagesCall(Gpu(), **inputs)
    for contexts, blocks in (
        ((10, 0, 337), (4, 4, 4)),
        ((900, 900, 900), (4, 4, 4)),
        ((0, 900, 1), (1, 0, 9)),
        ((131, 160, 899), (0, 12, 0)),
        ((899, 300, 141), (4, 2, 4)),
    ):
        inputs["context_lens"].copy_(torch.tensor(contexts))
        inputs["cu_block_lens"].copy_(torch.tensor([0, *blocks]).cumsum(0))
        expected, counts = define(inputs, call.selected.shape[2])
        selected, actual_counts = call.launch()
        assert torch.equal(selected, expected)
        assert torch.equal(actual_counts, counts)
        assert not call.workspace[:65536].any()


def test_what_lies_in_the_workspace_does_not_matter() -> None:
    """But for the counters. It is no longer than the plan says."""
    inputs = SMALL.inputs(torch.bfloat16, whole=True)
    expected = select_pages(Gpu(), **inputs)
    size = _host.select_pages_cuda_workspace_size(2, 2, inputs["page_table"].shape[1])
    workspace = torch.full((size,), 255, dtype=torch.uint8)
    workspace[:65536] = 0
    assert torch.equal(select_pages(Gpu(), **inputs, workspace=workspace)[0], expected[0])


def test_lengths_that_make_no_sense_stay_inside() -> None:
    case = Case(Attention((100, 70, 60, 33), (4, 2, 3, 5), page_size=2, table_slack=0), 24, sink=2, local=3)
    inputs = case.inputs(torch.bfloat16, whole=True)
    inputs["page_table"].clamp_(0, 100)
    inputs["k_bounds"].nan_to_num_(1.0)
    bounded = inputs | {"context_lens": torch.tensor([100, 0, 100, 33], dtype=torch.int32)}
    expected, _ = define(bounded, width_of(inputs))
    inputs["context_lens"].copy_(torch.tensor([100, -7, 2**31 - 1, 33]))
    assert torch.equal(select_pages(Gpu(), **inputs)[0], expected)
    for lengths in ([0, 4, 6, 9, 100], [0, 4, 4, 2**31 - 1, 3], [0, 4, -5, -1, -1], [-3, 4, 4, 4, 4]):
        inputs["cu_block_lens"].copy_(torch.tensor(lengths))
        assert torch.equal(select_pages(Gpu(), **inputs)[0][0], expected[0])


def test_every_stride_is_honoured() -> None:
    case = Case(Attention((400, 90), (3, 5), q_heads=4, kv_heads=2, head_dim=64, page_size=4), 96, sink=16)
    inputs = case.inputs(torch.float16, whole=True)
    expected = select_pages(Gpu(), **inputs)
    pages, heads, _, dim = inputs["k_bounds"].shape
    q = torch.full((4, 8, dim + 8), torch.nan, dtype=torch.float16)
    q[:, :, :dim] = inputs["q"].transpose(0, 1)
    bounds = torch.full((2, heads, pages, dim + 8), torch.nan, dtype=torch.float16)
    bounds[..., :dim] = inputs["k_bounds"].permute(2, 1, 0, 3)
    both = torch.full((2, 3), -5, dtype=torch.int32)
    both[:, 1] = inputs["context_lens"]
    table = torch.full((2, 2, inputs["page_table"].shape[1]), -1, dtype=torch.int32)
    table[:, 0] = inputs["page_table"]
    inputs |= {
        "q": q.transpose(0, 1)[..., :dim],
        "k_bounds": bounds.permute(2, 1, 0, 3)[..., :dim],
        "context_lens": both[:, 1],
        "page_table": table[:, 0],
        "cu_block_lens": torch.tensor([[0, 9], [3, 9], [8, 9]], dtype=torch.int32)[:, 0],
    }
    storage = torch.full((2, 2, expected[0].shape[2] + 3), 7, dtype=torch.int32)
    counts = torch.full((2, 2, 2), 7, dtype=torch.int32)
    select_pages(Gpu(), **inputs, selected_pages=storage.transpose(0, 1), selected_counts=counts[:, :, 1].t())
    assert torch.equal(storage.transpose(0, 1)[:, :, :-3], expected[0])
    assert (storage[:, :, -3:] == -1).all()
    assert torch.equal(counts[:, :, 1].t(), expected[1])
    assert (counts[:, :, 0] == 7).all()


def test_offsets_past_2_31_elements() -> None:
    case = Case(Attention((60, 50), 3, q_heads=4, kv_heads=2, page_size=4), 24)
    inputs = case.inputs(torch.bfloat16, whole=True)
    expected = select_pages(Gpu(), **inputs)
    pages, heads, _, dim = inputs["k_bounds"].shape
    stride = 2**31 + 64
    bounds = sparse_elements(stride * pages, torch.bfloat16).as_strided(
        (pages, heads, 2, dim), (stride, 2 * dim, dim, 1)
    )
    q = sparse_elements(6 * 2**30 + 4096, torch.bfloat16).as_strided((6, 4, dim), (2**30, dim, 1))
    width = expected[0].shape[2]
    entries = sparse_elements(2**31 + 256, torch.int32)  # of the page table and of the lists
    table = entries[128:].as_strided(inputs["page_table"].shape, (2**31, 1))
    inputs |= {
        "k_bounds": bounds.copy_(inputs["k_bounds"]),
        "q": q.copy_(inputs["q"]),
        "page_table": table.copy_(inputs["page_table"]),
        "selected_pages": entries.as_strided((2, 2, width), (2**31, 64, 1)),
    }
    assert torch.equal(select_pages(Gpu(), **inputs)[0], expected[0])


@pytest.mark.parametrize(("page_size", "block"), [(16, 16), (64, (16, 9)), (16, 32)], ids=str)
def test_every_bound_is_read_once(page_size: int, block: int | tuple[int, ...]) -> None:
    """Up to 128 rows: 2 / page_size of K, in one launch over contexts of 4k."""
    contexts = (4096,) if isinstance(block, int) else (4096, 4000)
    attention = Attention(contexts, block, q_heads=8, kv_heads=2, head_dim=128, page_size=page_size)
    case = Case(attention, 512, sink=64, local=256)
    gpu = counting("H200")
    inputs = case.inputs(torch.bfloat16, whole=True)
    call = SelectPagesCall(gpu, **inputs)
    selected, _ = call.launch()
    assert torch.equal(selected, define(inputs, selected.shape[2])[0])
    scored = sum((context - 256) // page_size - 64 // page_size for context in contexts)
    gpu.assert_loads("bounds", scored * 2 * 2 * 128 * 2, 1.0)
    assert 2 * 128 * scored <= 2 / page_size * sum(contexts) * 128  # elements of a head: no more than that share of K
    report = gpu.report
    assert_count("wavefronts", report.total("wavefronts"), report.total("ideal_wavefronts"), 1.1)
    products = 0
    for context, tokens in zip(contexts, attention.blocks, strict=True):
        row_fragments, pages = -(-tokens * 4 // 16), (context - 256) // page_size - 64 // page_size
        products += 2 * row_fragments * 16 * -(-pages // 8)
    assert_count("products", report.count("mma"), products, 1.5)
    keys = 2 * scored * 4
    workspace = report.buffers["workspace"]
    assert_count("bytes of keys stored", workspace.store_bytes, keys, 1.05)
    assert_count("bytes of keys loaded", workspace.load_bytes, keys, 1.05)


def whole_inputs(pages: int, rows: int) -> dict[str, Any]:
    """One head over a context of pages of 16, random bounds of whole numbers."""
    generator = torch.Generator().manual_seed(5)
    bounds = torch.randint(-3, 4, (pages, 1, 2, 64), generator=generator).sort(dim=2).values.bfloat16()
    return {
        "q": torch.randint(-3, 4, (rows, 2, 64), generator=generator).bfloat16(),
        "k_bounds": bounds,
        "page_table": torch.randperm(pages, generator=generator).int()[None],
        "context_lens": torch.tensor([16 * pages - 6], dtype=torch.int32),
        "cu_block_lens": None,
        "page_size": 16,
        "budget_tokens": 2048,
        "sink_tokens": 64,
        "local_tokens": 256,
    }


def counting(name: str) -> Gpu:
    return Gpu(name, completion="early", schedule="round_robin", races=False, warp_races=False)


def test_a_long_context_in_one_launch() -> None:
    """64k tokens, 4,096 pages: split over the GPU, chosen from shared memory."""
    gpu, inputs = counting("H200"), whole_inputs(4096, 16)
    call = SelectPagesCall(gpu, **inputs)
    selected, counts = call.launch()
    assert len(gpu.reports) == 1
    assert call.plan is not None
    assert call.plan.grid[0] > 16
    assert torch.equal(selected, define(inputs, selected.shape[2])[0])
    assert counts.item() == 128
    assert call.plan.shared_bytes >= 4 * 4096
    assert gpu.report.buffers["workspace"].load_bytes <= 1.05 * 4 * 4096


def test_more_keys_than_shared_memory_has_room_for() -> None:
    gpu, inputs = counting("RTX 3090"), whole_inputs(10400, 1)
    call = SelectPagesCall(gpu, **inputs)
    selected, _ = call.launch()
    assert call.plan is not None
    assert call.plan.shared_bytes < 4 * (10400 - 20)
    assert torch.equal(selected, define(inputs, selected.shape[2])[0])


def params_of(**changes: Any) -> _host.SelectPagesParams:
    fields = {
        "dtype": _host.DType.bfloat16,
        "batch": 1,
        "tokens": 16,
        "q_heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "page_size": 16,
        "max_pages": 4096,
        "width": 128,
        "budget_tokens": 2048,
        "local_tokens": 256,
        "sink_tokens": 64,
        "bounds_part_stride": 128,
        "bounds_head_stride": 256,
        "bounds_page_stride": 2048,
    }
    return _host.SelectPagesParams(**fields | changes)


@pytest.mark.parametrize("device", _host.known_devices(), ids=lambda device: device.name)
def test_a_long_context_fills_the_gpu(device: _host.DeviceProperties) -> None:
    plan = _host.plan_select_pages(params_of(), 0, device)
    blocks = plan.grid[0] * plan.grid[1]
    assert blocks >= 0.85 * device.multiprocessors
    assert plan.workspace_bytes == 65536 + 8 * 4096 * 4
    many = _host.plan_select_pages(params_of(batch=4096, tokens=4096), 0, device)  # more lists than counters
    assert many.grid[:2] == (4096, 8)


def test_what_no_kernel_is_made_for_is_refused() -> None:
    device = _host.known_device("H200")
    for change, message in (
        ({"dtype": _host.DType.float32}, "q: expected float16 or bfloat16 on CUDA, got float32"),
        ({"head_dim": 72}, "head_dim: expected 64, 96, 128 or 256 on CUDA, got 72"),
        ({"bounds": 8}, "k_bounds: expected 16-byte aligned rows"),
        ({"bounds_part_stride": 129}, "k_bounds: expected strides that are multiples of 8 elements, got 129"),
        ({"q_head_stride": 4}, "q: expected strides that are multiples of 8 elements, got 4"),
    ):
        with pytest.raises(ValueError, match=message):
            _host.plan_select_pages(params_of(**change), 0, device)
