"""Bugs planted in update_page_bounds."""

from functools import partial

import torch

from tests.cases.update_page_bounds import CASES
from tests.cuda import test_update_page_bounds as tests
from tests.cuda.gpu import Gpu
from tests.ptxsim.mutants import Check, Mutant, Suite

KERNEL = "csrc/cuda/update_page_bounds/kernel.cuh"

CHECKS: dict[str, Check] = {
    "equals_the_definition": partial(tests.test_equals_the_definition, CASES[4], torch.bfloat16, Gpu()),
    "equals_the_definition, small pages": partial(tests.test_equals_the_definition, CASES[5], torch.bfloat16, Gpu()),
    "one_entry_of_a_page_leads": tests.test_one_entry_of_a_page_leads_whatever_their_order,
    "many_pages": partial(tests.check, tests.MANY_PAGES, torch.bfloat16, Gpu("RTX 3090")),
    "nan_and_infinity_stay, first row": partial(tests.test_nan_and_infinity_stay, 0),
    "nan_and_infinity_stay, later row": partial(tests.test_nan_and_infinity_stay, 3),
    "row_count_is_read_on_the_device": partial(tests.test_row_count_is_read_on_the_device, 1),
    "row_count_is_read_on_the_device, past the rows": partial(tests.test_row_count_is_read_on_the_device, 100),
    "what_no_one_could_check_is_not_followed": tests.test_what_no_one_could_check_is_not_followed,
    "offsets_past_2_31_elements": tests.test_offsets_past_2_31_elements,
    "every_row_is_read_once": partial(tests.test_every_row_is_read_once, 16, torch.bfloat16),
}
VALUES = ("equals_the_definition", "equals_the_definition, small pages")

MUTANTS = (
    Mutant(
        "every entry computes its page's bounds",
        "order",
        KERNEL,
        (("if (next > slot &&", "if (false &&"), ("__syncthreads_or(outranked) ? -1 : slot", "slot")),
        (*VALUES, "one_entry_of_a_page_leads"),
    ),
    Mutant(
        "an entry looks at its neighbour only",
        "order",
        KERNEL,
        (("return __syncthreads_or(outranked) ? -1 : slot;", "return slot;"),),
        (*VALUES, "one_entry_of_a_page_leads"),
    ),
    Mutant(
        "of equal entries none leads",
        "value",
        KERNEL,
        (("(other == slot && i < entry)", "(other == slot && i != entry)"),),
        ("one_entry_of_a_page_leads",),
    ),
    Mutant(
        "the first entry of a page leads",
        "value",
        KERNEL,
        (
            ("(other > slot ||", "(other < slot ||"),
            ("if (next > slot &&", "if (next < slot &&"),
        ),
        VALUES,
    ),
    Mutant(
        "a warp does not wait for what the others found",
        "order",
        KERNEL,
        (("__syncthreads_or(outranked)", "__any_sync(0xffffffffu, outranked)"),),
        (*VALUES, "many_pages"),
    ),
    Mutant(
        "the last row is left out",
        "value",
        KERNEL,
        (
            ("row + kRows <= last_row + 1", "row + kRows <= last_row"),
            ("row <= last_row; ++row", "row < last_row; ++row"),
        ),
        VALUES,
    ),
    Mutant("a row too many", "value", KERNEL, (("row <= last_row; ++row", "row <= last_row + 1; ++row"),), VALUES),
    Mutant(
        "rows in flight run past the last",
        "value",
        KERNEL,
        (("row + kRows <= last_row + 1; row", "row <= last_row; row"),),
        VALUES,
    ),
    Mutant(
        "the whole page is taken", "value", KERNEL, (("(slot & (op.page_size - 1))", "(op.page_size - 1)"),), VALUES
    ),
    Mutant(
        "old bounds are widened",
        "value",
        KERNEL,
        (
            (
                "    access.store(layer.bounds, out, minima);\n",
                "    float old[kElements];\n    access.load(layer.bounds, out, old);\n    widen(old, minima, maxima);\n"
                "    access.store(layer.bounds, out, minima);\n",
            ),
        ),
        VALUES,
    ),
    Mutant("minima and maxima change places", "value", KERNEL, (("x[i] < minima[i]", "x[i] > minima[i]"),), VALUES),
    Mutant(
        "a NaN is passed over",
        "value",
        KERNEL,
        (("x[i] < minima[i] || x[i] != x[i]", "x[i] < minima[i]"),),
        ("nan_and_infinity_stay, later row",),
    ),
    Mutant(
        "a NaN is forgotten",
        "value",
        KERNEL,
        (("x[i] > maxima[i] || x[i] != x[i]", "!(x[i] <= maxima[i])"),),
        ("nan_and_infinity_stay, first row",),
    ),
    Mutant(
        "a slot past the cache is followed",
        "bounds",
        KERNEL,
        ((" || page >= op.pages", ""),),
        ("what_no_one_could_check_is_not_followed",),
    ),
    Mutant(
        "a skipped entry is followed",
        "bounds",
        KERNEL,
        (("slot < 0 || page", "page"), ("  if (slot < 0) return;\n", "")),
        (*VALUES, "what_no_one_could_check_is_not_followed"),
    ),
    Mutant(
        "row_count is not read",
        "value",
        KERNEL,
        (("if (op.row_count != nullptr) entries =", "if (false) entries ="),),
        ("row_count_is_read_on_the_device",),
    ),
    Mutant(
        "row_count is not bounded",
        "bounds",
        KERNEL,
        (("min(entries, static_cast<int64_t>(*op.row_count))", "*op.row_count"),),
        ("row_count_is_read_on_the_device, past the rows",),
    ),
    Mutant(
        "a page's offset is 32 bits wide",
        "bounds",
        KERNEL,
        (("page * layer.k_page_stride +", "static_cast<int>(page * layer.k_page_stride) +"),),
        ("offsets_past_2_31_elements",),
    ),
    Mutant(
        "the slot is used before it is there",
        "order",
        KERNEL,
        (("  __syncthreads();\n  const int64_t slot = own", "  const int64_t slot = own"),),
        VALUES,
    ),
    Mutant(
        "an entry past the last one is its neighbour",
        "bounds",
        KERNEL,
        (("wanted < entries ?", "wanted < op.rows + 1 ?"),),
        (*VALUES, "row_count_is_read_on_the_device", "one_entry_of_a_page_leads"),
    ),
    Mutant(
        "layers past the last one are computed",
        "bounds",
        KERNEL,
        (
            (
                "min(launch.block_layers, static_cast<uint32_t>(op.layer_count) - first_layer);",
                "launch.block_layers;",
            ),
        ),
        ("many_pages",),
    ),
    Mutant(
        "every block computes the first layers",
        "value",
        KERNEL,
        (("op.layers[first_layer + item / layer_items]", "op.layers[item / layer_items]"),),
        VALUES,
    ),
    Mutant(
        "the row is read twice",
        "count",
        KERNEL,
        (("    int row = 1;\n", '    asm volatile("" ::: "memory");\n    int row = 0;\n'),),
        ("every_row_is_read_once",),
    ),
)

SUITE = Suite("update_page_bounds", CHECKS, MUTANTS)
