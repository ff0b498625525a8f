"""Model names: what is found, and what is refused before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from dflash_decoding import models
from dflash_decoding.models import ModelSource, resolve_drafter, resolve_target


def folder_with(path: Path, *names: str) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name in names:
        (path / name).write_bytes(b"")
    return path


def test_safetensors_folder_comes_before_other_weights(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "config.json", "model-00001-of-00002.safetensors", "pytorch_model.bin", "a.gguf")
    expected = ModelSource(str(folder), None, True)
    assert resolve_target(folder) == resolve_target(str(folder)) == resolve_drafter(folder) == expected


def test_gguf(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "a.gguf")
    assert resolve_target(folder) == resolve_target(folder / "a.gguf") == ModelSource(str(folder), "a.gguf", True)
    folder_with(tmp_path, "b.gguf")
    with pytest.raises(ValueError, match=r"target: expected one GGUF file in .*, got a.gguf, b.gguf; name one"):
        resolve_target(folder)
    assert resolve_target(folder / "b.gguf").gguf_file == "b.gguf"
    with pytest.raises(FileNotFoundError, match=r"drafter: expected config.json"):
        resolve_drafter(folder)


def test_hub_ids() -> None:
    for resolve in (resolve_target, resolve_drafter):
        assert resolve("Qwen/Qwen3-8B") == ModelSource("Qwen/Qwen3-8B", None, False)
    assert resolve_target("owner/na.me/file-Q4.gguf") == ModelSource("owner/na.me", "file-Q4.gguf", False)


@pytest.mark.parametrize("name", ["nowhere", "./no/such/folder", "/no/such", "a/b/c", "owner/", "", "../x", "a b/c"])
def test_neither_folder_nor_hub_id(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder_with(tmp_path / "x" / "y"))
    for resolve in (resolve_target, resolve_drafter):
        with pytest.raises(FileNotFoundError, match=r"expected .*, got"):
            resolve(name)


def test_pickles_are_refused(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "config.json", "pytorch_model.bin", "training.pt")
    for resolve in (resolve_target, resolve_drafter):
        with pytest.raises(FileNotFoundError, match=r"never loaded \(pytorch_model.bin, training.pt\)"):
            resolve(folder)
    with pytest.raises(FileNotFoundError, match=r"expected a folder or a .gguf file, got the file .*pytorch_model.bin"):
        resolve_target(folder / "pytorch_model.bin")


def test_incomplete_folders(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="got no weights"):
        resolve_target(folder_with(tmp_path / "weightless", "config.json"))
    with pytest.raises(FileNotFoundError, match=r"target: expected config.json in .*bare, got no such file"):
        resolve_target(folder_with(tmp_path / "bare", "model.safetensors"))


def test_bundled_drafter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "bundled_drafter_path", lambda: tmp_path)
    with pytest.raises(FileNotFoundError, match=r"drafter: expected config.json"):
        resolve_drafter("smollm2")
    folder_with(tmp_path, "config.json", "model.safetensors")
    assert resolve_drafter("smollm2") == ModelSource(str(tmp_path), None, True)
