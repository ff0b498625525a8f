"""Shape of a block-diffusion language model and what its checkpoint folder says about it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from transformers import Qwen3Config

from dflash_decoding.files import CONFIG_FILE, read_json_object

MODEL_TYPE = "block_diffusion_llama"

# Far above any model's: what is made of these numbers before the weights could contradict them stays small.
_MOST = {"num_hidden_layers": 1024, "max_position_embeddings": 2**24, "block_size": 2**16}


@dataclass(frozen=True)
class BlockDiffusionConfig:
    """A Llama-style decoder that fills blocks of tokens.

    Attributes worth a word:
        block_size: tokens per block; blocks are counted from the first token of a text, prompt included.
        mask_token_id: what an unknown token is replaced with; no text may contain it.
        end_token_id: ends a text, and fills its last block from there.

    Raises:
        ValueError: a field is out of its range; the message names it.
    """

    block_size: int
    mask_token_id: int
    end_token_id: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        for field in sorted(fields(self), key=lambda field: field.name.endswith("_token_id")):  # after vocab_size
            value = getattr(self, field.name)
            is_integer = isinstance(value, int) and not isinstance(value, bool)
            if field.type == "float":
                real = is_integer or isinstance(value, float)
                valid, expected = real and math.isfinite(value) and value > 0, "a positive number"
            elif field.name.endswith("_token_id"):
                valid, expected = is_integer and 0 <= value < self.vocab_size, "an id below vocab_size"
            else:
                most = _MOST.get(field.name, 2**31 - 1)
                valid, expected = is_integer and 1 <= value <= most, f"an integer >= 1, at most {most}"
            if not valid:
                raise ValueError(f"block diffusion config: {field.name}: expected {expected}, got {value!r}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                "block diffusion config: num_attention_heads: expected a multiple of num_key_value_heads "
                f"{self.num_key_value_heads}, got {self.num_attention_heads}"
            )
        if self.mask_token_id == self.end_token_id:
            raise ValueError(f"block diffusion config: mask_token_id: expected not end_token_id {self.end_token_id}")

    @property
    def max_positions(self) -> int:
        """Positions of whole blocks that cover `max_position_embeddings`."""
        return -(-self.max_position_embeddings // self.block_size) * self.block_size

    def rope_config(self) -> Qwen3Config:
        """What `rope_table` reads."""
        return Qwen3Config(
            hidden_size=self.hidden_size,
            num_attention_heads=self.num_attention_heads,
            head_dim=self.head_dim,
            max_position_embeddings=self.max_position_embeddings,
            rope_parameters={"rope_type": "default", "rope_theta": self.rope_theta},
        )

    def to_dict(self) -> dict[str, Any]:
        """Contents of `config.json`; `from_dict` of it gives an equal config."""
        return {"model_type": MODEL_TYPE, **asdict(self)}

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> BlockDiffusionConfig:
        """Reads a parsed `config.json`.

        Raises:
            ValueError: another kind of model, or fields that are missing, unknown or out of range.
        """
        values = dict(raw)
        kind = values.pop("model_type", None)
        if kind != MODEL_TYPE:
            raise ValueError(f"block diffusion config: model_type: expected {MODEL_TYPE!r}, got {kind!r}")
        known = {field.name for field in fields(cls)}
        if values.keys() - known:
            raise ValueError(f"block diffusion config: expected {sorted(known)}, got {sorted(values.keys() - known)}")
        try:
            return cls(**values)
        except TypeError as error:  # of a missing field, or one that cannot be compared with a number
            raise ValueError(f"block diffusion config: expected all fields as numbers, got: {error}") from error

    @classmethod
    def from_folder(cls, folder: str | Path) -> BlockDiffusionConfig:
        """Reads `config.json` of a checkpoint folder.

        Raises:
            OSError: no such file.
            ValueError: as `from_dict`, or the file is not a JSON object.
        """
        path = Path(folder) / CONFIG_FILE
        raw = read_json_object(path, "block diffusion config")
        try:
            return cls.from_dict(raw)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
