"""The DFlash drafter on the ops: fuse the taps, inject them as context K/V, draft a block in one forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import dflash_ops

from .cache import PagePool
from .checkpoint import load_draft_weights
from .config import DraftConfig
from .draft_context.base import ContextAttention, DraftCache
from .draft_context.full import FullCache
from .draft_context.layers import ContextLayers
from .draft_context.window import WindowCache
from .drafter_weights import BlockBuffers, LayerWeights, pack_weights
from .rope import rope_table
from .workspace import Workspace

# Context rows projected at once: bounds the buffers whatever the length of the prompt.
INJECT_ROWS = 512


class DFlashDrafter:
    """Drafts a block of tokens in one forward, conditioned on tapped hidden states of the target.

    Weights are held once: the q, k and v rows of all layers share one tensor, whose K/V rows also project the context.
    Embedding and head are the target's own tensors, by reference, unless the checkpoint brings its own. The residual
    stream is float32 whatever the dtype of the weights, so that float16 drafters do not overflow.

    The target's final soft-capping of logits is left out: it is monotone, and only the argmax is taken.

    Buffers are kept per (batch, block) and reused, so one drafter serves one thread.

    Attributes:
        config: what the checkpoint says.
        block_size: rows of the block this drafter is run with, config.block_size or smaller.
        num_draft_tokens: tokens drafted by a block of `block_size` rows.
        mask_token_id: fills the rows of a block after the newest token.
        tap_layers: target layers (0-based outputs) whose hidden states `inject` takes, in this order.
        max_positions: number of positions the RoPE table covers.
        context_layers: what a draft context works with; None: a subclass has a context of its own kind.
    """

    def __init__(
        self,
        config: DraftConfig,
        weights: Mapping[str, Tensor],
        target_embedding: Tensor,
        target_lm_head: Tensor,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        max_positions: int | None = None,
        block_size: int | None = None,
    ) -> None:
        self.config = config
        self.block_size = config.block_size if block_size is None else block_size
        self.num_draft_tokens = self._drafted_tokens(self.block_size)
        self.mask_token_id = config.mask_token_id
        self.tap_layers = config.target_layer_ids
        self.dtype = target_lm_head.dtype if dtype is None else dtype
        self.device = target_lm_head.device if device is None else torch.device(device)
        self.max_positions = config.max_positions if max_positions is None else max_positions
        self.embedding = weights.get("embed_tokens.weight", target_embedding).detach().to(self.device)
        self.lm_head = weights.get("lm_head.weight", target_lm_head).detach().to(self.device)
        self._check_vocabulary(own_head="lm_head.weight" in weights)
        cos_sin = rope_table(config, self.max_positions).to(self.device)
        self._shared, self._layers = pack_weights(config, weights, self.dtype, self.device)
        self._buffers: dict[tuple[int, int], BlockBuffers] = {}
        self._features = torch.empty(0, config.hidden_size, dtype=self.dtype, device=self.device)
        self._workspace = Workspace(self.device)
        self._cos_sin = cos_sin
        self._context_layers = ContextLayers(config, self._shared, cos_sin, self._workspace, self.dtype)
        self.context_layers: ContextLayers | None = self._context_layers

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        target_embedding: Tensor,
        target_lm_head: Tensor,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        max_positions: int | None = None,
        block_size: int | None = None,
    ) -> DFlashDrafter:
        """Loads a checkpoint of either layout (`docs/checkpoints.md`).

        Args:
            name_or_path: local folder or hub id.
            target_embedding: [vocab_size, hidden_size], the target's, kept by reference.
            target_lm_head: [vocab_size, hidden_size], the target's, kept by reference. Its dtype may differ from
                the drafter's.
            dtype: float32, float16 or bfloat16, of the drafter's weights and cache; None: that of the head.
            device: where the drafter runs; None: where the head lies.
            max_positions: length of the RoPE table; None: what the checkpoint is made for.
            block_size: rows per block, at most the trained number; None: the trained number.

        Raises:
            OSError: a file is missing.
            ValueError: the checkpoint is refused, the block is larger than trained, or the target's tensors do not
                fit the drafter.
        """
        config = DraftConfig.from_pretrained(name_or_path)
        return cls(
            config,
            load_draft_weights(name_or_path, config),
            target_embedding,
            target_lm_head,
            dtype=dtype,
            device=device,
            max_positions=max_positions,
            block_size=block_size,
        )

    @classmethod
    def from_weights(
        cls,
        config: DraftConfig,
        weights: Mapping[str, Tensor],
        target_embedding: Tensor,
        target_lm_head: Tensor,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        max_positions: int | None = None,
        block_size: int | None = None,
    ) -> DFlashDrafter:
        """As `from_pretrained`, with weights in memory (canonical names, as `load_draft_weights` returns them)."""
        return cls(
            config,
            weights,
            target_embedding,
            target_lm_head,
            dtype=dtype,
            device=device,
            max_positions=max_positions,
            block_size=block_size,
        )

    def new_cache(self, pool: PagePool) -> FullCache | WindowCache:
        """An empty cache of whole contexts over the pages of `pool`, in the drafter's dtype.

        Where every layer has a window, no more than the widest of them is kept. For other policies see `draft_context`.
        """
        windows = self.config.windows
        if all(windows):
            return WindowCache(self._context_layers, pool, max(windows))
        return FullCache(self._context_layers, pool)

    @torch.no_grad()
    def inject(self, taps: Sequence[Tensor], positions: Tensor, slot_mapping: Tensor, cache: DraftCache) -> None:
        """Hands n target tokens to `cache` as context, their taps fused to features.

        Args:
            taps: one [n, target_hidden_size] tensor per tapped layer, in the order of `tap_layers`.
            positions: int64 [n].
            slot_mapping: int64 [n], page * page_size + offset; rows with -1 are skipped.
            cache: from `new_cache`, or of a draft context.

        Raises:
            ValueError: the number or shape of taps is wrong.
            RuntimeError: from the ops; on CPU also for a position past max_positions or a slot outside the cache.
        """
        rows = positions.numel()
        states = self._checked_taps(taps, rows)
        step = min(INJECT_ROWS, cache.max_write_rows or INJECT_ROWS)
        for start in range(0, rows, step):
            part = slice(start, min(start + step, rows))
            cache.write(self._fused([state[part] for state in states]), positions[part], slot_mapping[part])

    def _checked_taps(self, taps: Sequence[Tensor], rows: int) -> list[Tensor]:
        """The taps in the drafter's dtype."""
        shape = (rows, self.config.target_hidden_size)
        if len(taps) != len(self.tap_layers) or any(tap.shape != shape for tap in taps):
            raise ValueError(
                f"taps: expected {len(self.tap_layers)} tensors of {list(shape)}, "
                f"got {[list(tap.shape) for tap in taps]}"
            )
        return [tap.to(self.dtype) for tap in taps]

    def _fused(self, states: list[Tensor]) -> Tensor:
        """Fused, normed features [n, H] of at most INJECT_ROWS rows; a buffer that the next call overwrites."""
        rows, width = states[0].shape
        if self._features.shape[0] < rows:
            self._features = self._features.new_empty(rows, self.config.hidden_size)
        workspace_size = dflash_ops.fuse_features_workspace_size(
            rows, len(states), width, self.config.hidden_size, device=self._features.device
        )
        features = self._features[:rows]
        dflash_ops.fuse_features(
            states,
            self._shared.fc_weight,
            self._shared.hidden_norm_weight,
            eps=self.config.rms_norm_eps,
            out=features,
            workspace=self._workspace.of(workspace_size),
        )
        return features

    @torch.no_grad()
    def draft(
        self, input_ids: Tensor, positions: Tensor, cache: DraftCache, page_table: Tensor, context_lens: Tensor
    ) -> Tensor:
        """Greedy draft tokens of one block per request.

        Args:
            input_ids: int64 [b, B], the newest token of each request and then mask tokens; B <= trained block size.
            positions: int64 [b, B].
            cache: what `inject` has written to.
            page_table: int32 [b, max_pages].
            context_lens: int32 [b], context tokens of each request.

        Returns:
            int64 [b, B - 1], or [b, B] with sample_from_anchor: target token ids.

        Raises:
            ValueError: B is larger than trained, or positions has another shape than input_ids.
            RuntimeError: from the ops; on CPU also for a position past max_positions.
        """
        hidden = self.hidden_states(input_ids, positions, cache, page_table, context_lens)
        batch, drafted, width = hidden.shape
        ids = self._head_argmax(hidden.view(batch * drafted, width))
        if self._shared.draft_to_target is not None:
            ids = self._shared.draft_to_target.index_select(0, ids)
        return ids.view(batch, drafted)

    def _head_argmax(self, rows: Tensor) -> Tensor:
        """Draft vocabulary ids int64 [n] that the head gives hidden rows [n, H]."""
        workspace_size = dflash_ops.lm_head_argmax_workspace_size(
            *rows.shape, self.lm_head.shape[0], device=rows.device
        )
        ids, _ = dflash_ops.lm_head_argmax(
            rows.to(self.lm_head.dtype), self.lm_head, workspace=self._workspace.of(workspace_size)
        )
        return ids

    @torch.no_grad()
    def hidden_states(
        self, input_ids: Tensor, positions: Tensor, cache: DraftCache, page_table: Tensor, context_lens: Tensor
    ) -> Tensor:
        """What the head reads: normed final hidden states of the predicting rows, [b, drafted tokens, hidden_size].

        Arguments and errors as `draft`. The result is a buffer that the next call overwrites.
        """
        batch, block = input_ids.shape
        drafted = self._drafted_tokens(block)
        if positions.shape != input_ids.shape:
            raise ValueError(f"positions: expected {list(input_ids.shape)}, got {list(positions.shape)}")
        buffers = self._block_buffers(batch, block)
        residual = buffers.residual
        torch.index_select(self.embedding, 0, input_ids.flatten(), out=buffers.embedded)
        residual.copy_(buffers.embedded)
        if self.config.input_embedding_scale != 1.0:
            residual.mul_(self.config.input_embedding_scale)
        attend = cache.begin(page_table, context_lens)
        flat_positions = positions.flatten()
        for index, layer in enumerate(self._layers):
            self._attention(index, buffers, flat_positions, attend)
            self._mlp(layer, buffers)
        rows = residual.view(batch, block, self.config.hidden_size)[:, block - drafted :]
        buffers.final.copy_(F.rms_norm(rows, rows.shape[-1:], self._shared.norm_weight, self.config.rms_norm_eps))
        return buffers.final

    def _attention(self, index: int, buffers: BlockBuffers, positions: Tensor, attend: ContextAttention) -> None:
        """Adds attention layer `index` to the residual stream."""
        layer = self._layers[index]
        self._norm(buffers, layer.input_norm_weight)
        _linear(buffers.normed, layer.qkv_weight, layer.qkv_bias, out=buffers.qkv)
        dflash_ops.norm_rope_qkv(
            buffers.qkv,
            layer.q_norm_weight,
            layer.k_norm_weight,
            self._cos_sin,
            positions,
            eps=self.config.rms_norm_eps,
            interleaved=self.config.interleaved,
            q=buffers.q,
            k=buffers.k,
            v=buffers.v,
        )
        attend(index, buffers)
        _linear(buffers.attended.flatten(1), layer.o_weight, layer.o_bias, out=buffers.projected)
        self._add_projected(buffers)

    def _mlp(self, layer: LayerWeights, buffers: BlockBuffers) -> None:
        """Adds one gated MLP to the residual stream."""
        self._norm(buffers, layer.post_norm_weight)
        _linear(buffers.normed, layer.gate_up_weight, None, out=buffers.gate_up)
        gate, up = buffers.gate_up.chunk(2, dim=1)
        if self.config.hidden_act == "silu":
            F.silu(gate, inplace=True)
        else:
            gate.copy_(F.gelu(gate, approximate="tanh" if self.config.hidden_act.endswith("tanh") else "none"))
        _linear(gate.mul_(up), layer.down_weight, None, out=buffers.projected)
        self._add_projected(buffers)

    def _add_projected(self, buffers: BlockBuffers) -> None:
        buffers.residual.add_(buffers.projected)

    def _norm(self, buffers: BlockBuffers, weight: Tensor) -> None:
        residual = buffers.residual
        buffers.normed.copy_(F.rms_norm(residual, residual.shape[-1:], weight, self.config.rms_norm_eps))

    def _block_buffers(self, batch: int, block: int) -> BlockBuffers:
        key = (batch, block)
        if key not in self._buffers:
            self._buffers[key] = BlockBuffers(
                self.config, batch, block, self._drafted_tokens(block), self.embedding, self.dtype
            )
        return self._buffers[key]

    def _drafted_tokens(self, block: int) -> int:
        lowest = 1 if self.config.sample_from_anchor else 2
        if not lowest <= block <= self.config.block_size:
            raise ValueError(
                f"block_size: expected {lowest}..{self.config.block_size} (the trained block size), got {block}"
            )
        return block if self.config.sample_from_anchor else block - 1

    def _check_vocabulary(self, own_head: bool) -> None:
        config = self.config
        expected = {
            "target_embedding": (self.embedding, (config.vocab_size, config.hidden_size)),
            "target_lm_head": (self.lm_head, (config.draft_vocab_size, config.hidden_size)),
        }
        if config.reduced_vocabulary and not own_head:
            raise ValueError("weights: expected lm_head.weight (draft_vocab_size < vocab_size), got none")
        for name, (tensor, shape) in expected.items():
            if tuple(tensor.shape) != shape:
                raise ValueError(f"{name}: expected {list(shape)} as the draft config says, got {list(tensor.shape)}")


def _linear(rows: Tensor, weight: Tensor, bias: Tensor | None, *, out: Tensor) -> None:
    """out [n, O] = rows [n, I] @ weight [O, I]^T + bias."""
    if bias is None:
        torch.mm(rows, weight.t(), out=out)
    else:
        torch.addmm(bias, rows, weight.t(), out=out)
