"""Bugs planted in masked_block_attention's backward kernels that multiply by warpgroups."""

from functools import partial

import torch

from tests.cases.masked_block_attention import PACKED, PADDED, Case, spread
from tests.cuda import test_masked_block_attention_backward as tests
from tests.cuda import test_masked_block_attention_backward_sm90a as by_warpgroups
from tests.cuda.gpu import Gpu
from tests.ptxsim.mutants import Check, Mutant, Suite

FOLDER, COMMON = "csrc/cuda/masked_block_attention_backward_sm90a", "csrc/cuda/common/warpgroup.cuh"
KEYS, QUERIES, RING = f"{FOLDER}/keys.cuh", f"{FOLDER}/queries.cuh", f"{FOLDER}/ring.cuh"
PRODUCTS, TRAITS, ENTRIES = f"{FOLDER}/products.cuh", f"{FOLDER}/traits.cuh", f"{FOLDER}/entries.cu"

_GPU = Gpu("H100", completion="late", schedule="random", seed=12)


def _values(case: Case) -> Check:
    """The case's values, in bfloat16."""
    return lambda: tests.check(_GPU, case, case.tensors(torch.bfloat16))


CHECKS: dict[str, Check] = {
    # Of 128 channels, over more steps than there are stages.
    "matches_the_definition, causal": _values(Case("causal", 330, q_heads=2, head_dim=128)),
    "matches_the_definition, anchors": _values(
        Case("anchor", 260, 16, (*spread(7, 260), -1), (0, 110, 260), q_heads=4, head_dim=64)
    ),
    "splits_add_up": partial(tests.test_splits_add_up, 64, torch.bfloat16, _GPU),
    "live_tiles_alone": partial(
        by_warpgroups.test_live_tiles_alone_are_moved_and_multiplied,
        Case("anchor", 200, 4, (*PADDED, 121), PACKED, window=40, q_heads=6, kv_heads=2, head_dim=128),
    ),
    "live_tiles_alone, causal": partial(
        by_warpgroups.test_live_tiles_alone_are_moved_and_multiplied,
        Case("causal", 300, window=190, q_heads=1, head_dim=64),
    ),
}
CAUSAL, ANCHORS = ("matches_the_definition, causal",), ("matches_the_definition, anchors",)
SPLITS, WORK, WINDOW = ("splits_add_up",), ("live_tiles_alone",), ("live_tiles_alone, causal",)

