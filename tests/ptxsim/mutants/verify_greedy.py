"""Bugs planted in verify_greedy."""

from functools import partial

import torch

from tests.cases.verify import Case
from tests.cuda import test_verify_greedy as tests
from tests.cuda.gpu import Gpu
from tests.ptxsim.mutants import Check, Mutant, Suite

KERNEL = "csrc/cuda/verify_greedy/kernel.cuh"


CHECKS: dict[str, Check] = {
    "matches_the_definition": partial(
        tests.test_matches_the_definition, Case(3, 7, 129, lens=(7, 0, -1), slack=3), torch.bfloat16, Gpu()
    ),
    "matches_the_definition, shared rows": partial(
        tests.test_matches_the_definition, Case(1, 3, 40001), torch.bfloat16, Gpu()
    ),
    "long_blocks": partial(tests.test_long_blocks, 40),
    "idle_requests_and_strided_tensors": tests.test_idle_requests_and_strided_tensors,
    "rows_past_the_draft_are_not_read": tests.test_rows_past_the_draft_are_not_read,
    "logits_of_more_than_2_31_elements": partial(tests.test_logits_of_more_than_2_31_elements, (2**31, 30)),
    "a_draft_length_out_of_range_stays_inside": partial(tests.test_a_draft_length_out_of_range_stays_inside, 5, 4),
    "the_workspace_serves_call_after_call": tests.test_the_workspace_serves_call_after_call,
    "each_logit_is_read_once": partial(tests.test_each_logit_is_read_once, torch.bfloat16),
}

MUTANTS = (
    Mutant(
        "a draft length is not bounded",
        "bounds",
        KERNEL,
        (("max(min(length, params.drafts), int64_t{-1})", "max(length, int64_t{-1})"),),
        ("a_draft_length_out_of_range_stays_inside",),
    ),
    Mutant(
        "the first mismatch is counted from its group of 32",
        "value",
        KERNEL,
        (("accepted = begin + __ffs", "accepted = __ffs"),),
        ("long_blocks",),
    ),
    Mutant(
        "drafts past the length are compared",
        "bounds",
        KERNEL,
        (("i < draft_len && drafts[i] != choices[i]", "drafts[i] != choices[i]"),),
        ("matches_the_definition",),
    ),
    Mutant(
        "the token after the accepted ones is lost",
        "value",
        KERNEL,
        (("i <= accepted ? choices[i] : -1", "i < accepted ? choices[i] : -1"),),
        ("matches_the_definition",),
    ),
    Mutant(
        "an idle request keeps its next token",
        "value",
        KERNEL,
        (("    if (accepted < 0) *next_token = -1;\n", ""),),
        ("idle_requests_and_strided_tensors",),
    ),
    Mutant(
        "drafts of another request",
        "value",
        KERNEL,
        (("params.draft_tokens + request * params.draft_stride", "params.draft_tokens + request * params.drafts"),),
        ("idle_requests_and_strided_tensors",),
    ),
    Mutant(
        "no barrier between choosing and comparing",
        "order",
        KERNEL,
        (
            (
                "  __syncthreads();\n  if (threadIdx.x < kWarpLanes) commit_drafts",
                "  if (threadIdx.x < kWarpLanes) commit_drafts",
            ),
        ),
        ("matches_the_definition, shared rows",),
    ),
    Mutant(
        "a request is decided before all its stretches are there",
        "order",
        KERNEL,
        (("request_rows * launch.rows.stretches)) return;", "request_rows)) return;"),),
        ("matches_the_definition, shared rows",),
    ),
    Mutant(
        "all requests share a counter",
        "order",
        KERNEL,
        (("launch.rows.arrivals + request,", "launch.rows.arrivals,"),),
        ("matches_the_definition",),
    ),
    Mutant(
        "blocks of rows past the draft do not arrive",
        "value",
        KERNEL,
        (("  if (row <= draft_len) {\n", "  if (row > draft_len) return;\n  {\n"),),
        ("matches_the_definition",),
    ),
    Mutant(
        "a request's offset is 32 bits wide",
        "bounds",
        KERNEL,
        (
            (
                "request * op.logits_batch_stride",
                "static_cast<int>(request) * static_cast<int>(op.logits_batch_stride)",
            ),
        ),
        ("logits_of_more_than_2_31_elements",),
    ),
    Mutant(
        "rows past the draft are read",
        "count",
        KERNEL,
        (("  if (row <= draft_len) {\n", "  if (row <= op.drafts) {\n"),),
        ("matches_the_definition", "rows_past_the_draft_are_not_read"),
    ),
    Mutant(
        "the winning row is scanned again for its column",
        "count",
        KERNEL,
        (
            (
                "    const uint64_t best = merged_best(launch.rows, static_cast<int64_t>(request) * request_rows + i);\n",
                "    uint64_t best = merged_best(launch.rows, static_cast<int64_t>(request) * request_rows + i);\n"
                "    best = warp_reduce(Larger()(best, row_of_request(i).thread_best(0, ~0u)), Larger());\n",
            ),
        ),
        ("each_logit_is_read_once",),
    ),
    Mutant(
        "the counter stays where it is",
        "value",
        "csrc/cuda/common/arrival.cuh",
        (("count_arrival(counter, blocks - 1) == blocks - 1;", "count_arrival(counter, blocks) == blocks - 1;"),),
        ("the_workspace_serves_call_after_call",),
    ),
)

SUITE = Suite("verify_greedy", CHECKS, MUTANTS)
