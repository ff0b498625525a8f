"""Two gloo processes on this machine train what one process trains."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from dflash_decoding import cli
from dflash_decoding.training.distribution import Distribution
from dflash_decoding.training.state import STATE_FILE
from safetensors.torch import load_file

from tests.decoding.tiny import tiny_target
from tests.training.tiny import tiny_trainer

ROOT = Path(__file__).parents[2]
# Shares of two chats and one, and batches to accumulate.
SETTINGS: dict[str, Any] = {"chats_per_batch": 3, "accumulate": 2}

# Both methods, stopped and resumed, with a folder of its own for each process where nothing is read back; then the
# command. All in one start, since a process takes longer to import torch than to train.
PROCESS = """
import sys
from pathlib import Path
import torch
from dflash_decoding import cli
from dflash_decoding.training.distribution import Distribution, distribution
from tests.training.test_distribution import SETTINGS
from tests.training.tiny import tiny_trainer
folder = Path(sys.argv[1])
with distribution("ddp") as processes:
    for method in ("ddp", "fsdp2"):
        processes = Distribution(processes.rank, processes.size, method)
        own = folder / f"{method}-{processes.rank}"
        tiny_trainer(own, distribution=processes, **SETTINGS).run(stop_at=3, progress=False)
        resumed = folder / f"{method}-resumed"
        tiny_trainer(resumed, distribution=processes, **SETTINGS).run(stop_at=7, progress=False)
        torch.distributed.barrier()
        trainer = tiny_trainer(resumed, distribution=processes, resume=True, **SETTINGS)
        assert trainer.step == 7
        trainer.run(progress=False)
    # One process group for all: making a second one in the same processes is not reliable.
    status = cli.main(sys.argv[2:])
sys.exit(status)
"""


def logged(folder: Path, column: str) -> list[float]:
    with (folder / "train.csv").open(newline="") as file:
        return [float(row[column]) for row in csv.DictReader(file)]


def assert_same_run(folder: Path, reference: Path) -> None:
    assert logged(folder, "loss") == pytest.approx(logged(reference, "loss"), rel=1e-5)
    # AdamW hardly sees a factor on all gradients, so weights alone would not show one.
    assert logged(folder, "gradient_norm") == pytest.approx(logged(reference, "gradient_norm"), rel=1e-4)
    actual, wanted = load_file(folder / STATE_FILE), load_file(reference / STATE_FILE)
    assert actual.keys() == wanted.keys()
    for name, tensor in actual.items():
        torch.testing.assert_close(tensor, wanted[name], rtol=1e-3, atol=1e-4)
    exported = [load_file(path / "checkpoint" / "model.safetensors") for path in (folder, reference)]
    assert exported[0].keys() == exported[1].keys()
    for name, tensor in exported[0].items():
        torch.testing.assert_close(tensor, exported[1][name], rtol=1e-2, atol=1e-3)
    assert (folder / "validation.csv").read_text() == (reference / "validation.csv").read_text()


def command(folder: Path) -> list[str]:
    """A training command on a real, tiny target whose files it writes."""
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(tiny_target().config).save_pretrained(folder / "target")
    generator = np.random.default_rng(0)
    lens = generator.integers(12, 24, 8).astype(np.int32)
    tokens = generator.integers(0, 256, int(lens.sum())).astype(np.uint16)
    np.savez(folder / "chats.npz", tokens=tokens, lens=lens, prompt_len=np.full(8, 4, np.int32))
    options = ["train", "--target", str(folder / "target"), "--chats", str(folder / "chats.npz"), "--held-out", "2"]
    options += ["--steps", "3", "--chats-per-batch", "3", "--loss", "kl", "--tap-cache", str(folder / "cache")]
    return [*options, "--block-size", "4", "--tap-layers", "0,2", "--mask-token-id", "258"]


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes have run `PROCESS`."""
    folder = tmp_path_factory.mktemp("two")
    script = folder / "process.py"
    script.write_text(PROCESS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "python")])}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = [str(script), str(folder), *command(folder), "--output", str(folder / "both"), "--parallel", "fsdp2"]
    # A session of its own, so that a run that hangs can be ended with the processes it has started.
    process = subprocess.Popen(
        [*torchrun, *arguments],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=300)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output
    assert output.count("held-out chats: tau") == 1
    return folder


@pytest.mark.parametrize("method", ["ddp", "fsdp2"])
def test_two_processes_train_what_one_trains(two_processes: Path, tmp_path: Path, method: str) -> None:
    tiny_trainer(tmp_path, **SETTINGS).run(stop_at=7, progress=False)
    tiny_trainer(tmp_path, resume=True, **SETTINGS).run(progress=False)
    assert_same_run(two_processes / f"{method}-resumed", tmp_path)


@pytest.mark.parametrize("method", ["ddp", "fsdp2"])
def test_one_process_writes_the_files(two_processes: Path, method: str) -> None:
    written = {path.name for path in (two_processes / f"{method}-0").iterdir()}
    assert written == {STATE_FILE, "train.csv", "validation.csv", "checkpoint"}
    assert list((two_processes / f"{method}-1").iterdir()) == []


def test_command_in_two_processes(two_processes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*command(tmp_path), "--output", str(tmp_path / "one")]) == 0
    assert "held-out chats: tau" in capsys.readouterr().out
    # Other folders of the same files, so that the one process has no taps of the two to read.
    assert_same_run(two_processes / "both", tmp_path / "one")


def test_refuses_what_cannot_be_shared(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="parallel: expected ddp or fsdp2, got zero"):
        Distribution(method="zero")
    with pytest.raises(ValueError, match=r"chats_per_batch: expected at least one per process \(4\), got 3"):
        tiny_trainer(tmp_path, distribution=Distribution(0, 4))
