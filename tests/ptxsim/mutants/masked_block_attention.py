"""Bugs planted in masked_block_attention's forward pass and in the launches in front of it."""

from functools import partial

import torch

from tests.cases.masked_block_attention import Case
from tests.cuda import test_masked_block_attention as tests
from tests.cuda import test_masked_block_attention_tiles as tiles
from tests.ptxsim.mutants import Check, Kind, Mutant, Suite

FOLDER = "csrc/cuda/masked_block_attention"
FORWARD, MASK, TILES = f"{FOLDER}/forward.cuh", f"{FOLDER}/mask.cuh", f"{FOLDER}/tiles.cuh"
TRAITS = f"{FOLDER}/traits.cuh"
PARAMS = "csrc/params/masked_block_attention.h"
SEGMENT, ROWS = f"{FOLDER}/segment.cuh", f"{FOLDER}/rows.cuh"
GPU = tests.KERNELS[1]
SCATTERED = tiles.CHOSEN[1]  # padding, documents, a group of 3


def _values(case: Case) -> Check:
    """The case's values, in bfloat16."""
    return lambda: tests.check(GPU, case, torch.bfloat16)


def _all_live_tiles() -> None:
    for case in tiles.CHOSEN:
        tiles.test_live_tiles_are_those_of_the_dense_mask(case, 128, 32)


CHECKS: dict[str, Check] = {
    "matches_the_definition": _values(SCATTERED),
    "matches_the_definition, window": _values(tests.SMALL),
    "matches_the_definition, long blocks": _values(tiles.CHOSEN[4]),
    "matches_the_definition, causal": _values(tiles.CHOSEN[7]),
    "many_tiles": partial(tests.test_many_tiles, 128, torch.bfloat16, tests.GPUS[1]),
    "many_tiles, copies land in any order": partial(tests.test_many_tiles, 64, torch.float16, tests.GPUS[2]),
    "keys_that_nobody_sees": partial(tests.test_keys_that_nobody_sees_never_reach_a_result, GPU, 0, torch.nan),
    "keys_that_nobody_sees, window": partial(tests.test_keys_that_nobody_sees_never_reach_a_result, GPU, 9, torch.nan),
    "documents_are_isolated": partial(tests.test_documents_are_isolated, "anchor", GPU),
    "documents_are_isolated, packed": partial(tests.test_documents_are_isolated, "bidirectional", GPU),
    "values_that_make_no_sense": partial(tests.test_values_that_make_no_sense_stay_inside, GPU),
    "infinite_logits": partial(tests.test_infinite_logits, GPU),
    "every_stride_is_honoured": partial(tests.test_every_stride_is_honoured, GPU),
    "rows_past_2_31": partial(tests.test_rows_past_2_31_elements, GPU),
    "live_tiles": _all_live_tiles,
    "full_size": tiles.test_full_size_visits_the_closed_form_count,
    "nothing_dead_is_multiplied": partial(tiles.test_nothing_dead_is_multiplied, tiles.CHOSEN[2]),
    "products_are_close_to_the_live_work": partial(tiles.test_products_are_close_to_the_live_work, 64, "A100"),
    "queries_move_once": partial(tiles.test_keys_and_queries_move_once_for_each_segment, SCATTERED, "A100"),
}
VALUES, WINDOW, LIVE = ("matches_the_definition",), ("matches_the_definition, window",), ("live_tiles",)
MANY_TILES = ("many_tiles", "many_tiles, copies land in any order")


def _mutant(name: str, kind: Kind, file: str, old: str, new: str, checks: tuple[str, ...] = VALUES) -> Mutant:
    return Mutant(name, kind, file, ((old, new),), checks)


