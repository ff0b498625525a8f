"""Text in and out: token ids of a prompt; text of a request as its tokens arrive, cut before a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .target import Target

_REPLACEMENT = "\ufffd"


def encode_prompt(target: Target, text: str, *, raw: bool = False) -> list[int]:
    """Token ids of a prompt: one user turn in the chat template if there is one, else (or with `raw`) the text."""
    tokenizer = target.tokenizer
    if raw or not tokenizer.chat_template:
        return list(tokenizer(text)["input_ids"])
    turn = [{"role": "user", "content": text}]
    return list(
        tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
    )


class TextAssembler:
    """Turns committed tokens into text one token at a time.

    A token may end inside a UTF-8 character, and what decodes at the end of a text may change with the next token; such
    text is held back until it is complete. So is the beginning of a possible stop string. All pieces together equal
    the tokenizer's decoding of all tokens, special tokens skipped, cut before the first stop string.

    Args:
        tokenizer: a Hugging Face tokenizer, or None: then all text is empty.
        stop_strings: a text ends before the first occurrence of any of them.
    """

    def __init__(self, tokenizer: Any, stop_strings: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop_strings = tuple(stop_strings)
        self._longest_stop = max(map(len, self._stop_strings), default=0)
        self._tokens: list[int] = []
        # Tokens from `_begin` on are decoded again for every new one: `_begin.._end` gives the decoder its left
        # neighbours (whether a leading space is dropped depends on them), those after `_end` are not in `_text` yet.
        self._begin = 0
        self._end = 0
        self._text = ""
        self._emitted = 0
        self.stopped = False

    @property
    def text(self) -> str:
        """All text handed out so far."""
        return self._text[: self._emitted]

    def push(self, token_id: int) -> str:
        """Adds a token and returns the text that has become certain. Sets `stopped` when a stop string is complete."""
        if self._tokenizer is None:
            return ""
        self._tokens.append(token_id)
        known, whole = self._decode(self._begin, self._end), self._decode(self._begin, None)
        if whole.endswith(_REPLACEMENT) or len(whole) <= len(known):
            return ""
        self._begin, self._end = self._end, len(self._tokens)
        self._append(whole[len(known) :])
        return self._emit(len(self._text) - self._possible_stop())

    def finish(self) -> str:
        """The text still held back; no token may follow."""
        if self._tokenizer is None or self.stopped:
            return ""
        known, whole = self._decode(self._begin, self._end), self._decode(self._begin, None)
        self._append(whole[len(known) :])
        return self._emit(len(self._text))

    def _decode(self, begin: int, end: int | None) -> str:
        text: str = self._tokenizer.decode(
            self._tokens[begin:end], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def _append(self, piece: str) -> None:
        searched = max(len(self._text) - self._longest_stop + 1, 0)
        self._text += piece
        found = [self._text.find(stop, searched) for stop in self._stop_strings]
        begins = [begin for begin in found if begin >= 0]
        if begins:
            self._text = self._text[: min(begins)]
            self.stopped = True

    def _possible_stop(self) -> int:
        """Length of the longest end of the text that a stop string may begin with."""
        if self.stopped:
            return 0
        for length in range(min(self._longest_stop - 1, len(self._text)), 0, -1):
            end = self._text[-length:]
            if any(len(stop) > length and stop.startswith(end) for stop in self._stop_strings):
                return length
        return 0

    def _emit(self, end: int) -> str:
        piece = self._text[self._emitted : end]
        self._emitted = max(self._emitted, end)
        return piece
