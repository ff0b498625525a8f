"""Checkpoints of the baselines: a `DraftConfig` under a `model_type` of their own, and safetensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor
from transformers.utils import cached_file

from dflash_decoding.checkpoint import TensorSpec, read_tensors, write_checkpoint
from dflash_decoding.config import DraftConfig
from dflash_decoding.config_layouts import BASELINE_PREFIX
from dflash_decoding.files import read_json_object

# Tensors of a baseline of a given shape.
Specs = Callable[[DraftConfig], dict[str, TensorSpec]]


def read_model_type(name_or_path: str | Path) -> str | None:
    """The baseline's `model_type` of a drafter's folder or hub id, None for a DFlash drafter.

    Raises:
        OSError: there is no config.json.
        ValueError: it is no JSON object.
    """
    model_type = _read_config(name_or_path).get("model_type")
    return model_type if isinstance(model_type, str) and model_type.startswith(BASELINE_PREFIX) else None


def baseline_config(model_type: str, config: DraftConfig) -> dict[str, object]:
    """`config.json` of a baseline."""
    return {**config.to_dict(), "model_type": model_type, "architectures": []}


def save_baseline(
    folder: str | Path, model_type: str, config: DraftConfig, weights: Mapping[str, Tensor], specs: Specs
) -> None:
    """Writes a checkpoint that `load_baseline` reads.

    Raises:
        ValueError: weights that it would refuse.
    """
    write_checkpoint(folder, baseline_config(model_type, config), weights, specs(config))


def load_baseline(name_or_path: str | Path, model_type: str, specs: Specs) -> tuple[DraftConfig, dict[str, Tensor]]:
    """Config and checked weights of a baseline.

    Raises:
        OSError: a file is missing.
        ValueError: another kind of drafter, or a damaged checkpoint.
    """
    raw = _read_config(name_or_path)
    if raw.get("model_type") != model_type:
        raise ValueError(f"drafter {name_or_path}: model_type: expected {model_type}, got {raw.get('model_type')}")
    try:
        config = DraftConfig.from_dict({name: value for name, value in raw.items() if name != "model_type"})
    except ValueError as error:
        raise ValueError(f"drafter {name_or_path}: {error}") from error
    return config, read_tensors(name_or_path, specs(config))


def _read_config(name_or_path: str | Path) -> dict[str, object]:
    path = cached_file(str(name_or_path), "config.json")
    if path is None:
        raise FileNotFoundError(f"drafter {name_or_path}: expected a config.json, got none")
    return read_json_object(path, f"drafter {name_or_path}")
