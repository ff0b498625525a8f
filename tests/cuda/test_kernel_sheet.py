"""The kernel sheet: what its cases promise, that plans launch what the ptxas gate assumes, and its arithmetic."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import kernel_model, kernel_sheet, kernel_sheet_text
from benchmarks.kernel_cases import CASES, Launch, RecordingGpu, SheetCase
from benchmarks.kernel_model import Counts, model
from benchmarks.kernel_sheet import CaseOnGpu, CaseResult
from dflash_ops import _host
from tests.cases import (
    begin_block,
    commit_block,
    masked_block_attention,
    norm_rope_qkv,
    remask,
    row_argmax,
    verify,
    write_context_kv,
)
from tests.cases.traffic import Traffic
from tests.cuda.machine_code import ARCHITECTURES, OPS, Instruction, KernelCode, entry_names
from tests.cuda.ptxas_gate import promise_of
from tests.ptxsim import Report
from tests.ptxsim.simulator import BufferCount, InstructionCount, Place


def test_every_op_has_a_case() -> None:
    assert {case.op for case in CASES} == {op.removesuffix("_sm90a") for op in OPS}
    assert {case.op for case in CASES if case.most is not None and case.most <= 1.02} == {
        "row_argmax",
        "verify_greedy",
        "write_context_kv",
    }


@pytest.mark.parametrize("gpu_name", ["H200", "RTX 4090"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op}-{case.shape}")
def test_cases_hold_their_promises(case: SheetCase, gpu_name: str) -> None:
    """Nothing less than the least, where a kernel says so hardly more; accesses coalesced; launches as the gate assumes."""
    gpu = RecordingGpu(gpu_name)
    least = case.run(gpu)
    counts = Counts.of([launch.report for launch in gpu.launches])
    assert counts.load_bytes >= least.loads
    assert counts.store_bytes >= least.stores
    assert counts.accessed_sectors <= 1.05 * counts.coalesced_sectors
    if case.most is not None:
        assert counts.bytes <= case.most * least.total
        assert 32 * counts.sectors <= case.most * least.total
        assert counts.accessed_sectors <= 1.001 * counts.coalesced_sectors
    for launch in gpu.launches:
        promise = promise_of(launch.plan.entry, gpu.device)
        assert launch.plan.block == (promise.threads, 1, 1)
        assert launch.plan.shared_bytes <= promise.shared_bytes


def test_verify_greedy_fills_an_h200() -> None:
    """16 rows of 151936 logits: a block and more for each multiprocessor, as many bytes on their way as its bandwidth
    times the latency of memory."""
    case = next(case for case in CASES if case.op == "verify_greedy")
    gpu = RecordingGpu("H200")
    case.run(gpu)
    (launch,) = gpu.launches
    blocks = launch.plan.grid[0] * launch.plan.grid[1]
    assert blocks >= 4 * gpu.device.multiprocessors
    wanted = gpu.device.memory_bandwidth * kernel_model.LATENCY_SECONDS
    assert blocks * launch.plan.block[0] * 48 >= wanted  # bytes a lane keeps in flight (ptxas_gate)


@pytest.mark.parametrize("gpu_name", kernel_sheet.ARCHITECTURE_OF)
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("group", [4, 8])
def test_block_attention_keeps_memory_busy(group: int, batch: int, head_dim: int, gpu_name: str) -> None:
    """Blocks of 16 over 32k of context: as many bytes on their way as a GPU's bandwidth times the latency of memory, on
    most of its multiprocessors."""
    device = _host.known_device(gpu_name)
    params = _host.BlockAttentionParams(
        dtype=_host.DType.bfloat16,
        batch=batch,
        tokens=16 * batch,
        q_heads=8 * group,
        kv_heads=8,
        head_dim=head_dim,
        page_size=16,
        max_pages=2048,
    )
    plan = _host.plan_block_attention(params, 0, device)
    promise = promise_of(plan.entry, device)
    assert (plan.block[0], plan.shared_bytes) == (promise.threads, promise.shared_bytes)
    blocks = min(plan.grid[0] * plan.grid[1] * plan.grid[2], promise.blocks * device.multiprocessors)
    assert blocks >= 0.85 * promise.blocks * device.multiprocessors
    assert blocks * plan.bytes_in_flight >= device.memory_bandwidth * kernel_model.LATENCY_SECONDS


def test_least_traffic_by_hand() -> None:
    bf16, f32 = torch.bfloat16, torch.float32
    assert row_argmax.Case(3, 10, row_slack=5).least_traffic(bf16) == Traffic(60, 36)
    # Rows 0..2 of the first request and row 0 of the second are read; the third is idle.
    case = verify.Case(3, 4, 10, lens=(2, 0, -1))
    assert case.least_traffic(f32) == Traffic(4 * 10 * 4 + 2 * 8 + 3 * 4, 3 * (4 + 5 * 8 + 8))
    assert case.least_traffic(f32, sampled=True) == Traffic(160 + 16 + 12 + 3 * 28, 156 + 3 * 8)
    # Rows 1, 2 of 0, 1, 2, 3 with every third skipped are written: 2 layers, keys and values, 1 head of 8.
    case_kv = write_context_kv.Case(4, 2, 1, 8, skip_every=3, slack_rows=1)
    loads = 2 * 2 * 2 * 8 * 2 + 2 * (8 * 4 + 8) + 2 * 8 * 2 + 4 * 8 + 4
    assert case_kv.least_traffic(bf16, f32) == Traffic(loads, 2 * 2 * 2 * 8 * 4)
    assert write_context_kv.Case(1, 1, 1, 8, norm=False, rotary_dim=0).least_traffic(f32) == Traffic(64 + 8, 64)
    rope_case = norm_rope_qkv.Case(2, 3, 1, 8, rotary_dim=4, q_norm=False)
    assert rope_case.least_traffic(bf16) == Traffic(2 * 5 * 8 * 2 + 2 * (4 * 4 + 8) + 8 * 2, 160)
    tokens = torch.tensor([[remask.MASK, 1, remask.MASK]])
    assert remask.least_traffic(torch.zeros(1, 3, 5), tokens) == Traffic(2 * 5 * 4 + 3 * 8 + 4, 2 * 8 + 3 * 4)
    # Positions 3..6 lie in two pages of four, 0..3 in one.
    assert begin_block.Case(8, 4, (3, 0), 4).least_traffic() == Traffic(2 * 12 + 3 * 4, 3 * 8 * 8)
    assert commit_block.least_traffic(4, [1, 3]) == Traffic(2 * 13 + 64, 2 * 20 + 32 + 64)
    # Two blocks of two rows of two heads: they see five rows of the context and their own four.
    masked = masked_block_attention.Case("anchor", 10, 2, (3, 5), q_heads=2, kv_heads=1, head_dim=4)
    assert masked.least_traffic(bf16) == Traffic(8 * 8 + 2 * 9 * 8 + 2 * 4, 8 * (8 + 4))


def _launch(grid: tuple[int, int, int]) -> Launch:
    class Plan:
        entry, block, shared_bytes, bytes_in_flight = "row_argmax_float32", (256, 1, 1), 1000, 0

    plan = Plan()
    plan.grid = grid  # type: ignore[attr-defined]
    place = Place("ld.global.v4.u32 {%r1}, [%rd1];", 1, "", 0, "", 0)
    row = InstructionCount(place, 10, 320, 5120, 330, 160, 8, 4)
    buffers = {"logits": BufferCount(1_000_000, 0, 40_000, 0), "ids": BufferCount(0, 800, 0, 100)}
    report = Report("row_argmax_float32", True, [], [row], buffers, 84_000, 0)
    return Launch("row_argmax", plan, report)  # type: ignore[arg-type]


CODE = KernelCode("row_argmax_float32", "80", 32, 72, 0, 0, (), (Instruction("LDG.E.128", " R4, [R2.64]"),))


def test_the_model_by_hand() -> None:
    """200 blocks on an A100's 108 multiprocessors: two on the busiest; everything loaded is in flight at once."""
    one = model(_launch((100, 2, 1)), CODE, _host.known_device("A100"))
    assert (one.blocks, one.blocks_per_multiprocessor, one.shared_bytes) == (200, 8, 1072)
    assert one.waves == pytest.approx(200 / (8 * 108))
    assert one.bytes_in_flight == 200 * 256 * 16
    assert one.bandwidth_us == pytest.approx(1e6 * 40_100 * 32 / 2039e9)
    assert one.latency_us == pytest.approx(0.7 * 1_000_000 / 819_200)
    assert one.issue_us == pytest.approx(84_000 * (2 / 200) / (4 * 1410))
    assert one.busy_us == one.latency_us
    many = model(_launch((1000, 2, 1)), CODE, _host.known_device("A100"))
    assert many.bytes_in_flight == 1_000_000
    assert many.issue_us == pytest.approx(84_000 * (19 / 2000) / (4 * 1410))


