"""Bugs planted in fuse_features; those of the streaming are in lm_head_argmax."""

from functools import partial

import torch

from tests.cases.fuse_features import Case
from tests.cuda import test_fuse_features as tests
from tests.cuda import test_many_rows as many_rows
from tests.cuda.gpu import Gpu
from tests.ptxsim.mutants import Check, Mutant, Suite

STREAM = "csrc/cuda/common/weight_stream.cuh"
KERNEL = "csrc/cuda/fuse_features/kernel.cuh"

OVERLAPPING = Gpu("H200", arch="sm_90a")

CHECKS: dict[str, Check] = {
    "units_end_with_a_tap": partial(tests.test_units_end_with_a_tap, 3, Gpu()),
    "matches_the_definition": lambda: tests.check(Case(7, 3, 64, 100, slack_rows=2), torch.bfloat16, Gpu()),
    "matches_the_definition, an odd number of columns": lambda: tests.check(
        Case(4, 1, 24, 37, norm=False), torch.bfloat16, Gpu()
    ),
    "float16_does_not_overflow": partial(tests.test_float16_does_not_overflow_before_the_norm, 136),
    "row_count_is_read_on_the_device": partial(tests.test_row_count_is_read_on_the_device, 16),
    "row_count_is_read_on_the_device, past the rows": partial(tests.test_row_count_is_read_on_the_device, 1000),
    "eps_counts": tests.test_eps_counts,
    "every_weight_is_read_once": partial(tests.test_every_weight_is_read_once, 16, 0.2),
    "the_norm_adds_up_the_taps": partial(many_rows.test_the_norm_adds_up_the_taps, 3),
    "features_of_many_rows": partial(many_rows.test_features_of_many_rows, 600, True),
    "launches_overlap": lambda: tests.check(Case(7, 3, 64, 100, slack_rows=2), torch.bfloat16, OVERLAPPING),
}
VALUES = ("matches_the_definition",)

MUTANTS = (
    Mutant(
        "every tap meets the first one's columns",
        "value",
        STREAM,
        ((" + piece_ * gemm_.activations.piece_columns;", ";"),),
        ("units_end_with_a_tap",),
    ),
    Mutant(
        "the first tap serves all",
        "value",
        STREAM,
        (("      find_weight();\n      find_activations();\n", "      find_weight();\n"),),
        ("units_end_with_a_tap",),
    ),
    Mutant(
        "a tap's last unit is left out",
        "value",
        STREAM,
        (("    if (++unit_ < stream_.piece_units) return;", "    if (++unit_ + 1 < stream_.piece_units) return;"),),
        ("units_end_with_a_tap",),
    ),
    Mutant(
        "rows past the last are stored",
        "bounds",
        KERNEL,
        (("      if (row >= rows) continue;\n", ""),),
        ("units_end_with_a_tap",),
    ),
    Mutant(
        "columns past the last are stored",
        "value",
        KERNEL,
        (("if (column + 1 < tile.columns) out_row", "out_row"),),
        ("matches_the_definition, an odd number of columns",),
    ),
    Mutant(
        "what lies past a row's end is squared",
        "value",
        KERNEL,
        (("x[first + i] += column + first + i < columns ? y[i] : 0.0f;", "x[first + i] += y[i];"),),
        VALUES,
    ),
    Mutant(
        "sums are rounded before the norm",
        "value",
        KERNEL,
        (
            (
                "make_float2(low, high);",
                "make_float2(to_float(T{static_cast<uint16_t>(pack<T>(low, low))}),\n"
                "                        to_float(T{static_cast<uint16_t>(pack<T>(high, high))}));",
            ),
        ),
        ("float16_does_not_overflow",),
    ),
    Mutant("eps is left out", "value", KERNEL, (("columns) + op.eps);", "columns));"),), ("eps_counts",)),
    Mutant(
        "row_count is not read",
        "value",
        KERNEL,
        (("op.row_count == nullptr ? rows : min(rows, static_cast<int64_t>(*op.row_count))", "rows"),),
        ("row_count_is_read_on_the_device",),
    ),
    Mutant(
        "row_count is not bounded",
        "bounds",
        KERNEL,
        (("min(rows, static_cast<int64_t>(*op.row_count))", "static_cast<int64_t>(*op.row_count)"),),
        ("row_count_is_read_on_the_device, past the rows",),
    ),
    Mutant(
        "the scale is read before it is there",
        "order",
        KERNEL,
        (("    __syncthreads();\n    scale =", "    scale ="),),
        VALUES,
    ),
    Mutant(
        "lanes store single floats",
        "count",
        KERNEL,
        (
            (
                "*reinterpret_cast<float2*>(sums_row + column) = make_float2(low, high);",
                "sums_row[column] = low, reinterpret_cast<volatile float*>(sums_row)[column + 1] = high;",
            ),
        ),
        ("matches_the_definition", "every_weight_is_read_once"),
    ),
    Mutant(
        "the first tap's product stands for all",
        "value",
        KERNEL,
        (("slice < launch.slices;", "slice < min(launch.slices, 1u);"),),
        ("the_norm_adds_up_the_taps",),
    ),
    Mutant(
        "the taps' products lie a row apart",
        "value",
        KERNEL,
        (("slice * launch.slice_stride", "slice * launch.sums_row_stride"),),
        ("the_norm_adds_up_the_taps",),
    ),
    Mutant(
        "every chunk is normed into the first rows",
        "value",
        KERNEL,
        (("row = launch.first_row + blockIdx.x,", "row = blockIdx.x,"),),
        ("features_of_many_rows",),
    ),
    Mutant(
        "a chunk's sums are looked for where the whole call's would lie",
        "bounds",
        KERNEL,
        (("launch.sums + blockIdx.x * launch.sums_row_stride", "launch.sums + row * launch.sums_row_stride"),),
        ("features_of_many_rows",),
    ),
    Mutant(
        "the norm does not wait for the sums",
        "order",
        KERNEL,
        (("  let_next_launch_start();\n  wait_for_earlier_launches();\n", "  let_next_launch_start();\n"),),
        ("launches_overlap",),
    ),
    Mutant(
        "the taps are read while they may still be written",
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
        ("launches_overlap",),
    ),
)

SUITE = Suite("fuse_features", CHECKS, MUTANTS)
