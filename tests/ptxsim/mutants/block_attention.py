"""Bugs planted in block_attention: the order of copies and blocks, where accesses go, how much is moved."""

from functools import partial

import torch

from tests.cases.block_attention import CAUSAL, Case
from tests.cuda import test_block_attention as tests
from tests.cuda import test_block_attention_calls as calls
from tests.cuda import test_block_attention_traffic as traffic
from tests.cuda.gpu import Gpu
from tests.ptxsim.mutants import Check, Mutant, Suite

FOLDER = "csrc/cuda/block_attention"
COPY, EPILOGUE, KERNEL = f"{FOLDER}/copy.cuh", f"{FOLDER}/epilogue.cuh", f"{FOLDER}/kernel.cuh"
CONTEXT, WORK = f"{FOLDER}/context.cuh", f"{FOLDER}/work.cuh"
TRAITS, STAGES = "csrc/cuda/common/attention_traits.cuh", "csrc/cuda/common/attention_stages.cuh"


def _values(case: Case) -> Check:
    """The case's values, in bfloat16."""
    return lambda: tests.check(Gpu(), case.inputs(torch.bfloat16))


def _many_splits() -> None:
    """Whichever block comes first."""
    case = Case((420,), 8, q_heads=2, kv_heads=1, head_dim=128, options={"num_splits": 40})
    for schedule in ("round_robin", "greedy"):
        tests.check(Gpu(schedule=schedule), case.inputs(torch.bfloat16))


CHECKS: dict[str, Check] = {
    "matches_the_definition": _values(Case((200, 37), 16, q_heads=4, kv_heads=1, head_dim=128, options=CAUSAL)),
    "matches_the_definition, many tiles": _values(
        Case((300,), 16, q_heads=4, kv_heads=1, head_dim=128, options={"num_splits": 1})
    ),
    "matches_the_definition, many splits": _many_splits,
    "matches_the_definition, two kv heads": _values(Case((300,), 16, q_heads=8, kv_heads=2, head_dim=128)),
    "matches_the_definition, pages of one token": _values(Case((70, 33), 8, page_size=1, head_dim=128)),
    "matches_the_definition, a full table": _values(Case((64,), 8, page_size=64, head_dim=128, table_slack=0)),
    "unused_slots_never_reach_the_result": partial(
        tests.test_unused_slots_never_reach_the_result,
        Case((1, 40, 70, 0), 7, head_dim=128, page_size=64),
        (0.0, torch.nan),
        torch.bfloat16,
    ),
    "pages_outside_the_window": partial(tests.test_pages_outside_the_window_are_never_read, 16, 2, True),
    "a_plan_serves_other_lengths": partial(calls.test_a_plan_serves_other_lengths, 3),
    "lengths_that_make_no_sense": partial(calls.test_lengths_that_make_no_sense_stay_inside, 3),
    "caches_past_2_31": calls.test_caches_past_2_31_elements,
    "rows_past_2_31": partial(calls.test_rows_past_2_31_elements, 1),
    "every_stride_is_honoured": partial(calls.test_every_stride_is_honoured, 1),
    "keys_and_values_move_once": partial(traffic.test_keys_and_values_move_once, (16, 9, 12), 16),
    "up_to_128_rows_are_one_sweep, dim 96": partial(
        traffic.test_up_to_128_rows_are_one_sweep, 96, 4, 1, 16, torch.bfloat16
    ),
    "causal_tiles_stop": traffic.test_causal_tiles_stop_at_their_last_row,
    "partial_results_move_once": traffic.test_partial_results_move_once,
}
VALUES = ("matches_the_definition",)
MANY_TILES = ("matches_the_definition, many tiles",)
TRAFFIC = ("matches_the_definition", "keys_and_values_move_once")
WAIT = "    ring.wait();\n    __syncthreads();  // every thread's copies have landed,"

