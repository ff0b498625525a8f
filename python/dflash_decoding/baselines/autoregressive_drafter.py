"""Baseline: an autoregressive drafter in the manner of EAGLE (arXiv 2401.15077), one layer, one token per step.

At every position the layer's input is `input_fc` of the token's embedding beside the feature of the previous position.
For context tokens that feature is the target's: the fused taps, as DFlash's own context features, so both drafters know
the same. From the newest token on it is the layer's output of the step before, so a draft of n tokens takes n steps.

Training unrolls these steps from each anchor (EAGLE-3's training-time test, arXiv 2503.01840) and takes the
cross-entropy of all of them: there is no regression of features, since a step sees its own outputs as in decoding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dflash_ops
from dflash_decoding.cache import PagePool
from dflash_decoding.checkpoint import TensorSpec, draft_tensor_specs
from dflash_decoding.config import DraftConfig
from dflash_decoding.config_layouts import BASELINE_PREFIX
from dflash_decoding.draft_context.base import DraftCache
from dflash_decoding.draft_context.full import FullCache
from dflash_decoding.draft_context.layers import ContextLayers
from dflash_decoding.drafter import INJECT_ROWS, DFlashDrafter
from dflash_decoding.drafter_weights import BlockBuffers
from dflash_decoding.target import EMBEDDING_TAP
from dflash_decoding.training.data import Batch
from dflash_decoding.training.model import RMSNorm, TrainableDrafter, rotate

from .paged_features import PagedFeatures, slots_of
from .storage import baseline_config, load_baseline, save_baseline

MODEL_TYPE = BASELINE_PREFIX + "autoregressive"


def tensor_specs(config: DraftConfig) -> dict[str, TensorSpec]:
    """Name -> spec of every tensor of the checkpoint: DFlash's of one layer, and the input projection."""
    specs = {name: spec for name, spec in draft_tensor_specs(config).items() if spec.required}
    hidden = config.hidden_size
    return {**specs, "input_fc.weight": TensorSpec((hidden, 2 * hidden)), "embed_norm.weight": TensorSpec((hidden,))}


def _check(config: DraftConfig) -> None:
    if config.num_hidden_layers != 1:
        raise ValueError(f"num_hidden_layers: expected 1 (an autoregressive drafter), got {config.num_hidden_layers}")
    if config.sample_from_anchor or config.reduced_vocabulary:
        raise ValueError("config: expected neither sample_from_anchor nor a reduced vocabulary, got one of them")


class AutoregressiveCache(FullCache):
    """K/V of the one layer, and the fused features of the context."""

    def __init__(self, layers: ContextLayers, pool: PagePool) -> None:
        super().__init__(layers, pool)
        self.features = PagedFeatures(pool, layers.config.hidden_size, layers.dtype)


