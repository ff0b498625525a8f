"""Bugs planted in masked_block_attention's backward kernels of all architectures."""

from functools import partial

import torch

from tests.cases.masked_block_attention import PACKED, PADDED, Case
from tests.cuda import test_masked_block_attention_backward as tests
from tests.cuda import test_masked_block_attention_backward_work as work
from tests.cuda.gpu import Gpu
from tests.ptxsim.mutants import Check, Mutant, Suite

FOLDER = "csrc/cuda/masked_block_attention_backward"
COPY, KEYS, QUERIES = f"{FOLDER}/copy.cuh", f"{FOLDER}/keys.cuh", f"{FOLDER}/queries.cuh"
TERMS, TILE, TRAITS = f"{FOLDER}/terms.cuh", f"{FOLDER}/tile.cuh", f"{FOLDER}/traits.cuh"

_ANCHORED = Case("anchor", 128, 6, PADDED, PACKED, causal=True, window=11, q_heads=6, kv_heads=2, head_dim=64)
_CAUSAL = Case("causal", 150, q_heads=3, head_dim=128)


_GPU = Gpu("A100")


def _values(case: Case) -> Check:
    """The case's values, in bfloat16."""
    return lambda: tests.check(_GPU, case, case.tensors(torch.bfloat16))


CHECKS: dict[str, Check] = {
    "matches_the_definition": _values(_ANCHORED),
    "matches_the_definition, causal": _values(_CAUSAL),
    "splits_add_up": partial(tests.test_splits_add_up, 64, torch.bfloat16, _GPU),
    "every_stride_is_honoured": partial(tests.test_every_stride_is_honoured, _GPU),
    "rows_past_2_31": partial(tests.test_rows_past_2_31_elements, _GPU),
    "what_nobody_sees": partial(
        tests.test_what_nobody_sees_never_reaches_a_gradient,
        Case("anchor", 140, 4, PADDED, head_dim=128),
        _GPU,
    ),
    "documents_are_isolated, q": partial(tests.test_documents_are_isolated, "causal", "q", _GPU),
    "documents_are_isolated, grad_out": partial(tests.test_documents_are_isolated, "causal", "grad_out", _GPU),
    "live_tiles_alone": partial(
        work.test_live_tiles_alone_are_moved_and_multiplied,
        Case("anchor", 200, 4, (*PADDED, 121), PACKED, window=40, q_heads=6, kv_heads=2, head_dim=128),
    ),
    "live_tiles_alone, gaps": partial(
        work.test_live_tiles_alone_are_moved_and_multiplied,
        Case("anchor", 700, 4, (100, 650, 690), window=9, q_heads=2, head_dim=64),
    ),
    "accesses_are_coalesced": partial(work.test_accesses_are_coalesced_and_free_of_conflicts, "A100"),
}
VALUES, CAUSAL, SPLITS = ("matches_the_definition",), ("matches_the_definition, causal",), ("splits_add_up",)
STRIDES, FAR = ("every_stride_is_honoured",), ("rows_past_2_31",)
WORK, COALESCED = ("live_tiles_alone",), ("accesses_are_coalesced",)
LANDED = "      __syncthreads();  // every thread's copies have landed, and no warp reads the other stage\n"

