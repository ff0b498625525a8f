"""Bugs planted in project_context_kv; those of the streaming are in lm_head_argmax, of norm and rotation in
write_context_kv."""

from functools import partial

import torch

from tests.cases import write_context_kv
from tests.cases.project_context_kv import Case
from tests.cuda import test_project_context_kv as tests
from tests.cuda.gpu import Gpu
from tests.ptxsim.mutants import Check, Mutant, Suite

STREAM = "csrc/cuda/common/weight_stream.cuh"
KERNEL = "csrc/cuda/project_context_kv/kernel.cuh"
PLAN = "csrc/plan/cuda/project_context_kv.h"
MANY_ROWS = Case(72, write_context_kv.Case(40, 2, 4, 64, skip_every=3), bias=True)

CHECKS: dict[str, Check] = {
    "matches_the_definition": lambda: tests.check(MANY_ROWS, torch.bfloat16, Gpu()),
    "tiles_are_whole_heads": partial(tests.test_tiles_are_whole_heads, 5, 40, 40, False),
    "float16_does_not_overflow": tests.test_float16_does_not_overflow_before_the_norm,
    "row_count_is_read_on_the_device": partial(tests.test_row_count_is_read_on_the_device, 16),
    "row_count_is_read_on_the_device, past the rows": partial(tests.test_row_count_is_read_on_the_device, 1000),
    "the_cache_dtype_decides": partial(
        tests.test_the_cache_dtype_decides_what_is_stored, torch.bfloat16, torch.float16
    ),
    "offsets_past_2_31_elements": tests.test_offsets_past_2_31_elements,
    "every_weight_is_read_once": partial(tests.test_every_weight_is_read_once, 16, 0.2, False),
}
VALUES = ("matches_the_definition",)

MUTANTS = (
    Mutant(
        "a group is replaced while it is written",
        "order",
        KERNEL,
        (("      __syncthreads();  // the group before is written\n", ""),),
        VALUES,
    ),
    Mutant(
        "sums are read before they are there",
        "order",
        KERNEL,
        (("      __syncthreads();\n      if (rotated) {", "      if (rotated) {"),),
        VALUES,
    ),
    Mutant(
        "rotations are read before they are there",
        "order",
        KERNEL,
        (("        __syncthreads();\n      }\n      if (launch_.vectors)", "      }\n      if (launch_.vectors)"),),
        VALUES,
    ),
    Mutant(
        "all layers have the first one's bias",
        "value",
        KERNEL,
        (("tile.section / 2 * weight.bias_layer_stride +", "0 * weight.bias_layer_stride +"),),
        VALUES,
    ),
    Mutant(
        "values have the keys' bias",
        "value",
        KERNEL,
        (("static_cast<int64_t>(tile.section % 2) * launch_.stream", "static_cast<int64_t>(0) * launch_.stream"),),
        VALUES,
    ),
    Mutant(
        "all layers have the first one's norm",
        "value",
        KERNEL,
        (("layer * write_.k_norm_layer_stride,", "0 * write_.k_norm_layer_stride,"),),
        VALUES,
    ),
    Mutant(
        "values are rotated",
        "value",
        KERNEL,
        (
            (".process(nullptr, nullptr, 0.0f);", ".process(nullptr, staged_.rotations[r], 0.0f);"),
            ("rotated = !values && launch_.head", "rotated = launch_.head"),
        ),
        VALUES,
    ),
    Mutant(
        "a tile's keys go to the first heads",
        "value",
        KERNEL,
        (
            (
                "static_cast<int64_t>(first_head + h) * cache.k_head_stride",
                "static_cast<int64_t>(h) * cache.k_head_stride",
            ),
        ),
        VALUES,
    ),
    Mutant(
        "a tile's values go to the first heads",
        "value",
        KERNEL,
        (
            (
                "static_cast<int64_t>(first_head + h) * cache.v_head_stride",
                "static_cast<int64_t>(h) * cache.v_head_stride",
            ),
        ),
        VALUES,
    ),
    Mutant(
        "every group goes to the first rows' slots",
        "value",
        KERNEL,
        (("find_row(g * kStreamRowGroup + threadIdx.x, rotated);", "find_row(threadIdx.x, rotated);"),),
        VALUES,
    ),
    Mutant(
        "skipped rows are written",
        "bounds",
        KERNEL,
        (("      if (slot < 0) continue;\n      const int64_t page", "      const int64_t page"),),
        VALUES,
    ),
    Mutant(
        "sections run on from layer to layer",
        "bounds",
        STREAM,
        (
            (
                "tile.section / layer_sections * weight.layer_stride",
                "tile.section / layer_sections * weight.layer_columns * weight.row_stride",
            ),
        ),
        ("offsets_past_2_31_elements",),
    ),
    Mutant(
        "tiles run on into the next section",
        "value",
        STREAM,
        (("columns = min(stream.tile_columns, stream.section_columns - first);", "columns = stream.tile_columns;"),),
        ("tiles_are_whole_heads",),
    ),
    Mutant(
        "row_count is not read",
        "value",
        KERNEL,
        (("  if (op.row_count != nullptr) left = min(left, *op.row_count - first_row);\n", ""),),
        ("row_count_is_read_on_the_device",),
    ),
    Mutant(
        "row_count is not bounded",
        "bounds",
        KERNEL,
        (("left = min(left, *op.row_count - first_row);", "left = *op.row_count - first_row;"),),
        ("row_count_is_read_on_the_device, past the rows",),
    ),
    Mutant(
        "the data's dtype decides what is stored",
        "value",
        KERNEL,
        (
            (
                "write_heads(StagedAccess{write_.caches.dtype},",
                "write_heads(StagedAccess{launch_.op.gemm.dtype},",
            ),
        ),
        ("the_cache_dtype_decides",),
    ),
    Mutant(
        "a page's offset is 32 bits wide",
        "bounds",
        KERNEL,
        (("page * cache.k_page_stride +", "static_cast<int>(page * cache.k_page_stride) +"),),
        ("offsets_past_2_31_elements",),
    ),
    Mutant(
        "keys are rounded before the norm",
        "value",
        KERNEL,
        (
            (
                "make_float2(sums.value[g][j][i] + low, sums.value[g][j][i + 1] + high);",
                "make_float2(to_float(Float16{static_cast<uint16_t>(pack<Float16>(sums.value[g][j][i] + low, 0.0f))}),\n"
                "                          sums.value[g][j][i + 1] + high);",
            ),
        ),
        ("float16_does_not_overflow",),
    ),
    Mutant(
        "staged rows are not padded",
        "count",
        PLAN,
        (("kStagedRowFloats = kStreamColumns + 8;", "kStagedRowFloats = kStreamColumns;"),),
        ("matches_the_definition", "every_weight_is_read_once"),
    ),
)

SUITE = Suite("project_context_kv", CHECKS, MUTANTS)
