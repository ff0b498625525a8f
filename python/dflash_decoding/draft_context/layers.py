"""The layers of a drafter as its context sees them: K/V from fused features, and attention over paged K/V."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import dflash_ops
from dflash_decoding.config import DraftConfig
from dflash_decoding.drafter_weights import BlockBuffers, SharedWeights
from dflash_decoding.workspace import Workspace


class ContextLayers:
    """What is the same for all kinds of draft caches: the weights that make K/V, and the call of the attention.

    Attributes:
        config: of the drafter.
        dtype: of K, V and features.
        workspace: scratch memory of the drafter's ops.
        scale: of the attention's logits.
    """

    def __init__(
        self, config: DraftConfig, weights: SharedWeights, cos_sin: Tensor, workspace: Workspace, dtype: torch.dtype
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.workspace = workspace
        self.scale = config.head_dim**-0.5
        self._weights = weights
        self._cos_sin = cos_sin

    def project(
        self,
        rows: Tensor,
        positions: Tensor,
        slot_mapping: Tensor,
        k_caches: Sequence[Tensor],
        v_caches: Sequence[Tensor],
        *,
        first_layer: int = 0,
        k_bounds: Sequence[Tensor] | None = None,
    ) -> None:
        """Writes K/V of `len(k_caches)` layers from rows [n, H], which go into K and V as they are, to their slots.

        Args:
            positions, slot_mapping: int64 [n]; rows with slot -1 are skipped.
            first_layer: the layer of `k_caches[0]`.
            k_bounds: page bounds to keep up to date, one tensor per layer.
        """
        layers = slice(first_layer, first_layer + len(k_caches))
        weights = self._weights
        kv_weight = weights.kv_weight[layers]
        size = dflash_ops.project_context_kv_workspace_size(
            rows.shape[0], self.config.hidden_size, kv_weight.shape[:2].numel(), device=rows.device
        )
        dflash_ops.project_context_kv(
            rows,
            kv_weight,
            kv_bias=None if weights.kv_bias is None else weights.kv_bias[layers],
            k_norm_weight=weights.k_norm_weight[layers],
            cos_sin=self._cos_sin,
            positions=positions,
            slot_mapping=slot_mapping,
            eps=self.config.rms_norm_eps,
            interleaved=self.config.interleaved,
            k_caches=k_caches,
            v_caches=v_caches,
            k_bounds=k_bounds,
            workspace=self.workspace.of(size),
        )

    def attend(
        self,
        layer: int,
        block: BlockBuffers,
        k_cache: Tensor,
        v_cache: Tensor,
        page_table: Tensor,
        context_lens: Tensor,
        *,
        window: int = 0,
    ) -> None:
        """`block.attended` and `block.lse` of a layer over its paged context and the block's own rows.

        Args:
            window: tokens that a row sees at most; 0: no limit but the layer's own window, which always holds.
        """
        own_window = self.config.windows[layer]
        size = dflash_ops.block_attention_workspace_size(
            block.q.shape[0],
            context_lens.shape[0],
            block.q.shape[1],
            block.k.shape[1],
            self.config.head_dim,
            page_table.shape[1] * k_cache.shape[1],
            device=block.q.device,
        )
        dflash_ops.block_attention(
            block.q,
            block.k,
            block.v,
            k_cache,
            v_cache,
            page_table,
            context_lens,
            scale=self.scale,
            causal=self.config.causal[layer],
            window=min(own_window, window) if own_window and window else own_window or window,
            out=block.attended,
            lse=block.lse,
            workspace=self.workspace.of(size),
        )
