"""Whole training runs on a toy world: they learn, they resume exactly, and what they write can be decoded with."""

import csv
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from dflash_decoding.checkpoint import load_draft_weights
from dflash_decoding.config import DraftConfig
from dflash_decoding.training.state import STATE_FILE
from dflash_decoding.training.taps import TapStore
from dflash_decoding.training.trainer import CHECKPOINT_FOLDER, Trainer, TrainSettings
from dflash_decoding.training.validation import acceptance
from safetensors.torch import load_file, save_file

from tests.training.tiny import fake_taps, tiny_chats, tiny_config, tiny_trainer

ROOT = Path(__file__).parents[2]


def run(folder: Path, *, stop_at: int | None = None, **settings: Any) -> Trainer:
    trainer = tiny_trainer(folder, **settings)
    trainer.run(stop_at=stop_at, progress=False)
    return trainer


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


def same_weights(one: Trainer, other: Trainer) -> bool:
    states = one.model.state_dict(), other.model.state_dict()
    return states[0].keys() == states[1].keys() and all(
        torch.equal(states[0][name], states[1][name]) for name in states[0]
    )


def test_learns(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, steps=150, validate_every=149)
    result = trainer.run(progress=False)
    losses = [float(row[1]) for row in rows(tmp_path / "train.csv")[1:]]
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
    first_tau, last_tau = (float(row[1]) for row in rows(tmp_path / "validation.csv")[1:])
    assert result.tau == pytest.approx(last_tau, rel=1e-4)
    # The toy answers are predictable, a random drafter gets one in 64 right.
    assert result.tau > 2.0
    assert first_tau > 1.5


def test_autocast_computes_in_bfloat16_and_keeps_float32_weights(tmp_path: Path) -> None:
    plain, half = run(tmp_path / "float32"), run(tmp_path / "bfloat16", autocast=True)
    assert all(parameter.dtype == torch.float32 for parameter in half.model.parameters())
    batch = half.plan.batch(0)
    assert half.model(half._taps.get(batch.chats), batch).dtype == torch.bfloat16
    assert not same_weights(plain, half)
    losses = [
        torch.tensor([float(row[1]) for row in rows(tmp_path / name / "train.csv")[1:]])
        for name in ("float32", "bfloat16")
    ]
    # bfloat16 keeps 8 bits, and the runs part slowly.
    torch.testing.assert_close(losses[0], losses[1], rtol=0.03, atol=0)


def test_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    run(tmp_path / "parts", stop_at=3)
    run(tmp_path / "parts", stop_at=8, resume=True)
    resumed = run(tmp_path / "parts", resume=True)
    assert resumed.step == whole.step == 12
    assert same_weights(whole, resumed)
    columns = [[row[:4] for row in rows(tmp_path / name / "train.csv")] for name in ("whole", "parts")]
    assert columns[0] == columns[1]


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from tests.training.tiny import tiny_trainer
torch.set_num_threads(1)
trainer = tiny_trainer(Path(sys.argv[1]), save_every=4)
step = trainer._train_step
def train_step(number):
    if number == 10:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(number)
trainer._train_step = train_step
trainer.run(progress=False)
"""


def test_killed_run_resumes_exactly(tmp_path: Path) -> None:
    """SIGKILL between saved states: the run goes on from the last one and ends with the same weights and log."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "python")])}
        killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "killed")], env=environment, cwd=ROOT)
        assert killed.returncode == -signal.SIGKILL
        assert rows(tmp_path / "killed" / "train.csv")[-1][0] == "10"
        resumed = tiny_trainer(tmp_path / "killed", resume=True)
        assert resumed.step == 8
        resumed.run(progress=False)
        whole = run(tmp_path / "whole")
    finally:
        torch.set_num_threads(threads)
    assert same_weights(whole, resumed)
    steps = [row[0] for row in rows(tmp_path / "killed" / "train.csv")[1:]]
    assert steps == [str(step) for step in range(1, 13)]
    assert [row[0] for row in rows(tmp_path / "killed" / "validation.csv")[1:]] == ["5", "10", "12"]