MUTANTS = (
    Mutant(
        "tiles are waited for one too late",
        "order",
        STAGES,
        (
            ("case 4:\n      return wait_for_copy_groups<2>();", "case 4:\n      return wait_for_copy_groups<3>();"),
            ("case 3:\n      return wait_for_copy_groups<1>();", "case 3:\n      return wait_for_copy_groups<2>();"),
            ("case 2:\n      return wait_for_copy_groups<0>();", "case 2:\n      return wait_for_copy_groups<1>();"),
        ),
        VALUES,
    ),
    Mutant("no tile is waited for", "order", KERNEL, (("    ring.wait();\n", ""),), VALUES),
    Mutant(
        "no barrier before a tile is used",
        "order",
        KERNEL,
        (("    __syncthreads();  // every", "    // every"),),
        VALUES,
    ),
    Mutant(
        "a stage is filled before the barrier",
        "order",
        KERNEL,
        ((WAIT, f"    ring.copy_next();\n{WAIT}"), ("queries.load();\n    ring.copy_next();", "queries.load();")),
        MANY_TILES,
    ),
    Mutant(
        "no group is closed where no tile is left",
        "order",
        STAGES,
        (
            (
                "      page_ = page_after;\n    }\n    close_copy_group();",
                "      page_ = page_after;\n      close_copy_group();\n    }",
            ),
        ),
        VALUES,
    ),
    Mutant(
        "one stage too many is filled ahead",
        "order",
        STAGES,
        (
            (
                "for (uint32_t i = 1; i < stages_; ++i) copy_next();",
                "for (uint32_t i = 0; i < stages_; ++i) copy_next();",
            ),
        ),
        MANY_TILES,
    ),
    Mutant(
        "queries are loaded before they have landed",
        "order",
        KERNEL,
        (
            ("  sums.clear();\n", "  sums.clear();\n  queries.load();\n"),
            ("    if (tile == work.first_tile) queries.load();\n", ""),
        ),
        VALUES,
    ),
    Mutant(
        "every split writes the outputs",
        "order",
        KERNEL,
        (
            (
                "if (kept.first_split < kept.last_split && !combine_splits(launch, kept, active, sums)) return;",
                "if (kept.first_split < kept.last_split) combine_splits(launch, kept, active, sums);",
            ),
        ),
        VALUES,
    ),
    Mutant(
        "no barrier between partial sums and the arrival",
        "order",
        EPILOGUE,
        (
            (
                "    of_split(split).store(sums, active_);\n    __syncthreads();\n",
                "    of_split(split).store(sums, active_);\n",
            ),
        ),
        VALUES,
    ),
    Mutant(
        "a group's sums replace a split's while lanes still read them",
        "order",
        EPILOGUE,
        (("    __syncthreads();  // no lane still reads what another one replaces\n", ""),),
        ("matches_the_definition, many splits",),
    ),
    Mutant(
        "a block arrives before it stores its sums",
        "order",
        EPILOGUE,
        (
            ("  partials.store(split, sums);\n  if (!last_to_arrive(", "  const bool is_last = (last_to_arrive("),
            (
                "static_cast<uint32_t>(group_end - group_begin))) return false;",
                "static_cast<uint32_t>(group_end - group_begin)));\n"
                "  partials.store(split, sums);\n  if (!is_last) return false;",
            ),
        ),
        VALUES,
    ),
    Mutant(
        "groups of splits do not wait for each other",
        "order",
        EPILOGUE,
        (
            (
                "launch.counters - 1, static_cast<uint32_t>(groups))) return false;",
                "launch.counters - 1, 1)) return false;",
            ),
        ),
        ("matches_the_definition, many splits",),
    ),
    Mutant(
        "groups of splits and the splits of the last group share a counter",
        "order",
        EPILOGUE,
        (("arrivals + launch.counters - 1, static_cast", "arrivals + groups - 1, static_cast"),),
        ("matches_the_definition, many splits",),
    ),
    Mutant(
        "kv heads share a counter",
        "order",
        EPILOGUE,
        (("(blockIdx.x * gridDim.y + blockIdx.y) * launch.counters;", "blockIdx.x * launch.counters;"),),
        ("matches_the_definition, two kv heads",),
    ),
    Mutant(
        "kv heads share their partial sums",
        "order",
        EPILOGUE,
        (("static_cast<int64_t>(blockIdx.x) * gridDim.y + blockIdx.y;", "static_cast<int64_t>(blockIdx.x);"),),
        ("matches_the_definition, two kv heads",),
    ),
    Mutant(
        "splits without keys are waited for",
        "value",
        EPILOGUE,
        (("group_end = min(last + 1, (own_group + 1) * group);", "group_end = (own_group + 1) * group;"),),
        ("a_plan_serves_other_lengths",),
    ),
    Mutant(
        "stages are not used again",
        "bounds",
        STAGES,
        (("    if (stage == end_stage_) stage = first_stage_;\n", ""),),
        MANY_TILES,
    ),
    Mutant(
        "rows past the last one are stored",
        "bounds",
        EPILOGUE,
        (("        if (present) reinterpret_cast<uint4*>(out)", "        reinterpret_cast<uint4*>(out)"),),
        ("matches_the_definition, a full table", "unused_slots_never_reach_the_result"),
    ),
    Mutant(
        "rows past a length are copied",
        "bounds",
        COPY,
        (("lane_ % Traits::kRowLanes), from + chunk, present);", "lane_ % Traits::kRowLanes), from + chunk, true);"),),
        ("unused_slots_never_reach_the_result",),
    ),
    Mutant(
        "one row past the last key is copied",
        "bounds",
        COPY,
        (
            (
                "position >= work_.keys.begin && position < work_.keys.end;",
                "position >= work_.keys.begin && position <= work_.keys.end;",
            ),
        ),
        ("unused_slots_never_reach_the_result",),
    ),
    Mutant(
        "rows before the window are copied",
        "bounds",
        COPY,
        (("const bool present = position >= work_.keys.begin && ", "const bool present = "),),
        ("pages_outside_the_window",),
    ),
    Mutant(
        "the page table is read past the context",
        "bounds",
        COPY,
        (("position < min(work_.context_len, work_.keys.end);", "position < work_.keys.end;"),),
        ("matches_the_definition, a full table",),
    ),
    Mutant(
        "a slot is not counted from its page",
        "bounds",
        COPY,
        (("static_cast<uint32_t>(position) & ((1u << launch_.page_shift) - 1);", "static_cast<uint32_t>(position);"),),
        VALUES,
    ),
    Mutant(
        "rows of a warp share a page",
        "value",
        COPY,
        (("__shfl_sync(kAllLanes, page, of_warp)", "__shfl_sync(kAllLanes, page, row)"),),
        ("matches_the_definition, pages of one token",),
    ),
    Mutant(
        "a tile has the next one's pages",
        "value",
        STAGES,
        (("copy_.copy(next_, page_, copy_stage_);", "copy_.copy(next_, page_after, copy_stage_);"),),
        VALUES,
    ),
    Mutant(
        "a context past the table is followed",
        "bounds",
        WORK,
        ((", launch.capacity);", ", 1 << 30);"),),
        ("lengths_that_make_no_sense",),
    ),
    Mutant(
        "a page's offset is 32 bits wide",
        "bounds",
        COPY,
        (("static_cast<uint64_t>(page) * source_.page_stride", "page * source_.page_stride"),),
        ("caches_past_2_31",),
    ),
    Mutant(
        "a query's offset is 32 bits wide",
        "bounds",
        COPY,
        (("token * op.q_token_stride", "static_cast<int>(token) * static_cast<int>(op.q_token_stride)"),),
        ("rows_past_2_31",),
    ),
    Mutant(
        "an output's offset is 32 bits wide",
        "bounds",
        EPILOGUE,
        (("token * op.out_token_stride", "static_cast<int>(token) * static_cast<int>(op.out_token_stride)"),),
        ("rows_past_2_31",),
    ),
    Mutant(
        "an offset in the page table is 32 bits wide",
        "bounds",
        CONTEXT,
        (("request * launch.op.page_table_stride", "request * static_cast<int>(launch.op.page_table_stride)"),),
        ("rows_past_2_31",),
    ),
    Mutant(
        "heads of the output lie side by side",
        "value",
        EPILOGUE,
        (("head * op.out_head_stride", "head * Traits::kHeadDim"),),
        ("every_stride_is_honoured",),
    ),
    Mutant(
        "values have the strides of keys",
        "value",
        COPY,
        (("        values_(launch.v)", "        values_(launch.k)"),),
        VALUES,
    ),
    Mutant(
        "tiles are not swizzled",
        "count",
        TRAITS,
        (("kChunks % 8 == 0 ? row % 8 :", "kChunks % 8 == 0 ? 0 :"),),
        TRAFFIC,
    ),
    Mutant(
        "half the rows are not swizzled",
        "count",
        TRAITS,
        (("kChunks % 8 == 0 ? row % 8 :", "kChunks % 8 == 0 ? row % 4 :"),),
        TRAFFIC,
    ),
    Mutant(
        "rows of 192 bytes are swizzled as others",
        "count",
        TRAITS,
        ((": row / 2 % 4;", ": row % 4;"),),
        ("up_to_128_rows_are_one_sweep, dim 96",),
    ),
    Mutant(
        "warps without rows multiply as well",
        "count",
        KERNEL,
        (("active_row_blocks<Traits>(work.rows)", "active_row_blocks<Traits>(Traits::kRows)"),),
        TRAFFIC,
    ),
    Mutant(
        "tiles behind the last visible key are multiplied",
        "count",
        WORK,
        (("end = (work.keys.end + kKeys - 1) / kKeys;", "end = request_end;"),),
        ("matches_the_definition", "causal_tiles_stop"),
    ),
    Mutant(
        "lanes store words of an output apart",
        "count",
        EPILOGUE,
        (
            ("        gather_chunk(words);\n", ""),
            (
                "reinterpret_cast<uint4*>(out)[j + lane] = make_uint4(words[0], words[1], words[2], words[3]);",
                "for (int c = 0; c < 4; ++c) reinterpret_cast<volatile uint32_t*>(out)[(j + c) * 4 + lane] = words[c];",
            ),
        ),
        TRAFFIC,
    ),
    Mutant(
        "a thread's partial sums lie side by side",
        "count",
        EPILOGUE,
        (
            (
                "values_[(i * kQuads + j) * Traits::kThreads + threadIdx.x] =",
                "values_[threadIdx.x * (kQuads * Traits::kRowBlocks) + i * kQuads + j] =",
            ),
            (
                "values_[(row_block * kQuads + j) * Traits::kThreads + threadIdx.x];",
                "values_[threadIdx.x * (kQuads * Traits::kRowBlocks) + row_block * kQuads + j];",
            ),
        ),
        ("matches_the_definition", "partial_results_move_once"),
    ),
)

SUITE = Suite("block_attention", CHECKS, MUTANTS)
