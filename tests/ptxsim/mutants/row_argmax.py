"""Bugs planted in row_argmax, and in what it shares with verify_greedy and remask."""

from functools import partial

import torch

from tests.cases.row_argmax import Case
from tests.cuda import test_row_argmax as tests
from tests.cuda.gpu import Gpu
from tests.ptxsim.mutants import Check, Mutant, Suite

ARGMAX = "csrc/cuda/common/argmax.cuh"
ARRIVAL = "csrc/cuda/common/arrival.cuh"
PTX = "csrc/cuda/common/ptx.cuh"
REDUCE = "csrc/cuda/common/reduce.cuh"
KERNEL = "csrc/cuda/row_argmax/kernel.cuh"

CHECKS: dict[str, Check] = {
    "matches_the_definition": lambda: tests.check(Gpu(), Case(2, 49152, row_slack=3).logits(torch.bfloat16)),
    "a_row_may_start_anywhere": partial(tests.test_a_row_may_start_anywhere, 17, torch.bfloat16),
    "special_values_follow_torch": partial(tests.test_special_values_follow_torch, 9000, torch.float32),
    "ties_go_to_the_lowest_index": tests.test_ties_go_to_the_lowest_index,
    "strides_are_honoured": tests.test_strides_are_honoured,
    "blocks_meet_without_gaps": partial(tests.test_blocks_meet_without_gaps, 40, 20011),
    "blocks_meet_without_gaps, many blocks": partial(tests.test_blocks_meet_without_gaps, 8, 80011),
    "a_row_may_end_with_its_last_block": tests.test_a_row_may_end_with_its_last_block,
    "logits_of_more_than_2_31_elements": tests.test_logits_of_more_than_2_31_elements,
    "the_workspace_serves_call_after_call": tests.test_the_workspace_serves_call_after_call,
    "each_logit_is_read_once": partial(tests.test_each_logit_is_read_once, 49157, torch.bfloat16),
    "only_what_is_needed_is_stored": tests.test_only_what_is_needed_is_stored,
}

