"""Damaged, lying and hostile checkpoints: refused with the file's name and a reason, without crash or large allocation."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.hostile.checkpoints import (
    KINDS,
    LIES,
    Load,
    hostile_config,
    random_bytes,
    read_file,
    spoil,
    write_checkpoint,
    write_file,
)

REFUSALS = (ValueError, OSError)
MOST_BYTES = 64 << 20  # of Python objects; a checkpoint here has less than a megabyte


@pytest.fixture(scope="module", params=KINDS)
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Load]:
    folder = tmp_path_factory.mktemp(request.param)
    load = write_checkpoint(request.param, folder)
    load(folder)
    return request.param, folder, load


def outcome(load: Load, folder: Path) -> str | None:
    """What a refusal says, None if there is none; other exceptions pass."""
    try:
        load(folder)
    except REFUSALS as refusal:
        return str(refusal)
    return None


def copy(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "copy"))


@pytest.mark.parametrize("lie", LIES)
def test_lying_headers_are_refused(sound: tuple[str, Path, Load], lie: str, tmp_path: Path) -> None:
    _, source, load = sound
    folder = copy(source, tmp_path)
    path = folder / "model.safetensors"
    header, data = read_file(path)
    write_file(path, *LIES[lie](header, data))
    with pytest.raises(ValueError, match="expected") as refusal:
        load(folder)
    # The damaged file, or the tensor that is not as it should be.
    assert str(path) in str(refusal.value) or any(name in str(refusal.value) for name in header)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers_are_refused(sound: tuple[str, Path, Load], value: float, tmp_path: Path) -> None:
    _, source, load = sound
    folder = copy(source, tmp_path)
    name = spoil(folder, value)
    with pytest.raises(ValueError, match=rf"model\.safetensors: {name}: expected finite weights, got .*(nan|inf)"):
        load(folder)


def test_hostile_configs_are_refused(sound: tuple[str, Path, Load], tmp_path: Path) -> None:
    kind, source, load = sound
    folder = copy(source, tmp_path)
    original = json.loads((source / "config.json").read_text())
    names = ("checkpoint", *original, *original.get("dflash_config", {}))
    refused = 0
    for seed in range(100):
        config = json.loads(json.dumps(original))
        change = hostile_config(Random(f"{kind} {seed}"), config)
        (folder / "config.json").write_text(json.dumps(config))
        tracemalloc.start()
        said = outcome(load, folder)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        refused += said is not None
        assert said is None or any(name in said for name in names), f"seed {seed}: {change}: {said}"
        assert peak < MOST_BYTES, (change, peak)
    assert refused > 50


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{", "[" * 100000, '{"a": ' + "9" * 5000 + "}", "\ud800"],
    ids=["empty", "list", "null", "cut", "deep", "long number", "no UTF-8"],
)
def test_configs_that_are_no_object_are_refused(sound: tuple[str, Path, Load], text: str, tmp_path: Path) -> None:
    _, source, load = sound
    folder = copy(source, tmp_path)
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ValueError, match=r"config\.json: expected (JSON|a JSON object)"):
        load(folder)


def test_random_damage_is_refused_or_harmless(sound: tuple[str, Path, Load], tmp_path: Path) -> None:
    """A flipped bit of a weight is still a weight; everything else has to be refused in a sentence."""
    kind, source, load = sound
    for seed in range(60):
        random = Random(f"{kind} {seed}")
        folder = Path(shutil.copytree(source, tmp_path / str(seed)))
        name = random.choice(["model.safetensors", "model.safetensors", "config.json"])
        change = random_bytes(random, folder / name)
        said = outcome(load, folder)
        assert said is None or "expected" in said or "config" in said, f"seed {seed}: {change} of {name}: {said}"


def test_missing_and_further_tensors_are_named(sound: tuple[str, Path, Load], tmp_path: Path) -> None:
    _, source, load = sound
    folder = copy(source, tmp_path)
    path = folder / "model.safetensors"
    header, data = read_file(path)
    lost = sorted(name for name in header if name != "__metadata__")[0]
    entry = header.pop(lost)
    write_file(path, {**header, "surplus.weight": entry}, data)
    with pytest.raises(ValueError, match=rf"missing {lost}; unexpected surplus\.weight"):
        load(folder)


def test_an_index_that_lies_is_refused(tmp_path: Path) -> None:
    load = write_checkpoint("dflash", tmp_path)
    path = tmp_path / "model.safetensors"
    path.rename(tmp_path / "model-1.safetensors")
    for index, message in _bad_indices():
        (tmp_path / "model.safetensors.index.json").write_text(index)
        with pytest.raises(REFUSALS, match=message):
            load(tmp_path)


def _bad_indices() -> list[tuple[str, str]]:
    def of(weight_map: Any) -> str:
        return json.dumps({"weight_map": weight_map})

    return [
        ("[" * 100000, "expected JSON"),
        ("[]", "expected a JSON object"),
        (of([]), "expected a weight_map"),
        (of({}), "expected a weight_map"),
        (of({"norm.weight": 3, "fc.weight": "model-1.safetensors"}), "expected shard file names, got '3'"),
        (of({"norm.weight": "/etc/passwd"}), "expected shard file names"),
        (of({"norm.weight": "../model-1.safetensors"}), "expected shard file names"),
        (of({"norm.weight": "model-2.safetensors"}), "expected shard model-2"),
    ]
