"""Whole training runs on a toy world: they learn, they resume exactly, and what they write can be decoded with."""

import csv
import itertools
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from dflash_decoding.checkpoint import load_draft_weights
from dflash_decoding.config import DraftConfig
from dflash_decoding.training.data import join_chats
from dflash_decoding.training.state import STATE_FILE
from dflash_decoding.training.taps import TapStore
from dflash_decoding.training.trainer import CHECKPOINT_FOLDER, Trainer, TrainSettings
from dflash_decoding.training.validation import acceptance
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.training.test_loss import LargestTensor
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


def assert_close_weights(one: Trainer, other: Trainer) -> None:
    for name, tensor in one.model.state_dict().items():
        torch.testing.assert_close(tensor, other.model.state_dict()[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("loss", ["ce", "kl"])
def test_learns(tmp_path: Path, loss: str) -> None:
    trainer = tiny_trainer(tmp_path, steps=150, validate_every=149, loss=loss)
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
    batch = half.plan.batches(0)[0][0]
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


@pytest.mark.parametrize("loss", ["ce", "kl"])
def test_accumulated_batches_equal_one_large_batch(tmp_path: Path, loss: str) -> None:
    large = run(tmp_path / "large", chats_per_batch=6, loss=loss)
    cut = run(tmp_path / "cut", chats_per_batch=2, accumulate=3, loss=loss)
    logs = [rows(tmp_path / name / "train.csv")[1:] for name in ("large", "cut")]
    for column in (1, 3):  # loss and gradient norm
        values = [[float(row[column]) for row in log] for log in logs]
        assert values[0] == pytest.approx(values[1], rel=2e-5 if column == 1 else 1e-4)
    assert_close_weights(large, cut)


# For each place, a process that kills itself at the n-th call of a function there: amid steps, amid saving. They are
# forked from one that has imported everything but computed nothing.
KILLED = """
import os, signal, sys
from pathlib import Path
import torch
import dflash_decoding.training.state as state
from tests.training.tiny import tiny_trainer
torch.set_num_threads(1)
def train(folder, place, left):
    trainer = tiny_trainer(folder, save_every=4)
    owner, name = {
        "before a step": (trainer, "_train_step"),
        "before the update": (torch.nn.utils, "clip_grad_norm_"),
        "before the state is replaced": (state.os, "replace"),
    }[place]
    original = getattr(owner, name)
    def deadly(*arguments, **options):
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **options)
    setattr(owner, name, deadly)
    trainer.run(progress=False)
for place, left in zip(sys.argv[2::2], sys.argv[3::2]):
    child = os.fork()
    if not child:
        train(Path(sys.argv[1]) / place, place, int(left))
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (place, status)
"""


def test_killed_run_resumes_exactly(tmp_path: Path) -> None:
    """SIGKILL at a random step: the run goes on from the last saved state and ends with the same weights and logs."""
    generator = random.Random(1)
    # Which call is the last, out of those the run would make (of os.replace, the two of the states within the run).
    places = {
        place: generator.randint(1, calls)
        for place, calls in (("before a step", 12), ("before the update", 12), ("before the state is replaced", 2))
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "python")])}
        arguments = [str(part) for item in places.items() for part in item]
        subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), *arguments], env=environment, cwd=ROOT, check=True)
        whole = run(tmp_path / "whole")
        wanted = load_file(tmp_path / "whole" / STATE_FILE)
        for place, at in places.items():
            folder = tmp_path / place
            resumed = tiny_trainer(folder, resume=True)
            assert resumed.step == (4 * (at - 1) if place == "before the state is replaced" else (at - 1) // 4 * 4)
            resumed.run(progress=False)
            assert same_weights(whole, resumed)
            state = load_file(folder / STATE_FILE)
            assert state.keys() == wanted.keys()
            assert all(torch.equal(state[name], wanted[name]) for name in state)
            assert [row[0] for row in rows(folder / "train.csv")[1:]] == [str(step) for step in range(1, 13)]
            assert [row[0] for row in rows(folder / "validation.csv")[1:]] == ["5", "10", "12"]
    finally:
        torch.set_num_threads(threads)


def test_a_step_makes_no_dense_mask(tmp_path: Path) -> None:
    """Nothing in a step is larger than the activations of its widest layer."""
    trainer = tiny_trainer(tmp_path, chats_per_batch=10, anchors_per_chat=30)
    trainer.run(stop_at=1, progress=False)
    batch = trainer.plan.batches(1)[0][0]
    block_rows = batch.input_ids.numel()
    with LargestTensor() as mode:
        trainer._train_step(1)
    context = len(batch.positions)
    taps = len(trainer.config.target_layer_ids) * trainer.config.hidden_size * context
    assert mode.elements <= max(taps, trainer.config.intermediate_size * block_rows)
    assert mode.elements < block_rows * (block_rows + context) / 4


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
    # A state of an earlier version, without a setting that came later: it was as the default is now.
    state = tmp_path / STATE_FILE
    tensors = load_file(state)
    with safe_open(state, framework="pt") as file:
        metadata = file.metadata()
    identity = json.loads(metadata["identity"])
    del identity["accumulate"]
    save_file(tensors, state, metadata={**metadata, "identity": json.dumps(identity)})
    assert tiny_trainer(tmp_path, resume=True).step == 2
    with pytest.raises(ValueError, match="accumulate: expected 1, got 2"):
        tiny_trainer(tmp_path, resume=True, accumulate=2)
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
        ({"loss": "mse"}, "loss: expected ce or kl, got mse"),
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
    names = [f"{chats.chat_fingerprint(index)}.safetensors" for index in (2, 3, 4)]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    # The same chats in another set.
    other = join_chats([chats, chats])
    assert torch.equal(TapStore(tmp_path, other, counting).get([len(chats) + 4, 2]), first)
    assert asked == [2, 1]


def test_kept_taps_stay_within_the_limit(tmp_path: Path) -> None:
    chats, config = tiny_chats(), tiny_config()
    bytes_per_token = 2 * len(config.target_layer_ids) * config.hidden_size
    limit = 3 * bytes_per_token * max(chats.length(index) for index in range(len(chats)))
    compute = fake_taps(config)
    for writers in (2, 1):
        store = TapStore(tmp_path, chats, compute, max_bytes=limit, writers=writers)
        for index in range(len(chats)):
            assert torch.equal(store.get([index]), compute([chats.chat(index)])[0].bfloat16())
        used = sum(path.stat().st_size for path in tmp_path.iterdir())
        assert limit / 4 < used <= limit / writers


def test_damaged_taps_are_refused(tmp_path: Path) -> None:
    chats, config = tiny_chats(), tiny_config()
    store = TapStore(tmp_path, chats, fake_taps(config))
    store.get([0, 1])
    files = [tmp_path / f"{chats.chat_fingerprint(index)}.safetensors" for index in (0, 1)]
    save_file({"taps": load_file(files[0])["taps"][1:].contiguous()}, files[0])
    with pytest.raises(ValueError, match=f"expected {chats.length(0)} rows"):
        store.get([0])
    files[1].write_bytes(b"short")
    with pytest.raises(ValueError, match="expected the taps of a chat"):
        store.get([1])


def test_goes_on_from_a_trained_drafter(tmp_path: Path) -> None:
    """The first loss is the trained drafter's, whatever the block size; the run resumes without the drafter."""
    trained = tiny_trainer(tmp_path / "first", steps=60)
    trained.run(progress=False)
    drafter = str(tmp_path / "first" / CHECKPOINT_FOLDER)
    further = tiny_trainer(tmp_path / "second", steps=8, init_drafter=drafter)
    for name, weight in further.model.state_dict().items():
        assert torch.equal(weight, trained.model.state_dict()[name].bfloat16().float())
    smaller = tiny_trainer(tmp_path / "third", config=tiny_config(block_size=3), steps=8, init_drafter=drafter)
    smaller.run(progress=False)
    with (tmp_path / "third" / "train.csv").open() as file, (tmp_path / "first" / "train.csv").open() as other:
        assert float(next(csv.DictReader(file))["loss"]) < 0.5 * float(next(csv.DictReader(other))["loss"])

    further.run(progress=False)
    resumed = tiny_trainer(tmp_path / "second", resume=True, steps=8, init_drafter=drafter)
    assert resumed.step == 8
    for name, weight in resumed.model.state_dict().items():
        assert torch.equal(weight, further.model.state_dict()[name])


def test_refuses_a_drafter_to_go_on_from_that_is_another(tmp_path: Path) -> None:
    tiny_trainer(tmp_path / "first").export()
    drafter = str(tmp_path / "first" / CHECKPOINT_FOLDER)
    with pytest.raises(ValueError, match=r"init_drafter: target_layer_ids: expected .* as in this run, got"):
        tiny_trainer(tmp_path / "other", config=tiny_config(target_layer_ids=[0, 1, 3]), init_drafter=drafter)
    with pytest.raises(ValueError, match="init_drafter: expected it or init_layers, got both"):
        tiny_trainer(tmp_path / "other", init_drafter=drafter, init_layers=(0, 1))
    with pytest.raises(OSError, match="nowhere"):
        tiny_trainer(tmp_path / "other", init_drafter=str(tmp_path / "nowhere"))
