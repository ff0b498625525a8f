"""Cosine and sine tables for the ops, for every kind of RoPE transformers knows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from .config import DraftConfig


def rope_table(
    config: DraftConfig | PretrainedConfig,
    max_positions: int | None = None,
    dtype: torch.dtype = torch.float32,
    *,
    layer_type: str | None = None,
) -> Tensor:
    """cos_sin [P, R]: cos of position p in columns 0..R/2, sin in R/2..R, attention scaling multiplied in.

    Frequencies come from transformers' own functions; angles are float32 products position * frequency, exactly as
    transformers forms them, because that is what the weights were trained with.

    Two kinds of RoPE choose frequencies by sequence length. A cache cannot be re-rotated, so the table fixes the choice
    once: `longrope` takes the long factors if max_positions exceeds the original length, `dynamic` the base for
    max_positions.

    Args:
        config: a draft config, or a Hugging Face config (its text part is used).
        max_positions: P; None takes what the config is made for.
        dtype: dtype of the result (angles are float32 whatever it is).
        layer_type: which entry to use when the Hugging Face config has one RoPE per layer type.

    Raises:
        ValueError: max_positions < 1, or a rope_type transformers does not know.
    """
    if isinstance(config, DraftConfig):
        default_positions = config.max_positions
        source: PretrainedConfig = Qwen3Config(
            hidden_size=config.hidden_size,
            num_attention_heads=config.num_attention_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.max_position_embeddings,
            rope_parameters=dict(config.rope_parameters),
        )
    else:
        source = config.get_text_config()
        default_positions = source.max_position_embeddings
    positions = default_positions if max_positions is None else max_positions
    if positions < 1:
        raise ValueError(f"rope_table: max_positions: expected at least 1, got {positions}")
    frequencies, scaling = _frequencies(source, positions, layer_type)
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies.float()[None, :]
    table = torch.empty(positions, 2 * frequencies.numel(), dtype=dtype)
    half = frequencies.numel()
    table[:, :half] = angles.cos() * scaling
    table[:, half:] = angles.sin() * scaling
    return table


def _frequencies(config: PretrainedConfig, positions: int, layer_type: str | None) -> tuple[Tensor, float]:
    """Rotation frequencies [R/2] and the factor on cos and sin."""
    parameters: dict[str, Any] = config.rope_parameters or {}
    if layer_type is not None and layer_type in parameters:
        parameters = parameters[layer_type]
    else:
        layer_type = None
    kind = parameters.get("rope_type", "default")
    if kind == "default":
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        rotary_dim = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
        exponents = torch.arange(0, rotary_dim, 2, dtype=torch.int64).float() / rotary_dim
        return 1.0 / (parameters["rope_theta"] ** exponents), 1.0
    if kind not in ROPE_INIT_FUNCTIONS:
        known = ", ".join(("default", *ROPE_INIT_FUNCTIONS))
        raise ValueError(f"rope_table: rope_type: expected one of {known}, got {kind!r}")
    return ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=positions, layer_type=layer_type)
