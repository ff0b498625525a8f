"""What ops are compared with beside plain torch: other libraries' kernels, where they can run, and why not elsewhere."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.compare import Comparison, Run

Finder = Callable[[str], object]
NEEDS_CUDA = ("flash_attn", "flashinfer", "triton")


def absent(device: torch.device, find: Finder = importlib.util.find_spec) -> dict[str, str]:
    """Baselines by the name of their module that cannot run here, and why."""
    reasons = {}
    for name in NEEDS_CUDA:
        if device.type != "cuda":
            reasons[name] = "has no CPU kernels"
        elif find(name) is None:
            reasons[name] = "is not installed"
    return reasons


def add_triton(comparison: Comparison) -> None:
    """Every composition also compiled by torch's inductor, which writes Triton kernels on CUDA."""
    for name, run in list(comparison.plain.items()):
        if name in comparison.compiled or name in NEEDS_CUDA:
            continue
        comparison.plain[f"{name}_triton"] = torch.compile(run, dynamic=False)
        if name in comparison.other_results:
            comparison.other_results[f"{name}_triton"] = comparison.other_results[name]


def attention(
    inputs: dict[str, Any], contexts: tuple[int, ...], block: int, k: Tensor, v: Tensor, away: dict[str, str]
) -> dict[str, Run]:
    """For inputs of block_attention whose rows see all keys; k and v [batch, keys, kv_heads, dim] hold them gathered.
    Results are [batch * block, q_heads, dim]."""
    q = inputs["q"].view(len(contexts), block, *inputs["q"].shape[1:])
    runs: dict[str, Run] = {"flex": flex(q, k, v)}
    if q.dtype == torch.float32:  # neither library has kernels for it
        return runs
    if "flash_attn" not in away:
        runs["flash_attn"] = flash_attention(q, k, v)
    if "flashinfer" not in away:
        runs["flashinfer"] = flash_infer(inputs, contexts, block)
    return runs


def flex(q: Tensor, k: Tensor, v: Tensor) -> Callable[[], Tensor]:
    """flex_attention under torch.compile."""
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Any = torch.compile(flex_attention, dynamic=False)
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    return lambda: compiled(*heads, enable_gqa=True).transpose(1, 2).flatten(0, 1)


def flash_attention(q: Tensor, k: Tensor, v: Tensor) -> Callable[[], Tensor]:
    """FlashAttention 2 on gathered keys: its pages have a multiple of 256 rows."""
    import flash_attn

    return lambda: flash_attn.flash_attn_func(q, k, v, causal=False).flatten(0, 1)


def flash_infer(inputs: dict[str, Any], contexts: tuple[int, ...], block: int) -> Callable[[], Tensor]:
    """FlashInfer's prefill over the paged cache. It takes the block's rows from the cache too: they lie in pages of their
    own behind each context, which is a multiple of the page size. Planned beforehand."""
    import flashinfer

    q = inputs["q"]
    _, page_size, kv_heads, head_dim = inputs["k_cache"].shape
    k_cache, v_cache, pages = with_block_pages(inputs, contexts, block)
    per_request = [context // page_size + -(-block // page_size) for context in contexts]
    workspace = torch.empty(128 << 20, dtype=torch.uint8, device=q.device)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
    wrapper.plan(
        torch.arange(len(contexts) + 1, dtype=torch.int32, device=q.device) * block,
        torch.tensor([0, *per_request], device=q.device).cumsum(0).int(),
        pages,
        torch.full((len(contexts),), (block - 1) % page_size + 1, dtype=torch.int32, device=q.device),
        q.shape[1],
        kv_heads,
        head_dim,
        page_size,
        causal=False,
        q_data_type=q.dtype,
        kv_data_type=q.dtype,
    )
    return lambda: wrapper.run(q, (k_cache, v_cache))


def with_block_pages(inputs: dict[str, Any], contexts: tuple[int, ...], block: int) -> tuple[Tensor, Tensor, Tensor]:
    """(k_cache, v_cache, page ids of all requests one after the other), with the block's rows in pages behind the cache."""
    page_size = inputs["k_cache"].shape[1]
    own = -(-block // page_size)  # pages of a request's block
    first = len(inputs["k_cache"])
    caches = []
    for name in ("k", "v"):
        rows = inputs[f"{name}_block"].view(len(contexts), block, *inputs[f"{name}_block"].shape[1:])
        pages = rows.new_zeros(len(contexts), own * page_size, *rows.shape[2:])
        pages[:, :block] = rows
        caches.append(torch.cat([inputs[f"{name}_cache"], pages.view(-1, page_size, *rows.shape[2:])]))
    ids = []
    for request, context in enumerate(contexts):
        ids.append(inputs["page_table"][request, : context // page_size])
        begin = first + own * request
        ids.append(torch.arange(begin, begin + own, dtype=torch.int32, device=inputs["page_table"].device))
    return caches[0], caches[1], torch.cat(ids)
