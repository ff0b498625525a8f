"""Bugs planted in write_context_kv."""

from functools import partial

import torch

from tests.cases.write_context_kv import CASES, Case
from tests.cuda import test_write_context_kv as tests
from tests.cuda.gpu import Gpu
from tests.ptxsim.mutants import Check, Mutant, Suite

KERNEL = "csrc/cuda/write_context_kv/kernel.cuh"
SLOT = "csrc/cuda/common/context_slot.cuh"
HEAD = "csrc/cuda/common/norm_rope.cuh"
PTX = "csrc/cuda/common/ptx.cuh"


CHECKS: dict[str, Check] = {
    "matches_the_definition": partial(tests.test_matches_the_definition, CASES[4], torch.bfloat16, Gpu()),
    "matches_the_definition, halves": partial(tests.test_matches_the_definition, CASES[2], torch.bfloat16, Gpu()),
    "the_cache_dtype_decides_what_is_stored": partial(
        tests.test_the_cache_dtype_decides_what_is_stored, CASES[4], torch.float32, torch.bfloat16
    ),
    "row_count_is_read_on_the_device": partial(tests.test_row_count_is_read_on_the_device, 1),
    "row_count_is_read_on_the_device, past the rows": partial(tests.test_row_count_is_read_on_the_device, 100),
    "what_no_one_could_check_is_not_followed": tests.test_what_no_one_could_check_is_not_followed,
    "many_layers": partial(tests.check, Case(2, 70, 1, 128), torch.bfloat16, Gpu()),
    "offsets_past_2_31_elements": tests.test_offsets_past_2_31_elements,
    "every_byte_moves_once": partial(tests.test_every_byte_moves_once, 16, False, torch.bfloat16),
    "every_byte_moves_once, interleaved": partial(tests.test_every_byte_moves_once, 16, True, torch.bfloat16),
}
VALUES = ("matches_the_definition", "matches_the_definition, halves")
COUNTS = (*VALUES, "every_byte_moves_once")

MUTANTS = (
    Mutant(
        "slots are used before they are there",
        "order",
        KERNEL,
        (("  __syncthreads();\n  bool all_skipped", "  bool all_skipped"),),
        VALUES,
    ),
    Mutant(
        "weights and rotations are used before they are there",
        "order",
        KERNEL,
        (("  __syncthreads();\n\n  Access access", "  Access access"),),
        VALUES,
    ),
    Mutant("skipped rows are written", "bounds", KERNEL, (("    if (slot < 0) continue;\n", ""),), VALUES),
    Mutant(
        "a slot past the cache is followed",
        "bounds",
        SLOT,
        (("return slot < op.caches.pages * op.caches.page_size ? slot : -1;", "return slot;"),),
        ("what_no_one_could_check_is_not_followed",),
    ),
    Mutant(
        "row_count is not read",
        "value",
        SLOT,
        (("if (op.row_count != nullptr) rows = min(rows, static_cast<int64_t>(*op.row_count));", ""),),
        ("row_count_is_read_on_the_device",),
    ),
    Mutant(
        "row_count is not bounded",
        "bounds",
        SLOT,
        (("rows = min(rows, static_cast<int64_t>(*op.row_count));", "rows = *op.row_count;"),),
        ("row_count_is_read_on_the_device, past the rows",),
    ),
    Mutant(
        "a page's offset is 32 bits wide",
        "bounds",
        KERNEL,
        (("page * cache.k_page_stride +", "static_cast<int>(page * cache.k_page_stride) +"),),
        ("offsets_past_2_31_elements",),
    ),
    Mutant(
        "values go where keys lie",
        "value",
        KERNEL,
        (("in + op.part_stride, cache.v, out)", "in + op.part_stride, cache.k, out)"),),
        VALUES,
    ),
    Mutant(
        "values are keys",
        "value",
        KERNEL,
        (("in + op.part_stride, cache.v", "in, cache.v"),),
        VALUES,
    ),
    Mutant(
        "the place in a page has one bit too few",
        "value",
        KERNEL,
        (("slot & (caches.page_size - 1)", "slot & (caches.page_size / 2 - 1)"),),
        VALUES,
    ),
    Mutant(
        "layers past a block's share have the first ones' weights",
        "value",
        KERNEL,
        (("(first_layer + l) * op.k_norm_layer_stride", "l * op.k_norm_layer_stride"),),
        (*VALUES, "many_layers"),
    ),
    Mutant(
        "layers past the last one are staged",
        "bounds",
        KERNEL,
        (
            (
                "min(launch.block_layers, static_cast<uint32_t>(caches.layer_count) - first_layer);",
                "launch.block_layers;",
            ),
        ),
        (*VALUES, "many_layers"),
    ),
    Mutant(
        "keys of a skipped first row hide the block",
        "value",
        KERNEL,
        (("all_skipped = all_skipped && slots[r] < 0;", "all_skipped = slots[0] < 0;"),),
        VALUES,
    ),
    Mutant(
        "floats are cut to bfloat16",
        "value",
        PTX,
        (("cvt.rn.bf16x2.f32", "cvt.rz.bf16x2.f32"),),
        ("the_cache_dtype_decides_what_is_stored",),
    ),
    Mutant(
        "pieces of a unit lie next to each other",
        "count",
        HEAD,
        (
            ("      unit.first = (u + split_.split_units) * kElements;\n", "      unit.first = 2 * u * kElements;\n"),
            ("      unit.second = unit.first + rest * kElements;\n", "      unit.second = unit.first + kElements;\n"),
        ),
        ("matches_the_definition, halves", "every_byte_moves_once, interleaved"),
    ),
    Mutant(
        "a head is read again for its norm",
        "count",
        HEAD,
        (("      if (u != lane) load(u, unit);\n", '      asm volatile("" ::: "memory");\n      load(u, unit);\n'),),
        COUNTS,
    ),
)

SUITE = Suite("write_context_kv", CHECKS, MUTANTS)
