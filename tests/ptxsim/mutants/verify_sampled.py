"""Bugs planted in verify_sampled."""

from functools import partial

import torch

from tests.cases.verify import Case
from tests.cuda import test_verify_sampled as tests
from tests.cuda.gpu import Gpu
from tests.ptxsim.mutants import Check, Mutant, Suite

CHOOSE = "csrc/cuda/verify_sampled/choose.cuh"
REDUCE = "csrc/cuda/common/reduce.cuh"
ROW = "csrc/cuda/verify_sampled/row.cuh"
SCANS = "csrc/cuda/verify_sampled/scans.cuh"
WEIGHT = "csrc/cuda/verify_sampled/weight.cuh"

CHECKS: dict[str, Check] = {
    "matches_the_definition": partial(
        tests.test_matches_the_definition, Case(5, 1, 33, lens=(0, 1, 1, -1, 1)), torch.bfloat16, Gpu()
    ),
    "matches_the_definition, three drafts": partial(
        tests.test_matches_the_definition, Case(3, 7, 129, lens=(7, 0, -1), slack=3), torch.bfloat16, Gpu()
    ),
    "large_vocabularies, spread": partial(tests.test_large_vocabularies_are_cut_exactly, "spread", torch.bfloat16),
    "large_vocabularies, ties": partial(tests.test_large_vocabularies_are_cut_exactly, "ties", torch.bfloat16),
    "large_vocabularies, two levels": partial(
        tests.test_large_vocabularies_are_cut_exactly, "two levels", torch.bfloat16
    ),
    "rows_without_a_finite_maximum": partial(
        tests.test_rows_without_a_finite_maximum_and_greedy_requests_take_the_argmax, torch.bfloat16
    ),
    "a_row_may_start_anywhere": partial(tests.test_a_row_may_start_anywhere, 3),
    "equal_logits_of_a_long_row": tests.test_equal_logits_of_a_long_row,
    "each_scan_reads_each_logit_once": partial(tests.test_each_scan_reads_each_logit_once, torch.bfloat16),
}
SMALL = ("matches_the_definition", "matches_the_definition, three drafts")
LARGE = (*SMALL, "large_vocabularies, spread", "large_vocabularies, ties", "large_vocabularies, two levels")
COUNTS = (*SMALL, "each_scan_reads_each_logit_once")

