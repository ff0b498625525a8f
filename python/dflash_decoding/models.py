"""Finds the files behind a model's name: `smollm2`, a local folder or GGUF file, or a hub id.

Weights come from safetensors or GGUF only. A folder that offers nothing but pickles is refused, since loading one runs
whatever code it holds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from dflash_decoding.smollm2 import bundled_drafter_path, smollm2_path

DEFAULT_MODEL = "smollm2"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True)
class ModelSource:
    """Where a model is loaded from.

    Attributes:
        path: a local folder, or a hub id `owner/name`.
        gguf_file: name of the GGUF file in `path` that holds weights, config and tokenizer; None for safetensors.
        is_local: whether `path` is a folder, so that nothing needs the network.
    """

    path: str
    gguf_file: str | None
    is_local: bool


def resolve_target(name: str | Path) -> ModelSource:
    """Source of a target: `smollm2` (converted on first use), a folder, a GGUF file, a hub id, `owner/name/file.gguf`.

    Raises:
        FileNotFoundError: no such folder or file and not a hub id, or a folder without config or usable weights.
        ValueError: a folder with several GGUF files and no safetensors: name the file.
    """
    if str(name) == DEFAULT_MODEL:
        return ModelSource(str(smollm2_path()), None, True)
    path = Path(name).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise FileNotFoundError(f"target: expected a folder or a .gguf file, got the file {path}")
        return ModelSource(str(path.parent), path.name, True)
    if path.is_dir():
        return _target_folder(path)
    owner_and_name, _, file = str(name).rpartition("/")
    if file.endswith(".gguf") and _HUB_ID.fullmatch(owner_and_name):
        return ModelSource(owner_and_name, file, False)
    return _hub_source("target", name)


def resolve_drafter(name: str | Path) -> ModelSource:
    """Source of a drafter: `smollm2` (bundled with this package), a folder, or a hub id.

    Raises:
        FileNotFoundError: no such folder and not a hub id, or a folder without config or safetensors.
    """
    path = bundled_drafter_path() if str(name) == DEFAULT_MODEL else Path(name).expanduser()
    if path.is_dir() or str(name) == DEFAULT_MODEL:
        _require_config("drafter", path)
        if not any(path.glob("*.safetensors")):
            raise FileNotFoundError(f"drafter: expected safetensors in {path}, got {_weights_found(path)}")
        return ModelSource(str(path), None, True)
    return _hub_source("drafter", name)


def _target_folder(path: Path) -> ModelSource:
    if any(path.glob("*.safetensors")):
        _require_config("target", path)
        return ModelSource(str(path), None, True)
    gguf_files = sorted(file.name for file in path.glob("*.gguf"))
    if not gguf_files:
        raise FileNotFoundError(f"target: expected safetensors or GGUF in {path}, got {_weights_found(path)}")
    if len(gguf_files) > 1:
        raise ValueError(f"target: expected one GGUF file in {path}, got {', '.join(gguf_files)}; name one of them")
    return ModelSource(str(path), gguf_files[0], True)


def _hub_source(role: str, name: str | Path) -> ModelSource:
    if not _HUB_ID.fullmatch(str(name)):
        raise FileNotFoundError(
            f"{role}: expected '{DEFAULT_MODEL}', an existing folder or a hub id like owner/name, got '{name}'"
        )
    return ModelSource(str(name), None, False)


def _require_config(role: str, path: Path) -> None:
    if not (path / "config.json").is_file():
        raise FileNotFoundError(f"{role}: expected config.json in {path}, got no such file")


def _weights_found(path: Path) -> str:
    pickles = sorted(file.name for file in path.glob("*") if file.suffix in _PICKLE_SUFFIXES)
    return f"pickled weights, which are never loaded ({', '.join(pickles)})" if pickles else "no weights"
