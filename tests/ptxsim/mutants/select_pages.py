"""Bugs planted in select_pages: scores, their order, and how the greatest are found."""

from functools import partial

import torch

from tests.cases.page_selection import Attention, Case
from tests.cuda import test_select_pages as tests
from tests.cuda.gpu import Gpu
from tests.ptxsim.mutants import Check, Mutant, Suite

FOLDER = "csrc/cuda/select_pages"
SCORE, CHOOSE, KERNEL = f"{FOLDER}/score.cuh", f"{FOLDER}/choose.cuh", f"{FOLDER}/kernel.cuh"
PTX, COPY = "csrc/cuda/common/ptx.cuh", "csrc/cuda/block_attention/copy.cuh"
STAGES = "csrc/cuda/common/attention_stages.cuh"


def _check(case: Case, gpu: Gpu | None = None) -> Check:
    return lambda: tests.check(case, torch.bfloat16, gpu or Gpu())


CHECKS: dict[str, Check] = {
    "equals_the_definition": _check(
        Case(Attention((700, 333), (5, 7), q_heads=4, kv_heads=2, page_size=4, slack_rows=1), 128, sink=9, local=9)
    ),
    "equals_the_definition, two row tiles": _check(tests.CASES[11]),
    "equals_the_definition, late copies": _check(tests.LONG, Gpu("RTX 3090", completion="late", schedule="greedy")),
    "many_stretches": _check(tests.LONG),
    "few_stretches": _check(tests.few_stretches(5), Gpu("RTX 3090")),
    "all_keys_equal": tests.test_all_keys_equal,
    "scores_of_every_size": partial(tests.test_scores_of_every_size_and_sign, 1.0),
    "scores_that_differ_in_their_last_bits": tests.test_scores_that_differ_in_their_last_bits,
    "nan_counts_as_the_greatest": partial(
        tests.test_a_page_with_nan_or_infinite_keys_counts_as_the_greatest, torch.bfloat16, torch.nan
    ),
    "a_row_of_nan": tests.test_a_row_of_nan_stays_with_its_request,
    "only_bounds_between": tests.test_only_bounds_between_the_sinks_and_the_local_pages_are_read,
    "a_plan_serves_other_lengths": tests.test_a_plan_serves_other_lengths,
    "lengths_that_make_no_sense": tests.test_lengths_that_make_no_sense_stay_inside,
    "every_stride_is_honoured": tests.test_every_stride_is_honoured,
    "offsets_past_2_31": tests.test_offsets_past_2_31_elements,
    "every_bound_is_read_once": partial(tests.test_every_bound_is_read_once, 16, 16),
}
VALUES = ("equals_the_definition",)
ORDER = ("equals_the_definition", "few_stretches", "many_stretches", "equals_the_definition, late copies")


def _planted(name: str, kind: str, file: str, old: str, new: str, checks: tuple[str, ...] = VALUES) -> Mutant:
    return Mutant(name, kind, file, ((old, new),), checks)  # type: ignore[arg-type]


