"""The drafter as a trainable module.

Parameters bear the names of the DFlash checkpoint layout, so `state_dict()` is the checkpoint. Linear layers and norms
are plain torch; attention is `dflash_ops.masked_block_attention`, which knows the block mask by its structure. Shapes:
S packed context tokens, N blocks of B rows, T taps, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dflash_ops
from dflash_decoding.checkpoint import save_draft_checkpoint
from dflash_decoding.config import DraftConfig
from dflash_decoding.rope import rope_table

from .data import Batch, BlockShape

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def block_shape(config: DraftConfig) -> BlockShape:
    """How blocks of this drafter are filled and which rows predict."""
    return BlockShape(config.block_size, config.mask_token_id, 0 if config.sample_from_anchor else 1)


class RMSNorm(nn.Module):
    """weight * x / sqrt(mean(x^2) + eps) over the last dimension, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """RoPE of x [n, heads, D] by cos, sin [n, 1, R/2]; channels past R stay as they are.

    The partner of each channel comes by a flip rather than by slices: the gradient of a flip is a flip, that of a slice
    a zero-filled tensor of full size.
    """
    half = cos.shape[-1]
    turned, rest = (x, None) if 2 * half == x.shape[-1] else x.split([2 * half, x.shape[-1] - 2 * half], dim=-1)
    pair = -1 if interleaved else -2
    partner = turned.unflatten(-1, (half, 2) if interleaved else (2, half)).flip(pair).flatten(-2)
    cos = torch.stack([cos, cos], dim=pair).flatten(-2)
    sin = torch.stack([-sin, sin], dim=pair).flatten(-2)
    result = torch.addcmul(turned * cos, partner, sin)
    return result if rest is None else torch.cat([result, rest], dim=-1)


