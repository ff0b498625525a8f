"""sparse_block_attention's kernel on the PTX interpreter: block_attention's, with a selection in the table's place."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from dflash_ops import _host, reference
from tests.cases.block_attention import CAUSAL, GARBAGE_PAGE, TENSOR_CORE_CASES, Case
from tests.cases.casting import in_dtype
from tests.cuda.gpu import Gpu, sparse_elements
from tests.cuda.simulated_attention import block_attention
from tests.cuda.simulated_page_selection import SparseAttentionCall, sparse_block_attention
from tests.cuda.test_block_attention import DTYPES, GPUS, SENTINEL, assert_same, rows_of, same_bits
from tests.ops.harness import assert_as_accurate
from tests.ops.test_sparse_block_attention import select
from tests.ptxsim import assert_count

# Every fourth of the dense kernel's, which differ in the same ways, and longer contexts than those have.
CASES = [
    *[case for case in TENSOR_CORE_CASES if "window" not in case.options][::4],
    Case((900, 333, 0), 16, q_heads=4, kv_heads=2, head_dim=128),
    Case((700, 65), (16, 3), q_heads=5, kv_heads=1, page_size=4, options=CAUSAL, has_sinks=True),
    Case((500, 40), (7, 16), q_heads=8, kv_heads=1, head_dim=128, page_size=1, options={"num_splits": 3}),
    Case((800,), 9, q_heads=2, kv_heads=2, head_dim=96, page_size=64, layout="heads_first", slack_rows=0),
    Case((300, 130), (16, 2), q_heads=16, kv_heads=2, head_dim=256, page_size=8, options={"softcap": 20.0}),
]


def definition(inputs: dict[str, Any], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    without_splits = {name: value for name, value in inputs.items() if name != "num_splits"}
    return reference.sparse_block_attention(**in_dtype(without_splits, dtype))


def check_result(inputs: dict[str, Any], out: Tensor, lse: Tensor | None) -> None:
    rows = rows_of(inputs)
    assert lse is not None
    expected, expected_lse = definition(inputs, torch.float64)
    plain, plain_lse = definition(inputs, inputs["q"].dtype)
    assert_as_accurate(out[:rows], expected[:rows], plain[:rows])
    assert_as_accurate(lse[:rows], expected_lse[:rows], plain_lse[:rows])
    torch.testing.assert_close(lse[:rows].double(), expected_lse[:rows], rtol=1e-5, atol=1e-4, equal_nan=True)
    assert out[rows:].isnan().all()
    assert lse[rows:].isnan().all()


def selected(case: Case, dtype: torch.dtype = torch.bfloat16, share: float = 0.4) -> dict[str, Any]:
    inputs = case.inputs(dtype)
    return inputs | select(inputs, share)


def check(case: Case, dtype: torch.dtype = torch.bfloat16, gpu: Gpu | None = None, share: float = 0.4) -> None:
    inputs = selected(case, dtype, share)
    check_result(inputs, *sparse_block_attention(gpu or Gpu(), **inputs))


@pytest.mark.parametrize("index", range(len(CASES)), ids=lambda index: str(CASES[index]))
def test_matches_the_definition(index: int) -> None:
    """Unused entries of the lists and of the page table are garbage, unused slots NaN; every order of copies and warps."""
    check(CASES[index], DTYPES[index % 2], GPUS[index % 3])


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("count", ["none", "all"])
def test_no_selection_and_all_pages_are_dense_attention(count: str, num_splits: int) -> None:
    """To the last bit."""
    case = Case((1, 100, 250, 0), 7, q_heads=6, kv_heads=2, page_size=4, options=CAUSAL | {"num_splits": num_splits})
    inputs = case.inputs(torch.bfloat16)
    dense = block_attention(Gpu(), **inputs)
    inputs |= select(inputs, 2.0 if count == "all" else -1.0)
    inputs["selected_counts"] *= 1 if count == "all" else 0
    assert_same(sparse_block_attention(Gpu(), **inputs), dense)
    if count == "none":
        inputs["selected_pages"] = torch.empty(4, 2, 0, dtype=torch.int32)
        assert_same(sparse_block_attention(Gpu(), **inputs), dense)


def test_a_selection_serves_a_context_that_grows_or_is_cut() -> None:
    """One plan, as in a CUDA graph: whole new pages are seen; selected pages past the context are not, however many."""
    case = Case((800,), 4, q_heads=4, kv_heads=2, page_size=8, table_slack=0)
    inputs = case.inputs(torch.bfloat16)
    kept = torch.arange(0, 96, 2, dtype=torch.int32)
    inputs["selected_pages"] = kept.expand(1, 2, 48).contiguous()
    inputs["selected_counts"] = torch.tensor([[48, 45]], dtype=torch.int32)
    call = SparseAttentionCall(Gpu(), **inputs)
    for context in (800, 713, 705, 256, 200, 199, 9, 1, 0):
        inputs["context_lens"].fill_(context)
        call.out.fill_(torch.nan)
        check_result(inputs, *call.launch())


@pytest.mark.parametrize("poison", [(torch.nan, 0.0), (0.0, torch.nan)], ids=str)
def test_what_a_head_does_not_see_never_reaches_its_result(poison: tuple[float, float]) -> None:
    case = Case((300, 17, 0, 161), (5, 3, 2, 8), q_heads=6, kv_heads=3, page_size=8)
    inputs = case.inputs(torch.bfloat16, poison=(0.0, 0.0))
    inputs |= select(inputs, 0.3)
    clean = sparse_block_attention(Gpu(), **inputs)
    seen = set()
    for request, head in itertools.product(range(4), range(3)):
        pages = -(-case.contexts[request] // 8)
        listed = inputs["selected_pages"][request, head, : inputs["selected_counts"][request, head]].tolist()
        listed += range(listed[-1] + 1 if listed else 0, pages)
        seen |= {(request, page) for page in listed}
        hidden = inputs["page_table"][request, sorted(set(range(pages)) - set(listed))].long()
        inputs["k_cache"][hidden, :, head] = poison[0]
        inputs["v_cache"][hidden, :, head] = poison[1]
    for request, page in itertools.product(range(4), range(inputs["page_table"].shape[1])):
        if (request, page) not in seen:
            inputs["page_table"][request, page] = GARBAGE_PAGE
    for request, context in enumerate(case.contexts):
        last = inputs["page_table"][request, max(0, -(-context // 8) - 1)].long()
        if context % 8:
            inputs["k_cache"][last, context % 8 :] = poison[0]
            inputs["v_cache"][last, context % 8 :] = poison[1]
    assert_same(sparse_block_attention(Gpu(), **inputs), clean)


@pytest.mark.parametrize("num_splits", [0, 4])
def test_the_result_does_not_depend_on_the_order_of_events(num_splits: int) -> None:
    case = Case((900, 30), (7, 16), q_heads=4, kv_heads=1, head_dim=128, options={"num_splits": num_splits})
    results = []
    for gpu in GPUS:
        order = {name: gpu.options[name] for name in ("completion", "schedule")}
        results.append(sparse_block_attention(Gpu(**order), **selected(case)))
    for result in results[1:]:
        assert_same(result, results[0])


def test_what_makes_no_sense_stays_inside() -> None:
    """No one can check lists before the launch: the counts nearest to possible ones are taken, pages that are not in the
    table lead to others that are. Nothing outside the tensors is touched."""
    case = Case((200, 70), 4, q_heads=2, kv_heads=2, page_size=8, table_slack=0)
    inputs = case.inputs(torch.bfloat16)
    inputs["page_table"].clamp_(0, 20)
    inputs |= {"k_cache": inputs["k_cache"].nan_to_num(0.5), "v_cache": inputs["v_cache"].nan_to_num(0.5)}
    inputs["selected_pages"] = torch.tensor([3, -5, GARBAGE_PAGE, 7, 2, 2, -1, 1], dtype=torch.int32).expand(2, 2, 8)
    for counts in ([8, 2**31 - 1, -4, 5], [3, 4, 2, 1]):
        inputs["selected_counts"] = torch.tensor(counts, dtype=torch.int32).view(2, 2)
        out, lse = sparse_block_attention(Gpu(), **inputs)
        assert out.isfinite().all()
        assert lse is not None
        assert lse.isfinite().all()
    inputs["selected_pages"] = torch.tensor([3, 5, 7, 9], dtype=torch.int32).expand(2, 2, 4).contiguous()
    inputs["selected_counts"].fill_(2**31 - 1)
    out, lse = sparse_block_attention(Gpu(), **inputs)
    check_result(inputs | {"selected_counts": torch.full((2, 2), 4, dtype=torch.int32)}, out, lse)


def test_every_stride_is_honoured() -> None:
    case = Case((200, 70), 6, q_heads=6, kv_heads=3, page_size=4)
    inputs = selected(case)
    expected = sparse_block_attention(Gpu(), **inputs)
    lists = torch.full((3, 2, inputs["selected_pages"].shape[2] + 5), -9, dtype=torch.int32)
    lists[:, :, :-5] = inputs["selected_pages"].transpose(0, 1)
    counts = torch.full((3, 2, 2), -9, dtype=torch.int32)
    counts[..., 1] = inputs["selected_counts"].t()
    strided = {"selected_pages": lists[:, :, :-5].transpose(0, 1), "selected_counts": counts[..., 1].t()}
    storage = torch.full((12, 7, 72), SENTINEL, dtype=torch.bfloat16)
    out, lse = sparse_block_attention(Gpu(), **inputs | strided, out=storage[:, :6, :64])
    assert_same((out, lse), expected)
    assert (storage[:, 6] == SENTINEL).all()


def test_lists_past_2_31_elements() -> None:
    inputs = selected(Case((100, 70), 3, q_heads=2, kv_heads=2, page_size=4))
    expected = sparse_block_attention(Gpu(), **inputs)
    entries = sparse_elements(2**32 + 2**31 + 64, torch.int32)
    shape = inputs["selected_pages"].shape
    inputs["selected_pages"] = entries.as_strided(shape, (2**32, 2**31, 1)).copy_(inputs["selected_pages"])
    counts = sparse_elements(2**32 + 2**31 + 64, torch.int32).as_strided((2, 2), (2**32, 2**31))
    inputs["selected_counts"] = counts.copy_(inputs["selected_counts"])
    assert_same(sparse_block_attention(Gpu(), **inputs), expected)


@pytest.mark.parametrize(("page_size", "block"), [(16, 16), (64, (16, 9)), (1, 16)], ids=str)
def test_what_is_read_follows_the_budget(page_size: int, block: int | tuple[int, ...]) -> None:
    """A sixteenth of two contexts: K and V of the selected pages and of the block, once for each kv head."""
    contexts = (4096, 4000)
    case = Case(contexts, block, q_heads=8, kv_heads=2, head_dim=128, page_size=page_size)
    inputs = case.inputs(torch.bfloat16)
    count = 256 // page_size
    lists = torch.empty(2, 2, count, dtype=torch.int32)
    for request, head in itertools.product(range(2), range(2)):
        last = -(-contexts[request] // page_size) - 1
        others = torch.randperm(last, generator=torch.Generator().manual_seed(head))[: count - 1].sort().values
        lists[request, head] = torch.cat([others, torch.tensor([last])])
    inputs |= {"selected_pages": lists, "selected_counts": torch.full((2, 2), count, dtype=torch.int32)}
    gpu = Gpu("H200", completion="early", schedule="round_robin", races=False, warp_races=False)
    call = SparseAttentionCall(gpu, **inputs)
    check_result(inputs, *call.launch())
    rows = 2 * sum(256 - (-context % page_size) + block for context, block in zip(contexts, case.blocks, strict=True))
    buffers = [gpu.report.buffers[name] for name in ("k_cache", "v_cache", "k_block", "v_block")]
    assert_count("bytes of K and V", sum(buffer.load_bytes for buffer in buffers), 2 * rows * 256, 1.02)
    assert_count("sectors of K and V", 32 * sum(buffer.load_sectors for buffer in buffers), 2 * rows * 256, 1.02)
    assert call.plan is not None
    assert 2 <= call.plan.grid[2] <= 5  # as 272 keys and a page take, not 4,096
    entries = sum(gpu.report.buffers[name].load_sectors * 32 for name in ("page_table", "selected"))
    assert entries <= (0.05 if page_size > 1 else 0.1) * 2 * rows * 256


def params_of(case: Case, **changes: Any) -> _host.BlockAttentionParams:
    fields = {
        "dtype": _host.DType.bfloat16,
        "batch": len(case.contexts),
        "tokens": sum(case.blocks),
        "q_heads": case.q_heads,
        "kv_heads": case.kv_heads,
        "head_dim": case.head_dim,
        "page_size": case.page_size,
        "max_pages": 4096,
        "cu_block_lens": 0 if isinstance(case.block, int) else 4096,
    }
    return _host.BlockAttentionParams(**fields | changes)


@pytest.mark.parametrize("device", _host.known_devices(), ids=lambda device: device.name)
def test_a_workspace_serves_every_width(device: _host.DeviceProperties) -> None:
    """Its size is that of a selection of all pages; none takes more."""
    for heads, dim, batch, splits in itertools.product((1, 4, 8), (64, 96, 128, 256), (1, 3, 16), (0, 5)):
        for block in (16, tuple(range(1, batch + 1))):
            case = Case((0,) * batch, block, q_heads=4 * heads, kv_heads=heads, head_dim=dim)
            sizes = {"tokens": sum(case.blocks), "batch": batch, "q_heads": 4 * heads, "kv_heads": heads}
            told = _host.sparse_block_attention_cuda_workspace_size(
                **sizes,
                head_dim=dim,
                max_pages=4096,
                page_size=16,
                num_splits=splits,
                multiprocessors=device.multiprocessors,
            )
            for width in (0, 1, 16, 64, 128, 300, 1000, 4096, 5000):
                plan = _host.plan_sparse_block_attention(
                    params_of(case, num_splits=splits), _host.PageSelection(), width, 0, device
                )
                assert plan.workspace_bytes <= told


def test_what_no_kernel_is_made_for_is_refused() -> None:
    device = _host.known_device("H200")
    for change, message in (
        ({"dtype": _host.DType.float32}, "q: expected float16 or bfloat16 on CUDA, got float32"),
        ({"head_dim": 72}, "head_dim: expected 64, 96, 128 or 256 on CUDA, got 72"),
        ({"k_cache": 8}, "k_cache: expected 16-byte aligned rows"),
    ):
        with pytest.raises(ValueError, match=message):
            _host.plan_sparse_block_attention(params_of(Case((5,), 4), **change), _host.PageSelection(), 5, 0, device)


def test_lse_is_optional() -> None:
    inputs = selected(Case((150, 3), (9, 4), has_sinks=True))
    expected, _ = sparse_block_attention(Gpu(), **inputs)
    out, lse = sparse_block_attention(Gpu(), **inputs, needs_lse=False)
    assert lse is None
    assert same_bits(out, expected)
