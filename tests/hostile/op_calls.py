"""Valid calls of every op, small, from the cases that tests and benchmarks share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import dflash_ops
from tests.cases import (
    begin_block,
    block_attention,
    commit_block,
    fuse_features,
    lm_head_argmax,
    masked_block_attention,
    norm_rope_qkv,
    page_selection,
    project_context_kv,
    remask,
    row_argmax,
    update_page_bounds,
    verify,
    write_context_kv,
)

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
Arguments = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """`name` of a function of `dflash_ops`, or of an op of `torch.ops.dflash_ops`, and its arguments by name."""

    name: str
    arguments: Arguments
    is_op: bool

    def __call__(self) -> Any:
        if not self.is_op:
            return getattr(dflash_ops, self.name)(**self.arguments)
        return operator(self.name)(**self.arguments)


def operator(name: str) -> Any:
    return getattr(torch.ops.dflash_ops, name).default


def tensors_of(value: Any) -> list[Tensor]:
    """Every tensor in an argument: itself, those of a list, or none."""
    if isinstance(value, Tensor):
        return [value]
    return [entry for entry in value if isinstance(entry, Tensor)] if isinstance(value, list) else []


def copied(arguments: Arguments) -> Arguments:
    """The same values in new storages; strides, offsets and who shares memory with whom stay."""
    storages: dict[int, torch.UntypedStorage] = {}

    def copy(value: Any) -> Any:
        if isinstance(value, list):
            return [copy(entry) for entry in value]
        if not isinstance(value, Tensor) or value.is_meta:
            return value
        storage = value.untyped_storage()
        mine = storages.setdefault(storage._cdata, storage.clone())
        new = torch.empty(0, dtype=value.dtype)
        return new.set_(mine, value.storage_offset(), value.shape, value.stride())  # type: ignore[call-overload]

    return {name: copy(value) for name, value in arguments.items()}


class _Recorder(TorchDispatchMode):
    """Keeps the op calls that a function of `dflash_ops` makes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func.namespace == "dflash_ops":
            names = [argument.name for argument in func._schema.arguments]
            arguments = dict(zip(names, args, strict=False)) | dict(kwargs or {})
            self.calls.append(Call(func._schema.name.split("::")[1], copied(arguments), True))
        return func(*args, **(kwargs or {}))


def valid_calls(name: str, index: int) -> list[Call]:
    """Function `name` of `dflash_ops` with the arguments of its case number `index` (any number), and the ops below it.

    Everything is new with each call, so the arguments may be changed at will.
    """
    makers = list(_MAKERS[name]())
    call = Call(name, makers[index % len(makers)](), False)
    if name == "masked_block_attention":
        return [call, *_masked_ops(call.arguments)]
    with _Recorder() as recorder:
        Call(name, copied(call.arguments), False)()
    return [call, *recorder.calls]


def _masked_ops(arguments: Arguments) -> list[Call]:
    """The op with and without outputs, and its backward."""
    arguments = copied(arguments)
    leaves = [arguments[part].requires_grad_() for part in "qkv"]
    with _Recorder() as recorder:
        out, _ = dflash_ops.masked_block_attention(**arguments)
        torch.autograd.grad(out, leaves, torch.ones_like(out))
    whole, backward = recorder.calls
    outputs = {"out": torch.empty_like(out), "lse": out.new_empty(out.shape[:2], dtype=F32)}
    forward = Call("masked_block_attention_forward", copied(whole.arguments) | copied(outputs), True)
    return [whole, forward, backward]


def _begin_block() -> Iterator[Callable[[], Arguments]]:
    def make(case: begin_block.Case) -> Arguments:
        next_token, context_lens, page_table = case.state()
        finished = torch.arange(case.batch) % 2 == 0 if case.block % 2 else None
        return {
            **{"next_token": next_token, "context_lens": context_lens, "page_table": page_table},
            **{"page_size": case.page_size, "mask_token_id": 7, "block_size": case.block, "finished": finished},
        }

    for case in begin_block.CASES:
        yield lambda case=case: make(case)  # type: ignore[misc]


def _block_attention() -> Iterator[Callable[[], Arguments]]:
    attention = block_attention.Case
    cases = [
        attention((), 0),
        attention((0, 5, 0), (3, 0, 8), head_dim=8),
        attention((20, 3), 4, head_dim=16, page_size=4, has_sinks=True, options={"causal": True, "window": 6}),
        attention((30, 17), (5, 2), head_dim=24, layout="heads_first", options={"num_splits": 3, "softcap": 5.0}),
        attention((9,), 3, q_heads=3, kv_heads=1, head_dim=8, page_size=1, layout="uneven", slack_rows=0),
    ]
    for case, dtype in zip(cases, (F32, F16, BF16, F32, BF16), strict=True):
        yield lambda case=case, dtype=dtype: case.inputs(dtype)  # type: ignore[misc]