class Attention(nn.Module):
    """q from the block rows; k, v from the fused context features and the block rows alike."""

    def __init__(self, config: DraftConfig, layer: int) -> None:
        super().__init__()
        hidden, head_dim, bias = config.hidden_size, config.head_dim, config.attention_bias
        self.q_proj = nn.Linear(hidden, config.num_attention_heads * head_dim, bias=bias)
        self.k_proj = nn.Linear(hidden, config.num_key_value_heads * head_dim, bias=bias)
        self.v_proj = nn.Linear(hidden, config.num_key_value_heads * head_dim, bias=bias)
        self.o_proj = nn.Linear(config.num_attention_heads * head_dim, hidden, bias=bias)
        self.q_norm = RMSNorm(head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(head_dim, config.rms_norm_eps)
        self.head_dim = head_dim
        self.interleaved = config.interleaved
        self.block_size = config.block_size
        # Of the config, as the decoder reads it: a mask trained otherwise than it is decoded costs acceptance.
        self.causal = config.causal[layer]
        self.window = config.windows[layer]

    def forward(self, block: Tensor, features: Tensor, cos: Tensor, sin: Tensor, batch: Batch) -> Tensor:
        """block [N*B, H] after the input norm, features [S, H]; cos, sin [S + N*B, 1, R/2], context rows first."""
        context = features.shape[0]
        rows = torch.cat([features, block])
        q = self.q_norm(self.q_proj(block).unflatten(-1, (-1, self.head_dim)))
        k = self.k_norm(self.k_proj(rows).unflatten(-1, (-1, self.head_dim)))
        v = self.v_proj(rows).unflatten(-1, (-1, self.head_dim))
        out, _ = dflash_ops.masked_block_attention(
            rotate(q, cos[context:], sin[context:], self.interleaved),
            rotate(k, cos, sin, self.interleaved),
            v,
            "anchor",
            block_size=self.block_size,
            anchors=batch.anchors,
            cu_seqlens=batch.cu_seqlens,
            causal=self.causal,
            window=self.window,
            scale=self.head_dim**-0.5,
        )
        return self.o_proj(out.flatten(1))


class MLP(nn.Module):
    """down(act(gate x) * up x)."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.activation = _ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))


class DraftLayer(nn.Module):
    """One pre-norm layer: attention over context and block, then the MLP."""

    def __init__(self, config: DraftConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, features: Tensor, cos: Tensor, sin: Tensor, batch: Batch) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), features, cos, sin, batch)
        return x + self.mlp(self.post_attention_layernorm(x))


class BlockPredictor(nn.Module):
    """What the trainer asks of a model: rows that predict the tokens of a block, over the target's frozen head.

    Any drafter that can say this can be trained on the same batches by the same loss.

    Attributes:
        config: the drafter's config.
        norm: the norm before the head.
        autocast: compute in bfloat16 whatever the dtype of the weights.
    """

    config: DraftConfig
    norm: RMSNorm
    autocast: bool

    @property
    def num_taps(self) -> int:
        """T: taps that `forward` takes."""
        return len(self.config.target_layer_ids)

    def initialize(self, lm_head: Tensor, seed: int, std: float = 0.02) -> None:
        """Normal(0, std) for all matrices, zeros for biases, ones for norms but the last one, by `seed` alone.

        The final norm starts where the frozen head [V, H] gives logits of variance 1. From ones, a head with long rows
        would start the loss at several times log V, and the first steps would only undo that.
        """
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.ndim == 2:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
                else:
                    parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            self.norm.weight.fill_(1.0 / float(lm_head.float().square().sum(dim=1).mean().sqrt()))

    def forward(self, taps: Tensor, batch: Batch) -> Tensor:
        """Final hidden rows of all blocks.

        Args:
            taps: [S, T, H_t] tapped hidden states of the packed context.

        Returns:
            [N, rows, H], after the final norm: logits are `result @ lm_head^T`. The last rows of each block, one per
            target of the batch, are those that predict.

        Raises:
            ValueError: another number of taps.
        """
        if taps.shape[1] != self.num_taps:
            raise ValueError(f"taps: expected {self.num_taps} per token, got {taps.shape[1]}")
        with torch.autocast(taps.device.type, torch.bfloat16, enabled=self.autocast):
            return self._hidden_rows(taps, batch)

    def _hidden_rows(self, taps: Tensor, batch: Batch) -> Tensor:
        raise NotImplementedError

    def checkpoint_weights(self, dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
        """Copies of the weights under the checkpoint's names."""
        return {name: tensor.detach().to(dtype, copy=True) for name, tensor in self.state_dict().items()}

    def checkpoint_config(self) -> dict[str, Any]:
        """The model's `config.json`; also tells one model's training state from another's."""
        return self.config.to_dict()

    def save(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """Writes `checkpoint_weights`, brought together from all processes, as a checkpoint to decode with."""
        raise NotImplementedError


class TrainableDrafter(BlockPredictor):
    """A DFlash drafter to train. The embedding is the target's, passed in and frozen; the head is left to the loss.

    Args:
        config: the drafter's config.
        embedding: [V, H] of the target, kept by reference and never trained.
        max_positions: rows of the RoPE table: the longest chat plus a block.
        autocast: compute in bfloat16 whatever the dtype of the weights.

    Raises:
        ValueError: the embedding does not fit the config, or the config asks for an own, reduced vocabulary.
    """

    def __init__(self, config: DraftConfig, embedding: Tensor, *, max_positions: int, autocast: bool = False) -> None:
        super().__init__()
        if embedding.shape != (config.vocab_size, config.hidden_size):
            raise ValueError(
                f"embedding: expected [{config.vocab_size}, {config.hidden_size}], got {list(embedding.shape)}"
            )
        if config.reduced_vocabulary:
            raise ValueError(
                f"draft_vocab_size: expected the target's {config.vocab_size}, got {config.draft_vocab_size}"
            )
        self.config = config
        self.autocast = autocast
        target_hidden = config.target_hidden_size or config.hidden_size
        self.fc = nn.Linear(len(config.target_layer_ids) * target_hidden, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(DraftLayer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        # Not persistent: neither is part of a checkpoint.
        self.register_buffer("_embedding", embedding.detach(), persistent=False)
        self.register_buffer("_rope_table", rope_table(config, max_positions), persistent=False)

    def pass_tap_through(self, tap: int, input_norm: Tensor) -> None:
        """Starts near the context K/V that a target layer computes from tap number `tap` after `input_norm` [H]."""
        hidden = self.config.hidden_size
        with torch.no_grad():
            self.fc.weight[:, tap * hidden : (tap + 1) * hidden] += torch.eye(hidden)
            self.hidden_norm.weight.copy_(input_norm)

    def _hidden_rows(self, taps: Tensor, batch: Batch) -> Tensor:
        config = self.config
        features = self.hidden_norm(self.fc(taps.flatten(1).to(self.fc.weight.dtype)))
        positions = torch.cat([batch.positions, batch.block_positions.flatten()])
        cos, sin = self._rope_table[positions].to(features.dtype)[:, None].chunk(2, dim=-1)
        x = F.embedding(batch.input_ids.flatten(), self._embedding).to(features.dtype) * config.input_embedding_scale
        for layer in self.layers:
            x = layer(x, features, cos, sin, batch)
        return self.norm(x.unflatten(0, batch.input_ids.shape))

    def save(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """Writes the DFlash layout."""
        save_draft_checkpoint(folder, self.config, weights)
