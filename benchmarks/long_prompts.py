"""Long prompts from text that every Python brings along: the language reference in `pydoc_data.topics`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dflash_decoding import Target
from dflash_decoding.cli import encode_prompt

# (what is asked, after the text). The first needs what lies farthest back, the second all of it.
QUESTIONS = (
    "Repeat the first paragraphs of the text above, word for word.",
    "Summarise the text above in a few sentences.",
    "List the sections of the text above, each with one sentence about it.",
    "Repeat the last paragraphs of the text above, word for word.",
)


@dataclass(frozen=True)
class LongPrompt:
    """Token ids of a chat turn with a long text, and what is asked about it."""

    tokens: tuple[int, ...]
    question: str


def reference_text(first_topic: int) -> Iterator[str]:
    """Sections of the Python language reference in the order of their names, from one of them on, round and round."""
    from pydoc_data.topics import topics

    names = sorted(topics)
    place = first_topic
    while True:
        yield topics[names[place % len(names)]].strip()
        place += 1


def long_prompt(target: Target, tokens: int, index: int) -> LongPrompt:
    """A prompt of exactly `tokens` tokens; the same index gives the same question about longer or shorter texts.

    Raises:
        ValueError: so few tokens that nothing of the text would be left.
    """
    question = QUESTIONS[index % len(QUESTIONS)]
    mark = "\x00"
    turn = encode_prompt(target, f"{mark}\n\n{question}")
    marks = target.tokenizer(mark, add_special_tokens=False)["input_ids"]
    place = next(i for i in range(len(turn)) if turn[i : i + len(marks)] == marks)
    before, after = turn[:place], turn[place + len(marks) :]
    wanted = tokens - len(before) - len(after)
    if wanted < 1:
        raise ValueError(f"tokens: expected more than {len(before) + len(after)}, got {tokens}")
    body: list[int] = []
    # Sections are far apart for different prompts: their texts share nothing but the longest ones' ends.
    for section in reference_text(13 * index):
        if len(body) >= wanted:
            break
        body += target.tokenizer(section + "\n\n\n", add_special_tokens=False)["input_ids"]
    return LongPrompt((*before, *body[:wanted], *after), question)
