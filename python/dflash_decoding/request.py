"""What is asked of the decoder and what it hands back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from torch import Tensor

from .sampling import SamplingParams
from .stats import DecodeStats

FinishReason = Literal["length", "stop_token", "stop_string", "cancelled"]

Prompts = str | Sequence[str] | Sequence[Sequence[int]]

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Request:
    """One prompt and how to continue it, checked.

    Attributes:
        index: its place among the prompts of the call.
        prompt: token ids, at least one.
        max_new_tokens: 0 or more.
        sampling: with a seed.
    """

    index: int
    prompt: tuple[int, ...]
    max_new_tokens: int
    sampling: SamplingParams

    def cached_tokens(self, verify_rows: int) -> int:
        """Tokens it needs cache pages for: the last block starts at the last but one token and may reach further."""
        return len(self.prompt) + self.max_new_tokens + verify_rows - 2


class Cancellation:
    """Ends requests of a running call early, from any thread or from its `on_token`.

    A cancelled request, waiting or running, leaves as soon as the round in work is over. What it has by then is its
    answer, with finish_reason "cancelled"; one that has finished stays as it is. The others do not notice.
    """

    def __init__(self) -> None:
        self._requests: set[int] = set()

    def cancel(self, request: int) -> None:
        """Ends the request of that index among the prompts of the call."""
        self._requests.add(request)

    def __contains__(self, request: int) -> bool:
        return request in self._requests

    def __bool__(self) -> bool:
        return bool(self._requests)


@dataclass(frozen=True)
class Generation:
    """The finished answer to one prompt.

    Attributes:
        prompt: token ids of the prompt.
        token_ids: generated tokens, up to and including a stop token or the token that completed a stop string.
        text: their text, special tokens skipped, cut before a stop string; empty when the target has no tokenizer.
        finish_reason: "length" at max_new_tokens, else "stop_token", "stop_string" or "cancelled".
        stats: of this request.
    """

    prompt: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    stats: DecodeStats


class Generations(list[Generation]):
    """The generations of one call, in the order of its prompts.

    Attributes:
        stats: of the whole call; its rounds' times are counted once, however many requests they served.
    """

    def __init__(self, generations: Sequence[Generation], stats: DecodeStats) -> None:
        super().__init__(generations)
        self.stats = stats


@dataclass(frozen=True)
class StreamEvent:
    """One generated token, or the end of a request without one.

    Attributes:
        request: index of the prompt.
        token_id: the token; None only for a request that was asked for no tokens, or was cancelled.
        text: what became certain with it, whole characters only; may be empty, may stem from earlier tokens. The texts
            of a request's events together are the text of its generation.
        generation: the whole answer, on the last event of a request only.
    """

    request: int
    token_id: int | None
    text: str
    generation: Generation | None = None

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the request ended; None while it goes on."""
        return None if self.generation is None else self.generation.finish_reason


def read_requests(
    prompts: Prompts,
    tokenizer: Any,
    vocab_size: int,
    max_new_tokens: int | Sequence[int],
    sampling: SamplingParams | Sequence[SamplingParams],
) -> list[Request]:
    """Checks the arguments of a call and makes one request of each prompt.

    Raises:
        TypeError: `prompts` is one prompt of token ids instead of several.
        ValueError: text without a tokenizer, an empty prompt, a token id outside 0..vocab_size-1, a negative
            max_new_tokens, or not one value per prompt.
    """
    token_lists = list(_tokenized(prompts, tokenizer))
    limits = _per_request("max_new_tokens", max_new_tokens, len(token_lists))
    samplings = _per_request("sampling", sampling, len(token_lists))
    requests = []
    for index, (tokens, limit, params) in enumerate(zip(token_lists, limits, samplings, strict=True)):
        if not tokens:
            raise ValueError(f"prompts[{index}]: expected at least one token, got none")
        for token in tokens:
            if not 0 <= token < vocab_size:
                raise ValueError(f"prompts[{index}]: expected token ids in 0..{vocab_size - 1}, got {token}")
        if limit < 0:
            raise ValueError(f"max_new_tokens: expected a number >= 0, got {limit}")
        requests.append(Request(index, tokens, limit, params.seeded()))
    return requests


def _tokenized(prompts: Prompts, tokenizer: Any) -> Iterator[tuple[int, ...]]:
    for prompt in [prompts] if isinstance(prompts, str) else prompts:
        if isinstance(prompt, str):
            if tokenizer is None:
                raise ValueError("prompts: expected token ids, as the target has no tokenizer, got text")
            yield tuple(tokenizer(prompt)["input_ids"])
        elif isinstance(prompt, int) or (isinstance(prompt, Tensor) and prompt.ndim != 1):
            raise TypeError("prompts: expected text, or a list of prompts of token ids each, got one flat list of ids")
        else:
            yield tuple(int(token) for token in prompt)


def _per_request(name: str, value: _Value | Sequence[_Value], count: int) -> list[_Value]:
    if not isinstance(value, Sequence):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{name}: expected one value or one per prompt ({count}), got {len(value)}")
    return list(value)
