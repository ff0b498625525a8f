"""Text from tokens one at a time: whole characters, stop strings, nothing lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from dflash_decoding.text import TextAssembler
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoding.tiny import BYTES, EOS, byte_tokenizer

TOKENIZER = byte_tokenizer()


def decoded(tokens: Sequence[int]) -> str:
    text: str = TOKENIZER.decode(list(tokens), skip_special_tokens=True)
    return text


def assemble(tokens: Sequence[int], stops: Sequence[str] = (), tokenizer: Any = TOKENIZER) -> tuple[list[str], bool]:
    """The pieces up to a stop, and whether there was one."""
    assembler = TextAssembler(tokenizer, stops)
    pieces = []
    for token in tokens:
        pieces.append(assembler.push(token))
        if assembler.stopped:
            break
    pieces.append(assembler.finish())
    assert "".join(pieces) == assembler.text
    return pieces, assembler.stopped


def test_the_tokenizer_is_one_byte_a_token() -> None:
    assert TOKENIZER("é \n")["input_ids"] == list("é \n".encode())
    assert decoded("é \n".encode()) == "é \n"


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=30))
def test_no_piece_breaks_a_character(text: str) -> None:
    pieces, stopped = assemble(text.encode())
    assert "".join(pieces) == text
    assert not stopped
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, EOS), max_size=30))
def test_any_tokens_give_the_tokenizers_own_text(tokens: list[int]) -> None:
    """Bytes that are no UTF-8 and special tokens included."""
    assert "".join(assemble(tokens)[0]) == decoded(tokens)


def test_characters_come_with_their_last_byte() -> None:
    pieces, _ = assemble("a😀é".encode())
    assert pieces == ["a", "", "", "", "😀", "", "é", ""]


@settings(max_examples=200, deadline=None)
@given(st.text("ab", max_size=24), st.lists(st.text("ab", min_size=1, max_size=5), max_size=3))
def test_text_ends_before_the_first_stop_string(text: str, stops: list[str]) -> None:
    """Against a scan of every prefix: the first token that completes a stop string ends the text."""
    expected = text
    for length in range(1, len(text) + 1):
        begins = [text[:length].find(stop) for stop in stops if stop in text[:length]]
        if begins:
            expected = text[: min(begins)]
            break
    pieces, stopped = assemble(text.encode(), stops)
    assert "".join(pieces) == expected
    assert stopped == (expected != text)


def test_beginning_of_a_stop_string_is_held_back_and_released() -> None:
    assert assemble(b"x<en>y", ["<end>"]) == (["x", "", "", "", "<en>", "y", ""], False)
    assert assemble(b"x<end>y", ["<end>"]) == (["x", "", "", "", "", "", ""], True)
    assert assemble(b"x<en", ["<end>"]) == (["x", "", "", "", "<en"], False)


def test_stop_string_of_several_bytes_per_character() -> None:
    pieces, stopped = assemble("né😀é.".encode(), ["😀é"])
    assert ("".join(pieces), stopped) == ("né", True)


def test_stop_string_in_the_last_held_back_text() -> None:
    """Broken bytes at the very end become text only when nothing can follow."""
    pieces, stopped = assemble([*b"ab", 0xF0], ["b\ufffd"])
    assert ("".join(pieces), stopped) == ("a", True)


def test_special_tokens_have_no_text() -> None:
    assert assemble([*b"a", BYTES, EOS, *b"b", EOS])[0] == ["a", "", "", "b", "", ""]


def test_no_tokenizer_no_text() -> None:
    assert assemble([1, 2], tokenizer=None) == (["", "", ""], False)


def test_leading_space_is_decided_by_the_left_neighbour() -> None:
    """Decoders of the sentencepiece kind drop a space at the start of what they decode, and only there."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    vocab = {"▁one": 0, "▁two": 1, "three": 2, "<unk>": 3}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocab, unk_token="<unk>"))
    tokenizer.decoder = decoders.Metaspace()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    assert assemble([0, 1, 2, 0], tokenizer=wrapped)[0] == ["one", " two", "three", " one", ""]


@pytest.mark.parametrize("cut", range(1, 4))
def test_answer_cut_inside_a_character(cut: int) -> None:
    tokens = list("ok😀".encode())[: 2 + cut]
    assert "".join(assemble(tokens)[0]) == decoded(tokens)