MUTANTS = (
    Mutant(
        "a stage is filled while it is read",
        "order",
        RING,
        (("    wait_for_phase(shared_.emptied(next_.stage), next_.parity ^ 1);\n", ""),),
        CAUSAL,
    ),
    Mutant(
        "the first stages are waited for",
        "order",
        RING,
        (("next_.parity ^ 1);", "next_.parity);"),),
        CAUSAL,
    ),
    Mutant(
        "a stage is handed over before its copies have landed",
        "order",
        RING,
        (
            (
                "wait_for_copy_groups<kWarpgroupBackwardInFlight>();",
                "wait_for_copy_groups<kWarpgroupBackwardInFlight + 1>();",
            ),
        ),
        CAUSAL,
    ),
    Mutant(
        "the last stage is handed over before its copies have landed",
        "order",
        RING,
        (("    wait_for_copy_groups<0>();\n", "    wait_for_copy_groups<1>();\n"),),
        CAUSAL,
    ),
    Mutant("copies are not published to wgmma", "order", RING, (("    publish_to_async_proxy();\n", ""),), CAUSAL),
    Mutant(
        "some warps announce the end before the stage is empty",
        "order",
        RING,
        (
            (
                "    const uint32_t stage = next();\n    if (threadIdx.x == 0) shared_.mark(stage) =",
                "    if (threadIdx.x == 0) shared_.mark(next()) =",
            ),
        ),
        CAUSAL,
    ),
    Mutant(
        "the end is not announced",
        "order",
        RING,
        (("    ++under_way_;\n    hand_over();\n", ""),),
        CAUSAL,
    ),
    Mutant(
        "a stage is full when one warp has copied its part",
        "order",
        RING,
        (("shared.filled(i), kWarpgroupThreads / kWarpLanes", "shared.filled(i), 1"),),
        CAUSAL,
    ),
    Mutant(
        "a stage is empty when one warpgroup has read it",
        "order",
        RING,
        (("shared.emptied(i), Traits::kOwners / kWarpLanes", "shared.emptied(i), kWarpgroupThreads / kWarpLanes"),),
        CAUSAL,
    ),
    Mutant(
        "barriers are used before they exist",
        "order",
        RING,
        (("    publish_barriers();\n  }\n  __syncthreads();\n", "    publish_barriers();\n  }\n"),),
        CAUSAL,
    ),
    Mutant(
        "owners do not wait for a stage",
        "order",
        RING,
        (("    wait_for_phase(shared_.filled(at_.stage), at_.parity);\n", ""),),
        CAUSAL,
    ),
    Mutant(
        "owners' phases never change",
        "order",
        RING,
        (("shared_.filled(at_.stage), at_.parity)", "shared_.filled(at_.stage), 0)"),),
        CAUSAL,
    ),
    Mutant(
        "stages overlap",
        "order",
        TRAITS,
        (("kOwnBytes + i * Traits::kStageTileBytes;", "kOwnBytes + i * Traits::kStageRowBytes;"),),
        CAUSAL,
    ),
    Mutant(
        "stages share the terms of their rows",
        "order",
        TRAITS,
        (("bytes + kTermsAt) + i * Traits::kStageRows;", "bytes + kTermsAt) + i * 0;"),),
        CAUSAL,
    ),
    Mutant(
        "stages share what their rows see",
        "order",
        TRAITS,
        (("bytes + kSeenAt) + i * Traits::kStageRows;", "bytes + kSeenAt) + i * 0;"),),
        CAUSAL,
    ),
    Mutant(
        "terms are those of another stage",
        "value",
        KEYS,
        (("terms = shared.terms(reader.stage());", "terms = shared.terms(reader.stage() ^ 1);"),),
        CAUSAL,
    ),
    Mutant(
        "a stage is released while the last products read it",
        "order",
        KEYS,
        (("  wait_for_products<0>(sums.values);\n  wait_for_products<0>(sums.keys);\n", ""),),
        CAUSAL,
    ),
    Mutant(
        "sums of queries are not waited for",
        "order",
        QUERIES,
        (("  wait_for_products<0>(sums);\n", ""),),
        CAUSAL,
    ),
    Mutant(
        "logits are used before they are there",
        "order",
        KEYS,
        (("  wait_for_products<1>(weights);\n", ""),),
        CAUSAL,
    ),
    Mutant(
        "gradients of probabilities are used before they are there",
        "order",
        KEYS,
        (("  wait_for_products<1>(gradients);\n", ""),),
        CAUSAL,
    ),
    Mutant(
        "weights are packed behind the fence",
        "order",
        PRODUCTS,
        (("    hold(sums);\n    begin_products();\n", ""),),
        CAUSAL,
    ),
    Mutant(
        "products are in no group",
        "order",
        PRODUCTS,
        (
            (
                "rows_of_tile(tile, k), products);\n  }\n  close_products();\n",
                "rows_of_tile(tile, k), products);\n  }\n",
            ),
        ),
        CAUSAL,
    ),
    Mutant(
        "products take the first channels again and again",
        "value",
        PRODUCTS,
        (("(k, rows_of_tile(tile, k), products);", "(k, rows_of_tile(tile, 0), products);"),),
        CAUSAL,
    ),
    Mutant(
        "products add to those of the step before",
        "value",
        PRODUCTS,
        (("rows_of_tile(tile, dim_block), b, dim_block > 0);", "rows_of_tile(tile, dim_block), b, true);"),),
        CAUSAL,
    ),
    Mutant(
        "the second panel of a tile is taken for the first",
        "value",
        COMMON,
        (("dim_block / 4 * kPanelBytes + dim_block % 4 * 32, 16);", "dim_block % 4 * 32, 16);"),),
        CAUSAL,
    ),
    Mutant(
        "blocks of 16 rows lie 8 rows apart",
        "value",
        COMMON,
        (("row_block * 16 * 128, kPanelBytes);", "row_block * 8 * 128, kPanelBytes);"),),
        CAUSAL,
    ),
    Mutant(
        "panels of channels lie one row apart",
        "value",
        COMMON,
        (("row_block * 16 * 128, kPanelBytes);", "row_block * 16 * 128, 128);"),),
        CAUSAL,
    ),
    Mutant(
        "chunks change places by other rows than the swizzle's",
        "value",
        COMMON,
        (("^ (of_tile % 8)) * 16", "^ (of_tile / 8 % 8)) * 16"),),
        CAUSAL,
    ),
    Mutant(
        "rows that see keys in part are multiplied wholly",
        "value",
        KEYS,
        (("    if (sight.some && sight.all) {", "    if (sight.some) {"),),
        CAUSAL,
    ),
    Mutant(
        "each warp decides by its own keys",
        "order",
        KEYS,
        (("(launch, mark.first, keys, seen);", "(launch, mark.first, own.keys, seen);"),),
        CAUSAL,
    ),
    Mutant(
        "both warpgroups multiply the first one's keys",
        "value",
        KEYS,
        (("own.tile + of_group * Traits::kRowBytes, stage", "own.tile, stage"),),
        CAUSAL,
    ),
    Mutant(
        "values are those of the second half of the keys",
        "value",
        KEYS,
        (("SharedTile{own + Traits::kKeyBytes}", "SharedTile{own + Traits::kStageRowBytes}"),),
        CAUSAL,
    ),
    Mutant(
        "parts of a step take the terms of the first",
        "value",
        KEYS,
        (("terms + step, seen_in_step", "terms, seen_in_step"),),
        CAUSAL,
    ),
    Mutant(
        "parts of a step see what the first sees",
        "value",
        KEYS,
        (("{ return seen(step + row); }", "{ return seen(row); }"),),
        CAUSAL,
    ),
    Mutant(
        "parts of a step start as if rows lay side by side",
        "value",
        QUERIES,
        (("stage + step * Traits::kBytesToRow, queries", "stage + step * Traits::kRowBytes, queries"),),
        CAUSAL,
    ),
    Mutant(
        "keys that a row sees in part are taken for seen",
        "value",
        QUERIES,
        (("contains(stretch_of(seen.all,", "contains(stretch_of(seen.any,"),),
        CAUSAL,
    ),
    Mutant(
        "block keys are judged by what is seen of the context",
        "value",
        QUERIES,
        (("contains(stretch_of(seen.all, mark.of_blocks)", "contains(stretch_of(seen.all, false)"),),
        ANCHORS,
    ),
    Mutant(
        "queries are loaded before they have landed",
        "order",
        QUERIES,
        (
            ("  StageMark mark = reader.mark();\n  if (mark.first < 0) return;\n", ""),
            (
                "  for (; mark.first >= 0; mark = reader.mark()) {",
                "  StageMark mark = reader.mark();\n  for (; mark.first >= 0; mark = reader.mark()) {",
            ),
        ),
        CAUSAL,
    ),
    Mutant(
        "values of a stage are its keys",
        "value",
        QUERIES,
        (("KeptTile<Traits>{grads}, stage + Traits::kStageKeyBytes", "KeptTile<Traits>{grads}, stage"),),
        CAUSAL,
    ),
    Mutant(
        "threads of sums count from the copying ones",
        "bounds",
        ENTRIES,
        (("sum_splits, __VA_ARGS__, 0)", "sum_splits, __VA_ARGS__)"),),
        SPLITS,
    ),
    Mutant(
        "halves of a key tile that nobody sees are fetched",
        "count",
        QUERIES,
        (
            (
                "      if (!overlap(stretch_of(seen.seen, of_blocks), {key, key + Traits::kStageKeys})) continue;\n",
                "",
            ),
        ),
        WINDOW,
    ),
    Mutant(
        "rows behind the last count as seeing nothing",
        "count",
        QUERIES,
        (("      if (row >= launch.rows) continue;\n", ""),),
        WINDOW,
    ),
    Mutant(
        "steps that nobody sees are multiplied in parts",
        "count",
        KEYS,
        (("        if (!of_step.some) continue;\n", ""),),
        WORK,
    ),
)

SUITE = Suite("masked_block_attention_backward_sm90a", CHECKS, MUTANTS)
