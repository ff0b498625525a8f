"""block_attention against compositions of torch's scaled_dot_product_attention.

All see the context and the block's own rows. `sdpa_packed` is torch's fastest form: the GQA group hand-packed into
rows, K and V already gathered into contiguous tensors (which an engine with a paged cache does not have).
`sdpa_expanded` repeats K and V for every query head of the group, also beforehand. `gather_sdpa` gathers the
pages first, then runs the packed form. Two shapes also meet flex_attention and, on CUDA, other libraries (`baselines.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import dflash_ops
from benchmarks import baselines
from benchmarks.compare import Comparison, Maker, Run
from tests.cases.block_attention import Case


@dataclass(frozen=True)
class Shape:
    context: int
    block: int = 16
    q_heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    page_size: int = 16
    batch: int = 1

    def __str__(self) -> str:
        return (
            f"context {self.context}, batch {self.batch}, B {self.block}, heads {self.q_heads}/{self.kv_heads}, "
            f"dim {self.head_dim}, page {self.page_size}"
        )


SHAPES = [
    Shape(4096),
    Shape(32768),
    Shape(4096, block=8),
    Shape(32768, block=8),
    Shape(4096, page_size=64),
    Shape(4096, q_heads=24),
    Shape(4096, q_heads=64),
    Shape(32768, q_heads=64),
    Shape(4096, head_dim=64),
    Shape(32768, head_dim=64),
    Shape(4096, block=8, q_heads=9, kv_heads=3, head_dim=64),  # SmolLM2-135M
    Shape(1024, batch=8),
    Shape(512),
]
COMPARED_SHAPES = {SHAPES[0], SHAPES[1]}  # with other libraries too; flex_attention compiles for half a minute a shape


def compositions(inputs: dict[str, Tensor], shape: Shape) -> dict[str, Run]:
    batch, group = shape.batch, shape.q_heads // shape.kv_heads
    q = inputs["q"].view(batch, shape.block, shape.kv_heads, group, shape.head_dim)
    table = inputs["page_table"][:, : shape.context // shape.page_size]

    def packed_queries() -> Tensor:  # [batch, kv_heads, group * block, head_dim]
        return q.permute(0, 2, 3, 1, 4).reshape(batch, shape.kv_heads, group * shape.block, shape.head_dim)

    def unpacked(out: Tensor) -> Tensor:
        heads = out.view(batch, shape.kv_heads, group, shape.block, shape.head_dim)
        return heads.permute(0, 3, 1, 2, 4).reshape(-1, shape.q_heads, shape.head_dim)

    def gather(cache: Tensor, block: Tensor) -> Tensor:  # [batch, kv_heads, context + block, head_dim]
        pages = cache[table].flatten(1, 2)
        return torch.cat([pages, block.view(batch, shape.block, *block.shape[1:])], dim=1).transpose(1, 2)

    k = gather(inputs["k_cache"], inputs["k_block"]).contiguous()
    v = gather(inputs["v_cache"], inputs["v_block"]).contiguous()
    k_expanded, v_expanded = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)

    def sdpa_packed() -> Tensor:
        return unpacked(scaled_dot_product_attention(packed_queries(), k, v))

    def sdpa_expanded() -> Tensor:
        queries = q.flatten(2, 3).transpose(1, 2)
        return scaled_dot_product_attention(queries, k_expanded, v_expanded).transpose(1, 2).flatten(0, 1)

    def gather_sdpa() -> Tensor:
        keys = gather(inputs["k_cache"], inputs["k_block"])
        values = gather(inputs["v_cache"], inputs["v_block"])
        return unpacked(scaled_dot_product_attention(packed_queries(), keys, values))

    plain: dict[str, Run] = {"sdpa_packed": sdpa_packed, "sdpa_expanded": sdpa_expanded, "gather_sdpa": gather_sdpa}
    if shape in COMPARED_SHAPES:
        contexts, keys, values = (shape.context,) * batch, k.transpose(1, 2), v.transpose(1, 2)
        plain |= baselines.attention(inputs, contexts, shape.block, keys, values, baselines.absent(q.device))
    return plain


def comparisons() -> Iterator[Maker]:
    for shape in SHAPES:
        for dtype in (torch.bfloat16, torch.float32):
            yield partial(comparison, shape, dtype)


def comparison(shape: Shape, dtype: torch.dtype) -> Comparison:
    case = Case(
        (shape.context,) * shape.batch, shape.block, shape.q_heads, shape.kv_heads, shape.head_dim, shape.page_size
    )
    inputs = case.inputs(dtype)
    tokens = shape.batch * shape.block
    keys = shape.context + shape.block
    inputs["out"] = torch.empty_like(inputs["q"])
    inputs["lse"] = torch.empty(tokens, shape.q_heads)
    size = dflash_ops.block_attention_workspace_size(
        tokens,
        shape.batch,
        shape.q_heads,
        shape.kv_heads,
        shape.head_dim,
        inputs["page_table"].shape[1] * shape.page_size,
        device=inputs["q"].device,
    )
    inputs["workspace"] = torch.empty(size, dtype=torch.uint8)
    plain = compositions(inputs, shape)
    return Comparison(
        op="block_attention",
        shape=str(shape),
        dtype=str(dtype).removeprefix("torch."),
        ours=lambda: dflash_ops.block_attention(**inputs),
        plain=plain,
        flops=4.0 * tokens * keys * shape.q_heads * shape.head_dim,
        bytes=case.least_traffic(dtype).total,
        targets={
            "sdpa_packed": 1.5 if dtype == torch.bfloat16 else 1.2,
            "gather_sdpa": 4.0 if shape.context >= 32768 else 2.5,
        },
        compiled=frozenset({"flex"}),
    )
