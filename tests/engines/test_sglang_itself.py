"""The SGLang adapter on SGLang's own token pool and request table, where SGLang is installed: as a rule it is not, see
docs/engines.md. No engine and no GPU are needed."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest
import torch

from dflash_ops.engines import attend
from dflash_ops.engines.sglang_layout import cache_view, engine_batch
from tests.engines.test_sglang_layout import MAX_CONTEXT, seq_lens
from tests.engines.world import CONTEXTS, HEAD_DIM, KV_HEADS, NEW, check, expected_attention, make_world

if importlib.util.find_spec("sglang") is None:
    pytest.skip("SGLang is not installed", allow_module_level=True)
LAYER = 1


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_attention_over_pools_of_sglang(page_size: int, causal: bool) -> None:
    module = importlib.import_module("sglang.srt.mem_cache.memory_pool")
    world = make_world(page_size)
    tokens = module.MHATokenToKVPool(
        size=(world.num_pages - 1) * page_size,
        page_size=page_size,
        dtype=torch.float32,
        head_num=KV_HEADS,
        head_dim=HEAD_DIM,
        layer_num=2,
        device="cpu",
        enable_memory_saver=False,
    )
    requests = module.ReqToTokenPool(size=8, max_context_len=MAX_CONTEXT, device="cpu", enable_memory_saver=False)
    rows = requests.alloc_rows(len(NEW))
    for request, row in enumerate(rows):
        slots = torch.tensor([world.slot(request, at) for at in range(CONTEXTS[request] + NEW[request])])
        requests.write((row, slice(0, len(slots))), slots.int())
        k, v = torch.from_numpy(world.k[request]), torch.from_numpy(world.v[request])
        tokens.set_kv_buffer(SimpleNamespace(layer_id=LAYER), slots, k, v)
    batch = engine_batch(
        requests.req_to_token,
        torch.tensor(rows),
        seq_lens(),
        torch.from_numpy(world.new_slots()),
        page_size=page_size,
        extend_seq_lens=torch.tensor(NEW),
    )
    k_cache = cache_view(tokens.get_key_buffer(LAYER), page_size)
    v_cache = cache_view(tokens.get_value_buffer(LAYER), page_size)
    out = attend(torch.from_numpy(world.q), *world.new_kv(), k_cache, v_cache, batch, causal=causal)
    check(out, expected_attention(world, causal))