def _commit_block() -> Iterator[Callable[[], Arguments]]:
    def make(seed: int) -> Arguments:
        batch, block, capacity = commit_block.SHAPES[seed % 3]
        inputs, state = commit_block.round_state(
            batch, block, capacity, seed, stops=[3, 5] if seed % 2 else None, bounded=seed % 3 == 0
        )
        return dict(zip(("tokens", "accepted", "slot_mapping"), inputs, strict=True)) | state

    for seed in range(6):
        yield lambda seed=seed: make(seed)  # type: ignore[misc]


def _fuse_features() -> Iterator[Callable[[], Arguments]]:
    cases = [case for case in fuse_features.CASES if case.columns * case.tap_columns < 4000]
    for number, case in enumerate(cases):
        yield lambda case=case, dtype=(F32, BF16, F16)[number % 3]: case.arguments(dtype)  # type: ignore[misc]


def _lm_head_argmax() -> Iterator[Callable[[], Arguments]]:
    def make(case: lm_head_argmax.Case, dtype: torch.dtype) -> Arguments:
        hidden, weight = case.operands(dtype)
        return {"hidden": hidden, "weight": weight, "vocab_offset": case.vocab_offset, "softcap": case.softcap}

    cases = [case for case in lm_head_argmax.CASES if case.hidden_size * case.vocab_size < 40000]
    for number, case in enumerate(cases):
        yield lambda case=case, dtype=(F32, BF16, F16)[number % 3]: make(case, dtype)  # type: ignore[misc]


def _masked_block_attention() -> Iterator[Callable[[], Arguments]]:
    def make(case: masked_block_attention.Case, dtype: torch.dtype) -> Arguments:
        q, k, v, _ = case.tensors(dtype)
        return {"q": q, "k": k, "v": v, **case.options()}

    masked = masked_block_attention.Case
    cases = [
        masked("anchor", 9, 4, head_dim=8),
        masked("anchor", 40, 3, (10, -1, 40, 7), (0, 13, 40), q_heads=4, kv_heads=2, head_dim=8),
        masked("anchor", 30, 5, (30, 12, 0), causal=True, window=4, head_dim=16),
        masked("block_causal", 30, 7, documents=(0, 3, 28), head_dim=8),
        masked("bidirectional", 20, documents=(0,), head_dim=8),
        masked("causal", 33, documents=(0, 20, 33), window=9, head_dim=24, q_heads=3),
    ]
    for number, case in enumerate(cases):
        yield lambda case=case, dtype=(F32, BF16, F16)[number % 3]: make(case, dtype)  # type: ignore[misc]


def _norm_rope_qkv() -> Iterator[Callable[[], Arguments]]:
    def make(case: norm_rope_qkv.Case, dtype: torch.dtype) -> Arguments:
        heads = {"num_q_heads": case.q_heads, "num_kv_heads": case.kv_heads}
        return case.arguments(dtype) | heads

    rows = norm_rope_qkv.Case
    cases = [
        rows(0, 2, 1, 8),
        rows(3, 4, 2, 8, row_slack=3, max_positions=20),
        rows(4, 3, 1, 10, rotary_dim=6, interleaved=True, k_norm=False, max_positions=9),
        rows(2, 2, 2, 7, rotary_dim=0),
    ]
    for number, case in enumerate(cases):
        yield lambda case=case, dtype=(F32, BF16, F16)[number % 3]: make(case, dtype)  # type: ignore[misc]


def _context_cases() -> list[write_context_kv.Case]:
    rows = write_context_kv.Case
    return [
        rows(0, 2, 2, 8, max_positions=30),
        rows(3, 2, 3, 8, skip_every=2, cache_layout="halves", max_positions=30),
        rows(7, 3, 2, 16, page_size=4, slack_rows=2, cache_layout="interleaved heads first", max_positions=30),
        rows(5, 1, 2, 9, rotary_dim=6, interleaved=True, cache_layout="padded", max_positions=30),
        rows(4, 2, 1, 8, rotary_dim=0, norm=False, page_size=1),
    ]


def _with_caches(case: write_context_kv.Case, arguments: Arguments, dtype: torch.dtype, bounds: bool) -> Arguments:
    k_caches, v_caches = case.caches(dtype)
    k_bounds = case.bounds(dtype) if bounds else None
    return arguments | {"k_caches": k_caches, "v_caches": v_caches, "k_bounds": k_bounds}


def _project_context_kv() -> Iterator[Callable[[], Arguments]]:
    for number, write in enumerate(_context_cases()):
        case = project_context_kv.Case(5 + number, write, bias=number % 2 == 0, weight_slack=number % 3)
        dtype = (F32, BF16, F16)[number % 3]
        yield lambda case=case, dtype=dtype, bounds=number % 2 == 1: _with_caches(  # type: ignore[misc]
            case.write, case.arguments(dtype), dtype, bounds
        )


def _write_context_kv() -> Iterator[Callable[[], Arguments]]:
    for number, case in enumerate(_context_cases()):
        dtype = (BF16, F32, F16)[number % 3]
        yield lambda case=case, dtype=dtype, bounds=number % 2 == 0: _with_caches(  # type: ignore[misc]
            case, case.arguments(dtype), F32 if dtype == F16 else dtype, bounds
        )


