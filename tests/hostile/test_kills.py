"""SIGKILL at every step of saving a checkpoint: afterwards it loads as the old one or the new one, or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from dflash_decoding.block_diffusion.model import BlockDiffusionModel
from dflash_decoding.checkpoint import draft_tensor_specs, load_draft_weights, save_draft_checkpoint
from dflash_decoding.config import DraftConfig

from tests.baselines.world import make_config, random_tensors
from tests.block_diffusion.dense import tiny_config, tiny_model

ROOT = Path(__file__).resolve().parents[2]
OLD, NEW = make_config(), make_config(target_layer_ids=(1, 3))  # tensors of the same shapes

# Every call that touches the disk in dflash_decoding.files, by the order of a save: a child process for each of them,
# forked from one that has imported everything, kills itself there. The last one makes all of them.
KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from dflash_decoding import files
from tests.hostile.test_kills import save_new
torch.set_num_threads(1)
def save(folder, left):
    def deadly(original):
        def call(*arguments, **options):
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **options)
        return call
    files.os.replace, files.os.fsync = deadly(os.replace), deadly(os.fsync)
    files.save_file, files.Path.unlink = deadly(files.save_file), deadly(files.Path.unlink)
    files.Path.write_text = deadly(files.Path.write_text)
    save_new(sys.argv[1], folder)
for number, folder in enumerate(sys.argv[2:]):
    child = os.fork()
    if not child:
        save(Path(folder), number)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(int(os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL))
"""


def save_old(kind: str, folder: Path) -> None:
    if kind == "block_diffusion":
        tiny_model(tiny_config(block_size=4)).save(folder)
    else:
        save_draft_checkpoint(folder, OLD, random_tensors(draft_tensor_specs(OLD), seed=0))


def save_new(kind: str, folder: Path) -> None:
    if kind == "block_diffusion":
        model = tiny_model(tiny_config(block_size=8))
        with torch.no_grad():
            model.norm.weight.mul_(2)
        model.save(folder)
    else:
        config = OLD if kind == "same config" else NEW
        save_draft_checkpoint(folder, config, random_tensors(draft_tensor_specs(config), seed=1))


def read(kind: str, folder: Path) -> tuple[Any, dict[str, bytes]]:
    """Config and weights of what lies in the folder."""
    if kind == "block_diffusion":
        model = tiny_model(tiny_config(block_size=4))
        loaded = BlockDiffusionModel.from_folder(folder, model.embedding, model.lm_head)
        return loaded.config, _bytes_of(loaded.state_dict())
    config = DraftConfig.from_pretrained(folder)
    return config, _bytes_of(load_draft_weights(folder, config))


def _bytes_of(tensors: dict[str, torch.Tensor]) -> dict[str, bytes]:
    return {name: tensor.float().numpy().tobytes() for name, tensor in tensors.items()}


@pytest.mark.parametrize("kind", ["same config", "new config", "block_diffusion"])
def test_a_killed_save_leaves_no_mixture(kind: str, tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(14)]
    for folder in (*folders, tmp_path / "old", tmp_path / "new"):
        save_old(kind, folder)
    save_new(kind, tmp_path / "new")
    old, new = read(kind, tmp_path / "old"), read(kind, tmp_path / "new")
    assert old[1] != new[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "python")])}
    command = [sys.executable, "-c", KILLED, kind, *map(str, folders)]
    told = subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    killed = [line == "1" for line in told.split()]
    # Each of the first folders was killed one call later, until a save made all of its calls.
    steps = killed.index(False)
    assert steps >= (7 if kind == "same config" else 9)
    assert not any(killed[steps:])
    states = []
    for folder in folders[: steps + 1]:
        if not (folder / "config.json").exists():
            with pytest.raises(OSError, match=r"config\.json"):
                read(kind, folder)
            states.append("none")
            continue
        found = read(kind, folder)
        assert found in (old, new), "parts of both checkpoints were read as one"
        states.append("old" if found == old else "new")
        save_new(kind, folder)  # what a killed save left behind does not hinder the next one
        assert read(kind, folder) == new
    assert states[0] == "old"
    assert states[-1] == "new"
    assert states == sorted(states, key=["old", "none", "new"].index), states
    assert states.count("none") <= (0 if kind == "same config" else 4)
