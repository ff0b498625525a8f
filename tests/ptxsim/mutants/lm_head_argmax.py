"""Bugs planted in lm_head_argmax, and in the weight streaming that it shares with fuse_features and
project_context_kv."""

from functools import partial

import torch

from tests.cases.lm_head_argmax import Case
from tests.cuda import test_lm_head_argmax as tests
from tests.cuda.gpu import Gpu
from tests.ptxsim.mutants import Check, Mutant, Suite

STREAM = "csrc/cuda/common/weight_stream.cuh"
KERNEL = "csrc/cuda/lm_head_argmax/kernel.cuh"

CHECKS: dict[str, Check] = {
    "matches_the_definition": lambda: tests.check(tests.SPLIT, torch.bfloat16, Gpu()),
    "matches_the_definition, early": lambda: tests.check(tests.SPLIT, torch.bfloat16, Gpu(completion="early")),
    "matches_the_definition, tiles of one block": lambda: tests.check(Case(9, 64, 500), torch.bfloat16, Gpu()),
    "matches_the_definition, many rows": lambda: tests.check(Case(64, 136, 300), torch.bfloat16, Gpu()),
    "matches_the_definition, a shard": lambda: tests.check(Case(3, 64, 500, vocab_offset=9), torch.bfloat16, Gpu()),
    "matches_the_definition, capped": lambda: tests.check(Case(3, 64, 500, softcap=2.0), torch.bfloat16, Gpu()),
    "shares_may_begin_or_end_with_a_tile": partial(tests.test_shares_may_begin_or_end_with_a_tile, 264, 600),
    "special_values_follow_torch": partial(tests.test_special_values_follow_torch, 71, torch.bfloat16),
    "ties_go_to_the_lowest_id": partial(tests.test_ties_go_to_the_lowest_id, Gpu()),
    "order_leaves_no_trace": tests.test_order_of_blocks_and_copies_leaves_no_trace,
    "strides_are_honoured": tests.test_strides_are_honoured,
    "operands_may_start_anywhere": partial(tests.test_operands_may_start_anywhere, 1),
    "operands_of_more_than_2_31_elements": tests.test_operands_of_more_than_2_31_elements,
    "the_workspace_serves_call_after_call": tests.test_the_workspace_serves_call_after_call,
    "every_weight_is_read_once": partial(tests.test_every_weight_is_read_once, 16, 0.2, torch.bfloat16),
}
VALUES = ("matches_the_definition",)
EARLY = ("matches_the_definition, early",)
COUNTS = ("matches_the_definition", "every_weight_is_read_once")

