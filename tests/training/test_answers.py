"""Chats made of a target's own answers: what they say, and that a kill loses and invents nothing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dflash_decoding.decoder import DFlashDecoder
from dflash_decoding.target import Target
from dflash_decoding.training.answers import AnswerJournal, generate_chats, journal_path, read_prompts
from dflash_decoding.training.data import load_chats

from tests.decoding.tiny import VOCAB, tiny_target

ROOT = Path(__file__).parents[2]
NEW_TOKENS = 12
END = 137


def toy_prompts(count: int = 10) -> list[list[int]]:
    generator = random.Random(4)
    return [[generator.randrange(256) for _ in range(generator.randrange(1, 9))] for _ in range(count)]


def toy_target() -> Target:
    """Ends its answers at a token that it really says."""
    target = tiny_target()
    target.eos_token_ids = (END,)
    return target


def plain_answer(model: Any, prompt: list[int]) -> list[int]:
    """By the model alone: one full forward per token."""
    tokens = list(prompt)
    with torch.no_grad():
        while len(tokens) < len(prompt) + NEW_TOKENS and tokens[-1] != END:
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def make(output: Path, **changes: Any) -> list[int]:
    """Runs the whole work; returns what `on_answer` was told."""
    told: list[int] = []
    decoder = DFlashDecoder(toy_target(), max_batch=3)
    arguments = {"target_name": "tiny", "max_new_tokens": NEW_TOKENS, **changes}
    generate_chats(decoder, toy_prompts(), output, on_answer=told.append, **arguments)
    return told


def test_answers_are_the_targets_own(tmp_path: Path) -> None:
    output = tmp_path / "new" / "chats.npz"
    told = make(output)
    chats = load_chats(output, VOCAB)
    model: Any = tiny_target().model
    model.set_attn_implementation("eager")
    answers = [plain_answer(model, prompt) for prompt in toy_prompts()]
    assert len({len(answer) for answer in answers}) > 1, "no answer ends early; choose another seed"
    for index, (prompt, answer) in enumerate(zip(toy_prompts(), answers, strict=True)):
        assert chats.chat(index).tolist() == prompt + answer
        assert chats.prompt_lens[index] == len(prompt)
    assert sorted(told) == sorted(map(len, answers))
    assert [path.name for path in output.parent.iterdir()] == ["chats.npz"]


KILLED = """
import os, signal, sys
from pathlib import Path
from dflash_decoding.decoder import DFlashDecoder
from dflash_decoding.training.answers import generate_chats
from tests.training.test_answers import NEW_TOKENS, toy_prompts, toy_target
left = int(sys.argv[2])
def count(tokens):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
generate_chats(DFlashDecoder(toy_target(), max_batch=3), toy_prompts(), sys.argv[1], target_name="tiny",
               max_new_tokens=NEW_TOKENS, on_answer=count)
"""


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    whole, output = tmp_path / "whole.npz", tmp_path / "killed.npz"
    make(whole)
    survived = random.Random(0).randrange(2, 9)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "python")])}
    command = [sys.executable, "-c", KILLED, str(output), str(survived)]
    assert subprocess.run(command, env=environment, cwd=ROOT).returncode == -signal.SIGKILL
    assert not output.exists()
    told = make(output)
    assert told[:survived] == [0] * survived
    assert min(told[survived:]) > 0
    assert len(told) == len(toy_prompts())
    assert output.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("damage", ["cut", "zeroed", "without newline"])
def test_a_half_written_answer_is_not_read(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "journal"
    with AnswerJournal(path, {"work": 1}) as journal:
        journal.add(4, [1, 2, 3])
        journal.add(0, [7])
        journal.add(2, [8, 9])
    content = path.read_bytes()
    last = content.rindex(b"\n", 0, -1) + 1
    if damage == "cut":
        path.write_bytes(content[: last + 12])
    elif damage == "zeroed":
        path.write_bytes(content[: last + 10] + bytes(len(content) - last - 11) + b"\n")
    else:
        path.write_bytes(content[:-1])
    with AnswerJournal(path, {"work": 1}) as journal:
        assert journal.answers == {4: [1, 2, 3], 0: [7]}
        journal.add(5, [6])
    with AnswerJournal(path, {"work": 1}) as journal:
        assert journal.answers == {4: [1, 2, 3], 0: [7], 5: [6]}


def test_refuses_the_journal_of_other_work(tmp_path: Path) -> None:
    output = tmp_path / "chats.npz"
    with AnswerJournal(journal_path(output), {"target": "other"}):
        pass
    with pytest.raises(ValueError, match="target: expected 'other', got 'tiny'"):
        make(output)
    with pytest.raises(ValueError, match="max_new_tokens: expected at least 1, got 0"):
        make(output, max_new_tokens=0)


def test_a_finished_journal_needs_no_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between the last answer and the output."""
    output = tmp_path / "chats.npz"
    make(output)

    def fail(*arguments: Any, **arrays: Any) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as broken:
        broken.setattr(np, "savez_compressed", fail)
        with pytest.raises(OSError, match="no space left"):
            make(tmp_path / "again.npz")
    assert make(tmp_path / "again.npz") == [0] * len(toy_prompts())
    assert (tmp_path / "again.npz").read_bytes() == output.read_bytes()


def test_reads_prompts(tmp_path: Path) -> None:
    text = tmp_path / "prompts.txt"
    text.write_text('one\n\n  two \r\n{"prompt": "three"}\n', encoding="utf-8")
    assert read_prompts(text) == ["one", "  two ", '{"prompt": "three"}']
    lines = tmp_path / "prompts.jsonl"
    lines.write_text('{"prompt": "one\\ntwo", "id": 1}\n\n{"prompt": "über"}', encoding="utf-8")
    assert read_prompts(lines) == ["one\ntwo", "über"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\n \n", "expected at least one"),
        (b'{"prompt": "a"}\n{"prompt": ""}\n', r"line 2: expected an object with a text 'prompt'"),
        (b'{"text": "a"}\n', r"line 1: expected an object with a text 'prompt'"),
        (b'["a"]\n', r"line 1: expected an object with a text 'prompt'"),
        (b"plain\n", "line 1: expected a JSON object"),
        (b"\xff\xfe", "expected UTF-8"),
    ],
)
def test_refuses_prompts(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_prompts(path)


def test_refuses_a_missing_prompt_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_prompts(tmp_path / "none.txt")
