"""The DFlash drafter once more, from its description alone: dense, cache-free, one request at a time.

Everything is recomputed from the tapped hidden states in every round, with explicit [rows, keys] masks. Nothing of the
package under test is used, so a misunderstanding there cannot hide here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class DenseDrafter:
    """Semantics of one drafter, spelled out; `weights` are in checkpoint names."""

    weights: dict[str, Tensor]
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    windows: list[int]
    causal: list[bool]
    embedding: Tensor
    lm_head: Tensor
    frequencies: Tensor  # [R/2] rotation per position
    rope_scale: float = 1.0
    interleaved: bool = False
    eps: float = 1e-6
    sample_from_anchor: bool = False
    draft_to_target: Tensor | None = None
    embedding_scale: float = 1.0
    activation: Callable[[Tensor], Tensor] = torch.nn.functional.silu
    dtype: torch.dtype = torch.float64
    _cast: dict[str, Tensor] = field(default_factory=dict)

    def weight(self, name: str) -> Tensor:
        if name not in self._cast:
            self._cast[name] = self.weights[name].to(self.dtype)
        return self._cast[name]

    def linear(self, x: Tensor, name: str) -> Tensor:
        out = x @ self.weight(name + ".weight").T
        return out + self.weight(name + ".bias") if name + ".bias" in self.weights else out

    def norm(self, x: Tensor, name: str) -> Tensor:
        wide = x.to(torch.promote_types(self.dtype, torch.float32))
        scaled = wide / (wide.pow(2).mean(-1, keepdim=True) + self.eps).sqrt()
        return scaled.to(self.dtype) * self.weight(name + ".weight")

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [rows, heads, D]; each pair (a, b) turns by position * frequency."""
        # The angle is rounded to float32 as the trained models form it; everything after is in the wider type.
        angles = (positions.float()[:, None] * self.frequencies.float()[None]).to(x.dtype)
        cos, sin = angles.cos()[:, None] * self.rope_scale, angles.sin()[:, None] * self.rope_scale
        pairs = self.frequencies.numel()
        out = x.clone()
        first = slice(0, 2 * pairs, 2) if self.interleaved else slice(0, pairs)
        second = slice(1, 2 * pairs, 2) if self.interleaved else slice(pairs, 2 * pairs)
        out[..., first] = x[..., first] * cos - x[..., second] * sin
        out[..., second] = x[..., second] * cos + x[..., first] * sin
        return out

    def mask(self, layer: int, context: int, block: int) -> Tensor:
        """[block, context + block] True where visible."""
        query = torch.arange(context, context + block)[:, None]
        key = torch.arange(context + block)[None]
        visible = torch.ones(block, context + block, dtype=torch.bool)
        if self.causal[layer]:
            visible &= key <= query
        window = self.windows[layer]
        if window:
            visible &= (key > query - window) if self.causal[layer] else ((key - query).abs() < window)
        return visible

    def hidden(self, taps: list[Tensor], block_ids: Tensor) -> Tensor:
        """Final-norm hidden states [B, H] of the block after a context of taps[0].shape[0] tokens."""
        context, block = taps[0].shape[0], block_ids.numel()
        fused = torch.cat([tap.to(self.dtype) for tap in taps], dim=-1) @ self.weight("fc.weight").T
        fused = self.norm(fused, "hidden_norm")
        x = self.embedding.to(self.dtype)[block_ids] * self.embedding_scale
        positions = torch.arange(context + block)
        for layer in range(self.layers):
            at = f"layers.{layer}."
            rows = self.norm(x, at + "input_layernorm")
            sources = torch.cat([fused, rows])
            q = self.linear(rows, at + "self_attn.q_proj").view(block, self.heads, self.head_dim)
            k = self.linear(sources, at + "self_attn.k_proj").view(-1, self.kv_heads, self.head_dim)
            v = self.linear(sources, at + "self_attn.v_proj").view(-1, self.kv_heads, self.head_dim)
            q = self.rotate(self.norm(q, at + "self_attn.q_norm"), positions[context:])
            k = self.rotate(self.norm(k, at + "self_attn.k_norm"), positions)
            group = self.heads // self.kv_heads
            k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
            scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(self.head_dim)
            scores = scores.masked_fill(~self.mask(layer, context, block), -math.inf)
            attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(block, -1)
            x = x + self.linear(attended, at + "self_attn.o_proj")
            rows = self.norm(x, at + "post_attention_layernorm")
            gated = self.activation(self.linear(rows, at + "mlp.gate_proj")) * self.linear(rows, at + "mlp.up_proj")
            x = x + self.linear(gated, at + "mlp.down_proj")
        return self.norm(x, "norm")

    def logits(self, taps: list[Tensor], block_ids: Tensor) -> Tensor:
        """[drafted tokens, draft vocabulary]."""
        hidden = self.hidden(taps, block_ids)
        return (hidden if self.sample_from_anchor else hidden[1:]) @ self.lm_head.to(self.dtype).T

    def to_target_ids(self, draft_ids: Tensor) -> Tensor:
        return draft_ids if self.draft_to_target is None else draft_ids + self.draft_to_target[draft_ids]
