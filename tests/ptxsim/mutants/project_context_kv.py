"""Bugs planted in project_context_kv; those of the streaming are in lm_head_argmax, of norm and rotation in
write_context_kv."""

from functools import partial

import torch

from tests.cases import write_context_kv
from tests.cases.project_context_kv import Case
from tests.cuda import test_many_rows as many_rows
from tests.cuda import test_project_context_kv as tests
from tests.cuda.gpu import Gpu
from tests.ptxsim.mutants import Check, Mutant, Suite

STREAM = "csrc/cuda/common/weight_stream.cuh"
KERNEL = "csrc/cuda/project_context_kv/kernel.cuh"
WRITE = "csrc/cuda/write_context_kv/kernel.cuh"
PRODUCTS = "csrc/cuda/fuse_features/kernel.cuh"
BOUNDS = "csrc/cuda/update_page_bounds/kernel.cuh"
PLAN = "csrc/plan/cuda/project_context_kv.h"
OVERLAPPING = Gpu("H200", arch="sm_90a")
COUNTED = Case(72, write_context_kv.Case(9, 1, 2, 32, slack_rows=2))
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
    "keys_and_values_of_many_rows": partial(many_rows.test_keys_and_values_of_many_rows, 257, Gpu()),
    "keys_and_values_chunk_by_chunk": many_rows.test_keys_and_values_chunk_by_chunk,
    "heads_wider_than_a_tile": partial(many_rows.test_wide_heads_of_every_kind, 2, 192, 64, False),
    "launches_overlap": partial(tests.test_numbers_of_rows, 7, OVERLAPPING),
    "launches_overlap, row_count": lambda: tests.check(COUNTED, torch.bfloat16, OVERLAPPING),
    "bounds_take_one_launch_more": partial(many_rows.test_bounds_take_one_launch_more, 20),
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
                "write_heads(FloatAccess(DType::kFloat32, write_.caches.dtype),",
                "write_heads(FloatAccess(DType::kFloat32, launch_.op.gemm.dtype),",
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
    Mutant(
        "all layers' products have the first one's bias",
        "value",
        KERNEL,
        (("layer * launch.products.bias_layer_stride", "0 * launch.products.bias_layer_stride"),),
        ("keys_and_values_of_many_rows",),
    ),
    Mutant(
        "products of values have the keys' bias",
        "value",
        KERNEL,
        (("(part * caches.kv_heads + head) *", "(0 * caches.kv_heads + head) *"),),
        ("keys_and_values_of_many_rows",),
    ),
    Mutant(
        "products of all heads have the first one's bias",
        "value",
        KERNEL,
        (("(part * caches.kv_heads + head) *", "(part * caches.kv_heads) *"),),
        ("keys_and_values_of_many_rows",),
    ),
    Mutant(
        "a piece of products has its first channel's bias",
        "value",
        KERNEL,
        (("element + from_product_ + i)", "element + from_product_)"),),
        ("keys_and_values_of_many_rows",),
    ),
    Mutant(
        "a chunk's products are looked for where the whole call's would lie",
        "bounds",
        WRITE,
        (("(first_kv_row + r) * op.row_stride", "(first_row + r) * op.row_stride"),),
        ("keys_and_values_chunk_by_chunk",),
    ),
    Mutant(
        "every chunk goes to the first rows' slots",
        "value",
        WRITE,
        (("first_row = launch.products.first_row + first_kv_row;", "first_row = first_kv_row;"),),
        ("keys_and_values_chunk_by_chunk",),
    ),
    Mutant(
        "products of keys and values lie one upon the other",
        "order",
        PRODUCTS,
        (("tile.section * launch.sums_section_stride + tile.first;", "tile.first;"),),
        ("heads_wider_than_a_tile",),
    ),
    Mutant(
        "products are read while they may still be written",
        "order",
        WRITE,
        (("  let_next_launch_start();\n  wait_for_earlier_launches();\n", "  let_next_launch_start();\n"),),
        ("heads_wider_than_a_tile",),
    ),
    Mutant(
        "features are read while they may still be written",
        "order",
        STREAM,
        (("#endif\n  wait_for_earlier_launches();\n}", "#endif\n}"),),
        ("launches_overlap",),
    ),
    Mutant(
        "row_count is read while it may still be written",
        "order",
        KERNEL,
        (
            ("  overlap_earlier_launches(launch.op.gemm, launch.stream);\n", ""),
            (
                "  if (left <= 0) return;\n",
                "  overlap_earlier_launches(launch.op.gemm, launch.stream);\n  if (left <= 0) return;\n",
            ),
        ),
        ("launches_overlap, row_count",),
    ),
    Mutant(
        "bounds are taken while keys may still be written",
        "order",
        BOUNDS,
        (("  let_next_launch_start();\n  wait_for_earlier_launches();\n", "  let_next_launch_start();\n"),),
        ("bounds_take_one_launch_more",),
    ),
)

SUITE = Suite("project_context_kv", CHECKS, MUTANTS)
