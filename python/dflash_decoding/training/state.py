"""What a training run leaves on disk to go on from: one safetensors file, replaced atomically, and CSV logs."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

STATE_FILE = "state.safetensors"
_MOMENTS = ("exp_avg", "exp_avg_sq")


def save_state(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, identity: dict[str, Any]
) -> None:
    """Writes weights, optimizer moments and the number of finished steps. `identity` says which run they belong to.

    Nothing else is needed to go on: batches and anchors are functions of the step.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        tensors[f"model.{name}"] = parameter.detach()
        for moment in _MOMENTS:
            if moment in optimizer.state[parameter]:
                tensors[f"{moment}.{name}"] = optimizer.state[parameter][moment]
    partial = folder / f"{STATE_FILE}.partial"
    save_file(tensors, partial, metadata={"step": str(step), "identity": json.dumps(identity, sort_keys=True)})
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(partial, folder / STATE_FILE)


def load_state(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, identity: dict[str, Any]
) -> int | None:
    """Restores what `save_state` wrote; returns the number of finished steps, or None if there is no state.

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
            _check_identity(saved, json.loads(json.dumps(identity)))
            step = int(metadata["step"])
            for name, parameter in model.named_parameters():
                with torch.no_grad():
                    parameter.copy_(file.get_tensor(f"model.{name}"))
                if step:
                    moments = {moment: file.get_tensor(f"{moment}.{name}") for moment in _MOMENTS}
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


class CsvLog:
    """A CSV file whose first column is the step.

    Opening it drops rows after `keep_through`: a run that was killed has logged steps after its last saved state, and
    will log them again.
    """

    def __init__(self, path: Path, columns: Sequence[str], keep_through: int) -> None:
        rows: list[list[str]] = []
        if keep_through and path.is_file():
            with path.open(newline="", encoding="utf-8") as file:
                # A row cut short by a kill has too few fields.
                complete = [row for row in csv.reader(file) if len(row) == len(columns)]
            rows = [row for row in complete if row[0].isdigit() and int(row[0]) <= keep_through]
        self._file = path.open("w", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file)
        self._writer.writerow(columns)
        self._writer.writerows(rows)
        self._file.flush()

    def write(self, step: int, *values: float) -> None:
        """Appends one row; floats are written with six significant digits."""
        self._writer.writerow([step, *(f"{value:.6g}" for value in values)])
        self._file.flush()

    def close(self) -> None:
        self._file.close()
