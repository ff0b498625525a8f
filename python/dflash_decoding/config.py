"""What a draft checkpoint says about itself, read once and checked: `DraftConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from transformers.utils import cached_file

from .config_layouts import FULL, MOST_POSITIONS, SLIDING, check_number, read_config_fields
from .files import read_json_object

ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")


@dataclass(frozen=True)
class DraftConfig:
    """Shape and semantics of one DFlash drafter, whichever layout the checkpoint used.

    Every field is final: defaults are filled in, both layouts are brought to one form (`docs/checkpoints.md` lists what
    is understood). The draft's own numbers alone are used, never the target's.

    Attributes worth a word:
        block_size: rows per draft block as trained; a smaller block may be run, a larger one may not.
        target_layer_ids: tapped target layers, 0-based layer OUTPUTS (Hugging Face `hidden_states[id + 1]`).
        target_hidden_size: width of one tap; `fc.weight` is [hidden_size, taps * target_hidden_size].
        draft_vocab_size: rows of the drafter's head; less than vocab_size needs an own lm_head and `d2t`.
        is_causal: causality inside the block, for all layers; None: sliding layers causal, full layers not.
        interleaved: RoPE pairs (2i, 2i+1) instead of the two halves (`is_neox_style` false).
        sample_from_anchor: row 0 predicts too, so a block of B rows drafts B tokens instead of B - 1.
        input_embedding_scale: factor on the embedded block (1 for all but a few targets).

    Raises:
        ValueError: any field or combination that does not describe a drafter; the message names the field,
            what was expected and what was found.
    """

    block_size: int
    mask_token_id: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    target_layer_ids: tuple[int, ...]
    layer_types: tuple[str, ...]
    rope_parameters: Mapping[str, Any]
    max_position_embeddings: int
    sliding_window: int | None = None
    is_causal: bool | None = None
    interleaved: bool = False
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    attention_bias: bool = False
    target_hidden_size: int | None = None
    num_target_layers: int | None = None
    draft_vocab_size: int | None = None
    sample_from_anchor: bool = False
    input_embedding_scale: float = 1.0

    def __post_init__(self) -> None:
        for name in ("target_hidden_size", "draft_vocab_size"):
            if getattr(self, name) is None:
                default = self.hidden_size if name == "target_hidden_size" else self.vocab_size
                object.__setattr__(self, name, default)
        object.__setattr__(self, "target_layer_ids", tuple(self.target_layer_ids))
        object.__setattr__(self, "layer_types", tuple(self.layer_types))
        object.__setattr__(self, "rope_parameters", dict(self.rope_parameters))
        self._check_sizes()
        self._check_taps()
        self._check_attention()

    def _check_sizes(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type not in ("int", "int | None", "float"):
                continue
            if value is not None or field.name not in ("sliding_window", "num_target_layers"):
                check_number(field.name, value)
        if self.block_size < 2 and not self.sample_from_anchor:
            raise ValueError(f"draft config: block_size: expected at least 2 rows, got {self.block_size}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                "draft config: num_attention_heads: expected a multiple of num_key_value_heads, got "
                f"{self.num_attention_heads} and {self.num_key_value_heads}"
            )
        if self.mask_token_id >= self.vocab_size:
            raise ValueError(
                f"draft config: mask_token_id: expected an id below vocab_size {self.vocab_size}, "
                f"got {self.mask_token_id}"
            )
        if self.draft_vocab_size is not None and self.draft_vocab_size > self.vocab_size:
            raise ValueError(
                f"draft config: draft_vocab_size: expected at most vocab_size {self.vocab_size}, "
                f"got {self.draft_vocab_size}"
            )
        if self.hidden_act not in ACTIVATIONS:
            raise ValueError(
                f"draft config: hidden_act: expected one of {', '.join(ACTIVATIONS)}, got {self.hidden_act!r}"
            )

    def _check_taps(self) -> None:
        taps = self.target_layer_ids
        highest = self.num_target_layers
        if not taps:
            raise ValueError("draft config: target_layer_ids: expected at least one tap, got none")
        for tap in taps:
            if not isinstance(tap, int) or isinstance(tap, bool) or tap < 0 or (highest is not None and tap >= highest):
                limit = "" if highest is None else f" below num_target_layers {highest}"
                raise ValueError(f"draft config: target_layer_ids: expected 0-based layer ids{limit}, got {list(taps)}")
        if len(set(taps)) != len(taps):
            raise ValueError(f"draft config: target_layer_ids: expected each layer once, got {list(taps)}")

    def _check_attention(self) -> None:
        if len(self.layer_types) != self.num_hidden_layers:
            raise ValueError(
                f"draft config: layer_types: expected {self.num_hidden_layers} entries (num_hidden_layers), "
                f"got {len(self.layer_types)}"
            )
        for layer_type in self.layer_types:
            if layer_type not in (FULL, SLIDING):
                raise ValueError(f"draft config: layer_types: expected {FULL} or {SLIDING}, got {layer_type!r}")
        if SLIDING in self.layer_types and self.sliding_window is None:
            raise ValueError("draft config: sliding_window: expected a window for the sliding layers, got none")
        if self.max_positions > MOST_POSITIONS:
            raise ValueError(
                f"draft config: factor: expected at most {MOST_POSITIONS} positions with "
                f"original_max_position_embeddings, got {self.max_positions}"
            )
        if self.rotary_dim < 2 or self.rotary_dim % 2 or self.rotary_dim > self.head_dim:
            raise ValueError(
                f"draft config: partial_rotary_factor: expected an even number of rotated channels <= head_dim "
                f"{self.head_dim}, got {self.rotary_dim}"
            )

    @property
    def windows(self) -> tuple[int, ...]:
        """Attention window of each layer, 0 where the layer sees everything."""
        return tuple(self.sliding_window or 0 if kind == SLIDING else 0 for kind in self.layer_types)

    @property
    def causal(self) -> tuple[bool, ...]:
        """Per layer: does a block row see only itself and earlier rows of its block?"""
        if self.is_causal is not None:
            return (self.is_causal,) * self.num_hidden_layers
        return tuple(kind == SLIDING for kind in self.layer_types)

    @property
    def rotary_dim(self) -> int:
        """Channels of a head that rotate. (Proportional RoPE spans the head and leaves some pairs still.)"""
        if self.rope_parameters.get("rope_type") == "proportional":
            return self.head_dim
        return int(self.head_dim * self.rope_parameters.get("partial_rotary_factor", 1.0))

    @property
    def max_positions(self) -> int:
        """Positions the checkpoint is made for; RoPE scaling may stretch max_position_embeddings."""
        factor = self.rope_parameters.get("factor")
        original = self.rope_parameters.get("original_max_position_embeddings")
        if factor is None or original is None:
            return self.max_position_embeddings
        return max(self.max_position_embeddings, round(factor * original))

    @property
    def num_draft_tokens(self) -> int:
        """Tokens drafted by one full block."""
        return self.block_size if self.sample_from_anchor else self.block_size - 1

    @property
    def reduced_vocabulary(self) -> bool:
        """True if draft ids must be mapped to target ids."""
        return self.draft_vocab_size != self.vocab_size

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> DraftConfig:
        """Reads a parsed `config.json` of either layout.

        Raises:
            ValueError: a field is unknown, contradictory, missing or of a kind this project does not implement.
        """
        try:
            return cls(**read_config_fields(raw))
        except (TypeError, AttributeError) as error:  # a list, an object or a text where a field has another kind
            raise ValueError(f"draft config: expected every field to be of its kind, got: {error}") from error

    @classmethod
    def from_pretrained(cls, name_or_path: str | Path) -> DraftConfig:
        """Reads `config.json` of a local folder or a hub id.

        Raises:
            OSError: the folder, hub repository or file does not exist or cannot be reached.
            ValueError: as `from_dict`, or the file is not a JSON object.
        """
        path = cached_file(str(name_or_path), "config.json")
        if path is None:
            raise FileNotFoundError(f"draft config: expected a config.json in {name_or_path}, got none")
        raw = read_json_object(path, "draft config")
        try:
            return cls.from_dict(raw)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """The same drafter as a `config.json` of the DFlash layout; `from_dict` of it gives an equal config."""
        window = self.sliding_window if SLIDING in self.layer_types else None
        result: dict[str, Any] = {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "block_size": self.block_size,
            "dflash_config": {
                "mask_token_id": self.mask_token_id,
                "target_layer_ids": list(self.target_layer_ids),
            },
            "layer_types": list(self.layer_types),
            "rope_parameters": dict(self.rope_parameters),
            "sliding_window": window,
            "use_sliding_window": window is not None,
            "is_neox_style": not self.interleaved,
            "tie_word_embeddings": False,
        }
        done = ("block_size", "mask_token_id", "target_layer_ids", "layer_types", "rope_parameters", "sliding_window")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in (*done, "interleaved") and value is not None:
                result[field.name] = value
        return result
