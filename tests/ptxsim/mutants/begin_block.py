"""Bugs planted in begin_block."""

from functools import partial

from tests.cases.begin_block import Case
from tests.cuda import test_begin_block as tests
from tests.cuda.gpu import Gpu
from tests.ptxsim.mutants import Check, Mutant, Suite

KERNEL = "csrc/cuda/begin_block/kernel.cuh"

CHECKS: dict[str, Check] = {
    "matches_the_definition": partial(tests.test_matches_the_definition, Case(4, 4, (0, 3, 9), 8), Gpu()),
    "matches_the_definition, one request": partial(tests.test_matches_the_definition, Case(3, 1, (0,), 5), Gpu()),
    "matches_the_definition, many": partial(
        tests.test_matches_the_definition, Case(9, 64, tuple(range(0, 540, 60)), 16), Gpu()
    ),
    "large_numbers_do_not_wrap": tests.test_large_numbers_do_not_wrap,
    "lengths_that_make_no_sense": tests.test_lengths_that_make_no_sense_are_not_followed,
    "a_page_table_of_more_than_2_31_entries": tests.test_a_page_table_of_more_than_2_31_entries,
    "whole_sectors_are_stored_once": tests.test_whole_sectors_are_stored_once,
}
VALUES = ("matches_the_definition", "matches_the_definition, one request", "matches_the_definition, many")

MUTANTS = (
    Mutant(
        "one thread too many",
        "bounds",
        KERNEL,
        (("if (index >= params.batch * params.block)", "if (index > params.batch * params.block)"),),
        VALUES,
    ),
    Mutant("page 0 is taken for none", "value", KERNEL, (("if (page >= 0) slot", "if (page > 0) slot"),), VALUES),
    Mutant(
        "one page too many",
        "bounds",
        KERNEL,
        (("entry < params.max_pages", "entry <= params.max_pages"),),
        VALUES,
    ),
    Mutant(
        "a negative length is followed",
        "bounds",
        KERNEL,
        (("if (position >= 0 && entry", "if (entry"),),
        ("lengths_that_make_no_sense",),
    ),
    Mutant(
        "positions are 32 bits wide",
        "value",
        KERNEL,
        (
            (
                "static_cast<int64_t>(params.context_lens[request * params.context_lens_stride]) + row;",
                "params.context_lens[request * params.context_lens_stride] + static_cast<int>(row);",
            ),
        ),
        ("large_numbers_do_not_wrap",),
    ),
    Mutant(
        "a slot is 32 bits wide",
        "value",
        KERNEL,
        (("slot = page * params.page_size +", "slot = static_cast<int>(page * params.page_size) +"),),
        ("large_numbers_do_not_wrap",),
    ),
    Mutant(
        "an offset in the page table is 32 bits wide",
        "bounds",
        KERNEL,
        (
            (
                "request * params.page_table_stride + entry",
                "static_cast<int>(request * params.page_table_stride) + entry",
            ),
        ),
        ("a_page_table_of_more_than_2_31_entries",),
    ),
    Mutant(
        "the mask token comes first",
        "value",
        KERNEL,
        (("if (row == 0) id", "if (row == params.block - 1) id"),),
        VALUES,
    ),
    Mutant(
        "neighbouring threads take different requests",
        "count",
        KERNEL,
        (
            (
                "request = index / params.block, row = index % params.block;",
                "request = index % params.batch, row = index / params.batch;",
            ),
        ),
        (*VALUES, "whole_sectors_are_stored_once"),
    ),
)

SUITE = Suite("begin_block", CHECKS, MUTANTS)