def test_checkpoint_is_the_model_in_bfloat16(tmp_path: Path) -> None:
    trainer = run(tmp_path, steps=3)
    folder = tmp_path / CHECKPOINT_FOLDER
    config = DraftConfig.from_pretrained(folder)
    assert config == tiny_config()
    weights = load_draft_weights(folder, config)
    state = trainer.model.state_dict()
    assert weights.keys() == state.keys()
    for name, tensor in weights.items():
        assert torch.equal(tensor, state[name].to(torch.bfloat16))


def test_refuses_the_wrong_state(tmp_path: Path) -> None:
    run(tmp_path, stop_at=2)
    with pytest.raises(ValueError, match="expected an empty folder"):
        tiny_trainer(tmp_path)
    with pytest.raises(ValueError, match=r"learning_rate: expected 0\.003, got 0\.001"):
        tiny_trainer(tmp_path, resume=True, learning_rate=1e-3)
    tiny_trainer(tmp_path, resume=True, validate_every=1, logit_chunk_rows=3)
    state = tmp_path / STATE_FILE
    state.write_bytes(state.read_bytes()[:1000])
    with pytest.raises(ValueError, match="expected a training state"):
        tiny_trainer(tmp_path, resume=True)
    save_file({"x": torch.zeros(1)}, state)
    with pytest.raises(ValueError, match="expected a training state"):
        tiny_trainer(tmp_path, resume=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps: expected at least 1, got 0"),
        ({"learning_rate": 0.0}, "learning_rate: expected a positive number"),
        ({"warmup": 1.0}, r"warmup: expected a share of the steps in \[0, 1\)"),
        ({"validate_every": 0}, "validate_every: expected at least 1"),
    ],
)
def test_refuses_settings(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainSettings(**{"steps": 5, **change})


def test_schedule_warms_up_and_ends_at_zero() -> None:
    settings = TrainSettings(steps=100, learning_rate=1.0, warmup=0.04)
    rates = [settings.rate(step) for step in range(101)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0
    assert all(later < earlier for earlier, later in itertools.pairwise(rates[4:]))
    assert rates[52] == pytest.approx(0.5)
    assert rates[100] == pytest.approx(0.0)


def test_acceptance_counts_leading_hits() -> None:
    hits = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 1, 1], [1, 0, 1]], dtype=torch.bool)
    result = acceptance(hits)
    assert result.prefix == (0.75, 0.5, 0.25)
    assert result.position == (0.75, 0.75, 0.75)
    assert result.tau == 1 + (2 + 0 + 3 + 1) / 4
    assert acceptance(hits[:0]).tau == 1.0


def test_taps_are_computed_once_and_kept(tmp_path: Path) -> None:
    chats, config = tiny_chats(), tiny_config()
    asked: list[int] = []
    compute = fake_taps(config)

    def counting(tokens: Any) -> Any:
        asked.append(len(tokens))
        return compute(tokens)

    first = TapStore(tmp_path, chats, counting).get([4, 2])
    assert first.dtype == torch.bfloat16
    assert torch.equal(first, torch.cat(compute([chats.chat(4), chats.chat(2)])).bfloat16())
    store = TapStore(tmp_path, chats, counting)
    assert torch.equal(store.get([2, 4]), torch.cat([first[chats.length(4) :], first[: chats.length(4)]]))
    store.get([2, 3])
    assert asked == [2, 1]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{i:06d}.safetensors" for i in (2, 3, 4)]


def test_damaged_taps_are_refused(tmp_path: Path) -> None:
    chats, config = tiny_chats(), tiny_config()
    store = TapStore(tmp_path, chats, fake_taps(config))
    store.get([0, 1])
    save_file(
        {"taps": load_file(tmp_path / "000000.safetensors")["taps"][1:].contiguous()}, tmp_path / "000000.safetensors"
    )
    with pytest.raises(ValueError, match=f"expected {chats.length(0)} rows"):
        store.get([0])
    (tmp_path / "000001.safetensors").write_bytes(b"short")
    with pytest.raises(ValueError, match="expected the taps of a chat"):
        store.get([1])
