"""The vLLM plugin with vLLM's own classes, where vLLM is installed: as a rule it is not, see docs/engines.md.

No engine and no GPU are needed: the layer is built and called as vLLM does it, on the CPU.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from dflash_ops.engines.vllm_plugin import register
from tests.engines.test_vllm_layout import fill, metadata, new_cache
from tests.engines.world import HEAD_DIM, KV_HEADS, NEW, Q_HEADS, check, expected_attention, make_world

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed", allow_module_level=True)


def backend_class() -> Any:
    """What the registry of vLLM holds after the plugin's entry point was called."""
    register()
    registry = importlib.import_module("vllm.v1.attention.backends.registry")
    return registry.AttentionBackendEnum.CUSTOM.get_class()


def new_layer(**changes: Any) -> Any:
    arguments = {
        "num_heads": Q_HEADS,
        "head_size": HEAD_DIM,
        "scale": HEAD_DIM**-0.5,
        "num_kv_heads": KV_HEADS,
        "alibi_slopes": None,
        "sliding_window": None,
        "kv_cache_dtype": "auto",
    }
    return backend_class().get_impl_cls()(**(arguments | changes))


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("layout", ["packed NHD", "packed HND"])
def test_a_layer_attends_over_a_cache_of_vllm(layout: str, causal: bool, window: int | None) -> None:
    module = importlib.import_module("vllm.v1.attention.backends.flash_attn")
    world = make_world(16)
    cache = new_cache(layout, world.num_pages)
    fill(cache, layout, world, new_too=True)
    starts, lens, table, slots = metadata(world, padded=1)
    batch = module.FlashAttentionMetadata(
        num_actual_tokens=sum(NEW),
        max_query_len=max(NEW),
        query_start_loc=starts,
        max_seq_len=int(lens.max()),
        seq_lens=lens,
        block_table=table,
        slot_mapping=slots,
        causal=causal,
    )
    q, (k, v) = torch.from_numpy(world.q), world.new_kv()
    output = torch.full((sum(NEW) + 2, Q_HEADS, HEAD_DIM), 7.0)
    padded = [torch.cat([tensor, torch.full_like(tensor[:2], torch.nan)]) for tensor in (q, k, v)]
    new_layer(sliding_window=window).forward(torch.nn.Module(), *padded, cache, batch, output=output)
    check(output[: sum(NEW)], expected_attention(world, causal, window or 0))
    assert output[sum(NEW) :].eq(7).all()


@pytest.mark.parametrize(
    ("head_size", "block_size", "cache_dtype", "accepted"),
    [(128, 16, "auto", True), (64, 256, "bfloat16", True), (80, 16, "auto", False), (128, 24, "auto", False),
     (128, 16, "fp8", False)],
)  # fmt: skip
def test_vllm_is_told_what_the_kernels_take(head_size: int, block_size: int, cache_dtype: str, accepted: bool) -> None:
    backend = backend_class()
    told = (
        backend.supports_head_size(head_size)
        and backend.supports_block_size(block_size)
        and backend.supports_kv_cache_dtype(cache_dtype)
    )
    assert told == accepted
    assert not backend.supports_mm_prefix()
    assert not backend.supports_dcp()
    assert backend.supports_attn_type("decoder")
    assert not backend.supports_attn_type("encoder")


def test_alibi_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="without ALiBi"):
        new_layer(alibi_slopes=[1.0] * Q_HEADS)