def _update_page_bounds() -> Iterator[Callable[[], Arguments]]:
    bounds = update_page_bounds.Case
    cases = [
        bounds((0,), (0,), head_dim=8),
        bounds((0, 5, 30), (3, 1, 20), head_dim=8),
        bounds((7, 0), (9, 12), page_size=4, head_dim=9, skips=True, layout="heads first", slack_rows=2),
        bounds((3,), (5,), page_size=1, head_dim=16, layers=1),
    ]
    for number, case in enumerate(cases):
        yield lambda case=case, dtype=(F32, BF16, F16)[number % 3]: case.arguments(dtype)  # type: ignore[misc]


def _remask() -> Iterator[Callable[[], Arguments]]:
    def make(shape: tuple[int, int, int], dtype: torch.dtype) -> Arguments:
        logits, tokens, keep = remask.inputs(*shape, dtype)
        return {"logits": logits, "tokens": tokens, "mask_token_id": remask.MASK, "keep": keep}

    for number, shape in enumerate([(0, 4, 9), (1, 1, 8), (3, 6, 40), (2, 5, 6)]):
        yield lambda shape=shape, dtype=(F32, BF16, F16)[number % 3]: make(shape, dtype)  # type: ignore[misc]


def _row_argmax() -> Iterator[Callable[[], Arguments]]:
    cases = [case for case in row_argmax.CASES if case.columns < 2000]
    for number, case in enumerate(cases):
        dtype = (F32, BF16, F16)[number % 3]
        yield lambda case=case, dtype=dtype: {"logits": case.logits(dtype)}  # type: ignore[misc]


def _selection_cases() -> list[page_selection.Case]:
    attention = block_attention.Case
    return [
        page_selection.Case(attention((), 0), 64),
        page_selection.Case(attention((60, 0, 17), (3, 1, 0), head_dim=8, page_size=4), 24, sink=1, local=5),
        page_selection.Case(attention((50,), 4, q_heads=3, kv_heads=1, head_dim=16, page_size=2), 20, sink=2, local=4),
        page_selection.Case(attention((33, 40), 2, head_dim=8, page_size=8, has_sinks=True), 0, sink=9, local=9),
    ]


def _select_pages() -> Iterator[Callable[[], Arguments]]:
    for number, case in enumerate(_selection_cases()):
        yield lambda case=case, dtype=(F32, BF16, F16)[number % 3]: case.inputs(dtype)  # type: ignore[misc]


def _sparse_block_attention() -> Iterator[Callable[[], Arguments]]:
    def make(case: page_selection.Case, dtype: torch.dtype) -> Arguments:
        pages, counts = dflash_ops.select_pages(**case.inputs(dtype))
        return case.attention.inputs(dtype) | {"selected_pages": pages, "selected_counts": counts}

    for number, case in enumerate(_selection_cases()):
        yield lambda case=case, dtype=(F32, BF16, F16)[number % 3]: make(case, dtype)  # type: ignore[misc]


def _verify_cases() -> list[verify.Case]:
    return [case for case in verify.CASES if case.vocabulary <= 1000]


def _verify_greedy() -> Iterator[Callable[[], Arguments]]:
    def make(case: verify.Case, dtype: torch.dtype, from_ids: bool) -> Arguments:
        logits = case.logits(dtype)
        ids = logits.argmax(-1)
        targets = {"target_ids": ids} if from_ids else {"target_logits": logits}
        return {"draft_tokens": case.drafts_matching(ids), "draft_lens": case.draft_lens(), **targets}

    for number, case in enumerate(_verify_cases()):
        dtype = (F32, BF16, F16)[number % 3]
        yield lambda case=case, dtype=dtype, ids=number % 2 == 1: make(case, dtype, ids)  # type: ignore[misc]


def _verify_sampled() -> Iterator[Callable[[], Arguments]]:
    def make(case: verify.Case, dtype: torch.dtype) -> Arguments:
        logits = case.logits(dtype)
        drafts = case.drafts_matching(logits.argmax(-1))
        sampling = verify.sampling_parameters(case.batch)
        return {"draft_tokens": drafts, "draft_lens": case.draft_lens(), "target_logits": logits, **sampling}

    for number, case in enumerate(_verify_cases()):
        yield lambda case=case, dtype=(F32, BF16, F16)[number % 3]: make(case, dtype)  # type: ignore[misc]


_MAKERS: dict[str, Callable[[], Iterator[Callable[[], Arguments]]]] = {
    "begin_block": _begin_block,
    "block_attention": _block_attention,
    "commit_block": _commit_block,
    "fuse_features": _fuse_features,
    "lm_head_argmax": _lm_head_argmax,
    "masked_block_attention": _masked_block_attention,
    "norm_rope_qkv": _norm_rope_qkv,
    "project_context_kv": _project_context_kv,
    "remask": _remask,
    "row_argmax": _row_argmax,
    "select_pages": _select_pages,
    "sparse_block_attention": _sparse_block_attention,
    "update_page_bounds": _update_page_bounds,
    "verify_greedy": _verify_greedy,
    "verify_sampled": _verify_sampled,
    "write_context_kv": _write_context_kv,
}
NAMES = tuple(_MAKERS)