MUTANTS = (
    Mutant(
        "the unit in use is not waited for",
        "order",
        STREAM,
        (("    wait_for_all_but(ahead - 1);", "    wait_for_all_but(ahead);"),),
        EARLY,
    ),
    Mutant(
        "no barrier between a unit's arrival and its use",
        "order",
        STREAM,
        (
            (
                "    __syncthreads();\n    if (i + ahead < units) copies.copy",
                "    if (i + ahead < units) copies.copy",
            ),
        ),
        EARLY,
    ),
    Mutant(
        "the next unit goes where the present one lies",
        "order",
        STREAM,
        (("(stage == 0 ? ahead : stage - 1)", "stage"),),
        VALUES,
    ),
    Mutant(
        "past the last unit there are no groups",
        "order",
        STREAM,
        (
            (
                " * stage_bytes);\n    close_copy_group();\n    multiply_stage",
                " * stage_bytes);\n    if (i + ahead < units) close_copy_group();\n    multiply_stage",
            ),
        ),
        VALUES,
    ),
    Mutant(
        "weight rows past the tile are read",
        "bounds",
        STREAM,
        (("left > 0 && row + pass * kStreamPass < columns_", "left > 0"),),
        VALUES,
    ),
    Mutant(
        "activation rows past the last are read",
        "bounds",
        STREAM,
        (("left > 0 && row + pass * kStreamPass < rows_", "left > 0"),),
        VALUES,
    ),
    Mutant(
        "a weight row is read past its end",
        "bounds",
        STREAM,
        (("left > 0 && row + pass * kStreamPass < columns_", "row + pass * kStreamPass < columns_"),),
        VALUES,
    ),
    Mutant(
        "elements past the end are read one by one",
        "bounds",
        STREAM,
        (("low = 2 * i < count ? global[2 * i] : 0,", "low = global[2 * i],"),),
        ("operands_may_start_anywhere", "special_values_follow_torch"),
    ),
    Mutant(
        "stages are not swizzled",
        "count",
        STREAM,
        (("((chunk ^ (row % kStreamChunks)) * 16)", "chunk * 16"),),
        COUNTS,
    ),
    Mutant(
        "half the rows are not swizzled",
        "count",
        STREAM,
        (("((chunk ^ (row % kStreamChunks)) * 16)", "((chunk ^ (row % 4)) * 16)"),),
        COUNTS,
    ),
    Mutant(
        "a weight's halves are swapped",
        "value",
        STREAM,
        (("x, weights[k][j][0], weights[k][j][1]);", "x, weights[k][j][1], weights[k][j][0]);"),),
        VALUES,
    ),
    Mutant(
        "activations are taken from another chunk",
        "value",
        STREAM,
        (("lane % 16, 2 * k + lane / 16));", "lane % 16, 2 * k + lane / 8 % 2));"),),
        VALUES,
    ),
    Mutant(
        "the first group's rows serve all",
        "value",
        STREAM,
        (("swizzled(g * kStreamRowGroup + lane % 16,", "swizzled(lane % 16,"),),
        VALUES,
    ),
    Mutant(
        "the last part of a tile is not added",
        "value",
        STREAM,
        (
            (
                "for (uint32_t part = first; part <= last; ++part) {",
                "for (uint32_t part = first; part < last; ++part) {",
            ),
        ),
        VALUES,
    ),
    Mutant(
        "parts are added backwards from the last to arrive",
        "value",
        STREAM,
        (
            (
                "      each_vector(slot(part, tile), add, sums);",
                "      each_vector(slot(first + (part - first + share) % (last - first + 1), tile), add, sums);",
            ),
        ),
        ("order_leaves_no_trace",),
    ),
    Mutant(
        "both ends of a share go to one slot",
        "value",
        STREAM,
        (("(begins ? 0 : 1)", "(begins ? 0 : 0)"),),
        ("shares_may_begin_or_end_with_a_tile",),
    ),
    Mutant(
        "a block arrives while its threads still store",
        "order",
        STREAM,
        (
            (
                "    __syncthreads();\n    if (!last_to_arrive(stream_.arrivals",
                "    if (!last_to_arrive(stream_.arrivals",
            ),
        ),
        VALUES,
    ),
    Mutant(
        "a tile begins with the sums of the one before",
        "value",
        STREAM,
        (("    sums.clear();\n    ++tile;", "    ++tile;"),),
        ("matches_the_definition, tiles of one block",),
    ),
    Mutant(
        "a tile's first share is taken for the one before",
        "value",
        STREAM,
        (("((unit + 1) * stream_.shares - 1) / units()", "(unit * stream_.shares) / units()"),),
        ("shares_may_begin_or_end_with_a_tile",),
    ),
    Mutant(
        "a weight's offset is 32 bits wide",
        "bounds",
        STREAM,
        (
            (
                "layer_column * weight.row_stride;",
                "static_cast<int>(layer_column * weight.row_stride);",
            ),
        ),
        ("operands_of_more_than_2_31_elements",),
    ),
    Mutant(
        "an activation's offset is 32 bits wide",
        "bounds",
        STREAM,
        (
            (
                "(first_row_ + threadIdx.x / kStreamChunks) * activations.row_strides[piece_];",
                "static_cast<int>((first_row_ + threadIdx.x / kStreamChunks) * activations.row_strides[piece_]);",
            ),
        ),
        ("operands_of_more_than_2_31_elements",),
    ),
    Mutant(
        "every tile is computed twice",
        "count",
        STREAM,
        (
            (
                "    multiply_stage<T>(ring_address + stage * stage_bytes, rows, sums);",
                "    StreamSums again = sums;\n"
                "    multiply_stage<T>(ring_address + stage * stage_bytes, rows, again);\n"
                "    if (again.value[0][0][0] == 12345.678f) continue;\n"
                "    multiply_stage<T>(ring_address + stage * stage_bytes, rows, sums);",
            ),
        ),
        COUNTS,
    ),
    Mutant(
        "columns past the vocabulary count",
        "value",
        KERNEL,
        (("if (column < tile.columns) best", "best"),),
        ("special_values_follow_torch",),
    ),
    Mutant(
        "half the lanes of a row are not asked",
        "value",
        KERNEL,
        (("      best = Larger()(best, __shfl_xor_sync(kAllLanes, best, 2));\n", ""),),
        ("ties_go_to_the_lowest_id",),
    ),
    Mutant(
        "ids are counted within a tile",
        "value",
        KERNEL,
        (("tile.first + column));", "column));"),),
        VALUES,
    ),
    Mutant(
        "a block forgets its earlier tiles",
        "value",
        KERNEL,
        (("Larger()(of_warp[row], best);", "best;"),),
        ("matches_the_definition, tiles of one block",),
    ),
    Mutant(
        "a warp's best is read before it is there",
        "order",
        KERNEL,
        (("  __syncthreads();\n  uint64_t* const of_shares", "  uint64_t* const of_shares"),),
        VALUES,
    ),
    Mutant(
        "a block arrives before its rows' bests",
        "order",
        KERNEL,
        (("  __syncthreads();\n  if (!last_to_arrive(launch.row", "  if (!last_to_arrive(launch.row"),),
        ("matches_the_definition, many rows",),
    ),
    Mutant(
        "only every other share is asked",
        "value",
        KERNEL,
        (("share < shares; share += parts) {", "share < shares; share += 2 * parts) {"),),
        VALUES,
    ),
    Mutant(
        "what a row's threads found is not put together",
        "value",
        KERNEL,
        (("for (uint32_t part = 1; part < parts; ++part) {", "for (uint32_t part = 1; part < 1; ++part) {"),),
        VALUES,
    ),
    Mutant(
        "what a row's threads found is read before it is there",
        "order",
        KERNEL,
        (("  bests[0][threadIdx.x] = best;\n  __syncthreads();", "  bests[0][threadIdx.x] = best;"),),
        VALUES,
    ),
    Mutant(
        "a tile's counter stays where it is",
        "value",
        STREAM,
        (("stream_.arrivals + tile, last - first + 1)", "stream_.arrivals + tile, last - first + 2)"),),
        ("matches_the_definition", "the_workspace_serves_call_after_call"),
    ),
    Mutant(
        "the offset of a shard is not added",
        "value",
        KERNEL,
        (("op.vocab_offset + chunk_of(best)", "chunk_of(best)"),),
        ("matches_the_definition, a shard",),
    ),
    Mutant(
        "values are not capped",
        "value",
        KERNEL,
        (("op.softcap > 0 ? op.softcap * tanhf(value / op.softcap) : value", "value"),),
        ("matches_the_definition, capped",),
    ),
    Mutant(
        "ids are stored without their stride",
        "value",
        KERNEL,
        (("op.ids[row * op.ids_stride]", "op.ids[row]"),),
        ("strides_are_honoured",),
    ),
)

SUITE = Suite("lm_head_argmax", CHECKS, MUTANTS)
