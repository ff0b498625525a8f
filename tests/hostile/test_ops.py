"""A small budget of `make fuzz` in the suite, the calls that it once found wrong, and what the fuzzer itself catches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dflash_ops
from tests.hostile.fuzz_ops import check, findings
from tests.hostile.op_calls import NAMES, Call, valid_calls

CALLS = 480  # 30 of each op or function


def test_hostile_arguments_are_refused_or_right() -> None:
    assert list(findings(first=0, count=CALLS)) == []


@pytest.mark.parametrize("name", NAMES)
def test_valid_calls_pass_the_check(name: str) -> None:
    """So that a finding is one of the changes made, not of the cases."""
    for index in range(6):
        for call in valid_calls(name, index):
            assert check(call) is None


def op_call(name: str, index: int, **changes: Any) -> Call:
    call = next(call for call in valid_calls(name, index) if call.is_op)
    return Call(name, {**call.arguments, **changes}, True)


def refused(call: Call, message: str) -> None:
    with pytest.raises((RuntimeError, TypeError), match=message):
        call()
    assert check(call) is None


def test_outputs_must_not_share_memory() -> None:
    call = op_call("commit_block", 1)
    context_lens = call.arguments["context_lens"]
    refused(
        op_call("commit_block", 1, context_lens=context_lens, output_lens=context_lens),
        "commit_block: context_lens: expected memory of its own, none of output_lens's",
    )
    call = op_call("block_attention", 2)
    q = call.arguments["q"]
    refused(op_call("block_attention", 2, q=q, out=q), "block_attention: out: expected memory of its own, none of q's")
    call = op_call("write_context_kv", 1)
    caches = [call.arguments["k_caches"][0], call.arguments["k_caches"][0]]
    refused(
        op_call("write_context_kv", 1, k_caches=caches),
        r"write_context_kv: k_caches\[0\]: expected memory of its own, none of k_caches\[1\]'s",
    )


def test_views_that_lie_between_each_other_are_separate() -> None:
    """As engines hold them: keys and values of a slot side by side, outputs that are columns of one tensor."""
    logits = torch.randn(5, 7)
    both = torch.empty(5, 4, dtype=torch.int64)
    values = both.view(torch.float32)  # [5, 8]: columns 4 and 5 are the bytes of column 2 of `both`
    dflash_ops.row_argmax(logits, ids=both[:, 1], values=values[:, 5])
    assert torch.equal(both[:, 1], logits.argmax(1))
    with pytest.raises(RuntimeError, match="ids: expected memory of its own, none of values's"):
        dflash_ops.row_argmax(logits, ids=both[:, 1], values=values[:, 3])


@pytest.mark.parametrize("name", NAMES)
def test_meta_and_cpu_do_not_mix(name: str) -> None:
    call = next(call for call in valid_calls(name, 1) if call.is_op)
    for argument, value in call.arguments.items():
        if isinstance(value, torch.Tensor):
            mixed = Call(call.name, {**call.arguments, argument: value.to("meta")}, True)
            refused(mixed, f"{call.name}: .+: expected a tensor on ")


HUGE = 2**63 - 1


def test_huge_numbers_do_not_wrap() -> None:
    for causal in (False, True):
        wanted = op_call("block_attention", 1, window=0, causal=causal)
        got = op_call("block_attention", 1, window=HUGE, causal=causal)
        wanted(), got()
        assert torch.equal(wanted.arguments["out"], got.arguments["out"])
    # So many splits would have needed a workspace whose size is no 64-bit number.
    refused(
        op_call("block_attention", 3, num_splits=2**62, workspace=torch.empty(0, dtype=torch.uint8)),
        "block_attention: workspace: expected at least",
    )
    refused(op_call("lm_head_argmax", 2, vocab_offset=HUGE), "lm_head_argmax: vocab_offset: expected at most")
    refused(op_call("begin_block", 2, page_size=2**62), "begin_block: page_size: expected below")
    call = op_call("verify_sampled", 2)
    offset = torch.full_like(call.arguments["offset"], HUGE)
    refused(op_call("verify_sampled", 2, offset=offset), r"verify_sampled: offset\[0\]: expected at most")
    state = op_call("commit_block", 2, context_lens=torch.full((17,), 2**31 - 1, dtype=torch.int32))
    state.arguments["context_lens"] = torch.full_like(state.arguments["output_lens"], 2**31 - 1)
    refused(state, r"commit_block: context_lens\[\d+\]: expected 0 to")
    case = {"page_size": 4, "budget_tokens": HUGE, "sink_tokens": HUGE, "local_tokens": HUGE}
    select = op_call("select_pages", 1, **case)
    width = select.arguments["page_table"].shape[1]
    select.arguments["selected_pages"] = torch.empty(3, 2, width, dtype=torch.int32)
    select()
    assert select.arguments["selected_counts"].tolist() == [[15, 15], [0, 0], [5, 5]]
    masked = op_call("masked_block_attention", 3, block_size=HUGE)
    assert torch.equal(masked()[0], op_call("masked_block_attention", 3, block_size=40)()[0])


def test_sizes_that_no_memory_holds_are_named() -> None:
    """Shapes whose workspace has more bytes than an int64 counts, of tensors that take a few bytes themselves."""
    hidden = torch.zeros(1, 1).expand(67, 2**55)
    with pytest.raises(RuntimeError, match=r"memory|hidden"):
        dflash_ops.lm_head_argmax(hidden, torch.zeros(3, 8))
    # 4 rows of 2^59 columns, for caches without pages, are all that the checks want; 4 * 4 * 2^59 bytes would wrap to less
    # than the workspace has.
    columns = 2**59
    caches = [torch.zeros(0, 4, columns // 16, 8)]
    arguments = {
        "features": torch.zeros(4, 8),
        "kv_weight": torch.zeros(1, 1, 8).expand(1, columns, 8),
        "slot_mapping": torch.full((4,), -1),
        "k_caches": caches,
        "v_caches": [torch.zeros(0, 4, columns // 16, 8)],
        "workspace": torch.zeros(1 << 16, dtype=torch.uint8),
    }
    with pytest.raises(
        RuntimeError, match="project_context_kv: workspace: expected at least 9223372036854775807 bytes"
    ):
        dflash_ops.project_context_kv(**arguments)
    assert dflash_ops.block_attention_workspace_size(2**60, 1, 8, 2, 64, 2**62, 7) == 2**63 - 1


def test_modes_without_blocks_ignore_the_block_size() -> None:
    """Zero was divided by in the backward pass."""
    for mode in ("causal", "bidirectional"):
        grads = []
        for block_size in (1, 0, -(2**63)):
            q, k, v = (torch.arange(5 * 2 * 8.0).view(5, 2, 8).sin().requires_grad_() for _ in range(3))
            out, _ = dflash_ops.masked_block_attention(q, k, v, mode, block_size=block_size)
            grads.append(torch.autograd.grad(out.square().sum(), (q, k, v)))
        for other in grads[1:]:
            assert all(torch.equal(left, right) for left, right in zip(grads[0], other, strict=True))


def test_any_byte_but_zero_is_a_flag() -> None:
    """A bool tensor that is a view of bytes; loading such a byte as a bool was undefined."""
    for name, index in (("begin_block", 1), ("commit_block", 1)):
        call = op_call(name, index)
        flags = torch.ones(len(next(iter(call.arguments.values()))), dtype=torch.bool)
        plain = Call(name, {**call.arguments, "finished": flags}, True)
        odd = op_call(name, index)
        odd.arguments["finished"] = torch.full(flags.shape, 100, dtype=torch.uint8).view(torch.bool)
        plain(), odd()
        output = "input_ids" if name == "begin_block" else "committed"
        assert torch.equal(plain.arguments[output], odd.arguments[output])


def test_none_is_no_tensor() -> None:
    for name in NAMES:
        call = next(call for call in valid_calls(name, 1) if call.is_op)
        first = next(iter(call.arguments))
        refused(Call(call.name, {**call.arguments, first: None}, True), first)
    # Also where another argument is compared with it first.
    row_count = torch.zeros(1, dtype=torch.int32)
    refused(op_call("update_page_bounds", 1, slot_mapping=None, row_count=row_count), "slot_mapping: expected a tensor")
    caches = [torch.zeros(2, 4, 1, 8), None]
    with pytest.raises(TypeError, match=r"k_caches\[1\]: expected a tensor, got NoneType"):
        dflash_ops.update_page_bounds(caches, slot_mapping=torch.zeros(1, dtype=torch.int64), k_bounds=[])


@pytest.mark.parametrize("name", ["block_attention", "sparse_block_attention", "masked_block_attention"])
def test_heads_without_channels_are_refused_by_name(name: str) -> None:
    call = valid_calls(name, 1)[0]
    call.arguments["q"] = call.arguments["q"][..., :0]
    call.arguments["scale"] = None
    refused(call, f"{name}: q: expected head_dim")


def test_the_check_sees_what_an_op_must_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing outside of the outputs, writing before raising, another result for strides, an error without a name."""
    logits = torch.randn(3, 8)[:, :6]

    def run(broken: Any) -> str | None:
        monkeypatch.setattr(dflash_ops, "row_argmax", broken)
        ids = torch.zeros(3, 2, dtype=torch.int64)
        return check(Call("row_argmax", {"logits": logits.clone(), "ids": ids[:, 0]}, False))

    def beyond(logits: torch.Tensor, ids: torch.Tensor) -> None:
        (ids.as_strided((3, 2), (2, 1)) if ids.stride(0) == 2 else ids).fill_(5)

    def early(logits: torch.Tensor, ids: torch.Tensor) -> None:
        ids.fill_(5)
        raise RuntimeError("row_argmax: logits: expected others")

    def layout(logits: torch.Tensor, ids: torch.Tensor) -> None:
        ids.fill_(ids.stride(0))

    def nameless(logits: torch.Tensor, ids: torch.Tensor) -> None:
        raise RuntimeError("something is wrong")

    assert "outside" in str(run(beyond))
    assert "wrote to ids and then raised" in str(run(early))
    assert "gave another ids" in str(run(layout))
    assert "named no argument" in str(run(nameless))
