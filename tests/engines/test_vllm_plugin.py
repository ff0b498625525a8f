"""The vLLM plugin against stand-ins that have the names and the calls of vLLM's V1 engine.

What is checked is what our class does with the arguments that vLLM gives it; test_vllm_itself.py has vLLM's own classes.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import tomllib
import torch

from tests.engines.test_vllm_layout import fill, metadata, new_cache
from tests.engines.world import HEAD_DIM, NEW, check, expected_attention, make_world
from tests.test_build import ROOT

BACKEND = "dflash_ops.engines.vllm_backend"  # imported anew, on whatever vLLM there is


class StubImpl:
    """The attributes that vLLM's FlashAttentionImpl sets from its layer."""

    def __init__(self, **changes: Any) -> None:
        values: dict[str, Any] = {
            "scale": HEAD_DIM**-0.5,
            "alibi_slopes": None,
            "sliding_window": (-1, -1),
            "kv_cache_dtype": "auto",
            "logits_soft_cap": 0,
            "attn_type": "decoder",
            "sinks": None,
        }
        self.__dict__.update(values | changes)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Stand-ins for vLLM's modules; what was registered, by name."""
    names: dict[str, str] = {}
    registry = types.ModuleType("vllm.v1.attention.backends.registry")
    registry.__dict__.update(
        AttentionBackendEnum=SimpleNamespace(CUSTOM="CUSTOM"),
        register_backend=lambda backend, path: names.update({backend: path}),
    )
    flash_attn = types.ModuleType("vllm.v1.attention.backends.flash_attn")
    flash_attn.__dict__.update(FlashAttentionBackend=object, FlashAttentionImpl=StubImpl)
    for package in ("vllm", "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.backends"):
        monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
    for module in (registry, flash_attn):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    sys.modules.pop(BACKEND, None)
    yield names
    sys.modules.pop(BACKEND, None)


def backend_class(registered: dict[str, str]) -> Any:
    """What vLLM ends up with: the entry point called, the class path resolved."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["vllm.general_plugins"]
    module, function = points["dflash_ops"].split(":")
    getattr(importlib.import_module(module), function)()
    path, _, name = registered["CUSTOM"].rpartition(".")
    return getattr(importlib.import_module(path), name)


@pytest.mark.parametrize("layout", ["packed HND", "sides HND"])
@pytest.mark.parametrize(("causal", "reach"), [(True, (-1, -1)), (True, (6, 0)), (False, (6, 6)), (False, (6, 0))])
def test_forward_fills_the_output_and_leaves_padding(
    registered: dict[str, str], causal: bool, reach: tuple[int, int], layout: str
) -> None:
    world = make_world(16)
    cache = new_cache(layout, world.num_pages)
    fill(cache, layout, world, new_too=True)
    starts, lens, table, slots = metadata(world, padded=1)
    layer = backend_class(registered).get_impl_cls()(sliding_window=reach)
    q, (k, v) = torch.from_numpy(world.q), world.new_kv()
    padded = [torch.cat([tensor, torch.full_like(tensor[:2], torch.nan)]) for tensor in (q, k, v)]
    output = torch.full_like(padded[0], 7.0)
    for _ in range(2):  # the second time on the workspace of the first
        layer.forward(
            torch.nn.Module(),
            *padded,
            cache,
            SimpleNamespace(
                num_actual_tokens=sum(NEW),
                query_start_loc=starts,
                seq_lens=lens,
                block_table=table,
                slot_mapping=slots,
                causal=causal,
                use_cascade=False,
            ),
            output=output,
        )
        check(output[: sum(NEW)], expected_attention(world, causal, 0 if reach == (-1, -1) else 7))
    assert output[sum(NEW) :].eq(7).all()


def test_a_profiling_run_gives_zeros(registered: dict[str, str]) -> None:
    layer = backend_class(registered).get_impl_cls()()
    output = torch.full((2, 4, HEAD_DIM), 7.0)
    layer.forward(torch.nn.Module(), output, output, output, torch.empty(0), None, output=output)
    assert output.eq(0).all()


@pytest.mark.parametrize(
    "changes",
    [{"alibi_slopes": [1.0]}, {"attn_type": "encoder_only"}, {"kv_cache_dtype": "fp8_e4m3"}, {"dcp_world_size": 2}],
    ids=lambda changes: next(iter(changes)),
)
def test_layers_that_the_op_cannot_serve_are_refused(registered: dict[str, str], changes: dict[str, Any]) -> None:
    with pytest.raises(NotImplementedError, match="expected a decoder layer without"):
        backend_class(registered).get_impl_cls()(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"causal": torch.ones(4, dtype=torch.bool)},
        {"mm_prefix_query_range_tensor": torch.zeros(4, 2)},
        {"rswa_prefix_lens": torch.zeros(4)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_batches_that_the_op_cannot_serve_are_refused(registered: dict[str, str], changes: dict[str, Any]) -> None:
    layer = backend_class(registered).get_impl_cls()()
    metadata = SimpleNamespace(**({"num_actual_tokens": 4, "causal": True} | changes))
    some = torch.empty(4, 4, HEAD_DIM)
    with pytest.raises(NotImplementedError, match="expected a batch without"):
        layer.forward(torch.nn.Module(), some, some, some, torch.empty(0), metadata, output=some)


def test_its_block_sizes_are_the_ops(registered: dict[str, str]) -> None:
    sizes = backend_class(registered).get_supported_kernel_block_sizes()
    assert all(size & (size - 1) == 0 and 16 <= size <= 256 for size in sizes)
    assert backend_class(registered).get_name() == "CUSTOM"