MUTANTS = (
    Mutant("rows are not waited for", "order", KEYS, (("    wait_for_copy_groups<0>();\n", ""),), CAUSAL),
    Mutant(
        "a step of rows is filled before the barrier",
        "order",
        KEYS,
        (
            ("    wait_for_copy_groups<0>();\n", "    wait_for_copy_groups<0>();\n    copy_step(next_stage);\n"),
            ("    copy_step(first_stage + (stage ^ 1) * Traits::kRowStageBytes);\n    close", "    close"),
            (
                "    walk.advance();\n",
                "    walk.advance();\n"
                "    const uint32_t next_stage = first_stage + (stage ^ 1) * Traits::kRowStageBytes;\n",
            ),
        ),
        CAUSAL,
    ),
    Mutant("no barrier between steps of rows", "order", KEYS, ((LANDED[2:], ""),), CAUSAL),
    Mutant("no barrier between key tiles", "order", QUERIES, ((LANDED, ""),), CAUSAL),
    Mutant(
        "queries are loaded before they have landed",
        "order",
        QUERIES,
        (("    wait_for_copy_groups<0>();\n    __syncthreads();\n    KeptFragment", "    KeptFragment"),),
        CAUSAL,
    ),
    Mutant(
        "keys land where rows are still read",
        "order",
        QUERIES,
        (
            (
                "copy_keys<Traits, Traits::kKeys>(launch, kv_head, walk.tile(number), 0, first_stage);",
                "copy_keys<Traits, Traits::kKeys>(launch, kv_head, walk.tile(number), 0, second_stage);",
            ),
        ),
        CAUSAL,
    ),
    Mutant(
        "both stages are one",
        "order",
        KEYS,
        (("copy_step(first_stage + (stage ^ 1) * Traits::kRowStageBytes);", "copy_step(first_stage);"),),
        CAUSAL,
    ),
    Mutant(
        "every split walks all rows",
        "value",
        KEYS,
        (("skip_(work.splits)", "skip_(1)"),),
        SPLITS,
    ),
    Mutant("splits start at the same rows", "value", KEYS, (("    skip(work.split);\n", ""),), SPLITS),
    Mutant(
        "a split without rows is added",
        "value",
        KEYS,
        (("  const int splits = KeyWork::of_tile(launch, tile);", "  const int splits = launch.splits;"),),
        SPLITS,
    ),
    Mutant(
        "parts of splits lie in one place",
        "order",
        KEYS,
        (("launch.op.kv_heads + kv_head) * launch.splits + split;", "launch.op.kv_heads + kv_head) * launch.splits;"),),
        SPLITS,
    ),
    Mutant(
        "the last half of a row tile is left out",
        "value",
        KEYS,
        (("    if (++step_ < kSteps) return;\n", ""),),
        CAUSAL,
    ),
    Mutant(
        "keys that are not seen have a probability",
        "value",
        TILE,
        (("weight = visible ? fmaf(of_weight, 0.0f, weight) : 0.0f;", ""),),
        CAUSAL,
    ),
    Mutant(
        "logits that are not seen have a gradient",
        "value",
        TILE,
        (("gradient = visible ? gradient : 0.0f;", ""),),
        CAUSAL,
    ),
    Mutant(
        "a masked tile is taken for a full one",
        "value",
        TRAITS,
        (
            (
                "all = all && (first_row + number >= launch.rows || contains(by_row, keys));",
                "all = all && contains(keys, keys);",
            ),
        ),
        CAUSAL,
    ),
    Mutant(
        "rows that see nothing are taken to see all",
        "value",
        TRAITS,
        (
            (
                "(first_row + number >= launch.rows || contains(by_row, keys))",
                "(by_row.empty() || contains(by_row, keys))",
            ),
        ),
        ("what_nobody_sees",),
    ),
    Mutant(
        "NaN of another document's rows and keys is multiplied by 0",
        "value",
        TILE,
        (("      if (kMasked) {\n#pragma unroll\n        for", "      if (false) {\n#pragma unroll\n        for"),),
        ("documents_are_isolated, q",),
    ),
    Mutant(
        "NaN of a row's gradient is lost",
        "value",
        TILE,
        (("fmaf(of_weight, 0.0f, weight)", "weight"),),
        ("documents_are_isolated, grad_out",),
    ),
    Mutant(
        "most NaN count as finite",
        "value",
        TILE,
        (("std::is_same_v<T, Float16> ? 0x7c00u : 0x7f80u", "0x7fffu"),),
        ("documents_are_isolated, grad_out",),
    ),
    Mutant(
        "rows behind the last have a probability",
        "value",
        TERMS,
        (("nothing ? INFINITY : lse * kLog2E", "lse * kLog2E"),),
        CAUSAL,
    ),
    Mutant(
        "lse stays natural",
        "value",
        TERMS,
        (("lse * kLog2E", "lse"),),
        VALUES,
    ),
    Mutant(
        "delta misses a lane",
        "value",
        TERMS,
        (("distance = kLanes / 2; distance > 0;", "distance = kLanes / 2; distance > 1;"),),
        VALUES,
    ),
    Mutant(
        "gradients of keys miss the scale",
        "value",
        KEYS,
        (("write(sums.keys, launch.op.scale, ", "write(sums.keys, 1.0f, "),),
        VALUES,
    ),
    Mutant(
        "gradients of values are scaled",
        "value",
        KEYS,
        (("write(sums.values, 1.0f, ", "write(sums.values, launch.op.scale, "),),
        VALUES,
    ),
    Mutant(
        "rows are those of queries out of order",
        "value",
        TRAITS,
        (("query(query_at(tiles, static_cast<uint32_t>(row) / tiles.group))", "query(row / tiles.group)"),),
        VALUES,
    ),
    Mutant(
        "block keys are written out of order",
        "value",
        KEYS,
        (
            (
                "key_row(launch.tiles, of_blocks, static_cast<uint32_t>(key));",
                "key + (of_blocks ? launch.tiles.context : 0);",
            ),
        ),
        VALUES,
    ),
    Mutant(
        "keys behind the last are read",
        "bounds",
        COPY,
        (("const bool present = key < keys.end;", "const bool present = true;"),),
        ("every_stride_is_honoured", "matches_the_definition, causal"),
    ),
    Mutant(
        "rows behind the last are read",
        "bounds",
        COPY,
        (
            (
                "const bool present = row < launch.rows;\n"
                "    const RowPlace place(launch.tiles, kv_head, present ? row : 0);",
                "const bool present = true;\n    const RowPlace place(launch.tiles, kv_head, row);",
            ),
        ),
        CAUSAL,
    ),
    Mutant(
        "keys behind the last are written",
        "bounds",
        KEYS,
        (("      if (key >= keys.end) return nullptr;\n", ""),),
        CAUSAL,
    ),
    Mutant(
        "queries behind the last are written",
        "bounds",
        QUERIES,
        (("    if (rows.row(half) >= launch.rows) return nullptr;\n", ""),),
        CAUSAL,
    ),
    Mutant(
        "offsets of rows are 32 bits wide",
        "bounds",
        TRAITS,
        (("query * tensor.row_stride + head", "static_cast<int>(query) * static_cast<int>(tensor.row_stride) + head"),),
        FAR,
    ),
    Mutant(
        "offsets of keys' gradients are 32 bits wide",
        "bounds",
        KEYS,
        (
            (
                "row * tensor.row_stride + kv_head",
                "static_cast<int>(row) * static_cast<int>(tensor.row_stride) + kv_head",
            ),
        ),
        FAR,
    ),
    Mutant(
        "values have the strides of keys",
        "value",
        COPY,
        (
            (
                "copy_row<Traits>(source(launch.op.v), present",
                "copy_row<Traits>(source({launch.op.v.data, launch.op.k.row_stride, launch.op.k.head_stride}), present",
            ),
        ),
        STRIDES,
    ),
    Mutant(
        "the heads of a row's gradient lie side by side",
        "value",
        TRAITS,
        (("head * tensor.head_stride;", "head * 64;"),),
        STRIDES,
    ),
    Mutant(
        "dead tiles between live ones are visited",
        "count",
        QUERIES,
        (("seen.gaps != 0 &&", "false &&"),),
        ("live_tiles_alone, gaps",),
    ),
    Mutant(
        "a warp multiplies rows that see none of its keys",
        "count",
        KEYS,
        (("} else if (sight.some) {", "} else {"),),
        ("matches_the_definition", "live_tiles_alone"),
    ),
    Mutant(
        "a warp multiplies keys that none of its rows sees",
        "count",
        QUERIES,
        (("} else if (sight.some) {", "} else {"),),
        ("matches_the_definition", "live_tiles_alone"),
    ),
    Mutant(
        "words of a gradient are stored apart",
        "count",
        COPY,
        (
            ("      gather_chunk(words);\n", ""),
            (
                "if (row != nullptr) reinterpret_cast<uint4*>(row)[j + lane] = "
                "make_uint4(words[0], words[1], words[2], words[3]);",
                "if (row != nullptr)\n        for (int c = 0; c < 4; ++c)\n"
                "          reinterpret_cast<volatile uint32_t*>(row)[(j + c) * 4 + lane] = words[c];",
            ),
        ),
        COALESCED,
    ),
)

SUITE = Suite("masked_block_attention_backward", CHECKS, MUTANTS)