MUTANTS = (
    # Scores
    _planted(
        "negative queries meet the maxima",
        "value",
        SCORE,
        "negative[i], minima[0], minima[1]",
        "negative[i], maxima[0], maxima[1]",
    ),
    _planted("negative queries are left out", "value", SCORE, "positive[i][e] & signs_of_halves(positive[i][e])", "0"),
    _planted("both halves of a word have one sign", "value", PTX, "0xbb99", "0x9999"),
    _planted(
        "rows past the last one count",
        "value",
        SCORE,
        "if (row_of<Traits>(i, half) < rows) greatest",
        "greatest",
        ("equals_the_definition", "a_row_of_nan"),
    ),
    _planted(
        "a NaN is passed over",
        "value",
        SCORE,
        "greatest = max_nan(greatest, scores",
        "greatest = fmaxf(greatest, scores",
        ("nan_counts_as_the_greatest",),
    ),
    _planted(
        "a quarter of the rows is left out",
        "value",
        SCORE,
        "distance = 4; distance < kWarpLanes;",
        "distance = 4; distance < kWarpLanes / 2;",
    ),
    _planted(
        "a later row tile's keys replace the earlier's",
        "value",
        SCORE,
        "if (work.first_row > 0) key = max",
        "if (false) key = max",
        ("equals_the_definition, two row tiles",),
    ),
    _planted(
        "only the first row tile is scored",
        "value",
        SCORE,
        "work.first_row < stretch.rows; work",
        "work.first_row < 1; work",
        ("equals_the_definition, two row tiles",),
    ),
    _planted(
        "a page's key is kept for the tile after the next",
        "value",
        SCORE,
        "      best[tile % 2][page_of_tile] = 0;\n",
        "",
        ("equals_the_definition", "few_stretches"),
    ),
    Mutant(
        "keys of two tiles share their place",
        "order",
        SCORE,
        (
            ("key = best[tile % 2][page_of_tile];", "key = best[0][page_of_tile];"),
            ("best[tile % 2][page_of_tile] = 0;", "best[0][page_of_tile] = 0;"),
            (
                "kRowBlocks>(queries, ring.stage(), work.rows, best[tile % 2]);",
                "kRowBlocks>(queries, ring.stage(), work.rows, best[0]);",
            ),
        ),
        ORDER,
    ),
    _planted("tiles are not waited for", "order", SCORE, "      ring.wait();\n", "", ORDER),
    _planted(
        "no barrier before a tile is used",
        "order",
        SCORE,
        "      __syncthreads();  // every thread's",
        "      // every thread's",
        ORDER,
    ),
    _planted(
        "one stage too many is filled ahead",
        "order",
        STAGES,
        "for (uint32_t i = 1; i < stages_; ++i) copy_next();",
        "for (uint32_t i = 0; i < stages_; ++i) copy_next();",
        ORDER,
    ),
    _planted(
        "stages are not used again",
        "bounds",
        STAGES,
        "    if (stage == end_stage_) stage = first_stage_;\n",
        "",
        ORDER,
    ),
    _planted(
        "the last tile's keys are not waited for",
        "order",
        SCORE,
        "    __syncthreads();  // the last tile's keys are there, and no warp still reads queries or a stage\n",
        "",
        ORDER,
    ),
    _planted(
        "the first of the local pages' bounds are read",
        "bounds",
        SCORE,
        "work.keys = {stretch.begin, stretch.end};",
        "work.keys = {stretch.begin, stretch.end + 1};",
    ),
    _planted(
        "the sinks' bounds are read",
        "bounds",
        SCORE,
        "work.keys = {stretch.begin, stretch.end};",
        "work.keys = {0, stretch.end};",
        ("only_bounds_between",),
    ),
    # The greatest
    _planted("one equal page too many", "value", CHOOSE, "equal_before < cut.equal)", "equal_before <= cut.equal)"),
    _planted(
        "equal pages before a thread's are not counted",
        "value",
        CHOOSE,
        "uint32_t equal_before = static_cast<uint32_t>(before >> 32);",
        "uint32_t equal_before = 0;",
        ("all_keys_equal",),
    ),
    _planted(
        "equal pages before a thread's take no place",
        "value",
        CHOOSE,
        " + min(equal_before, cut.equal);",
        ";",
        ("all_keys_equal",),
    ),
    _planted(
        "counts of the digit before are kept",
        "value",
        CHOOSE,
        "histogram[i] = 0;",
        "histogram[i] = shift == 24 ? 0 : histogram[i];",
    ),
    _planted(
        "keys with other high digits are counted",
        "value",
        CHOOSE,
        "      if ((key & known) != cut.key) continue;\n",
        "",
        ("scores_of_every_size",),
    ),
    _planted(
        "the last run is not counted", "value", CHOOSE, "    if (run > 0) atomicAdd(histogram + digit, run);\n", ""
    ),
    _planted(
        "counts are used before they are there",
        "order",
        CHOOSE,
        "    __syncthreads();\n    const int top",
        "    const int top",
    ),
    _planted(
        "counts are cleared while others count",
        "order",
        CHOOSE,
        "histogram[i] = 0;\n    __syncthreads();",
        "histogram[i] = 0;",
    ),
    _planted(
        "the least are chosen",
        "value",
        CHOOSE,
        "kDigits - 1 - static_cast<int>(threadIdx.x) * kOwnDigits;",
        "(static_cast<int>(threadIdx.x) + 1) * kOwnDigits - 1;",
    ),
    _planted(
        "the digit is used before it is found",
        "order",
        CHOOSE,
        "    __syncthreads();\n    cut.key |=",
        "    cut.key |=",
    ),
    _planted(
        "the last digit is not looked at",
        "value",
        CHOOSE,
        "shift >= 0; shift",
        "shift > 0; shift",
        ("equals_the_definition", "scores_that_differ_in_their_last_bits"),
    ),
    # Blocks
    _planted(
        "every block chooses",
        "order",
        KERNEL,
        "static_cast<uint32_t>(blocks))) return;",
        "static_cast<uint32_t>(blocks))) {\n  }",
    ),
    _planted(
        "no barrier between keys and the arrival",
        "order",
        SCORE,
        "  __syncthreads();  // before the keys",
        "  // before the keys",
        ("equals_the_definition", "a_plan_serves_other_lengths", "many_stretches"),
    ),
    _planted("lists share a counter", "order", KERNEL, "launch.arrivals + list", "launch.arrivals"),
    _planted("lists share their keys", "order", KERNEL, "launch.keys + list * op.max_pages", "launch.keys"),
    _planted(
        "stretches without pages are waited for",
        "value",
        KERNEL,
        "const int blocks = (end - first + tiles - 1) / tiles;",
        "const int blocks = stretches;",
        ("equals_the_definition", "a_plan_serves_other_lengths"),
    ),
    _planted(
        "a context past the table is followed",
        "bounds",
        KERNEL,
        ", launch.capacity);",
        ", 1 << 30);",
        ("lengths_that_make_no_sense",),
    ),
    _planted(
        "rows past the queries are followed",
        "bounds",
        KERNEL,
        "end_token = min(op.cu_block_lens[(request + 1) * op.cu_block_lens_stride], tokens);",
        "end_token = op.cu_block_lens[(request + 1) * op.cu_block_lens_stride];",
        ("lengths_that_make_no_sense",),
    ),
    _planted(
        "what follows the selection is left",
        "value",
        KERNEL,
        "selected[i] = -1;",
        "continue;",
        ("a_plan_serves_other_lengths",),
    ),
    _planted("local pages replace the chosen", "value", KERNEL, "chosen + division.chosen;", "chosen;"),
    _planted(
        "heads of the selection lie side by side",
        "value",
        KERNEL,
        "head * op.selected_head_stride;",
        "head * op.width;",
        ("every_stride_is_honoured",),
    ),
    _planted(
        "a query's offset is 32 bits wide",
        "bounds",
        COPY,
        "token * op.q_token_stride",
        "static_cast<int>(token) * static_cast<int>(op.q_token_stride)",
        ("offsets_past_2_31",),
    ),
    _planted(
        "the keys are read from memory in every step",
        "count",
        KERNEL,
        "if (count <= launch.shared_keys)",
        "if (false)",
        ("equals_the_definition", "every_bound_is_read_once"),
    ),
    _planted(
        "warps without rows multiply as well",
        "count",
        SCORE,
        "active_row_blocks<Traits>(work.rows)",
        "active_row_blocks<Traits>(Traits::kRows)",
        ("every_bound_is_read_once, ragged",),
    ),
)
CHECKS["every_bound_is_read_once, ragged"] = partial(tests.test_every_bound_is_read_once, 64, (16, 9))

SUITE = Suite("select_pages", CHECKS, MUTANTS)