MUTANTS = (
    Mutant(
        "sums of warps are read before they are there",
        "order",
        REDUCE,
        (("of_warp[warp] = upto;\n  __syncthreads();", "of_warp[warp] = upto;"),),
        SMALL,
    ),
    Mutant(
        "the place is read before it is found",
        "order",
        CHOOSE,
        (("  __syncthreads();\n  const Located result = found;", "  const Located result = found;"),),
        SMALL,
    ),
    Mutant(
        "masses of stretches are read before they are there",
        "order",
        CHOOSE,
        (("          gathered = 0;\n        });\n    __syncthreads();", "          gathered = 0;\n        });"),),
        LARGE,
    ),
    Mutant(
        "candidates are read before all are there",
        "order",
        CHOOSE,
        (("        [](uint32_t) {});\n    __syncthreads();", "        [](uint32_t) {});"),),
        LARGE,
    ),
    Mutant(
        "candidates are counted from an old count",
        "order",
        CHOOSE,
        (("if (threadIdx.x == 0) count = 0;\n    __syncthreads();", "if (threadIdx.x == 0) count = 0;"),),
        LARGE,
    ),
    Mutant(
        "candidates take places without an atomic",
        "order",
        CHOOSE,
        (("const uint32_t at = atomicAdd(&count, 1u);", "const uint32_t at = count++;"),),
        LARGE,
    ),
    Mutant(
        "the first stretch of the maximum is found without an atomic",
        "order",
        CHOOSE,
        (("atomicMin(&first_stretch, s);", "first_stretch = min(first_stretch, s);"),),
        (*SMALL, "rows_without_a_finite_maximum"),
    ),
    Mutant(
        "sums over thresholds are read before they are there",
        "order",
        ROW,
        (("      own.count[t] = warp_count;\n    }\n    __syncthreads();", "      own.count[t] = warp_count;\n    }"),),
        LARGE,
    ),
    Mutant(
        "the largest key is read before it is there",
        "order",
        ROW,
        (("top_of_block = top;\n  __syncthreads();", "top_of_block = top;"),),
        SMALL,
    ),
    Mutant(
        "all rows of a request have the same random bits",
        "value",
        CHOOSE,
        (("(*offset + place.row));", "(*offset));"),),
        SMALL,
    ),
    Mutant(
        "the offset goes on by the accepted tokens only",
        "value",
        CHOOSE,
        (("op.accepted_stride] + 1;", "op.accepted_stride];"),),
        SMALL,
    ),
    Mutant(
        "the last token kept is cut off",
        "value",
        CHOOSE,
        (("column <= cut.column) ?", "column < cut.column) ?"),),
        LARGE,
    ),
    Mutant(
        "tokens as large as the last one are all kept",
        "value",
        CHOOSE,
        (("key > cut.key || (key == cut.key && column <= cut.column) ?", "key >= cut.key ?"),),
        LARGE,
    ),
    Mutant(
        "of equal candidates later ones come first",
        "value",
        CHOOSE,
        (("columns[other] < column);", "columns[other] > column);"),),
        LARGE,
    ),
    Mutant(
        "top-p is a share of all, not of what top-k left",
        "value",
        CHOOSE,
        (("min(share_of(sampling_.top_p, cut.mass), cut.mass)", "share_of(sampling_.top_p, sum_of_masses())"),),
        LARGE,
    ),
    Mutant(
        "one token too few of equals",
        "value",
        CHOOSE,
        (("(wanted - range.mass_above + mass_each - 1) / mass_each", "(wanted - range.mass_above) / mass_each"),),
        LARGE,
    ),
    Mutant(
        "a target at a border belongs to the item before it",
        "value",
        CHOOSE,
        (("      if (target < before + value) {", "      if (target <= before + value) {"),),
        ("equal_logits_of_a_long_row",),
    ),
    Mutant(
        "weights below 2^-126 are not 0",
        "value",
        WEIGHT,
        (("return x < -126.0f ? 0.0f : result;", "return result;"),),
        LARGE,
    ),
    Mutant(
        "the upper half of a product is shifted too little",
        "value",
        WEIGHT,
        (("__umul64hi(bits, mass) << 11 |", "__umul64hi(bits, mass) << 10 |"),),
        SMALL,
    ),
    Mutant(
        "the row's begin in its line is forgotten",
        "bounds",
        ROW,
        (("    return column >= 0 && column + kElements <= columns_;", "    return column + kElements <= columns_;"),),
        (*SMALL, "a_row_may_start_anywhere"),
    ),
    Mutant(
        "every logit is loaded by itself",
        "count",
        ROW,
        (("    return column >= 0 && column + kElements <= columns_;", "    return columns_ < 0;"),),
        COUNTS,
    ),
    Mutant(
        "each scan walks its stretches twice",
        "count",
        SCANS,
        (
            (
                "  uint32_t largest[kMaximaInFlight] = {};\n",
                "  uint32_t largest[kMaximaInFlight] = {};\n"
                "  sampled_row<T>(launch, place)\n"
                "      .template walk<kMaximaInFlight>(\n"
                "          begin + threadIdx.x / kWarpLanes, end, kScanThreads / kWarpLanes,\n"
                "          [](uint32_t) { return true; },\n"
                "          [&](int i, float x, int64_t) { largest[i] = max(largest[i], key_of<T>(x)); },\n"
                "          [&](int i, uint32_t) { largest[i] = 0; });\n",
            ),
        ),
        COUNTS,
    ),
    Mutant(
        "rows past the draft are scanned",
        "count",
        SCANS,
        (
            (
                "  if (place.row > draft_len_of(launch.op, place.request)) return;\n  uint32_t* maxima",
                "  uint32_t* maxima",
            ),
        ),
        COUNTS,
    ),
)

SUITE = Suite("verify_sampled", CHECKS, MUTANTS)
