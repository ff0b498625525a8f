"""The block-diffusion language model: one module, whose attention is that of training or that of decoding.

A text is cut into blocks of B tokens from its first token on. A token attends to all tokens of its own block and of the
earlier ones. In a *noisy* block unknown tokens are masks, and the row of a mask predicts the token at its own place;
earlier blocks are always seen as they finally are, *clean*. Rows of all kinds go through the same linear layers, norms
and rotations; only where keys and values come from differs, and is given by an `Attend`:

- `training_attention`: packed clean texts and noisy copies of their blocks, in one pass without a cache.
- `decoding_attention`: blocks over paged caches that hold the clean blocks before them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dflash_ops
from dflash_decoding.cache import PagedKVCache, PagePool
from dflash_decoding.checkpoint import TensorSpec, read_tensors
from dflash_decoding.files import write_checkpoint_files
from dflash_decoding.rope import rope_table
from dflash_decoding.training.model import RMSNorm, rotate

from .config import BlockDiffusionConfig

# (layer, q [n, Hq, D], k, v [n, Hkv, D]) -> attended [n, Hq, D]; q and k are rotated.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]

EMBEDDING_NAME, HEAD_NAME = "embed_tokens.weight", "lm_head.weight"


class Layer(nn.Module):
    """One pre-norm layer; q/k/v and gate/up projections are one matrix each."""

    def __init__(self, config: BlockDiffusionConfig, index: int) -> None:
        super().__init__()
        hidden, head_dim = config.hidden_size, config.head_dim
        self.index = index
        self.head_dim = head_dim
        self.heads = (config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads)
        self.input_layernorm = RMSNorm(hidden, config.rms_norm_eps)
        self.qkv_proj = nn.Linear(hidden, sum(self.heads) * head_dim, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * head_dim, hidden, bias=False)
        self.post_attention_layernorm = RMSNorm(hidden, config.rms_norm_eps)
        self.gate_up_proj = nn.Linear(hidden, 2 * config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """x [n, H]; cos, sin [n, 1, D/2]."""
        qkv = self.qkv_proj(self.input_layernorm(x)).unflatten(-1, (-1, self.head_dim))
        rotated, v = qkv.split([self.heads[0] + self.heads[1], self.heads[2]], dim=1)
        q, k = rotate(rotated, cos.to(qkv.dtype), sin.to(qkv.dtype), interleaved=False).split(self.heads[:2], dim=1)
        x = x + self.o_proj(attend(self.index, q, k, v).flatten(1))
        gate, up = self.gate_up_proj(self.post_attention_layernorm(x)).chunk(2, dim=-1)
        return x + self.down_proj(F.silu(gate) * up)


class BlockDiffusionModel(nn.Module):
    """Layers and final norm to train, over an embedding and a head that stay as they are.

    Args:
        embedding, lm_head: [V, H], kept by reference, frozen.

    Raises:
        ValueError: one of them does not fit the config.
    """

    def __init__(self, config: BlockDiffusionConfig, embedding: Tensor, lm_head: Tensor) -> None:
        super().__init__()
        for name, tensor in (("embedding", embedding), ("lm_head", lm_head)):
            if tensor.shape != (config.vocab_size, config.hidden_size):
                raise ValueError(
                    f"{name}: expected [{config.vocab_size}, {config.hidden_size}] as the config says, got "
                    f"{list(tensor.shape)}"
                )
        self.config = config
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        # Not persistent: a checkpoint holds what was trained.
        self.register_buffer("embedding", embedding.detach(), persistent=False)
        self.register_buffer("lm_head", lm_head.detach(), persistent=False)
        self.register_buffer("_rope", rope_table(config.rope_config(), config.max_positions), persistent=False)

    @property
    def dtype(self) -> torch.dtype:
        """Of the trained weights."""
        return self.norm.weight.dtype

    def forward(self, input_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Rows that the head reads, [n, H], of int64 tokens [n] at int64 positions [n] of their texts."""
        cos, sin = self._rope[positions].unsqueeze(1).chunk(2, dim=-1)
        x = F.embedding(input_ids, self.embedding).to(self.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin, attend)
        return self.norm(x)

    def initialize(self, seed: int, std: float = 0.02) -> None:
        """Normal(0, std) for all matrices, ones for norms, by `seed` alone."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.ndim == 2:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
                else:
                    parameter.fill_(1.0)

    def copy_target_layers(self, target_layers: Sequence[nn.Module], final_norm: Tensor, chosen: Sequence[int]) -> None:
        """Starts from Llama-style target layers, one for each of this model's, and the target's final norm.

        Raises:
            ValueError: not one layer per layer, no such layer, or a layer with other parameters or shapes than ours.
        """
        if len(chosen) != len(self.layers):
            raise ValueError(f"layers: expected {len(self.layers)} target layers, got {len(chosen)}")
        with torch.no_grad():
            for ours, index in zip(self.layers, chosen, strict=True):
                if not 0 <= index < len(target_layers):
                    raise ValueError(f"layers: expected target layers in 0..{len(target_layers) - 1}, got {index}")
                try:
                    ours.load_state_dict(_fused_layer(dict(target_layers[index].named_parameters())))
                except (RuntimeError, KeyError) as error:
                    raise ValueError(f"layers: target layer {index}: expected a plain Llama layer: {error}") from error
            self.norm.weight.copy_(final_norm)

    def save(self, folder: str | Path, dtype: torch.dtype = torch.bfloat16) -> None:
        """Writes `config.json` and the trained weights as safetensors; a reader never sees half a file."""
        weights = {name: tensor.detach().to(dtype, copy=True) for name, tensor in self.state_dict().items()}
        write_checkpoint_files(Path(folder), self.config.to_dict(), weights)

    @classmethod
    def from_folder(
        cls, folder: str | Path, embedding: Tensor, lm_head: Tensor, dtype: torch.dtype | None = None
    ) -> BlockDiffusionModel:
        """Loads what `save` wrote, in the dtype of the head unless told.

        Args:
            embedding, lm_head: of the target that the model was trained with; a checkpoint that brings its own
                `embed_tokens.weight` or `lm_head.weight` uses those.

        Raises:
            OSError: a file is missing.
            ValueError: config, weights and tensors do not fit each other.
        """
        config = BlockDiffusionConfig.from_folder(folder)
        weights = read_tensors(folder, tensor_specs(config))
        own = {name: weights[name].to(lm_head) for name in (EMBEDDING_NAME, HEAD_NAME) if name in weights}
        model = cls(config, own.get(EMBEDDING_NAME, embedding), own.get(HEAD_NAME, lm_head))
        model.load_state_dict({name: tensor for name, tensor in weights.items() if name not in own})
        model.layers.to(lm_head.device, dtype or lm_head.dtype)
        model.norm.to(lm_head.device, dtype or lm_head.dtype)
        return model.requires_grad_(False).eval()

    def new_cache(self, pool: PagePool) -> PagedKVCache:
        """An empty cache of clean keys and values over the pages of `pool`."""
        config = self.config
        return PagedKVCache(pool, config.num_hidden_layers, config.num_key_value_heads, config.head_dim, self.dtype)


def tensor_specs(config: BlockDiffusionConfig) -> dict[str, TensorSpec]:
    """Name -> spec of every tensor of a checkpoint; it may bring its own embedding and head."""
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    heads = config.num_attention_heads + 2 * config.num_key_value_heads
    shared = TensorSpec((config.vocab_size, hidden), required=False)
    specs = {EMBEDDING_NAME: shared, HEAD_NAME: shared, "norm.weight": TensorSpec((hidden,))}
    for layer in range(config.num_hidden_layers):
        at = f"layers.{layer}."
        specs[at + "input_layernorm.weight"] = TensorSpec((hidden,))
        specs[at + "qkv_proj.weight"] = TensorSpec((heads * head_dim, hidden))
        specs[at + "o_proj.weight"] = TensorSpec((hidden, config.num_attention_heads * head_dim))
        specs[at + "post_attention_layernorm.weight"] = TensorSpec((hidden,))
        specs[at + "gate_up_proj.weight"] = TensorSpec((2 * inner, hidden))
        specs[at + "down_proj.weight"] = TensorSpec((hidden, inner))
    return specs


def training_attention(config: BlockDiffusionConfig, anchors: Tensor, cu_seqlens: Tensor) -> Attend:
    """Attention of rows [S + N * B]: S clean tokens of packed texts, then N noisy blocks.

    Clean rows see clean rows, block-causally; a noisy block sees the clean tokens before its place and itself. One pass
    so trains on every block of a text at once, each under its own noise, with exactly the context it is decoded with.

    Args:
        anchors: int32 [N], packed index of the first token of each noisy block.
        cu_seqlens: int32 [texts + 1], packed bounds of the texts, all of whole blocks.
    """

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        clean = q.shape[0] - anchors.shape[0] * config.block_size
        of_clean, _ = dflash_ops.masked_block_attention(
            q[:clean], k[:clean], v[:clean], "block_causal", block_size=config.block_size, cu_seqlens=cu_seqlens
        )
        of_noisy, _ = dflash_ops.masked_block_attention(
            q[clean:], k, v, "anchor", block_size=config.block_size, anchors=anchors, cu_seqlens=cu_seqlens
        )
        return torch.cat([of_clean, of_noisy])

    return attend


def decoding_attention(
    cache: PagedKVCache, page_table: Tensor, context_lens: Tensor, slot_mapping: Tensor | None
) -> Attend:
    """Attention of rows [n * B], n blocks, each over its own context in `cache` and itself.

    Keys and values of clean blocks are written before the attention reads the cache, layer by layer. So one pass may
    hold several blocks of a text, each a request of its own with the same pages: a whole prompt, or a finished block
    and the noisy one after it.

    Args:
        page_table: int32 [n, max_pages], context_lens: int32 [n], tokens before each block.
        slot_mapping: int64 [n * B], where to keep the rows; -1 for rows of noisy blocks. None: nothing is kept.
    """

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k_cache, v_cache = cache.k[layer], cache.v[layer]
        if slot_mapping is not None:
            dflash_ops.write_context_kv(
                torch.stack([k, v], dim=1).unsqueeze(1),
                slot_mapping=slot_mapping,
                k_caches=[k_cache],
                v_caches=[v_cache],
            )
        # A fixed number of splits: a text does not depend on which others share its batch.
        return dflash_ops.block_attention(q, k, v, k_cache, v_cache, page_table, context_lens, num_splits=1)[0]

    return attend


def _fused_layer(parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameters of a Hugging Face Llama layer under our names; anything besides them is handed on, to be refused."""
    parts = dict(parts)

    def stack(names: Sequence[str]) -> Tensor:
        return torch.cat([parts.pop(f"{name}_proj.weight").detach() for name in names])

    fused = {
        "qkv_proj.weight": stack([f"self_attn.{name}" for name in "qkv"]),
        "o_proj.weight": stack(["self_attn.o"]),
        "gate_up_proj.weight": stack(["mlp.gate", "mlp.up"]),
        "down_proj.weight": stack(["mlp.down"]),
    }
    return {**fused, **parts}
