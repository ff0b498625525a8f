"""The target's own greedy answers to prompts, as chats to train on; killed at any moment, the work goes on.

Finished answers are appended to a journal beside the output, one checksummed line each, in the order in which they
finish. Once all are there, the chats are written at once and in the order of the prompts, and the journal goes.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from dflash_decoding.decoder import DFlashDecoder
from dflash_decoding.request import StreamEvent

JOURNAL_SUFFIX = ".journal"


def read_prompts(path: str | Path) -> list[str]:
    """Prompts of a UTF-8 file: `.jsonl` holds one object with a text `prompt` per line, any other one prompt per line.

    Empty lines are skipped.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not UTF-8, a line of a `.jsonl` file is no such object or its prompt is empty, or no prompt at all.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"prompts: expected a file, got no such file: {path}")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"prompts: expected UTF-8 text in {path}, got: {error}") from error
    is_json = path.suffix == ".jsonl"
    prompts = [
        _prompt_of(line, f"prompts: {path}: line {number}") if is_json else line.rstrip("\r")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not prompts:
        raise ValueError(f"prompts: expected at least one in {path}, got none")
    return prompts


def _prompt_of(line: str, where: str) -> str:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where}: expected a JSON object, got: {error}") from error
    prompt = record.get("prompt") if isinstance(record, dict) else None
    if not isinstance(prompt, str) or not prompt.strip():
        raise ValueError(f"{where}: expected an object with a text 'prompt', got {line[:80]!r}")
    return prompt


class AnswerJournal:
    """Answers that have been finished, in a file that survives a kill.

    A line is the CRC-32 of a JSON text and that text; the first line names the work (`identity`), the others are
    `[prompt index, answer ids]`. Opening the file cuts it after the last whole line, so a line that a kill or a power
    cut has left half written counts as not there, and neither does anything after it.

    Attributes:
        answers: prompt index -> token ids.

    Raises:
        ValueError: the file belongs to other work.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self.answers: dict[int, list[int]] = {}
        end = 0
        saved: Any = None
        if path.is_file():
            with path.open("rb") as file:
                for line in file:
                    record = _read_record(line)
                    if record is None:
                        break
                    if end == 0:
                        saved = record
                    else:
                        self.answers[record[0]] = record[1]
                    end += len(line)
        wanted = json.loads(json.dumps(identity))
        if saved is not None and saved != wanted:
            different = [
                f"{key}: expected {saved.get(key)!r}, got {wanted.get(key)!r}"
                for key in sorted(saved.keys() | wanted.keys())
                if saved.get(key) != wanted.get(key)
            ]
            raise ValueError(f"resume: {path} was started otherwise: {'; '.join(different)}; delete it to start anew")
        self._file = path.open("ab")
        self._file.truncate(end)
        if saved is None:
            self._write(wanted)

    def add(self, index: int, token_ids: Sequence[int]) -> None:
        """Appends one finished answer."""
        self.answers[index] = list(token_ids)
        self._write([index, self.answers[index]])

    def _write(self, record: Any) -> None:
        text = json.dumps(record, separators=(",", ":")).encode()
        self._file.write(b"%08x %s\n" % (zlib.crc32(text), text))
        self._file.flush()

    def __enter__(self) -> AnswerJournal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()


def _read_record(line: bytes) -> Any:
    """The record of one line, None if it is not whole."""
    checksum, _, text = line.rstrip(b"\n").partition(b" ")
    if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(text):
        return None
    return json.loads(text)


def journal_path(output: Path) -> Path:
    """Where the finished answers lie until `output` is written."""
    return output.with_name(output.name + JOURNAL_SUFFIX)


def generate_chats(
    decoder: DFlashDecoder,
    prompts: Sequence[Sequence[int]],
    output: str | Path,
    *,
    target_name: str,
    max_new_tokens: int,
    on_answer: Callable[[int], object] | None = None,
) -> None:
    """Answers every prompt greedily, up to the target's end-of-text id or `max_new_tokens`, and writes the chats.

    Requests are batched continuously: as soon as one is finished, the next takes its row. If an earlier call with the
    same arguments was killed, its finished answers are kept.

    Args:
        prompts: token ids of each prompt.
        output: the .npz file, in the layout of `load_chats`; replaced atomically.
        target_name: tells journals of different targets apart.
        on_answer: called with the number of new tokens after each answer; first with 0 for each one kept.

    Raises:
        ValueError: max_new_tokens < 1, a prompt that the decoder refuses, or the journal belongs to other work.
    """
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens: expected at least 1, got {max_new_tokens}")
    output = Path(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(json.dumps([list(prompt) for prompt in prompts]).encode()).hexdigest()[:16]
    identity = {
        "target": target_name,
        "dtype": str(decoder.target.dtype),
        "prompts": digest,
        "max_new_tokens": max_new_tokens,
    }
    with AnswerJournal(journal_path(output), identity) as journal:
        remaining = [index for index in range(len(prompts)) if index not in journal.answers]
        if on_answer is not None:
            for _ in journal.answers:
                on_answer(0)

        def keep(event: StreamEvent) -> None:
            if event.generation is None:
                return
            journal.add(remaining[event.request], event.generation.token_ids)
            if on_answer is not None:
                on_answer(len(event.generation.token_ids))

        decoder.generate_autoregressive(
            [prompts[index] for index in remaining], max_new_tokens=max_new_tokens, on_token=keep
        )
        answers = [journal.answers[index] for index in range(len(prompts))]
    _write_chats(output, prompts, answers, decoder.target.vocab_size)
    journal_path(output).unlink()


def _write_chats(
    output: Path, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], vocab_size: int
) -> None:
    tokens = [token for prompt, answer in zip(prompts, answers, strict=True) for token in (*prompt, *answer)]
    lens = [len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True)]
    partial = output.with_name(output.name + ".partial")
    with partial.open("wb") as file:
        np.savez_compressed(
            file,
            prompt_len=np.array([len(prompt) for prompt in prompts], dtype=np.int32),
            lens=np.array(lens, dtype=np.int32),
            tokens=np.array(tokens, dtype=np.uint16 if vocab_size <= 2**16 else np.uint32),
        )
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, output)
