"""The definition of block diffusion in plain torch: float64, dense masks, everything computed anew each time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from dflash_decoding.block_diffusion import BlockDiffusionConfig, BlockDiffusionModel
from torch import Tensor

VOCAB, MASK, END = 61, 60, 59


def tiny_config(**changes: Any) -> BlockDiffusionConfig:
    """Two layers, GQA 3, block 5, odd widths."""
    values: dict[str, Any] = {
        "block_size": 5,
        "mask_token_id": MASK,
        "end_token_id": END,
        "hidden_size": 28,
        "intermediate_size": 37,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "vocab_size": VOCAB,
        "max_position_embeddings": 128,
        "rope_theta": 1000.0,
    }
    return BlockDiffusionConfig(**{**values, **changes})


def tiny_model(config: BlockDiffusionConfig | None = None, seed: int = 0) -> BlockDiffusionModel:
    """Random weights, wide enough that no two predictions are alike."""
    config = config or tiny_config()
    generator = torch.Generator().manual_seed(seed)
    tables = torch.randn(2, config.vocab_size, config.hidden_size, generator=generator)
    model = BlockDiffusionModel(config, tables[0], tables[1])
    model.initialize(seed + 1, std=0.3)
    with torch.no_grad():
        for layer in model.layers:
            for norm in (layer.input_layernorm, layer.post_attention_layernorm):
                norm.weight.add_(0.2 * torch.randn(norm.weight.shape, generator=generator))
    return model


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight


def dense_hidden(
    config: BlockDiffusionConfig,
    weights: dict[str, Tensor],
    embedding: Tensor,
    ids: Tensor,
    places: Tensor,
    sees: Tensor,
) -> Tensor:
    """Rows that the head reads, [n, H] in the dtype of the weights.

    ids, places: int64 [n], token and position of each row; sees: bool [n, n], which rows a row attends to.
    """
    heads, kv_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    frequencies = config.rope_theta ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    turns = torch.polar(
        torch.ones(len(ids), 1, size // 2, dtype=torch.float64), (places[:, None] * frequencies)[:, None]
    )

    def turned(x: Tensor) -> Tensor:
        complex_pairs = torch.complex(x[..., : size // 2].double(), x[..., size // 2 :].double()) * turns
        return torch.cat([complex_pairs.real, complex_pairs.imag], dim=-1)

    x = embedding[ids].double()
    for layer in range(config.num_hidden_layers):
        own = {name.split(".", 2)[2]: w for name, w in weights.items() if name.startswith(f"layers.{layer}.")}
        normed = _norm(x, own["input_layernorm.weight"], config.rms_norm_eps)
        q, k, v = (normed @ own["qkv_proj.weight"].t()).split([heads * size, kv_heads * size, kv_heads * size], dim=1)
        q, k = turned(q.view(-1, heads, size)), turned(k.view(-1, kv_heads, size))
        attended = []
        for head in range(heads):
            group = head // (heads // kv_heads)
            scores = q[:, head] @ k[:, group].t() / size**0.5
            share = scores.masked_fill(~sees, -torch.inf).softmax(dim=1)
            attended.append(share @ v.view(-1, kv_heads, size)[:, group])
        x = x + torch.cat(attended, dim=1) @ own["o_proj.weight"].t()
        normed = _norm(x, own["post_attention_layernorm.weight"], config.rms_norm_eps)
        gate, up = (normed @ own["gate_up_proj.weight"].t()).chunk(2, dim=1)
        x = x + (gate * torch.sigmoid(gate) * up) @ own["down_proj.weight"].t()
    return _norm(x, weights["norm.weight"], config.rms_norm_eps)


def model_hidden(model: BlockDiffusionModel, ids: Tensor, places: Tensor, sees: Tensor) -> Tensor:
    """`dense_hidden` of a model's weights."""
    weights = {name: tensor.double() for name, tensor in model.state_dict().items()}
    return dense_hidden(model.config, weights, model.embedding, ids, places, sees)


def block_hidden(model: BlockDiffusionModel, before: Sequence[int], block: Sequence[int]) -> Tensor:
    """Rows [B, H] of a block after the whole blocks `before`."""
    places = torch.arange(len(before) + len(block))
    of_block = places // model.config.block_size
    hidden = model_hidden(model, torch.tensor([*before, *block]), places, of_block[:, None] >= of_block[None, :])
    return hidden[len(before) :]


def denoised(model: BlockDiffusionModel, before: Sequence[int], block: Sequence[int], steps: int) -> list[int]:
    """The block with all its masks revealed in `steps` steps, the most confident first, earlier steps taking the rest."""
    block = list(block)
    left = min(steps, block.count(MASK))
    while MASK in block:
        logits = block_hidden(model, before, block) @ model.lm_head.double().t()
        logits[:, MASK] = -torch.inf
        confidence, choice = logits.softmax(dim=1).max(dim=1)
        masked = [row for row, token in enumerate(block) if token == MASK]
        count = (len(masked) + left - 1) // left
        for row in sorted(masked, key=lambda row: -float(confidence[row]))[:count]:
            block[row] = int(choice[row])
        left -= 1
    return block


def generated(
    model: BlockDiffusionModel, prompt: Sequence[int], max_new_tokens: int, steps: int, stops: Sequence[int]
) -> list[int]:
    """The answer to one prompt."""
    size, text = model.config.block_size, list(prompt)
    while True:
        whole = len(text) // size * size
        block = text[whole:] + [MASK] * (size - len(text) + whole)
        for token in denoised(model, text[:whole], block, steps)[len(text) - whole :]:
            text.append(token)
            if token in stops or len(text) == len(prompt) + max_new_tokens:
                return text[len(prompt) :]
