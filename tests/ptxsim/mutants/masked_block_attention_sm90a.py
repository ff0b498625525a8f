"""Bugs planted in masked_block_attention's forward pass by warpgroups: barriers, proxies, descriptors, boxes, and which
tiles are whole. What it shares with the other kernel is in the module beside this one."""

import dataclasses
from functools import partial

import torch

from tests.cuda import test_masked_block_attention as tests
from tests.cuda import test_masked_block_attention_tiles as tiles
from tests.ptxsim.mutants import Check, Kind, Mutant, Suite

FOLDER = "csrc/cuda/masked_block_attention_sm90a"
COPIES, FORWARD = f"{FOLDER}/copies.cuh", f"{FOLDER}/forward.cuh"
WARPGROUP = "csrc/cuda/common/warpgroup.cuh"
LATE, RANDOM = tests.GPUS[3], tests.GPUS[4]
GPU = tests.KERNELS[0]
WIDE = dataclasses.replace(tiles.TRAINING, head_dim=128)

CHECKS: dict[str, Check] = {
    "many_tiles": partial(tests.test_many_tiles, 128, torch.bfloat16, LATE),
    "many_tiles, copies land in any order": partial(tests.test_many_tiles, 64, torch.float16, RANDOM),
    "matches_the_definition, causal": lambda: tests.check(GPU, tiles.CHOSEN[7], torch.bfloat16),
    "matches_the_definition, documents": lambda: tests.check(GPU, tiles.CHOSEN[1], torch.bfloat16),
    "more_row_tiles_than_multiprocessors": partial(
        tests.check, LATE, tests.Case("anchor", 66, 4, (66, 10), q_heads=280, kv_heads=280, head_dim=64), torch.float16
    ),
    "keys_that_nobody_sees_behind_whole_tiles": partial(tests.test_keys_that_nobody_sees_behind_whole_tiles, GPU),
    "whole_tiles_are_gathered": partial(tests.test_whole_tiles_are_gathered_where_tma_does_not_take_the_layout, RANDOM),
    "long_documents_are_isolated": partial(tests.test_long_documents_are_isolated, "anchor", GPU),
    "logits_that_rise_and_fall": partial(tests.test_logits_that_rise_and_fall, GPU),
    "warpgroups_multiply_what_is_whole": partial(tiles.test_warpgroups_multiply_what_is_whole, tiles.CHOSEN[1]),
    "whole_context_tiles_come_in_boxes": tiles.test_whole_context_tiles_come_in_boxes,
}
MANY_TILES = ("many_tiles", "many_tiles, copies land in any order")
CAUSAL = ("matches_the_definition, causal", *MANY_TILES)


def _mutant(name: str, kind: Kind, file: str, old: str, new: str, checks: tuple[str, ...] = MANY_TILES) -> Mutant:
    return Mutant(name, kind, file, ((old, new),), checks)


