"""Reading JSON that may be damaged, and replacing a checkpoint's files so that no reader sees parts of two."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"


def read_json_object(path: str | Path, what: str) -> dict[str, Any]:
    """The JSON object of a file; `what` begins the messages.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no JSON object.
    """
    try:
        raw = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what}: {path}: expected JSON, got: {error}") from error
    if not isinstance(raw, dict):
        raise ValueError(f"{what}: {path}: expected a JSON object, got {type(raw).__name__}")
    return raw


def write_checkpoint_files(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Writes `config.json` and `model.safetensors` into `folder`, created if absent.

    Both are written and synchronised in a folder beside, then renamed. Killed before the renames, the old checkpoint is
    there; after them, the new one. A config that changes goes away first and comes back last, so that a kill between
    the two leaves a folder without a config, which every loader refuses, and never weights of one under the other.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(dict(config), indent=2) + "\n"
    with tempfile.TemporaryDirectory(dir=folder, prefix=".writing-") as temporary:
        new = Path(temporary)
        save_file(dict(tensors), new / WEIGHTS_FILE, metadata={"format": "pt"})
        (new / CONFIG_FILE).write_text(text, encoding="utf-8")
        for name in (WEIGHTS_FILE, CONFIG_FILE):
            synchronize(new / name)
        old = folder / CONFIG_FILE
        if old.is_file() and old.read_bytes() != text.encode():
            old.unlink()
            synchronize(folder)
        os.replace(new / WEIGHTS_FILE, folder / WEIGHTS_FILE)
        os.replace(new / CONFIG_FILE, old)
        synchronize(folder)


def synchronize(path: Path) -> None:
    """Waits until a file's contents, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
