"""Bugs planted in block_attention's arithmetic: products, softmax, masks, splits, sinks."""

from functools import partial

import torch

from tests.cases.block_attention import CAUSAL, Case
from tests.cuda import test_block_attention as tests
from tests.cuda import test_block_attention_calls as calls
from tests.cuda.gpu import Gpu
from tests.ptxsim.mutants import Check, Mutant, Suite

FOLDER = "csrc/cuda/block_attention"
COPY, EPILOGUE, KERNEL = f"{FOLDER}/copy.cuh", f"{FOLDER}/epilogue.cuh", f"{FOLDER}/kernel.cuh"
SOFTMAX, WORK = f"{FOLDER}/softmax.cuh", f"{FOLDER}/work.cuh"
ROWS, TILE = "csrc/cuda/common/attention_rows.cuh", "csrc/cuda/common/attention_products.cuh"


def _values(case: Case, dtype: torch.dtype = torch.bfloat16) -> Check:
    return lambda: tests.check(Gpu(), case.inputs(dtype))


CHECKS: dict[str, Check] = {
    "matches_the_definition": _values(Case((70, 33), (16, 5), q_heads=2, kv_heads=1, options={"num_splits": 2})),
    "matches_the_definition, splits": _values(
        Case((300, 64), (8, 3), q_heads=2, kv_heads=1, options={"num_splits": 2})
    ),
    "matches_the_definition, causal": _values(Case((48, 7), 16, q_heads=2, kv_heads=1, head_dim=128, options=CAUSAL)),
    "matches_the_definition, 128 rows": _values(Case((90, 17), (16, 3), q_heads=8, kv_heads=1, head_dim=128)),
    "matches_the_definition, many requests": _values(
        Case(tuple(7 * i % 20 for i in range(70)), tuple((2, 0, 1)[i % 3] for i in range(70)), 1, 1, options=CAUSAL)
    ),
    "matches_the_definition, window": _values(
        Case((200,), 16, q_heads=2, kv_heads=1, head_dim=128, options={"window": 45})
    ),
    "matches_the_definition, causal window": _values(
        Case((200, 300), 16, q_heads=2, kv_heads=1, head_dim=128, options=CAUSAL | {"window": 45})
    ),
    "matches_the_definition, small window": _values(
        Case((60,), 16, q_heads=2, kv_heads=1, head_dim=128, options={"window": 7})
    ),
    "matches_the_definition, window and splits": _values(
        Case((20,), 260, 1, 1, 128, options=CAUSAL | {"num_splits": 40, "window": 50})
    ),
    "matches_the_definition, softcap": _values(Case((100, 3), 8, options={"softcap": 3.0})),
    "matches_the_definition, sinks": _values(Case((100, 3), 8, has_sinks=True)),
    "every_stride_is_honoured": partial(calls.test_every_stride_is_honoured, 1),
    "invisible_and_infinite_logits": partial(tests.test_invisible_and_infinite_logits, False, 3),
    "stretches_of_keys": partial(tests.test_stretches_of_keys_that_count_nothing, 0, 140, 3),
    "logits_that_rise": partial(tests.test_logits_that_rise_or_fall, 1.0, 1),
    "logits_that_fall, splits": partial(tests.test_logits_that_rise_or_fall, -1.0, 4),
    "logits_that_rise, splits": partial(tests.test_logits_that_rise_or_fall, 1.0, 4),
    "outputs_near_the_end_of_float16": partial(tests.test_outputs_near_the_end_of_float16, 3),
}
VALUES = ("matches_the_definition",)
CAUSAL_VALUES = ("matches_the_definition, causal",)
WINDOW = ("matches_the_definition, window",)
CAUSAL_WINDOW = ("matches_the_definition, causal window",)


def _value(name: str, file: str, old: str, new: str, checks: tuple[str, ...] = VALUES) -> Mutant:
    return Mutant(name, "value", file, ((old, new),), checks)


