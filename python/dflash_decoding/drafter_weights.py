"""The drafter's weights as its ops want them, and the buffers of its forward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .config import DraftConfig


@dataclass
class SharedWeights:
    """Weights that are not one layer's own. L layers, H hidden size, T taps of width H_t.

    `kv_weight` [L, 2 * Hkv * D, H] is a view of the q/k/v rows that the layers use: nothing is stored twice.
    `draft_to_target` [draft vocabulary] int64 maps draft ids to target ids (None: they are the same).
    """

    fc_weight: Tensor
    hidden_norm_weight: Tensor
    norm_weight: Tensor
    kv_weight: Tensor
    kv_bias: Tensor | None
    k_norm_weight: Tensor
    draft_to_target: Tensor | None


@dataclass
class LayerWeights:
    """One decoder layer. Norm weights on the float32 residual stream are float32, all others the drafter's dtype."""

    qkv_weight: Tensor
    qkv_bias: Tensor | None
    q_norm_weight: Tensor
    k_norm_weight: Tensor
    o_weight: Tensor
    o_bias: Tensor | None
    gate_up_weight: Tensor
    down_weight: Tensor
    input_norm_weight: Tensor
    post_norm_weight: Tensor


def pack_weights(
    config: DraftConfig, weights: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device
) -> tuple[SharedWeights, list[LayerWeights]]:
    """Converts checkpoint tensors (canonical names) to `dtype` on `device`, q/k/v and gate/up stacked.

    Raises:
        ValueError: a tensor is missing.
    """

    def take(name: str, to: torch.dtype = dtype) -> Tensor:
        if name not in weights:
            raise ValueError(f"weights: expected {name}, got none")
        return weights[name].detach().to(device, to)

    def stack(names: list[str]) -> Tensor:
        return torch.cat([take(name) for name in names])

    layers = range(config.num_hidden_layers)
    q_rows, kv_rows = (heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads))
    qkv_weight = torch.empty(len(layers), q_rows + 2 * kv_rows, config.hidden_size, dtype=dtype, device=device)
    qkv_bias = torch.empty(qkv_weight.shape[:2], dtype=dtype, device=device) if config.attention_bias else None
    k_norm_weight = torch.stack([take(f"layers.{layer}.self_attn.k_norm.weight") for layer in layers])
    packed = []
    for layer in layers:
        at = f"layers.{layer}."
        projections = [f"{at}self_attn.{part}_proj." for part in "qkv"]
        qkv_weight[layer] = stack([name + "weight" for name in projections])
        if qkv_bias is not None:
            qkv_bias[layer] = stack([name + "bias" for name in projections])
        packed.append(
            LayerWeights(
                qkv_weight=qkv_weight[layer],
                qkv_bias=None if qkv_bias is None else qkv_bias[layer],
                q_norm_weight=take(at + "self_attn.q_norm.weight"),
                k_norm_weight=k_norm_weight[layer],
                o_weight=take(at + "self_attn.o_proj.weight"),
                o_bias=take(at + "self_attn.o_proj.bias") if config.attention_bias else None,
                gate_up_weight=stack([at + "mlp.gate_proj.weight", at + "mlp.up_proj.weight"]),
                down_weight=take(at + "mlp.down_proj.weight"),
                input_norm_weight=take(at + "input_layernorm.weight", torch.float32),
                post_norm_weight=take(at + "post_attention_layernorm.weight", torch.float32),
            )
        )
    offsets = weights.get("d2t")
    mapped = None
    if offsets is not None and bool(offsets.any()):
        mapped = (torch.arange(offsets.numel()) + offsets.cpu().long()).to(device)
    shared = SharedWeights(
        fc_weight=take("fc.weight"),
        hidden_norm_weight=take("hidden_norm.weight"),
        norm_weight=take("norm.weight", torch.float32),
        kv_weight=qkv_weight[:, q_rows:],
        kv_bias=None if qkv_bias is None else qkv_bias[:, q_rows:],
        k_norm_weight=k_norm_weight,
        draft_to_target=mapped,
    )
    return shared, packed


class BlockBuffers:
    """Activations of n = batch * block rows, used by every layer of every call with this batch and block.

    Attributes:
        embedded: [n, H] in the embedding's dtype. residual: [n, H] float32. normed, projected: [n, H].
        qkv: [n, (Hq + 2 Hkv) * D]; q, attended: [n, Hq, D]; k, v: [n, Hkv, D]; lse: [n, Hq] float32.
        gate_up: [n, 2 * intermediate].
        final: [batch, drafted, H], what the head reads.
    """

    def __init__(
        self, config: DraftConfig, batch: int, block: int, drafted: int, embedding: Tensor, dtype: torch.dtype
    ) -> None:
        rows, hidden, head_dim = batch * block, config.hidden_size, config.head_dim
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads

        def new(*shape: int, of: torch.dtype = dtype) -> Tensor:
            return torch.empty(shape, dtype=of, device=embedding.device)

        self.embedded = new(rows, hidden, of=embedding.dtype)
        self.residual = new(rows, hidden, of=torch.float32)
        self.normed = new(rows, hidden)
        self.projected = new(rows, hidden)
        self.qkv = new(rows, (heads + 2 * kv_heads) * head_dim)
        self.q = new(rows, heads, head_dim)
        self.k = new(rows, kv_heads, head_dim)
        self.v = new(rows, kv_heads, head_dim)
        self.attended = new(rows, heads, head_dim)
        self.lse = new(rows, heads, of=torch.float32)
        self.gate_up = new(rows, 2 * config.intermediate_size)
        self.final = new(batch, drafted, hidden)
