"""Bugs planted in commit_block."""

from functools import partial

from tests.cuda import test_commit_block as tests
from tests.cuda.gpu import Gpu
from tests.ptxsim.mutants import Check, Mutant, Suite

KERNEL = "csrc/cuda/commit_block/kernel.cuh"

CHECKS: dict[str, Check] = {
    "matches_the_definition": partial(tests.test_matches_the_definition, 2, [3, 5, 0], False, Gpu()),
    "matches_the_definition, bounded": partial(tests.test_matches_the_definition, 3, None, True, Gpu()),
    "the_first_stop_token_cuts_a_long_block": partial(tests.test_the_first_stop_token_cuts_a_long_block, 39),
    "the_first_stop_token_cuts_a_long_block, early": partial(tests.test_the_first_stop_token_cuts_a_long_block, 0),
    "a_stop_token_past_the_accepted_ones": partial(tests.test_a_stop_token_past_the_accepted_ones_does_not_count, 10),
    "counts_that_make_no_sense_stay_inside": partial(tests.test_counts_that_make_no_sense_stay_inside, 7, 2),
    "counts_that_make_no_sense_stay_inside, negative": partial(tests.test_counts_that_make_no_sense_stay_inside, 3, -1),
    "lengths_of_finished_and_idle_requests_are_not_read": (
        tests.test_lengths_of_finished_and_idle_requests_are_not_read
    ),
    "strided_state_and_slots_in_place": tests.test_strided_state_and_slots_in_place,
    "whole_sectors_are_stored_once": tests.test_whole_sectors_are_stored_once,
}
VALUES = tuple(name for name in CHECKS if name.startswith("matches_the_definition"))

MUTANTS = (
    Mutant(
        "the length is replaced while lanes still read it",
        "order",
        KERNEL,
        (("    __syncwarp();  // every lane has read the old length and flag\n", ""),),
        VALUES,
    ),
    Mutant(
        "the last stop token counts, not the first",
        "value",
        KERNEL,
        (("count = begin + __ffs(static_cast<int>(stops));", "count = begin + 32 - __clz(static_cast<int>(stops));"),),
        (*VALUES, "the_first_stop_token_cuts_a_long_block, early"),
    ),
    Mutant(
        "a stop token is counted from its group of 32",
        "value",
        KERNEL,
        (("count = begin + __ffs", "count = __ffs"),),
        ("the_first_stop_token_cuts_a_long_block",),
    ),
    Mutant(
        "tokens that were not accepted may stop a request",
        "value",
        KERNEL,
        (("i < most && is_stop_token", "i < params.block && is_stop_token"),),
        ("a_stop_token_past_the_accepted_ones",),
    ),
    Mutant(
        "a full output does not finish the request",
        "value",
        KERNEL,
        (("if (stopped || count == room)", "if (stopped)"),),
        VALUES,
    ),
    Mutant(
        "accepted is not bounded by the block",
        "bounds",
        KERNEL,
        (("min(min(emitted, params.block), room)", "min(emitted, room)"),),
        ("counts_that_make_no_sense_stay_inside",),
    ),
    Mutant(
        "a negative length is followed",
        "bounds",
        KERNEL,
        (("return output_len < 0 ? 0 : max(", "return max("),),
        ("counts_that_make_no_sense_stay_inside, negative",),
    ),
    Mutant(
        "the request's own bound is not looked at",
        "value",
        KERNEL,
        (
            (
                "if (params.max_output_lens != nullptr) {",
                "if (params.max_output_lens == nullptr && params.capacity < 0) {",
            ),
        ),
        VALUES,
    ),
    Mutant(
        "tokens go to the begin of the output",
        "value",
        KERNEL,
        (("request * params.output_ids_stride + length;", "request * params.output_ids_stride;"),),
        VALUES,
    ),
    Mutant(
        "one slot too many",
        "value",
        KERNEL,
        (("i < count ? slots[i] : -1", "i <= count ? slots[i] : -1"),),
        VALUES,
    ),
    Mutant(
        "finished requests go on",
        "value",
        KERNEL,
        (("if (!*finished && tokens[0] >= 0)", "if (tokens[0] >= 0)"),),
        VALUES,
    ),
    Mutant(
        "all lanes write the new length",
        "order",
        KERNEL,
        (
            ("      *output_len = static_cast<int32_t>(length + count);\n", ""),
            (
                "    if (lane == 0) {\n      if (stopped",
                "    *output_len += lane == 0 ? static_cast<int32_t>(count) : 0;\n    if (lane == 0) {\n      if (stopped",
            ),
        ),
        VALUES,
    ),
    Mutant(
        "a lane takes neighbouring tokens",
        "count",
        KERNEL,
        (
            (
                "for (int64_t i = lane; i < count; i += kWarpLanes) output[i]",
                "for (int64_t i = 4 * lane; i < min(count, int64_t{4 * lane + 4}); ++i) output[i]",
            ),
        ),
        (*VALUES, "whole_sectors_are_stored_once"),
    ),
    Mutant(
        "idle requests are committed",
        "value",
        KERNEL,
        (("if (!*finished && tokens[0] >= 0)", "if (!*finished)"),),
        ("lengths_of_finished_and_idle_requests_are_not_read",),
    ),
    Mutant(
        "flags are read and written without their stride",
        "value",
        KERNEL,
        (("params.finished + request * params.finished_stride", "params.finished + request"),),
        ("strided_state_and_slots_in_place",),
    ),
)

SUITE = Suite("commit_block", CHECKS, MUTANTS)
