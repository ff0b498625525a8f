"""Puts a Hugging Face model's attention onto `block_attention` and our paged cache.

transformers lets a model's attention layers call any function registered under a name. Ours receives the projected,
normed and rotated q, k and v of all packed tokens; what else paged attention needs (page table, lengths, slots) goes
past the model in a `PagedBatch`, which `paged_batch` makes current around the model's forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

import dflash_ops
from dflash_decoding.cache import PagedKVCache
from dflash_decoding.workspace import Workspace

# The name must not contain "flash", or transformers takes it for FlashAttention and asks for that package. It is
# registered with AttentionInterface alone: models build no mask at all for a name that AttentionMaskInterface lacks.
ATTENTION_NAME = "paged_block"

# Arguments that models pass on to every attention function and that ask for nothing beyond what is computed here.
_IGNORED_ARGUMENTS = frozenset({"position_ids", "use_cache", "output_hidden_states", "output_router_logits"})


class UnsupportedTarget(ValueError):
    """The model has a feature that the paged attention does not compute."""


class LayerScratch(NamedTuple):
    """Outputs and workspace of one layer's ops."""

    out: Tensor
    lse: Tensor
    kv: Tensor
    workspace: Tensor


@dataclass
class PagedBatch:
    """What one packed forward needs beyond q, k and v; `Target.forward` gives the tensors' shapes.

    Attributes:
        windows: sliding window of each layer by the model's config, 0 for none.
        workspace: of the ops.
        visited: layers that have run, to find models whose layers do not all call the attention function.
    """

    cache: PagedKVCache
    page_table: Tensor
    context_lens: Tensor
    cu_block_lens: Tensor | None
    slot_mapping: Tensor
    windows: tuple[int, ...]
    workspace: Workspace
    visited: set[int] = field(default_factory=set)
    _scratch: dict[tuple[int, ...], LayerScratch] = field(default_factory=dict)

    def scratch(self, q: Tensor, k: Tensor) -> LayerScratch:
        """Tensors that all layers of this forward share: a layer is done with them before the next one starts."""
        (tokens, num_heads, head_dim), num_kv_heads = q.shape, k.shape[1]
        key = (num_heads, num_kv_heads, head_dim)
        if key not in self._scratch:
            max_context = self.page_table.shape[1] * self.cache.pool.page_size
            workspace_size = dflash_ops.block_attention_workspace_size(
                tokens, self.context_lens.shape[0], num_heads, num_kv_heads, head_dim, max_context, device=q.device
            )
            self._scratch[key] = LayerScratch(
                out=q.new_empty(q.shape),
                lse=q.new_empty(tokens, num_heads, dtype=torch.float32),
                kv=k.new_empty(tokens, 1, 2, num_kv_heads, head_dim),
                workspace=self.workspace.of(workspace_size),
            )
        return self._scratch[key]


_current_batch: ContextVar[PagedBatch | None] = ContextVar("dflash_paged_batch", default=None)


@contextmanager
def paged_batch(batch: PagedBatch) -> Iterator[PagedBatch]:
    """Makes `batch` the one that attention layers called inside the `with` block use."""
    token = _current_batch.set(batch)
    try:
        yield batch
    finally:
        _current_batch.reset(token)


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Causal attention of packed tokens over the paged context and over themselves; writes their K and V to the cache.

    Args:
        module: the attention layer; `layer_idx` names its cache.
        query: `[1, Hq, tokens, D]`, as transformers passes it; `key`, `value`: `[1, Hkv, tokens, D]`.
        attention_mask: None, as the structure of the mask follows from the current `PagedBatch`.
        scaling: factor of q.k, default D**-0.5.
        sliding_window: width W: a query at position p sees (p-W, p].
        softcap: logits become softcap * tanh(logits / softcap).
        s_aux: `[Hq]` attention sinks.

    Returns:
        `([1, tokens, Hq, D], None)`; the tensor is overwritten by the next layer.

    Raises:
        RuntimeError: there is no current batch.
        UnsupportedTarget: the layer asks for what `block_attention` does not compute.
    """
    batch = _current_batch.get()
    if batch is None:
        raise RuntimeError(f"attention '{ATTENTION_NAME}': expected to run inside Target.forward, got a direct call")
    layer = _layer_index(module, batch)
    if attention_mask is not None:
        raise UnsupportedTarget(f"layer {layer}: attention_mask: expected None, got a mask of the model's own")
    if is_causal is False or getattr(module, "is_causal", True) is False:
        raise UnsupportedTarget(f"layer {layer}: expected causal attention, got a bidirectional layer")
    if dropout:
        raise UnsupportedTarget(f"layer {layer}: dropout: expected 0, got {dropout}; call eval() on the model")
    if (sliding_window or 0) != batch.windows[layer]:
        raise UnsupportedTarget(
            f"layer {layer}: sliding_window: expected {batch.windows[layer]} by the config (0 is none), "
            f"got {sliding_window} from the layer"
        )
    unknown = sorted(
        name for name, argument in kwargs.items() if argument is not None and name not in _IGNORED_ARGUMENTS
    )
    if unknown:
        raise UnsupportedTarget(f"layer {layer}: expected no further attention arguments, got {', '.join(unknown)}")
    if key.shape != value.shape:
        raise UnsupportedTarget(
            f"layer {layer}: expected K and V of one shape, got {tuple(key.shape)} and {tuple(value.shape)}"
        )

    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    scratch = batch.scratch(q, k)
    dflash_ops.block_attention(
        q,
        k,
        v,
        batch.cache.k[layer],
        batch.cache.v[layer],
        batch.page_table,
        batch.context_lens,
        batch.cu_block_lens,
        scale=q.shape[-1] ** -0.5 if scaling is None else scaling,
        causal=True,
        window=batch.windows[layer],
        softcap=softcap or 0.0,
        sinks=None if s_aux is None else s_aux.float(),
        out=scratch.out,
        lse=scratch.lse,
        workspace=scratch.workspace,
    )
    # K and V leave the model as two tensors; the op that writes the cache takes them side by side.
    scratch.kv[:, 0, 0].copy_(k)
    scratch.kv[:, 0, 1].copy_(v)
    dflash_ops.write_context_kv(
        scratch.kv,
        k_norm_weight=None,
        cos_sin=None,
        positions=None,
        slot_mapping=batch.slot_mapping,
        k_caches=[batch.cache.k[layer]],
        v_caches=[batch.cache.v[layer]],
    )
    return scratch.out.unsqueeze(0), None


def _layer_index(module: nn.Module, batch: PagedBatch) -> int:
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int) or not 0 <= layer < batch.cache.num_layers:
        raise UnsupportedTarget(
            f"{type(module).__name__}: layer_idx: expected 0..{batch.cache.num_layers - 1}, got {layer}"
        )
    if layer in batch.visited:
        raise UnsupportedTarget(f"layer {layer}: expected one attention call in a forward, got a second one")
    batch.visited.add(layer)
    return layer


AttentionInterface.register(ATTENTION_NAME, paged_attention)
