"""Bugs planted in norm_rope_qkv, and in what it shares with write_context_kv."""

from functools import partial

import torch

from tests.cases.norm_rope_qkv import Case
from tests.cuda import test_norm_rope_qkv as tests
from tests.cuda.gpu import Gpu
from tests.ptxsim.mutants import Check, Mutant, Suite

KERNEL = "csrc/cuda/norm_rope_qkv/kernel.cuh"
HEAD = "csrc/cuda/common/norm_rope.cuh"
ACCESS = "csrc/cuda/common/head_access.cuh"


def definition(case: Case, dtype: torch.dtype) -> partial[None]:
    return partial(tests.test_matches_the_definition, case, dtype, Gpu())


CHECKS: dict[str, Check] = {
    "matches_the_definition": definition(Case(7, 9, 3, 64, row_slack=3), torch.bfloat16),
    "matches_the_definition, vectors": definition(Case(7, 9, 3, 64), torch.bfloat16),
    "matches_the_definition, interleaved": definition(Case(4, 6, 2, 72, interleaved=True), torch.bfloat16),
    "matches_the_definition, partly rotated": definition(Case(3, 5, 1, 80, rotary_dim=16), torch.float32),
    "matches_the_definition, odd": definition(Case(4, 6, 2, 33, rotary_dim=30), torch.float16),
    "matches_the_definition, interleaved and odd": definition(
        Case(4, 6, 2, 33, rotary_dim=30, interleaved=True, row_slack=1), torch.float32
    ),
    "many_rows_share_a_block": tests.test_many_rows_share_a_block,
    "a_position_outside_the_table_gives_nan": tests.test_a_position_outside_the_table_gives_nan,
    "eps_counts": tests.test_eps_counts,
    "every_byte_moves_once": partial(tests.test_every_byte_moves_once, torch.bfloat16, False),
}
VALUES = tuple(name for name in CHECKS if name.startswith("matches_the_definition"))
COUNTS = (*VALUES, "every_byte_moves_once")

MUTANTS = (
    Mutant(
        "positions are used before they are there",
        "order",
        KERNEL,
        (("  __syncthreads();\n  float* rotations", "  float* rotations"),),
        VALUES,
    ),
    Mutant(
        "weights and rotations are used before they are there",
        "order",
        KERNEL,
        (("k_weight);\n  __syncthreads();", "k_weight);"),),
        VALUES,
    ),
    Mutant(
        "lanes that have left are waited for",
        "order",
        HEAD,
        (
            (
                "const uint32_t lanes = (kAllLanes >> (kWarpLanes - split_.lanes)) << first_lane;",
                "const uint32_t lanes = kAllLanes | first_lane;",
            ),
        ),
        VALUES,
    ),
    Mutant(
        "the sine has the wrong sign",
        "value",
        HEAD,
        (("first = low * cosine - high * sine;", "first = low * cosine + high * sine;"),),
        VALUES,
    ),
    Mutant(
        "the rotation uses a rotated channel",
        "value",
        HEAD,
        (("second = high * cosine + low * sine;", "second = high * cosine + first * sine;"),),
        VALUES,
    ),
    Mutant(
        "cosines are taken for sines",
        "value",
        HEAD,
        (
            (
                "load_staged(rotation + half, unit.first, half, sines);",
                "load_staged(rotation, unit.first, half, sines);",
            ),
        ),
        VALUES,
    ),
    Mutant("eps is not added", "value", HEAD, ((" + eps);", ");"),), (*VALUES, "eps_counts")),
    Mutant(
        "the mean is taken over the rotated channels",
        "value",
        HEAD,
        (("static_cast<float>(split_.head_dim)", "static_cast<float>(split_.rotary_dim)"),),
        VALUES,
    ),
    Mutant(
        "lanes of a head add up half their sums",
        "value",
        HEAD,
        (("distance = split_.lanes / 2; distance > 0;", "distance = split_.lanes / 4; distance > 0;"),),
        VALUES,
    ),
    Mutant(
        "second pieces are not in the norm",
        "value",
        HEAD,
        (("unit.a[i] * unit.a[i] + unit.b[i] * unit.b[i];", "unit.a[i] * unit.a[i];"),),
        VALUES,
    ),
    Mutant(
        "a piece past the head is stored",
        "bounds",
        HEAD,
        (
            (
                "      if (unit.has_second) access_.store(out_, out_element_ + unit.second, unit.b);\n",
                "      access_.store(out_, out_element_ + unit.second, unit.b);\n",
            ),
        ),
        VALUES,
    ),
    Mutant(
        "a position outside the table is followed",
        "bounds",
        HEAD,
        (("position >= 0 && position < rope.table_rows;", "position >= 0;"),),
        ("a_position_outside_the_table_gives_nan",),
    ),
    Mutant(
        "interleaved pairs past the rotated channels are rotated",
        "bounds",
        HEAD,
        (("if (unit.first < split_.rotary_dim) rotate(", "rotate("),),
        VALUES,
    ),
    Mutant(
        "queries and keys swap weights",
        "value",
        KERNEL,
        (("(query ? q_weight : k_weight)", "(query ? k_weight : q_weight)"),),
        VALUES,
    ),
    Mutant(
        "values are rotated",
        "value",
        KERNEL,
        (("(rotated && (query || key))", "rotated"),),
        VALUES,
    ),
    Mutant(
        "the last block takes rows past the end",
        "bounds",
        KERNEL,
        (
            (
                "min(static_cast<int64_t>(launch.block_rows), op.rows - first_row)",
                "static_cast<int64_t>(launch.block_rows)",
            ),
        ),
        ("many_rows_share_a_block",),
    ),
    Mutant(
        "all rows of a block have the first one's rotation",
        "value",
        KERNEL,
        (("rotated ? rotations + r * head.rotary_dim : nullptr", "rotated ? rotations : nullptr"),),
        ("many_rows_share_a_block",),
    ),
    Mutant(
        "the halves of a packed pair are swapped",
        "value",
        ACCESS,
        (
            (
                "f16x2_from_floats(low, high) : bf16x2_from_floats(low, high)",
                "f16x2_from_floats(low, high) : bf16x2_from_floats(high, low)",
            ),
        ),
        VALUES,
    ),
    Mutant(
        "staged weights are not spread over the banks",
        "count",
        HEAD,
        (("return kElements == 8 ? i % 8 / 4 * (count / 2) + i / 8 * 4 + i % 4 : i;", "return i;"),),
        COUNTS,
    ),
    Mutant(
        "a vector is loaded in words",
        "count",
        ACCESS,
        (
            ("      const uint4 loaded = *static_cast<const uint4*>(address);\n", ""),
            (
                "      words.word[0] = loaded.x, words.word[1] = loaded.y, words.word[2] = loaded.z, "
                "words.word[3] = loaded.w;\n",
                "      for (int i = 0; i < 4; ++i) words.word[i] = static_cast<const volatile uint32_t*>(address)[i];\n",
            ),
        ),
        COUNTS,
    ),
    Mutant(
        "each head's rotation is staged again",
        "count",
        KERNEL,
        (
            (
                "    stage_rotation<kElements>(op.rope, head, positions[r], rotations + r * head.rotary_dim);\n",
                "    stage_rotation<kElements>(op.rope, head, positions[r], rotations + r * head.rotary_dim);\n"
                "    __syncthreads();\n"
                "    stage_rotation<kElements>(op.rope, head, positions[r], rotations + r * head.rotary_dim);\n",
            ),
        ),
        COUNTS,
    ),
)

SUITE = Suite("norm_rope_qkv", CHECKS, MUTANTS)
