"""What the kernel sheet runs: one case for each CUDA op, in the sizes of a decoding round of the published drafters."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from dflash_ops import _host
from tests.cases import begin_block as begin_block_cases
from tests.cases import block_attention as block_attention_cases
from tests.cases import commit_block as commit_block_cases
from tests.cases import fuse_features as fuse_features_cases
from tests.cases import lm_head_argmax as lm_head_argmax_cases
from tests.cases import masked_block_attention as masked_block_attention_cases
from tests.cases import norm_rope_qkv as norm_rope_qkv_cases
from tests.cases import page_selection as page_selection_cases
from tests.cases import project_context_kv as project_context_kv_cases
from tests.cases import remask as remask_cases
from tests.cases import row_argmax as row_argmax_cases
from tests.cases import update_page_bounds as update_page_bounds_cases
from tests.cases import verify as verify_cases
from tests.cases import write_context_kv as write_context_kv_cases
from tests.cases.traffic import Traffic
from tests.cuda import (
    simulated_context_ops,
    simulated_ops,
    simulated_page_bounds,
    simulated_page_selection,
    simulated_stream_ops,
)
from tests.cuda.gpu import Arguments, Gpu
from tests.cuda.simulated_attention import block_attention
from tests.cuda.simulated_masked_attention import masked_block_attention
from tests.cuda.simulated_masked_backward import masked_block_attention_backward
from tests.ptxsim import Report

DTYPE = torch.bfloat16
VOCABULARY = 151936  # Qwen3's


@dataclass(frozen=True)
class Launch:
    op: str  # whose kernel it is
    plan: _host.LaunchPlan
    report: Report


class RecordingGpu(Gpu):
    """Keeps the plan and the report of every launch. Looks for no races, which the tests do: counts are the same."""

    def __init__(self, name: str) -> None:
        super().__init__(name, completion="early", schedule="round_robin", races=False, warp_races=False)
        self.launches: list[Launch] = []

    def run(self, op: str, arguments: Arguments, make_plan: Callable[[dict[str, int]], _host.LaunchPlan]) -> None:
        plans: list[_host.LaunchPlan] = []

        def recorded(address: dict[str, int]) -> _host.LaunchPlan:
            plans.append(make_plan(address))
            return plans[-1]

        super().run(op, arguments, recorded)
        assert self.report is not None
        self.launches.append(Launch(op, plans[-1], self.report))


@dataclass(frozen=True)
class SheetCase:
    """`run` makes the call on a GPU and returns the least that it could move. `most`: the factor over that least which
    the kernel promises to stay within, for bytes and for 32-byte sectors; None: no promise."""

    op: str
    shape: str
    run: Callable[[Gpu], Traffic]
    most: float | None = None


def _row_argmax(gpu: Gpu) -> Traffic:
    case = row_argmax_cases.Case(16, VOCABULARY)
    simulated_ops.row_argmax(gpu, case.logits(DTYPE))
    return case.least_traffic(DTYPE)


def _verify_greedy(batch: int) -> Callable[[Gpu], Traffic]:
    def run(gpu: Gpu) -> Traffic:
        case = verify_cases.Case(batch, 15, VOCABULARY)
        logits = case.logits(DTYPE)
        simulated_ops.verify_greedy(gpu, case.drafts_matching(logits.argmax(-1)), target_logits=logits)
        return case.least_traffic(DTYPE)

    return run


def _verify_sampled(gpu: Gpu) -> Traffic:
    case = verify_cases.Case(1, 15, VOCABULARY)
    logits = case.logits(DTYPE)
    simulated_context_ops.verify_sampled(
        gpu,
        case.drafts_matching(logits.argmax(-1)),
        target_logits=logits,
        temperature=torch.tensor([0.7]),
        top_k=torch.tensor([20], dtype=torch.int32),
        top_p=torch.tensor([0.8]),
        seed=torch.tensor([1]),
        offset=torch.tensor([0]),
    )
    return case.least_traffic(DTYPE, sampled=True)


def _remask(gpu: Gpu) -> Traffic:
    logits, tokens, keep = remask_cases.inputs(1, 16, VOCABULARY, DTYPE)
    least = remask_cases.least_traffic(logits, tokens)
    simulated_context_ops.remask(gpu, logits, tokens, mask_token_id=remask_cases.MASK, keep=keep)
    return least


def _begin_block(gpu: Gpu) -> Traffic:
    case = begin_block_cases.Case(64, 16, (0, 100, 200, 300, 401, 502, 603, 704), 16)
    tokens, lens, table = case.state()
    simulated_ops.begin_block(
        gpu, tokens, lens, table, page_size=case.page_size, mask_token_id=1, block_size=case.block
    )
    return case.least_traffic()


def _block_attention(contexts: tuple[int, ...], page_size: int) -> Callable[[Gpu], Traffic]:
    def run(gpu: Gpu) -> Traffic:
        case = block_attention_cases.Case(contexts, 16, 32, 8, 128, page_size)
        block_attention(gpu, **case.inputs(DTYPE))
        return case.least_traffic(DTYPE)

    return run


def _masked_block_attention(gpu: Gpu) -> Traffic:
    anchors = masked_block_attention_cases.spread(32, 511)
    case = masked_block_attention_cases.Case("anchor", 512, 16, anchors, q_heads=8, kv_heads=2, head_dim=128)
    q, k, v, _ = case.tensors(DTYPE)
    masked_block_attention(gpu, q, k, v, **case.options())
    return case.least_traffic(DTYPE)


def _commit_block(gpu: Gpu) -> Traffic:
    batch, block = 8, 16
    accepted = torch.arange(batch, dtype=torch.int32)
    simulated_ops.commit_block(
        gpu,
        torch.arange(batch * block).view(batch, block),
        accepted,
        torch.arange(batch * block).view(batch, block),
        context_lens=torch.zeros(batch, dtype=torch.int32),
        next_token=torch.zeros(batch, dtype=torch.int64),
        output_ids=torch.zeros(batch, 64, dtype=torch.int64),
        output_lens=torch.zeros(batch, dtype=torch.int32),
        finished=torch.zeros(batch, dtype=torch.bool),
    )
    return commit_block_cases.least_traffic(block, (accepted + 1).tolist())


def _norm_rope_qkv(gpu: Gpu) -> Traffic:
    case = norm_rope_qkv_cases.Case(16, 32, 8, 128)
    q = torch.empty(case.rows, case.q_heads, case.head_dim, dtype=DTYPE)
    k, v = torch.empty(2, case.rows, case.kv_heads, case.head_dim, dtype=DTYPE)
    simulated_context_ops.norm_rope_qkv(gpu, **case.arguments(DTYPE), q=q, k=k, v=v.clone())
    return case.least_traffic(DTYPE)


def _write_context_kv(rows: int) -> Callable[[Gpu], Traffic]:
    def run(gpu: Gpu) -> Traffic:
        case = write_context_kv_cases.Case(rows, 5, 8, 128)
        k_caches, v_caches = case.caches(DTYPE)
        simulated_context_ops.write_context_kv(gpu, **case.arguments(DTYPE), k_caches=k_caches, v_caches=v_caches)
        return case.least_traffic(DTYPE)

    return run


def _lm_head_argmax(gpu: Gpu) -> Traffic:
    case = lm_head_argmax_cases.Case(16, 4096, VOCABULARY // 16)
    simulated_stream_ops.lm_head_argmax(gpu, *case.operands(DTYPE))
    return case.least_traffic(DTYPE)


def _fuse_features(hidden_size: int) -> Callable[[Gpu], Traffic]:
    def run(gpu: Gpu) -> Traffic:
        case = fuse_features_cases.Case(16, 5, hidden_size, hidden_size, tap_slack=0)
        out = torch.empty(case.rows, case.columns, dtype=DTYPE)
        simulated_stream_ops.fuse_features(gpu, **case.arguments(DTYPE), out=out)
        return case.least_traffic(DTYPE)

    return run


def _project_context_kv(hidden_size: int) -> Callable[[Gpu], Traffic]:
    def run(gpu: Gpu) -> Traffic:
        case = project_context_kv_cases.Case(hidden_size, write_context_kv_cases.Case(16, 5, 8, 128))
        k_caches, v_caches = case.write.caches(DTYPE)
        simulated_stream_ops.project_context_kv(gpu, **case.arguments(DTYPE), k_caches=k_caches, v_caches=v_caches)
        return case.least_traffic(DTYPE)

    return run


def _update_page_bounds(rows: int) -> Callable[[Gpu], Traffic]:
    def run(gpu: Gpu) -> Traffic:
        case = update_page_bounds_cases.Case((8,), (rows,), layers=5, kv_heads=8, head_dim=128)
        arguments = case.arguments(DTYPE)
        arguments["slot_mapping"] = arguments["slot_mapping"].sort().values
        simulated_page_bounds.update_page_bounds(gpu, **arguments)
        return case.least_traffic(DTYPE)

    return run


def _masked_block_attention_backward(gpu: Gpu) -> Traffic:
    anchors = masked_block_attention_cases.spread(16, 512)
    case = masked_block_attention_cases.Case("anchor", 512, 16, anchors, q_heads=8, kv_heads=2, head_dim=128)
    q, k, v, grad_out = case.tensors(DTYPE)
    # Counts depend on no value.
    out, lse = torch.zeros_like(q), torch.zeros(q.shape[:2])
    masked_block_attention_backward(gpu, grad_out, q, k, v, out, lse, **case.options())
    return case.least_backward_traffic(DTYPE)


_SELECTION = page_selection_cases.Case(
    page_selection_cases.Attention((32768,), 16, 32, 8, 128), budget=2048, sink=64, local=256
)


def _select_pages(gpu: Gpu) -> Traffic:
    inputs = _SELECTION.inputs(DTYPE)
    selected, _ = simulated_page_selection.select_pages(gpu, **inputs)
    return _SELECTION.least_traffic_of_selection(DTYPE, selected.shape[2])


def _sparse_block_attention(gpu: Gpu) -> Traffic:
    case, count = _SELECTION.attention, _SELECTION.budget // _SELECTION.attention.page_size
    last = case.contexts[0] // case.page_size - 1
    pages = torch.cat([torch.arange(count - 1) * 16, torch.tensor([last])]).int()
    simulated_page_selection.sparse_block_attention(
        gpu,
        **case.inputs(DTYPE),
        selected_pages=pages.repeat(1, case.kv_heads, 1),
        selected_counts=torch.full((1, case.kv_heads), count, dtype=torch.int32),
    )
    return _SELECTION.least_traffic_of_attention(DTYPE)


_CONTEXT_SHAPE = "rows, 5 layers of 8 heads of 128"
_BLOCK_SHAPE = "x 16 rows, 32 heads over 8 of 128"
_RAGGED = tuple(range(961, 1089, 8))
CASES = [
    SheetCase("begin_block", "8 requests, blocks of 16", _begin_block),
    SheetCase("block_attention", f"16 {_BLOCK_SHAPE}, contexts of about 1k", _block_attention(_RAGGED, 16)),
    SheetCase("block_attention", f"1 {_BLOCK_SHAPE}, context of 4k", _block_attention((4096,), 16)),
    SheetCase("block_attention", f"1 {_BLOCK_SHAPE}, context of 4k, pages of 1", _block_attention((4096,), 1)),
    SheetCase("commit_block", "8 requests, blocks of 16", _commit_block),
    SheetCase("fuse_features", "16 rows, 5 taps of 4096 to 4096 (8B drafter)", _fuse_features(4096)),
    SheetCase("fuse_features", "16 rows, 5 taps of 5120 to 5120 (27B drafter)", _fuse_features(5120)),
    SheetCase("lm_head_argmax", "16 rows of 4096, vocabulary of 9496 (151936 on 16 ranks)", _lm_head_argmax),
    SheetCase("project_context_kv", f"16 {_CONTEXT_SHAPE}, of 4096 (8B drafter)", _project_context_kv(4096)),
    SheetCase("project_context_kv", f"16 {_CONTEXT_SHAPE}, of 5120 (27B drafter)", _project_context_kv(5120)),
    SheetCase(
        "masked_block_attention", "32 anchors x 16 rows, 8 heads over 2 of 128, context of 512", _masked_block_attention
    ),
    SheetCase(
        "masked_block_attention_backward",
        "16 anchors x 16 rows over 512, 8 heads over 2 of 128",
        _masked_block_attention_backward,
    ),
    SheetCase("norm_rope_qkv", "16 rows, 32 + 2 * 8 heads of 128", _norm_rope_qkv),
    SheetCase("remask", "16 rows x 151936, half of them masked", _remask),
    SheetCase("row_argmax", "16 rows x 151936", _row_argmax, most=1.02),
    SheetCase("select_pages", f"1 {_BLOCK_SHAPE}, context of 32k, budget of 2k", _select_pages),
    SheetCase("sparse_block_attention", f"1 {_BLOCK_SHAPE}, context of 32k, budget of 2k", _sparse_block_attention),
    SheetCase("update_page_bounds", f"16 {_CONTEXT_SHAPE}", _update_page_bounds(16)),
    SheetCase("update_page_bounds", f"512 {_CONTEXT_SHAPE}", _update_page_bounds(512)),
    SheetCase("verify_greedy", "16 rows x 151936", _verify_greedy(1), most=1.02),
    SheetCase("verify_greedy", "8 * 16 rows x 151936", _verify_greedy(8), most=1.02),
    SheetCase("verify_sampled", "16 rows x 151936, top-k 20, top-p 0.8", _verify_sampled),
    SheetCase("write_context_kv", f"16 {_CONTEXT_SHAPE}", _write_context_kv(16), most=1.02),
    SheetCase("write_context_kv", f"512 {_CONTEXT_SHAPE}", _write_context_kv(512), most=1.02),
]