def test_a_case_that_moves_too_much_is_named() -> None:
    counts = Counts.of([_launch((4, 1, 1)).report, _launch((4, 1, 1)).report])
    assert (counts.bytes, counts.sectors, counts.accessed_sectors, counts.warp_instructions) == (
        2_001_600,
        80_200,
        660,
        168_000,
    )
    on_gpu = CaseOnGpu("A100", counts, [], 1.0)
    case = SheetCase("row_argmax", "a shape", lambda gpu: Traffic(0, 0), most=1.02)
    assert CaseResult(case, Traffic(2_566_400, 0), [on_gpu]).misses() == []
    misses = CaseResult(case, Traffic(2_000_000, 0), [on_gpu]).misses()
    assert misses == ["row_argmax, a shape, A100: bytes of sectors 2566400, the least is 2000000"]
    assert len(CaseResult(case, Traffic(1_900_000, 0), [on_gpu]).misses()) == 2


def test_the_command_prints_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sheet.json"
    assert kernel_sheet.main(["--op", "begin_block", "--json", str(path)]) == 0
    facts = json.loads(path.read_text())
    assert facts["note"] == kernel_sheet_text.NOTE
    assert [record["arch"] for record in facts["kernels"]] == list(ARCHITECTURES)
    (case,) = facts["cases"]
    assert [gpu["gpu"] for gpu in case["gpus"]] == ["A100", "H100", "H200", "B200", "RTX 4090"]
    assert all(gpu["with_launches_us"] > 2 for gpu in case["gpus"])
    text = capsys.readouterr().out
    assert text.count(kernel_sheet_text.NOTE) == 2
    assert "| `begin_block` | 128 |" in text


def test_the_committed_sheet_lists_every_kernel() -> None:
    text = kernel_sheet.SHEET.read_text()
    assert text.count(kernel_sheet_text.NOTE) == 2
    for op in OPS:
        for name in entry_names(op):
            assert f"| `{name}` |" in text, "run `make kernel-sheet`"
    for case in CASES:
        assert text.count(f"| {case.op} | {case.shape} |") == 1 + len(kernel_sheet.ARCHITECTURE_OF)