MUTANTS = (
    # Barriers between those who copy and those who multiply.
    _mutant(
        "the first whole tile is not waited for",
        "order",
        FORWARD,
        "  wait_for_phase(ring.full(position.stage), position.parity);\n  begin_products();",
        "  begin_products();",
    ),
    _mutant(
        "the next whole tile is not waited for",
        "order",
        FORWARD,
        "    wait_for_phase(ring.full(position.stage), position.parity);\n    begin_products();",
        "    begin_products();",
    ),
    _mutant(
        "a partial tile is not waited for",
        "order",
        FORWARD,
        "    wait_for_phase(ring.full(position.stage), position.parity);\n    const bool of_blocks",
        "    const bool of_blocks",
    ),
    _mutant("all phases have the first one's parity", "order", WARPGROUP, "stage = 0, parity ^= 1;", "stage = 0;"),
    _mutant(
        "a stage is filled while it is read",
        "order",
        COPIES,
        "      wait_for_phase(ring.empty(next.stage), next.parity ^ 1);\n",
        "",
    ),
    _mutant("the first fill waits for a release", "order", COPIES, "next.parity ^ 1);", "next.parity);"),
    _mutant(
        "a stage is released before its values are multiplied",
        "order",
        FORWARD,
        "    wait_for_products<0>(sums.values[0]);\n    arrive_as_warp(ring.empty(before));\n",
        "    arrive_as_warp(ring.empty(before));\n    wait_for_products<0>(sums.values[0]);\n",
    ),
    _mutant(
        "a stage is released once its keys are multiplied",
        "order",
        FORWARD,
        "    wait_for_products<1>(scores[0]);\n",
        "    wait_for_products<1>(scores[0]);\n    arrive_as_warp(ring.empty(position.stage));\n",
    ),
    _mutant(
        "one warp's gathered rows fill a stage",
        "order",
        COPIES,
        "init_barrier(full(stage), Traits::kCopyWarps);",
        "init_barrier(full(stage), 1);",
    ),
    _mutant(
        "one warpgroup empties a stage",
        "order",
        COPIES,
        "init_barrier(empty(stage), Traits::kAttendingWarps);",
        "init_barrier(empty(stage), Traits::kAttendingWarps / 2);",
    ),
    _mutant(
        "a segment is replaced while lanes read it",
        "order",
        COPIES,
        "      is_last = segment.work.is_last != 0;\n      __syncwarp();\n",
        "      is_last = segment.work.is_last != 0;\n",
        ("matches_the_definition, documents", "more_row_tiles_than_multiprocessors"),
    ),
    # Copies.
    _mutant(
        "wgmma does not see what was gathered",
        "order",
        COPIES,
        "      publish_to_async_proxy();\n",
        "",
        ("whole_tiles_are_gathered",),
    ),
    _mutant(
        "gathered rows are announced on their way",
        "order",
        COPIES,
        "      wait_for_copy_groups<kWarpgroupTilesUnderWay - 1>();\n",
        "",
    ),
    _mutant(
        "gathered rows are announced a round early",
        "order",
        COPIES,
        "wait_for_copy_groups<kWarpgroupTilesUnderWay - 1>();",
        "wait_for_copy_groups<kWarpgroupTilesUnderWay>();",
    ),
    _mutant(
        "the last gathered rows are not announced",
        "order",
        COPIES,
        "i < walk.count() + kWarpgroupTilesUnderWay - 1; ++i)",
        "i < walk.count(); ++i)",
    ),
    _mutant(
        "boxes of keys alone are expected",
        "order",
        COPIES,
        "arrive_expecting_bytes(full, Traits::kStageBytes);",
        "arrive_expecting_bytes(full, Traits::kTileBytes);",
    ),
    _mutant("all boxes are of the first head", "value", COPIES, "static_cast<int32_t>(work.kv_head), row", "0, row"),
    _mutant(
        "both panels have the first channels",
        "value",
        COPIES,
        "panel * static_cast<int32_t>(kTensorMapChannels);",
        "0;",
    ),
    _mutant("boxes of values are keys", "value", COPIES, "launch.v_map, channel", "launch.k_map, channel"),
    _mutant(
        "boxes reach out of what is seen",
        "value",
        COPIES,
        "return contains(stretch_of(work.seen, false), {",
        "return overlap(stretch_of(work.seen, false), {",
        ("keys_that_nobody_sees_behind_whole_tiles", "long_documents_are_isolated"),
    ),
    _mutant(
        "blocks' keys come in boxes",
        "value",
        COPIES,
        "launch.boxes == 0 || holds_blocks(tiles, tile)",
        "launch.boxes == 0",
    ),
    _mutant(
        "boxes of a layout that TMA does not take",
        "value",
        COPIES,
        "if (launch.boxes == 0 || holds_blocks",
        "if (holds_blocks",
        ("whole_context_tiles_come_in_boxes",),
    ),
    _mutant(
        "blocks meet in the third round",
        "value",
        COPIES,
        "2 * (gridDim.x - blockIdx.x) - 1 : 2 * blockIdx.x + 1",
        "2 * (gridDim.x - blockIdx.x) - 1 : 2 * blockIdx.x",
        ("more_row_tiles_than_multiprocessors",),
    ),
    # Products.
    _mutant(
        "weights are still written when their product starts",
        "order",
        FORWARD,
        "    begin_products();\n    start_scores",
        "    start_scores",
    ),
    _mutant(
        "scores are read before they are there",
        "order",
        FORWARD,
        "wait_for_products<1>(scores[0]);",
        "wait_for_products<2>(scores[0]);",
    ),
    _mutant(
        "the last values are not waited for",
        "order",
        FORWARD,
        "  wait_for_products<0>(sums.values[0]);\n  arrive_as_warp(ring.empty(position.stage));",
        "  wait_for_products<1>(sums.values[0]);\n  arrive_as_warp(ring.empty(position.stage));",
    ),
    _mutant(
        "scores and values are one group",
        "order",
        FORWARD,
        "    multiply_tiles<typename Traits::T>(scores[0], q, rows_of_tile(stage, k), k > 0);\n  }\n  close_products();",
        "    multiply_tiles<typename Traits::T>(scores[0], q, rows_of_tile(stage, k), k > 0);\n  }",
    ),
    _mutant(
        "scores add to the tile's before",
        "value",
        FORWARD,
        "rows_of_tile(stage, k), k > 0);",
        "rows_of_tile(stage, k), true);",
    ),
    _mutant("channels are skipped", "value", WARPGROUP, "dim_block % 4 * 32", "dim_block % 4 * 64"),
    _mutant("the second panel is the first", "value", WARPGROUP, "dim_block / 4 * kPanelBytes", "dim_block / 4 * 0"),
    _mutant("rows of values overlap", "value", WARPGROUP, "row_block * 16 * 128", "row_block * 8 * 128"),
    _mutant(
        "values' panels lie closer",
        "value",
        WARPGROUP,
        "row_block * 16 * 128, kPanelBytes);",
        "row_block * 16 * 128, 1024);",
    ),
    _mutant(
        "chunks lie where ldmatrix alone finds them",
        "value",
        WARPGROUP,
        "((chunk % kPanelChunks) ^ (of_tile % 8)) * 16;",
        "((chunk % kPanelChunks) ^ (of_tile / 2 % 8)) * 16;",
        CAUSAL,
    ),
    _mutant(
        "keys are taken for values",
        "value",
        FORWARD,
        "channels_of_tile(stage + Traits::kTileBytes, k)",
        "channels_of_tile(stage, k)",
    ),
    _mutant(
        "weights meet the next tile's values",
        "value",
        FORWARD,
        "weights.start_values(ring.tile(before), sums);",
        "weights.start_values(ring.tile(position.stage), sums);",
    ),
    _mutant(
        "sums over values keep an old maximum",
        "value",
        FORWARD,
        "      sums.scale_values(0, 1, factors[1]);\n",
        "",
        ("logits_that_rise_and_fall",),
    ),
    _mutant(
        "denominators keep an old maximum",
        "value",
        FORWARD,
        "        sums.weights[0][half] *= factors[half];\n",
        "",
        ("logits_that_rise_and_fall",),
    ),
    # Which tiles are whole.
    _mutant(
        "a tile is whole for each warp alone",
        "order",
        FORWARD,
        "find_sight<kTileRows>(tiles, work, first_row / kTileRows * kTileRows)",
        "find_sight<Traits::kWarpRows>(tiles, work, first_row)",
        CAUSAL,
    ),
    _mutant(
        "a whole tile need only be seen by some row",
        "value",
        FORWARD,
        "KeyStretch{0, 0} : seen.all;",
        "KeyStretch{0, 0} : seen.any;",
        CAUSAL,
    ),
    _mutant(
        "a warpgroup without rows multiplies",
        "count",
        FORWARD,
        "return seen.any.empty() ? KeyStretch{0, 0} : seen.all;",
        "return seen.all;",
        ("warpgroups_multiply_what_is_whole",),
    ),
    _mutant(
        "block tiles are judged by the context",
        "value",
        FORWARD,
        "segment.sight.of(of_blocks).any;",
        "segment.sight.of(false).any;",
    ),
    _mutant(
        "warps multiply what others of their warpgroup see",
        "count",
        FORWARD,
        "find_sight<Traits::kWarpRows>(tiles, work, first_row);",
        "find_sight<kTileRows>(tiles, work, first_row / kTileRows * kTileRows);",
        ("warpgroups_multiply_what_is_whole",),
    ),
)

SUITE = Suite("masked_block_attention_sm90a", CHECKS, MUTANTS)