MUTANTS = (
    Mutant(
        "minus zero is less than zero",
        "value",
        ARGMAX,
        (("__float_as_uint(value + 0.0f);", "__float_as_uint(value);"),),
        ("special_values_follow_torch",),
    ),
    Mutant(
        "a later equal chunk of a thread counts",
        "value",
        ARGMAX,
        (("if (!(largest <= value) && value == value) {", "if (!(largest < value) && value == value) {"),),
        ("special_values_follow_torch", "ties_go_to_the_lowest_index"),
    ),
    Mutant(
        "a NaN is replaced by what follows",
        "value",
        ARGMAX,
        (("if (!(largest <= value) && value == value) {", "if (!(largest <= value)) {"),),
        ("special_values_follow_torch",),
    ),
    Mutant(
        "the last chunk is read whole",
        "bounds",
        ARGMAX,
        (
            (
                "whole_end_ = static_cast<uint32_t>((lead_ + columns) / kElements);",
                "whole_end_ = static_cast<uint32_t>((lead_ + columns + kElements - 1) / kElements);",
            ),
        ),
        ("a_row_may_start_anywhere",),
    ),
    Mutant(
        "no one looks at the first chunk",
        "value",
        ARGMAX,
        (("lead_ % kElements != 0 && begin == 0)", "lead_ % kElements != 0 && begin != 0)"),),
        ("a_row_may_start_anywhere",),
    ),
    Mutant(
        "no one looks at the last chunk",
        "value",
        ARGMAX,
        (("begin < chunks_ && chunks_ <= end)", "begin < chunks_ && chunks_ < end)"),),
        ("a_row_may_start_anywhere", "a_row_may_end_with_its_last_block"),
    ),
    Mutant(
        "a stretch ends one chunk early",
        "value",
        ARGMAX,
        (
            (
                "row.thread_best(begin, begin + rows.stretch_chunks)",
                "row.thread_best(begin, begin + rows.stretch_chunks - 1)",
            ),
        ),
        ("matches_the_definition", "blocks_meet_without_gaps"),
    ),
    Mutant(
        "only 32 stretches are merged",
        "value",
        ARGMAX,
        (("i < rows.stretches; i += kWarpLanes)", "i < rows.stretches; i += rows.stretches)"),),
        ("blocks_meet_without_gaps, many blocks",),
    ),
    Mutant(
        "a warp's best is read before it is there",
        "order",
        REDUCE,
        (("if (lane == 0) of_warp[warp] = value;\n  __syncthreads();", "if (lane == 0) of_warp[warp] = value;"),),
        ("matches_the_definition",),
    ),
    Mutant(
        "no barrier before the block learns that it is last",
        "order",
        ARRIVAL,
        (("blocks - 1) == blocks - 1;\n  __syncthreads();", "blocks - 1) == blocks - 1;"),),
        ("matches_the_definition",),
    ),
    Mutant(
        "the arrival orders nothing",
        "order",
        PTX,
        (("atom.acq_rel.gpu.global.inc.u32", "atom.relaxed.gpu.global.inc.u32"),),
        ("matches_the_definition",),
    ),
    Mutant(
        "the arrival releases, but does not acquire",
        "order",
        PTX,
        (("atom.acq_rel.gpu.global.inc.u32", "atom.release.gpu.global.inc.u32"),),
        ("matches_the_definition",),
    ),
    Mutant(
        "the arrival orders within a block only",
        "order",
        PTX,
        (("atom.acq_rel.gpu.global.inc.u32", "atom.acq_rel.cta.global.inc.u32"),),
        ("matches_the_definition",),
    ),
    Mutant(
        "a block arrives before it stores its best",
        "order",
        KERNEL,
        (
            (
                "    if (threadIdx.x == 0) launch.rows.stretch_best[row * launch.rows.stretches + blockIdx.y] = best;\n",
                "",
            ),
            (
                "launch.rows.stretches)) return;\n",
                "launch.rows.stretches)) {\n"
                "      if (threadIdx.x == 0) launch.rows.stretch_best[row * launch.rows.stretches + blockIdx.y] = best;\n"
                "      return;\n"
                "    }\n",
            ),
        ),
        ("matches_the_definition",),
    ),
    Mutant(
        "the counter stays where it is",
        "value",
        ARRIVAL,
        (("count_arrival(counter, blocks - 1) == blocks - 1;", "count_arrival(counter, blocks) == blocks - 1;"),),
        ("the_workspace_serves_call_after_call",),
    ),
    Mutant(
        "a row's offset is 32 bits wide",
        "bounds",
        KERNEL,
        (("row * op.row_stride", "static_cast<int>(row) * static_cast<int>(op.row_stride)"),),
        ("logits_of_more_than_2_31_elements",),
    ),
    Mutant(
        "ids are stored without their stride",
        "value",
        KERNEL,
        (("op.ids[row * op.ids_stride]", "op.ids[row]"),),
        ("strides_are_honoured",),
    ),
    Mutant(
        "neighbouring threads load chunks four apart",
        "count",
        ARGMAX,
        (
            (
                "    uint32_t next = begin + threadIdx.x;\n    if (next < whole_begin_) next += kArgmaxThreads;",
                "    uint32_t next = max(begin, whole_begin_) + threadIdx.x * kInFlight;",
            ),
            ("          const uint32_t at = next + i * kArgmaxThreads;", "          const uint32_t at = next + i;"),
            ("            chunk = next + i * kArgmaxThreads;", "            chunk = next + i;"),
        ),
        ("matches_the_definition", "a_row_may_start_anywhere", "each_logit_is_read_once"),
    ),
    Mutant(
        "logits are read twice",
        "count",
        ARGMAX,
        (
            (
                "(row.thread_best(begin, begin + rows.stretch_chunks), ",
                "(Larger()(row.thread_best(begin, begin + rows.stretch_chunks),\n"
                "    row.thread_best(begin, begin + rows.stretch_chunks)), ",
            ),
        ),
        ("matches_the_definition", "a_row_may_start_anywhere", "each_logit_is_read_once"),
    ),
    Mutant(
        "a chunk is loaded in four words",
        "count",
        PTX,
        (
            (
                '      "@present ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\\n"\n',
                '      "@present ld.global.nc.L1::no_allocate.u32 %0, [%4];\\n"\n'
                '      "@present ld.global.nc.L1::no_allocate.u32 %1, [%4+4];\\n"\n'
                '      "@present ld.global.nc.L1::no_allocate.u32 %2, [%4+8];\\n"\n'
                '      "@present ld.global.nc.L1::no_allocate.u32 %3, [%4+12];\\n"\n',
            ),
        ),
        ("matches_the_definition", "a_row_may_start_anywhere", "each_logit_is_read_once"),
    ),
    Mutant(
        "all lanes store the best of a stretch",
        "count",
        KERNEL,
        (
            (
                "if (threadIdx.x == 0) launch.rows.stretch_best",
                "if (threadIdx.x < kWarpLanes) launch.rows.stretch_best",
            ),
        ),
        ("matches_the_definition", "only_what_is_needed_is_stored"),
    ),
)

SUITE = Suite("row_argmax", CHECKS, MUTANTS)
