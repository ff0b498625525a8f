"""Bugs planted in the attention kernel of tests/ptxsim/kernels: tensor cores, ldmatrix, double-buffered cp.async."""

from functools import partial

from tests.ptxsim import test_attention as tests
from tests.ptxsim.mutants import Check, Mutant, Suite

KERNEL = "tests/ptxsim/kernels/attention.cu"

CHECKS: dict[str, Check] = {
    "values_and_no_findings": partial(tests.test_values_and_no_findings, {"completion": "late"}, (100, 200)),
    "values_and_no_findings, early": partial(tests.test_values_and_no_findings, {"completion": "early"}, (100, 200)),
    "values_and_no_findings, few keys": partial(tests.test_values_and_no_findings, {"completion": "late"}, (5, 3)),
    "counts_are_exact": tests.test_counts_are_exact,
}
VALUES = ("values_and_no_findings",)
EARLY = ("values_and_no_findings, early",)
COUNTS = ("values_and_no_findings", "counts_are_exact")

MUTANTS = (
    Mutant("the last tile is not waited for", "order", KERNEL, (("wait<0>();", "wait<1>();"),), VALUES),
    Mutant("the tile in use is not waited for", "order", KERNEL, (("wait<1>();", "wait<2>();"),), EARLY),
    Mutant(
        "copies of the next tile are not a group of their own",
        "order",
        KERNEL,
        (("      commit();\n      wait<1>();", "      wait<1>();\n      commit();"),),
        VALUES,
    ),
    Mutant(
        "no barrier between a tile's arrival and its use",
        "order",
        KERNEL,
        (("#ifndef BUG_NO_FIRST_BARRIER\n    __syncthreads();\n", "#ifndef BUG_NO_FIRST_BARRIER\n"),),
        EARLY,
    ),
    Mutant(
        "no barrier before a tile is overwritten",
        "order",
        KERNEL,
        (("#ifndef BUG_NO_LAST_BARRIER\n    __syncthreads();\n", "#ifndef BUG_NO_LAST_BARRIER\n"),),
        VALUES,
    ),
    Mutant(
        "the next tile goes where the present one lies",
        "order",
        KERNEL,
        (("const int next = stage ^ 1;", "const int next = stage;"),),
        VALUES,
    ),
    Mutant(
        "only some warps wait at the barrier",
        "order",
        KERNEL,
        (
            (
                "#ifndef BUG_NO_LAST_BARRIER\n    __syncthreads();\n",
                "#ifndef BUG_NO_LAST_BARRIER\n    if (warp != 3) __syncthreads();\n",
            ),
        ),
        VALUES,
    ),
    Mutant(
        "fragments of two keys are swapped",
        "value",
        KERNEL,
        (
            (
                "multiply(scores[2 * j], q_fragments[i], r[0], r[1]);",
                "multiply(scores[2 * j], q_fragments[i], r[1], r[0]);",
            ),
        ),
        VALUES,
    ),
    Mutant(
        "weights are packed in the wrong order",
        "value",
        KERNEL,
        (("packed(scores[2 * i][0], scores[2 * i][1])", "packed(scores[2 * i][1], scores[2 * i][0])"),),
        VALUES,
    ),
    Mutant(
        "values are loaded without transposing",
        "value",
        KERNEL,
        (("load_fragments<true>(r", "load_fragments<false>(r"),),
        VALUES,
    ),
    Mutant(
        "the result is not rescaled",
        "value",
        KERNEL,
        (("        result[j][2 * half] *= rescale;\n", ""),),
        VALUES,
    ),
    Mutant(
        "the sum is not rescaled",
        "value",
        KERNEL,
        (("sum[half] = sum[half] * rescale + total;", "sum[half] = sum[half] + total;"),),
        VALUES,
    ),
    Mutant(
        "one key too many",
        "value",
        KERNEL,
        (("scores[j][e] = key < kv_len ?", "scores[j][e] = key <= kv_len ?"),),
        ("values_and_no_findings, few keys",),
    ),
    Mutant(
        "the maximum of half a row",
        "value",
        KERNEL,
        (("      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));\n", ""),),
        VALUES,
    ),
    Mutant(
        "rows past the end are loaded",
        "bounds",
        KERNEL,
        (
            (
                "rows + (valid ? (first + row) * kHeadDim + chunk * 8 : 0),\n            valid);",
                "rows + (first + row) * kHeadDim + chunk * 8,\n            true);",
            ),
        ),
        VALUES,
    ),
    Mutant("rows past the end are stored", "bounds", KERNEL, (("    if (row >= q_len) continue;\n", ""),), VALUES),
    Mutant(
        "tiles are not swizzled",
        "count",
        KERNEL,
        (("return row * 128 + ((chunk ^ (row & 7)) << 4);", "return row * 128 + chunk * 16;"),),
        COUNTS,
    ),
    Mutant(
        "half the rows are not swizzled",
        "count",
        KERNEL,
        (("return row * 128 + ((chunk ^ (row & 7)) << 4);", "return row * 128 + ((chunk ^ (row & 3)) << 4);"),),
        COUNTS,
    ),
    Mutant(
        "lanes store two floats apart",
        "count",
        KERNEL,
        (
            (
                "      *to = make_float2(result[j][2 * half] / sum[half], result[j][2 * half + 1] / sum[half]);\n",
                "      reinterpret_cast<volatile float*>(to)[0] = result[j][2 * half] / sum[half];\n"
                "      reinterpret_cast<volatile float*>(to)[1] = result[j][2 * half + 1] / sum[half];\n",
            ),
        ),
        COUNTS,
    ),
    Mutant(
        "a tile is copied twice to the same place",
        "order",
        KERNEL,
        (
            (
                "  load_tile(v_tiles, v, 0, kv_len);\n",
                "  load_tile(v_tiles, v, 0, kv_len);\n  load_tile(v_tiles, v, 0, kv_len);\n",
            ),
        ),
        VALUES,
    ),
)

SUITE = Suite("attention", CHECKS, MUTANTS)
