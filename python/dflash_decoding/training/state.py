"""What a training run leaves on disk to go on from: one safetensors file, replaced atomically."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from .distribution import laid_out_like, whole

STATE_FILE = "state.safetensors"
_MOMENTS = ("exp_avg", "exp_avg_sq")


def save_state(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: int,
    identity: dict[str, Any],
    *,
    write: bool = True,
) -> None:
    """Writes weights, optimizer moments and the number of finished steps. `identity` says which run they belong to.

    Nothing else is needed to go on: batches and anchors are functions of the step. The file holds whole tensors however
    they are sharded, so a run may go on with another number of processes. All processes must call, one with `write`.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        tensors[f"model.{name}"] = whole(parameter.detach())
        for moment in _MOMENTS:
            if moment in optimizer.state[parameter]:
                tensors[f"{moment}.{name}"] = whole(optimizer.state[parameter][moment])
    if not write:
        return
    partial = folder / f"{STATE_FILE}.partial"
    save_file(tensors, partial, metadata={"step": str(step), "identity": json.dumps(identity, sort_keys=True)})
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(partial, folder / STATE_FILE)


def load_state(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    identity: dict[str, Any],
    defaults: Mapping[str, Any],
) -> int | None:
    """Restores what `save_state` wrote; returns the number of finished steps, or None if there is no state.

    `defaults` are parts of an identity that a state written before they existed stands for.

    Raises:
        ValueError: the file is damaged, or belongs to a run with other settings, model or data.
    """
    path = folder / STATE_FILE
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            saved = json.loads(metadata["identity"])
            _check_identity({**defaults, **saved}, json.loads(json.dumps(identity)))
            step = int(metadata["step"])
            for name, parameter in model.named_parameters():
                with torch.no_grad():
                    parameter.copy_(laid_out_like(file.get_tensor(f"model.{name}"), parameter))
                if step:
                    moments = {
                        moment: laid_out_like(file.get_tensor(f"{moment}.{name}"), parameter) for moment in _MOMENTS
                    }
                    optimizer.state[parameter] = {"step": torch.tensor(float(step)), **moments}
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"resume: {path}: expected a training state, got: {error}") from error
    return step


def _check_identity(saved: dict[str, Any], wanted: dict[str, Any]) -> None:
    different = [
        f"{key}: expected {saved.get(key)!r}, got {wanted.get(key)!r}"
        for key in sorted(saved.keys() | wanted.keys())
        if saved.get(key) != wanted.get(key)
    ]
    if different:
        raise ValueError("resume: the run was started otherwise: " + "; ".join(different))