class AutoregressiveDrafter(DFlashDrafter):
    """The drafter; see the module. The layer's parts are DFlash's, run on one row per request at a time.

    A step writes its K/V at the slot of its position, where the next step finds it as context. What the target then
    accepts is written anew by `inject`, from the target's features; the rest is overwritten before it can be read.
    """

    def __init__(
        self,
        config: DraftConfig,
        weights: Mapping[str, Tensor],
        target_embedding: Tensor,
        target_lm_head: Tensor,
        **options: Any,
    ) -> None:
        _check(config)
        super().__init__(config, weights, target_embedding, target_lm_head, **options)
        self.tap_layers = (EMBEDDING_TAP, *config.target_layer_ids)
        self.context_layers = None  # a step needs the feature before it, which no policy keeps
        self._input_weight = weights["input_fc.weight"].detach().to(self.device, self.dtype)
        self._embed_norm = weights["embed_norm.weight"].detach().to(self.device, self.dtype)
        self._step_buffers: dict[int, BlockBuffers] = {}

    @classmethod
    def from_pretrained(
        cls, name_or_path: str | Path, target_embedding: Tensor, target_lm_head: Tensor, **options: Any
    ) -> AutoregressiveDrafter:
        """Loads what training has saved; arguments and errors as `DFlashDrafter.from_pretrained`."""
        return cls(*load_baseline(name_or_path, MODEL_TYPE, tensor_specs), target_embedding, target_lm_head, **options)

    def new_cache(self, pool: PagePool) -> AutoregressiveCache:
        return AutoregressiveCache(self._context_layers, pool)

    @torch.no_grad()
    def inject(self, taps: Sequence[Tensor], positions: Tensor, slot_mapping: Tensor, cache: DraftCache) -> None:
        """As `DFlashDrafter.inject`; the first tap is the embedding."""
        assert isinstance(cache, AutoregressiveCache)
        rows = positions.numel()
        states = self._checked_taps(taps, rows)
        layer = self._layers[0]
        for start in range(0, rows, INJECT_ROWS):
            part = slice(start, min(start + INJECT_ROWS, rows))
            cache.features.write(self._fused([state[part] for state in states[1:]]), slot_mapping[part])
            previous = cache.features.preceding(slot_mapping[part], positions[part])
            normed = self._rms_norm(self._layer_input(states[0][part], previous), layer.input_norm_weight)
            cache.write(normed, positions[part], slot_mapping[part])

    @torch.no_grad()
    def draft(
        self, input_ids: Tensor, positions: Tensor, cache: DraftCache, page_table: Tensor, context_lens: Tensor
    ) -> Tensor:
        """As `DFlashDrafter.draft`, in B - 1 steps; the rows after the newest token are not read."""
        assert isinstance(cache, AutoregressiveCache)
        batch, block = input_ids.shape
        drafted = self._drafted_tokens(block)
        drafts = input_ids.new_empty(batch, drafted)
        if batch == 0:
            return drafts
        places = context_lens.long()[:, None] + torch.arange(drafted, device=input_ids.device)
        slots = slots_of(page_table, places, cache.pool.page_size)
        feature = cache.features.newest(page_table, context_lens)
        tokens = input_ids[:, 0]
        for step in range(drafted):
            residual = self._step(
                tokens, feature, positions[:, step], slots[:, step], cache, page_table, places[:, step]
            )
            tokens = self._head_argmax(self._rms_norm(residual, self._shared.norm_weight))
            drafts[:, step] = tokens
            feature = self._rms_norm(residual, self._shared.hidden_norm_weight)
        return drafts

    def _step(
        self,
        tokens: Tensor,
        feature: Tensor,
        positions: Tensor,
        slots: Tensor,
        cache: AutoregressiveCache,
        page_table: Tensor,
        context_lens: Tensor,
    ) -> Tensor:
        """Output float32 [b, H] of the layer for one token per request, whose K/V becomes context."""
        config, layer, batch = self.config, self._layers[0], tokens.shape[0]
        if batch not in self._step_buffers:
            self._step_buffers[batch] = BlockBuffers(config, batch, 1, 1, self.embedding, self.dtype)
        buffers = self._step_buffers[batch]
        embedded = self.embedding.index_select(0, tokens) * config.input_embedding_scale
        buffers.residual.copy_(self._layer_input(embedded.to(self.dtype), feature))
        self._attention(0, buffers, positions.contiguous(), cache.begin(page_table, context_lens.int()))
        dflash_ops.write_context_kv(
            torch.stack([buffers.k, buffers.v], dim=1)[:, None],
            slot_mapping=slots.contiguous(),
            k_caches=cache.k,
            v_caches=cache.v,
        )
        self._mlp(layer, buffers)
        return buffers.residual

    def _layer_input(self, embedded: Tensor, feature: Tensor) -> Tensor:
        """[n, H] from the embedding and the normed feature of the previous position, both [n, H]."""
        return F.linear(torch.cat([self._rms_norm(embedded, self._embed_norm), feature], dim=1), self._input_weight)

    def _rms_norm(self, rows: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(rows.float(), rows.shape[-1:], weight.float(), self.config.rms_norm_eps).to(self.dtype)


class TrainableAutoregressive(TrainableDrafter):
    """To train; taps [S, T, H], the embedded tokens first."""

    def __init__(self, config: DraftConfig, embedding: Tensor, *, max_positions: int, autocast: bool = False) -> None:
        _check(config)
        super().__init__(config, embedding, max_positions=max_positions, autocast=autocast)
        self.embed_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.input_fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)

    def pass_tap_through(self, tap: int, input_norm: Tensor) -> None:
        """Starts with the tap's feature as the layer's input, beside small weights for all else."""
        hidden = self.config.hidden_size
        with torch.no_grad():
            self.fc.weight[:, tap * hidden : (tap + 1) * hidden] += torch.eye(hidden)
            self.input_fc.weight[:, hidden:] += torch.eye(hidden)

    @property
    def num_taps(self) -> int:
        return super().num_taps + 1

    def _hidden_rows(self, taps: Tensor, batch: Batch) -> Tensor:
        """Final hidden rows [N, predictions, H]; row j is step j, fed the true tokens and its own features."""
        taps = taps.to(self.fc.weight.dtype)
        features = self.fc(taps[:, 1:].flatten(1))
        previous = features.roll(1, dims=0).masked_fill((batch.positions == 0)[:, None], 0.0)
        attention = self.layers[0].self_attn
        context = self.layers[0].input_layernorm(self._layer_input(taps[:, 0], previous))
        _, keys, values = self._heads(context, batch.positions)
        # An anchor is an answer's token, so there is one before it.
        feature = features[batch.anchors.long() - 1]
        tokens = torch.cat([batch.input_ids[:, :1], batch.targets[:, :-1]], dim=1)
        q_rows: list[Tensor] = []
        k_rows: list[Tensor] = []
        v_rows: list[Tensor] = []
        rows = []
        for step in range(tokens.shape[1]):
            embedded = F.embedding(tokens[:, step], self._embedding) * self.config.input_embedding_scale
            x = self._layer_input(embedded.to(feature.dtype), feature)
            normed = self.layers[0].input_layernorm(x)
            for kept, new in zip(
                (q_rows, k_rows, v_rows), self._heads(normed, batch.block_positions[:, step]), strict=True
            ):
                kept.append(new)
            out, _ = dflash_ops.masked_block_attention(
                torch.stack(q_rows, dim=1).flatten(0, 1),
                torch.cat([keys, torch.stack(k_rows, dim=1).flatten(0, 1)]),
                torch.cat([values, torch.stack(v_rows, dim=1).flatten(0, 1)]),
                "anchor",
                block_size=step + 1,
                anchors=batch.anchors,
                cu_seqlens=batch.cu_seqlens,
                causal=True,
                window=attention.window,
                scale=attention.head_dim**-0.5,
            )
            x = x + attention.o_proj(out.unflatten(0, (-1, step + 1))[:, -1].flatten(1))
            x = x + self.layers[0].mlp(self.layers[0].post_attention_layernorm(x))
            rows.append(self.norm(x))
            feature = x
        return torch.stack(rows, dim=1)

    def checkpoint_config(self) -> dict[str, Any]:
        return baseline_config(MODEL_TYPE, self.config)

    def save(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        save_baseline(folder, MODEL_TYPE, self.config, weights, tensor_specs)

    def _layer_input(self, embedded: Tensor, feature: Tensor) -> Tensor:
        return self.input_fc(torch.cat([self.embed_norm(embedded), self.hidden_norm(feature)], dim=1))

    def _heads(self, normed: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Normed, rotated q and k, and v: [n, heads, D] each, of rows [n, H]."""
        attention = self.layers[0].self_attn
        cos, sin = self._rope_table[positions].to(normed.dtype)[:, None].chunk(2, dim=-1)
        q, k, v = (
            projection(normed).unflatten(-1, (-1, attention.head_dim))
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        q = rotate(attention.q_norm(q), cos, sin, attention.interleaved)
        return q, rotate(attention.k_norm(k), cos, sin, attention.interleaved), v
