"""Bugs planted in what sparse_block_attention puts in the page table's place; the rest is block_attention's kernel."""

from functools import partial

import torch

from tests.cases.block_attention import Case
from tests.cuda import test_sparse_block_attention as tests
from tests.ptxsim.mutants import Check, Mutant, Suite

PAGES = "csrc/cuda/sparse_block_attention/selected_pages.cuh"

CHECKS: dict[str, Check] = {
    "matches_the_definition": partial(
        tests.check, Case((150, 70), (7, 3), q_heads=4, kv_heads=2, page_size=8, options={"num_splits": 2})
    ),
    "no_selection_is_dense_attention": partial(tests.test_no_selection_and_all_pages_are_dense_attention, "none", 1),
    "a_context_that_grows_or_is_cut": tests.test_a_selection_serves_a_context_that_grows_or_is_cut,
    "what_a_head_does_not_see": partial(tests.test_what_a_head_does_not_see_never_reaches_its_result, (0.0, torch.nan)),
    "what_makes_no_sense_stays_inside": tests.test_what_makes_no_sense_stays_inside,
    "every_stride_is_honoured": tests.test_every_stride_is_honoured,
    "lists_past_2_31": tests.test_lists_past_2_31_elements,
    "what_is_read_follows_the_budget": partial(tests.test_what_is_read_follows_the_budget, 16, 16),
}
VALUES = ("matches_the_definition",)


def _planted(name: str, kind: str, old: str, new: str, *checks: str) -> Mutant:
    return Mutant(name, kind, PAGES, ((old, new),), checks or VALUES)  # type: ignore[arg-type]


MUTANTS = (
    _planted("the whole context's length is kept", "value", " - ((after_ - found_) << launch.page_shift)", ""),
    _planted(
        "rows after the last selected page are not seen",
        "value",
        "return context_len - ((after_ - found_) << launch.page_shift);",
        "return min(context_len, found_ << launch.page_shift);",
        "no_selection_is_dense_attention",
    ),
    _planted(
        "the pages of the whole context are walked",
        "value",
        "index < found_ ?",
        "index < 0 ?",
        "what_a_head_does_not_see",
    ),
    _planted(
        "selected pages past the context are seen",
        "bounds",
        "static_cast<uint32_t>(page) < pages);",
        "page >= 0);",
        "a_context_that_grows_or_is_cut",
    ),
    _planted("the page after the last selected one comes twice", "value", "page, last) + 1;", "page, last);"),
    _planted("pages begun are not counted", "value", " + (1u << launch.page_shift) - 1) >>", ") >>"),
    _planted(
        "the last selected page is looked for among 32 only",
        "value",
        "end > 0; end -= kWarpLanes)",
        "end > 0; end = 0)",
        "a_context_that_grows_or_is_cut",
    ),
    _planted(
        "the lane that found the last page is taken for the first",
        "value",
        "found_ = min(end - last, after_);",
        "found_ = min(end, after_);",
        "a_context_that_grows_or_is_cut",
    ),
    _planted(
        "counts are believed",
        "bounds",
        "min(max(0, count[head * selection_.counts_head_stride]), width_)",
        "count[head * selection_.counts_head_stride]",
        "what_makes_no_sense_stays_inside",
    ),
    _planted(
        "pages of a list are believed",
        "bounds",
        "min(static_cast<uint32_t>(__ldg(selected_ + index)), max_pages_ - 1)",
        "static_cast<uint32_t>(__ldg(selected_ + index))",
        "what_makes_no_sense_stays_inside",
    ),
    _planted("a list is read before its begin", "bounds", "index >= 0 ? selected_[index] : -1", "selected_[index]"),
    _planted("kv heads share a list", "value", "head * selection_.head_stride;", "0;"),
    _planted(
        "counts of heads lie side by side",
        "value",
        "count[head * selection_.counts_head_stride]",
        "count[head]",
        "every_stride_is_honoured",
    ),
    _planted(
        "a list's offset is 32 bits wide",
        "bounds",
        "request * selection_.batch_stride",
        "request * static_cast<int>(selection_.batch_stride)",
        "lists_past_2_31",
    ),
    _planted(
        "every lane reads all of the list",
        "count",
        "    return __ldg(table_ + of_request);",
        "    int unused = 0;\n    for (int i = 0; i < found_; ++i) unused |= *reinterpret_cast<const volatile int32_t*>"
        "(selected_ + i);\n    return __ldg(table_ + of_request) + (unused == -1 ? 1 : 0);",
        "matches_the_definition",
        "what_is_read_follows_the_budget",
    ),
)

SUITE = Suite("sparse_block_attention", CHECKS, MUTANTS)
