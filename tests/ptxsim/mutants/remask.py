"""Bugs planted in remask."""

from functools import partial

import torch

from tests.cases.remask import inputs
from tests.cuda import test_remask as tests
from tests.cuda.gpu import Gpu
from tests.ptxsim.mutants import Check, Mutant, Suite

KERNEL = "csrc/cuda/remask/kernel.cuh"
SCAN = "csrc/cuda/remask/scan.cuh"

CHECKS: dict[str, Check] = {
    "matches_the_definition": lambda: tests.check(Gpu(), *inputs(2, 33, 4099, torch.bfloat16)),
    "the_mask_token_takes_no_part": partial(tests.test_the_mask_token_takes_no_part, 7, torch.bfloat16),
    "special_values": tests.test_special_values,
    "equal_confidences_go_to_the_lower_position": tests.test_equal_confidences_go_to_the_lower_position,
    "a_negative_keep_keeps_nothing": tests.test_a_negative_keep_keeps_nothing,
    "logits_of_other_positions_are_not_read": tests.test_logits_of_other_positions_are_not_read,
    "the_workspace_serves_call_after_call": tests.test_the_workspace_serves_call_after_call,
}
VALUES = ("matches_the_definition",)

MUTANTS = (
    Mutant(
        "positions are ranked before all have a key",
        "order",
        KERNEL,
        (("  __syncthreads();\n  const int64_t keep", "  const int64_t keep"),),
        VALUES,
    ),
    Mutant(
        "the block's best is read before it is there",
        "order",
        SCAN,
        (("best_of_block = best;\n  __syncthreads();", "best_of_block = best;"),),
        VALUES,
    ),
    Mutant(
        "a stretch's sum is stored after the block arrives",
        "order",
        KERNEL,
        (
            ("      launch.stretch_sums[at] = part.sum;\n", ""),
            ("const SoftmaxPart part =", "part ="),
            (
                "  if (is_masked(op, request, own_position)) {\n",
                "  SoftmaxPart part{};\n  if (is_masked(op, request, own_position)) {\n",
            ),
            (
                "  if (!last_to_arrive(launch.rows.arrivals + request, positions * launch.rows.stretches)) return;\n",
                "  const bool last = last_to_arrive(launch.rows.arrivals + request, positions * launch.rows.stretches);\n"
                "  const int64_t stored = static_cast<int64_t>(blockIdx.x) * launch.rows.stretches + blockIdx.y;\n"
                "  if (threadIdx.x == 0) launch.stretch_sums[stored] = part.sum;\n"
                "  if (!last) return;\n",
            ),
        ),
        VALUES,
    ),
    Mutant("a position outranks itself", "value", KERNEL, (("keys[other] > key ?", "keys[other] >= key ?"),), VALUES),
    Mutant(
        "of equal positions the later one is kept",
        "value",
        KERNEL,
        (("static_cast<uint32_t>(~static_cast<uint32_t>(position))", "static_cast<uint32_t>(position)"),),
        ("equal_confidences_go_to_the_lower_position",),
    ),
    Mutant(
        "NaN is the most confident",
        "value",
        KERNEL,
        (("confidence == confidence ? __float_as_uint(confidence) + 1 : 0;", "__float_as_uint(confidence) + 1;"),),
        ("special_values",),
    ),
    Mutant(
        "sums of stretches are not rescaled",
        "value",
        SCAN,
        (("part.sum * exp_below(value_of(part.best), value_of(best))", "part.sum"),),
        VALUES,
    ),
    Mutant(
        "a thread's sum is not rescaled",
        "value",
        SCAN,
        (("      if (state->sum > 0.0f) state->sum *= exp_below(state->value, largest);\n", ""),),
        (*VALUES, "the_mask_token_takes_no_part"),
    ),
    Mutant(
        "the mask token takes part in whole chunks",
        "value",
        SCAN,
        ((" && !(excluded_ >= column && excluded_ < column + kElements);", ";"),),
        ("the_mask_token_takes_no_part",),
    ),
    Mutant(
        "the mask token takes part in chunks of its own",
        "value",
        SCAN,
        ((" && column != excluded_;", ";"),),
        ("the_mask_token_takes_no_part",),
    ),
    Mutant(
        "the row's last chunk is read whole",
        "bounds",
        SCAN,
        (("column >= 0 && column + kElements <= columns_ && !(", "column >= 0 && column < columns_ && !("),),
        VALUES,
    ),
    Mutant(
        "logits of positions that are not masked are read",
        "count",
        KERNEL,
        (("  if (is_masked(op, request, own_position)) {\n", "  {\n"),),
        (*VALUES, "logits_of_other_positions_are_not_read"),
    ),
    Mutant(
        "neighbouring threads load chunks four apart",
        "count",
        SCAN,
        (
            (
                "uint32_t next = begin + threadIdx.x; next < end;",
                "uint32_t next = begin + kInFlight * threadIdx.x; next < end;",
            ),
            (
                "        const uint32_t at = next + i * kArgmaxThreads;\n        loaded[i]",
                "        const uint32_t at = next + i;\n        loaded[i]",
            ),
            (
                "        const uint32_t at = next + i * kArgmaxThreads;\n        if (at >= end)",
                "        const uint32_t at = next + i;\n        if (at >= end)",
            ),
        ),
        (*VALUES, "logits_of_other_positions_are_not_read"),
    ),
    Mutant(
        "the counter stays where it is",
        "value",
        "csrc/cuda/common/arrival.cuh",
        (("count_arrival(counter, blocks - 1) == blocks - 1;", "count_arrival(counter, blocks) == blocks - 1;"),),
        ("the_workspace_serves_call_after_call",),
    ),
    Mutant(
        "a negative keep keeps all",
        "value",
        KERNEL,
        (("if (more_confident < keep)", "if (static_cast<uint64_t>(more_confident) < static_cast<uint64_t>(keep))"),),
        ("a_negative_keep_keeps_nothing",),
    ),
)

SUITE = Suite("remask", CHECKS, MUTANTS)
