"""Both commands on a target in a folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dflash_decoding.cli import main

from tests.decoding.tiny import EOS, MASK, VOCAB, tiny_target


@pytest.fixture
def target_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    target = tiny_target()
    target.model.save_pretrained(folder)
    target.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def chats_file(tmp_path: Path) -> Path:
    texts = [[104, 105, *range(start, start + 20), EOS] for start in range(40, 52)]
    lens = np.array([len(text) for text in texts])
    path = tmp_path / "chats.npz"
    np.savez(path, tokens=np.concatenate(texts), lens=lens, prompt_len=np.full(len(texts), 2))
    return path


def test_train_and_generate(
    tmp_path: Path, target_folder: Path, chats_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train = ["block-diffusion", "train", "--target", str(target_folder), "--chats", str(chats_file)]
    train += ["--output", str(run), "--mask-token-id", str(MASK), "--held-out", "2", "--layers", "0,3", "--steps", "3"]
    assert main(train) == 0
    assert "held-out chats: loss" in capsys.readouterr().out
    assert main([*train, "--resume"]) == 0
    assert "resuming at step 3 of 3" in capsys.readouterr().out
    generate = ["block-diffusion", "generate", "--target", str(target_folder), "--model", str(run / "checkpoint")]
    assert main([*generate, "--prompt", "hi", "--raw", "--max-new-tokens", "9", "--steps", "2"]) == 0
    assert "tokens/s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--layers", "0,9"], "layers in 0..3"),
        (["--mask-token-id", "41"], "an id the chats never use"),
        (["--mask-token-id", str(VOCAB)], "mask_token_id: expected an id below"),
        (["--copies", "0"], "copies: expected at least 1"),
    ],
)
def test_refusals_are_one_line(
    changes: list[str],
    message: str,
    tmp_path: Path,
    target_folder: Path,
    chats_file: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    train = ["block-diffusion", "train", "--target", str(target_folder), "--chats", str(chats_file)]
    train += ["--output", str(tmp_path / "run"), "--mask-token-id", str(MASK), "--held-out", "2", "--layers", "0,3"]
    assert main([*train, "--steps", "3", *changes]) == 2
    assert message in capsys.readouterr().err
