"""masked_block_attention against torch's attention with a dense mask and against compiled flex_attention.

`sdpa` is scaled_dot_product_attention with a boolean mask [Q, K] built beforehand and, since its fused CPU kernel has
no grouped heads, K and V repeated for every query head of the group inside the timed step (the gradients of K and V
have to be summed over the group too). `flex` is flex_attention under torch.compile with its block mask built
beforehand, forward only: on the CPU it has no backward pass. `memory_report` counts what each holds on to.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import dflash_ops
from benchmarks.compare import Comparison, Maker
from tests.cases.masked_block_attention import Case, spread


@dataclass(frozen=True)
class Shape:
    context: int
    anchors: int
    block: int = 8
    q_heads: int = 9
    kv_heads: int = 3
    head_dim: int = 64

    def __str__(self) -> str:
        return (
            f"S {self.context}, {self.anchors} blocks of {self.block}, heads {self.q_heads}/{self.kv_heads}, "
            f"dim {self.head_dim}"
        )

    def case(self) -> Case:
        return Case(
            "anchor",
            self.context,
            self.block,
            spread(self.anchors, self.context),
            q_heads=self.q_heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
        )


SHAPES = [
    Shape(256, 64),
    Shape(512, 128),
    Shape(1024, 256),
    Shape(2048, 512),
    Shape(1024, 128, block=16, q_heads=32, kv_heads=8, head_dim=128),
]
FLEX_SHAPES = {SHAPES[2]}  # compiling takes half a minute a shape

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def dense_mask(case: Case) -> Tensor:
    """bool ``[Q, K]``, anchor mode without documents and windows."""
    anchor = torch.tensor(case.anchors).repeat_interleave(case.block_size)[:, None]
    block = torch.arange(len(case.anchors)).repeat_interleave(case.block_size)
    return torch.cat([torch.arange(case.context)[None] < anchor, block[:, None] == block[None]], dim=1)


def sdpa(case: Case) -> Attention:
    mask = dense_mask(case)
    group = case.q_heads // case.kv_heads

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads = [x.transpose(0, 1)[None] for x in (q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1))]
        return scaled_dot_product_attention(*heads, attn_mask=mask)[0].transpose(0, 1)

    return attend


def flex(case: Case) -> Attention:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    anchors = torch.tensor(case.anchors)
    context, block_size = case.context, case.block_size

    def visible(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        block = query // block_size
        return (key < anchors[block]) | ((key >= context) & ((key - context) // block_size == block))

    mask = create_block_mask(visible, None, None, case.queries, case.keys, device=anchors.device)
    compiled: Any = torch.compile(flex_attention, dynamic=False)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads = [x.transpose(0, 1)[None] for x in (q, k, v)]
        return compiled(*heads, block_mask=mask, enable_gqa=True)[0].transpose(0, 1)

    return attend


def ours(case: Case) -> Attention:
    options = case.options()
    return lambda q, k, v: dflash_ops.masked_block_attention(q, k, v, **options)[0]


def forward(attention: Attention, tensors: tuple[Tensor, ...]) -> Callable[[], Tensor]:
    q, k, v, _ = tensors
    return lambda: attention(q, k, v)


def step(attention: Attention, tensors: tuple[Tensor, ...]) -> Callable[[], tuple[Tensor, ...]]:
    """Forward and backward."""
    *inputs, grad_out = tensors
    leaves = [x.detach().requires_grad_() for x in inputs]
    return lambda: torch.autograd.grad(attention(*leaves), leaves, grad_out)


def visible_pairs(case: Case) -> int:
    return case.block_size * sum(anchor + case.block_size for anchor in case.anchors)


def comparisons() -> Iterator[Maker]:
    for shape in SHAPES:
        case = shape.case()
        for dtype in (torch.float32, torch.bfloat16):
            yield partial(comparison, shape, case, dtype)
            yield partial(comparison_with_backward, shape, case, dtype)


def comparison(shape: Shape, case: Case, dtype: torch.dtype) -> Comparison:
    tensors = case.tensors(dtype)
    plain = {"sdpa": forward(sdpa(case), tensors)}
    if shape in FLEX_SHAPES and dtype == torch.float32:
        plain["flex"] = forward(flex(case), tensors)
    return Comparison(
        op="masked_block_attention",
        shape=f"{shape}, forward",
        dtype=str(dtype).removeprefix("torch."),
        ours=forward(ours(case), tensors),
        plain=plain,
        flops=4.0 * visible_pairs(case) * case.q_heads * case.head_dim,
        bytes=case.least_traffic(dtype).total,
        targets=dict.fromkeys(plain, 1.0),
        compiled=frozenset({"flex"}),
    )


def comparison_with_backward(shape: Shape, case: Case, dtype: torch.dtype) -> Comparison:
    tensors = case.tensors(dtype)
    return Comparison(
        op="masked_block_attention",
        shape=f"{shape}, forward + backward",
        dtype=str(dtype).removeprefix("torch."),
        ours=step(ours(case), tensors),
        plain={"sdpa": step(sdpa(case), tensors)},
        flops=14.0 * visible_pairs(case) * case.q_heads * case.head_dim,
        bytes=case.least_traffic(dtype).total + case.least_backward_traffic(dtype).total,
        targets={"sdpa": 1.0},
    )


def peak_memory(run: Callable[[], object]) -> int:
    """Bytes by which resident memory rises above its level before `run`, at most, watched every millisecond."""
    page = 4096
    statm = Path("/proc/self/statm")

    def resident() -> int:
        return int(statm.read_text().split()[1]) * page

    before, peak, done = resident(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, resident())
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    run()
    done.set()
    watcher.join()
    return peak - before


def main() -> None:
    """Prints peak memory of forward + backward, each measured in this process's first call of it."""
    for shape in SHAPES:
        case = shape.case()
        tensors = case.tensors(torch.float32)
        mine = peak_memory(step(ours(case), tensors))
        dense = peak_memory(step(sdpa(case), tensors))
        print(f"{shape}: peak memory of forward + backward {mine / 2**20:.0f} MiB, sdpa {dense / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