MUTANTS = (
    # Tensor-core products.
    _value(
        "fragments of two keys are swapped",
        TILE,
        "multiply(scores[i][2 * j], q[i], keys[0], keys[1]);",
        "multiply(scores[i][2 * j], q[i], keys[1], keys[0]);",
    ),
    _value(
        "keys 8 to 15 of a block are those before them",
        TILE,
        "multiply(scores[i][2 * j + 1], q[i], keys[2], keys[3]);",
        "multiply(scores[i][2 * j + 1], q[i], keys[0], keys[1]);",
    ),
    _value(
        "values are loaded without transposing",
        TILE,
        "load_matrices_transposed(values, ",
        "load_matrices(values, ",
    ),
    _value(
        "fragments of values are swapped",
        TILE,
        "multiply(sums.values[i][2 * j], w[i], values[0], values[1]);",
        "multiply(sums.values[i][2 * j], w[i], values[0], values[2]);",
    ),
    _value(
        "weights are packed in the wrong order",
        TILE,
        "Traits::pack(pair[e % 2 * 2], pair[e % 2 * 2 + 1])",
        "Traits::pack(pair[e % 2 * 2 + 1], pair[e % 2 * 2])",
    ),
    _value(
        "a warp's second rows have the queries of its first",
        TILE,
        "rows(tile_, Traits::row_block(row_block), dim_block)",
        "rows(tile_, Traits::row_block(0), dim_block)",
        ("matches_the_definition, 128 rows",),
    ),
    _value(
        "rows of a warp lie together in one place only",
        ROWS,
        "return Traits::row_block(row_block) * 16 + static_cast<int>(threadIdx.x % kWarpLanes) / 4 + 8 * half;",
        "return (threadIdx.x / 32 * Traits::kRowBlocks + row_block) * 16 + threadIdx.x % 32 / 4 + 8 * half;",
        ("matches_the_definition, 128 rows",),
    ),
    # Softmax.
    _value(
        "the maximum of half a row",
        ROWS,
        "      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));\n",
        "",
        ("logits_that_rise",),
    ),
    _value(
        "sums are not rescaled",
        ROWS,
        "        sums.scale(i, half, earlier_factor(sums.largest[i][half], largest[i][half]));\n",
        "",
        ("logits_that_rise",),
    ),
    _value(
        "denominators are not rescaled", ROWS, "    weights[row_block][half] *= factor;\n", "", ("logits_that_rise",)
    ),
    _value(
        "only even channels are rescaled",
        ROWS,
        "      values[row_block][j][2 * half + 1] *= factor;\n",
        "",
        ("logits_that_rise",),
    ),
    _value(
        "maxima of rows are not kept",
        ROWS,
        "        sums.largest[i][half] = largest[i][half];\n",
        "",
    ),
    _value(
        "a row without a finite logit is NaN",
        ROWS,
        "return largest == kMinusInfinity ? 0.0f : largest;",
        "return largest;",
        ("stretches_of_keys",),
    ),
    _value("lanes keep their part of the denominator", KERNEL, "  add_lanes(sums);\n", ""),
    _value(
        "half of a row's lanes are added",
        ROWS,
        "      weights += __shfl_xor_sync(kAllLanes, weights, 2);\n",
        "",
    ),
    _value(
        "the cap is half as high",
        SOFTMAX,
        "fmaf(-2.0f, inverse, 1.0f)",
        "fmaf(-1.0f, inverse, 0.5f)",
        ("matches_the_definition, softcap",),
    ),
    # Masks.
    _value("one key too many", SOFTMAX, "key < keys.end ? score", "key <= keys.end ? score", CAUSAL_VALUES),
    _value("the window's first key is lost", SOFTMAX, "key >= keys.begin &&", "key > keys.begin &&", CAUSAL_WINDOW),
    _value(
        "all rows of a warp have its first row's mask",
        SOFTMAX,
        "const int row = work.first_row + min(row_of<Traits>(i, half), work.rows - 1);",
        "const int row = work.first_row + min(row_of<Traits>(0, 0), work.rows - 1);",
        CAUSAL_VALUES,
    ),
    _value("a row does not see itself", WORK, "keys.end = position + 1;", "keys.end = position;", CAUSAL_VALUES),
    _value(
        "a window is one key longer",
        WORK,
        "keys.begin = position - launch.window + 1;",
        "keys.begin = position - launch.window;",
        CAUSAL_WINDOW,
    ),
    _value(
        "a window ends one key late",
        WORK,
        "    keys.end = position + launch.window;",
        "    keys.end = position + launch.window + 1;",
        ("matches_the_definition, small window",),
    ),
    Mutant(
        "a window is not symmetric",
        "value",
        WORK,
        (
            (
                "  } else if (launch.window > 0 && end - position > launch.window) {\n"
                "    keys.end = position + launch.window;\n",
                "",
            ),
        ),
        ("matches_the_definition, small window",),
    ),
    _value(
        "the first row's window says which tiles need no mask",
        WORK,
        "work.unmasked = {bottom.begin, top.end};",
        "work.unmasked = {top.begin, top.end};",
        WINDOW,
    ),
    _value(
        "the last row's end says which tiles need no mask",
        WORK,
        "work.unmasked = {bottom.begin, top.end};",
        "work.unmasked = {bottom.begin, bottom.end};",
        CAUSAL_VALUES,
    ),
    _value(
        "keys begin with the window of the tile's last row",
        WORK,
        "work.keys = {top.begin, bottom.end};",
        "work.keys = {bottom.begin, bottom.end};",
        CAUSAL_WINDOW,
    ),
    # Requests and splits.
    _value(
        "a scan over lanes wraps around",
        WORK,
        "if (lane >= distance) up_to += lower;",
        "up_to += lower;",
    ),
    _value(
        "row tiles of the first 32 requests are forgotten",
        WORK,
        "      before += __shfl_sync(kAllLanes, up_to, kWarpLanes - 1);\n",
        "",
        ("matches_the_definition, many requests",),
    ),
    _value(
        "every split begins with the first key",
        WORK,
        "work.first_tile = max(first, request_first + split * tiles);",
        "work.first_tile = first;",
    ),
    _value(
        "a split ends one tile early",
        WORK,
        "min(end, request_first + (split + 1) * tiles);",
        "min(end, request_first + (split + 1) * tiles - (split == 0));",
        ("matches_the_definition, splits",),
    ),
    _value(
        "splits are added as if they had one maximum",
        EPILOGUE,
        "factor[half] = exp2_approximate(own - finite_or_zero(top));",
        "factor[half] = 1.0f;",
        ("logits_that_fall, splits",),
    ),
    _value(
        "sums of earlier splits are not rescaled",
        EPILOGUE,
        "      sums.scale(row_block, half, exp2_approximate(largest - finite_or_zero(top)));\n",
        "",
        ("logits_that_rise, splits",),
    ),
    _value(
        "the last split is not added",
        EPILOGUE,
        "for (int index = begin; index < begin + count; ++index) {",
        "for (int index = begin; index < begin + count - 1; ++index) {",
    ),
    _value(
        "a group's sums are looked for at its begin, not at the first split that sees keys",
        EPILOGUE,
        "of_split(max(lowest, index * step));",
        "of_split(index * step);",
        ("matches_the_definition, window and splits",),
    ),
    _value(
        "denominators of splits are not rescaled",
        EPILOGUE,
        "+= factor[half] * rows_[Traits::kRows + row];",
        "+= rows_[Traits::kRows + row];",
        ("logits_that_fall, splits",),
    ),
    # Outputs.
    _value(
        "a row that sees nothing is divided by zero",
        EPILOGUE,
        "empty ? 0.0f : factor / weights;",
        "factor / weights;",
        ("invisible_and_infinite_logits",),
    ),
    _value(
        "lse is to base 2",
        EPILOGUE,
        "kLn2 * (largest + log2_approximate(weights));",
        "largest + log2_approximate(weights);",
    ),
    _value(
        "a sink is taken to base 2",
        EPILOGUE,
        "op.sinks[head * op.sinks_stride] * kLog2E;",
        "op.sinks[head * op.sinks_stride];",
        ("matches_the_definition, sinks",),
    ),
    _value(
        "outputs are not rescaled to the sink",
        EPILOGUE,
        "        factor = exp2_approximate(largest - finite_or_zero(top));\n        weights = weights * factor +",
        "        weights = weights * exp2_approximate(largest - finite_or_zero(top)) +",
        ("matches_the_definition, sinks",),
    ),
    _value(
        "sinks are read without their stride",
        EPILOGUE,
        "op.sinks[head * op.sinks_stride]",
        "op.sinks[head]",
        ("every_stride_is_honoured",),
    ),
    _value(
        "both rows of a lane have the first one's output",
        EPILOGUE,
        "Traits::pack(quad[2 * half] * normalise, quad[2 * half + 1] * normalise)",
        "Traits::pack(quad[0] * normalise, quad[1] * normalise)",
    ),
    _value(
        "lanes exchange the wrong words of a chunk",
        ROWS,
        "const bool upper = (threadIdx.x & distance) != 0;",
        "const bool upper = (threadIdx.x & distance) == 0;",
    ),
    _value(
        "outputs are sums of 16 bits until they are divided",
        EPILOGUE,
        "values_[(i * kQuads + j) * Traits::kThreads + threadIdx.x] = make_float4(quad[0], quad[1], quad[2], quad[3]);",
        "values_[(i * kQuads + j) * Traits::kThreads + threadIdx.x] =\n"
        "            make_float4(fminf(quad[0], 65504.0f), fminf(quad[1], 65504.0f), fminf(quad[2], 65504.0f),\n"
        "                        fminf(quad[3], 65504.0f));",
        ("outputs_near_the_end_of_float16",),
    ),
)

SUITE = Suite("block_attention_values", CHECKS, MUTANTS)