MUTANTS = (
    # Copies, blocks and barriers.
    _mutant("no tile is waited for", "order", FORWARD, "    wait_for_tile(launch.stages);\n", "", MANY_TILES),
    _mutant(
        "no barrier before a tile is used",
        "order",
        FORWARD,
        "    __syncthreads();  // every thread's copies have landed, and no warp reads the stage that is filled next\n",
        "",
        MANY_TILES,
    ),
    _mutant(
        "the tile in use is replaced",
        "order",
        FORWARD,
        "copy(i + ahead, (stage == first_stage ? end_stage : stage) - Traits::kStageBytes);",
        "copy(i + ahead, stage);",
        MANY_TILES,
    ),
    _mutant(
        "a segment starts while a warp is at the one before",
        "order",
        FORWARD,
        "    __syncthreads();  // no warp is still at the segment before\n",
        "",
        ("documents_are_isolated",),
    ),
    _mutant(
        "a segment is worked on before it is described",
        "order",
        FORWARD,
        "    __syncthreads();\n    attend_segment",
        "    attend_segment",
    ),
    _mutant(
        "ranks: keys are replaced while others read them",
        "order",
        TILES,
        "    __syncthreads();\n    if (other < count)",
        "    if (other < count)",
        ("full_size",),
    ),
    _mutant(
        "two row tiles write the query they share",
        "order",
        TILES,
        "writes = query * group >= first_row;",
        "writes = query >= 0;",
        ("matches_the_definition, long blocks",),
    ),
    _mutant(
        "what queries see is used before it is there",
        "order",
        TILES,
        "    if (writes) tiles.query_keys[query] = keys[thread];\n  }\n  __syncthreads();\n",
        "    if (writes) tiles.query_keys[query] = keys[thread];\n  }\n",
    ),
    # What is seen.
    _mutant("padding comes first", "value", TILES, "return value < 0 ? INT32_MAX : value;", "return value;", LIVE),
    _mutant("equal anchors share a place", "value", TILES, " && first + i < index);", " && false);", VALUES),
    _mutant(
        "a block's document is that of its number",
        "value",
        TILES,
        "anchored ? op.anchors[query / op.block_size * op.anchors_stride] : query;",
        "query;",
    ),
    _mutant(
        "block keys stay where they lie",
        "value",
        TILES,
        "ordered - (static_cast<int64_t>(tiles.context) + query);",
        "-static_cast<int64_t>(tiles.context);",
    ),
    _mutant(
        "segments go on over gaps",
        "value",
        TILES,
        "documents[thread] != documents[thread - 1] || gap;",
        "documents[thread] != documents[thread - 1];",
        ("keys_that_nobody_sees, window", "live_tiles"),
    ),
    _mutant(
        "segments go on over documents",
        "value",
        TILES,
        "thread == 0 || documents[thread] != documents[thread - 1] || gap;",
        "thread == 0 || gap;",
        ("documents_are_isolated", "documents_are_isolated, packed"),
    ),
    _mutant("gaps are not noticed", "value", TILES, "live == within ? 0 : 1", "0", LIVE),
    _mutant(
        "tiles with the least work come first",
        "value",
        TILES,
        "-(of_keys ? tiles.key_tiles",
        "(of_keys ? tiles.key_tiles",
        LIVE,
    ),
    _mutant(
        "a document starts behind its first token",
        "value",
        PARAMS,
        "if (bound(middle) <= position) {",
        "if (bound(middle) < position) {",
    ),
    _mutant(
        "a window is one key longer",
        "value",
        PARAMS,
        "keys.context_begin = position - window + 1;",
        "keys.context_begin = position - window;",
        WINDOW,
    ),
    _mutant(
        "bounds are not kept inside",
        "value",
        PARAMS,
        "return value < 0 ? 0 : value > tokens ? tokens : value;",
        "return value;",
        ("values_that_make_no_sense",),
    ),
    # The walk and the mask.
    _mutant(
        "the blocks' tiles are counted from the context's",
        "value",
        MASK,
        "blocks_first_ + (i - context_count_)",
        "context_first_ + i",
    ),
    _mutant(
        "a whole tile need only be seen by some row",
        "value",
        FORWARD,
        "contains(seen.all, whole)",
        "contains(seen.any, whole)",
        ("matches_the_definition, causal",),
    ),
    _mutant("one key too many", "value", ROWS, "key < keys.end ? score", "key <= keys.end ? score"),
    _mutant("the first key is lost", "value", ROWS, "score = key >= keys.begin &&", "score = key > keys.begin &&"),
    _mutant(
        "all rows of a warp have one row's mask",
        "value",
        ROWS,
        "min(max(row_of<Traits>(i, half), work.begin)",
        "min(max(row_of<Traits>(0, 0), work.begin)",
    ),
    _mutant(
        "the last block of keys is cut off",
        "value",
        ROWS,
        "end((seen.end - first_key + 15) >> 4)",
        "end((seen.end - first_key) >> 4)",
    ),
    _mutant(
        "a warp's rows lie apart",
        "value",
        TRAITS,
        "static_cast<int>(threadIdx.x / kWarpLanes) * kRowBlocks + of_warp",
        "static_cast<int>(threadIdx.x / kWarpLanes) + of_warp * kWarps",
    ),
    _mutant(
        "keys outside the hull are read",
        "value",
        ROWS,
        "const bool present = key >= seen.begin && key < seen.end;",
        "const bool present = key < keys.end;",
        ("keys_that_nobody_sees", "documents_are_isolated"),
    ),
    # Places and results.
    _mutant("all kv heads are the first", "value", SEGMENT, "unit % kv_heads,", "0u,", MANY_TILES),
    _mutant("heads of a group are one", "value", ROWS, "* group + of_head % group;", "* group;"),
    _mutant(
        "other segments' rows are written",
        "value",
        ROWS,
        "      const int row = row_of<Traits>(i, half);\n      const bool present = row >= work.begin && row < work.end;",
        "      const int row = row_of<Traits>(i, half);\n      const bool present = row < work.end;",
    ),
    _mutant("lanes keep their part of the denominator", "value", FORWARD, "  add_lanes(sums);\n", ""),
    _mutant("lse is to base 2", "value", ROWS, "kLn2 * (sums.largest[i][half]", "1.0f * (sums.largest[i][half]"),
    _mutant(
        "a row that sees nothing is divided by zero",
        "value",
        ROWS,
        "empty ? 0.0f : 1.0f / weights;",
        "1.0f / weights;",
        ("infinite_logits",),
    ),
    _mutant(
        "rows of keys are counted in 32 bits",
        "value",
        ROWS,
        "static_cast<uint64_t>(from) * source.row_stride",
        "static_cast<uint64_t>(from * source.row_stride)",
        ("rows_past_2_31",),
    ),
    _mutant(
        "rows of queries are counted in 32 bits",
        "value",
        ROWS,
        "return query * rows.row_stride",
        "return static_cast<int>(query) * static_cast<int>(rows.row_stride)",
        ("rows_past_2_31",),
    ),
    _mutant(
        "lse lies like out",
        "value",
        ROWS,
        "[place.in(launch.op.lse)]",
        "[place.query * launch.op.q_heads + place.head]",
        ("every_stride_is_honoured",),
    ),
    # How much is done.
    _mutant(
        "blocks of keys in front of the window are multiplied",
        "count",
        ROWS,
        "first((seen.begin - first_key) >> 4)",
        "first(0)",
        ("matches_the_definition, window", "nothing_dead_is_multiplied"),
    ),
    _mutant(
        "every partial tile is multiplied whole",
        "count",
        ROWS,
        "return block >= first && block < end;",
        "return true;",
        ("matches_the_definition", "products_are_close_to_the_live_work"),
    ),
    _mutant(
        "queries of other segments are read",
        "count",
        ROWS,
        "    const bool present = row >= work.begin && row < work.end;\n    const RowPlace",
        "    const bool present = row < work.end;\n    const RowPlace",
        ("matches_the_definition", "queries_move_once"),
    ),
)

SUITE = Suite("masked_block_attention", CHECKS, MUTANTS)
