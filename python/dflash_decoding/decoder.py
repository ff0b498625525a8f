"""The decoder: a target, a drafter, and prompts in; text out, the target's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .adaptive import AdaptiveOptions, AdaptiveSpeculation
from .cache import MAX_PAGE_SIZE
from .draft_context import DraftContext, FullContext
from .draft_context import draft_context as context_of_name
from .drafter_protocol import Drafter
from .request import Cancellation, Generation, Generations, Prompts, Request, StreamEvent, read_requests
from .sampling import SamplingParams
from .session import DecodeSession, SessionLimits
from .speculation import PLAIN_ROUND, FixedSpeculation, RoundPlan, Speculation
from .stats import Clock
from .target import EMBEDDING_TAP, Target

_GREEDY = SamplingParams()


class DFlashDecoder:
    """Speculative decoding with a block drafter; plain autoregressive decoding without one, in the same loop.

    Greedy output is the target's own greedy output, and sampled output is distributed as the target's own: a draft only
    decides how many tokens a round emits. Each call allocates its caches for what its requests need and gives them back
    when it ends, in whatever way it ends.

    Args:
        target: the model that decides.
        drafter: the model that proposes; None decodes one token a round.
        page_size: tokens per cache page, a power of two up to 256.
        max_batch: most requests decoded at once; further ones wait and are admitted as soon as a row is free.
        max_tokens: most tokens that the caches of a call hold, all requests together; requests that do not fit beside
            the others wait. None: as many as max_batch of its requests need.
        prefill_chunk: prompt tokens per forward, which bounds the memory that a long prompt takes.
        draft_context: what the drafter keeps and reads of its context: a policy, or the name of one with its usual
            options: "full", "sparse", "window" or "cache_free".
        adaptive: chooses block size and budget while decoding, by tau and the times measured, and decodes plainly where
            drafting loses; every call learns anew. None: every round drafts a whole block.
        clock: seconds, of all times that are measured.

    Raises:
        ValueError: a number is out of its range, the drafter taps a layer that the target lacks, or the draft context
            does not fit the drafter.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None = None,
        *,
        page_size: int = 16,
        max_batch: int = 8,
        max_tokens: int | None = None,
        prefill_chunk: int = 512,
        draft_context: DraftContext | str = "full",
        adaptive: AdaptiveOptions | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        if not 1 <= page_size <= MAX_PAGE_SIZE or page_size & (page_size - 1):
            raise ValueError(f"page_size: expected a power of two in 1..{MAX_PAGE_SIZE}, got {page_size}")
        for name, value in (("max_batch", max_batch), ("max_tokens", max_tokens), ("prefill_chunk", prefill_chunk)):
            if value is not None and value < 1:
                raise ValueError(f"{name}: expected a positive number, got {value}")
        for layer in drafter.tap_layers if drafter is not None else ():
            if not EMBEDDING_TAP <= layer < target.num_layers:
                raise ValueError(f"drafter: expected taps on target layers 0..{target.num_layers - 1}, got {layer}")
        self.target = target
        self.drafter = drafter
        self.page_size = page_size
        self.max_batch = max_batch
        self.max_tokens = max_tokens
        self.prefill_chunk = prefill_chunk
        self.draft_context = context_of_name(draft_context) if isinstance(draft_context, str) else draft_context
        if drafter is not None:
            self.draft_context.check(drafter)
        elif adaptive is not None or not isinstance(self.draft_context, FullContext):
            raise ValueError("draft_context, adaptive: expected a drafter beside them, got none")
        self.adaptive = adaptive
        self.clock = clock

    def generate(
        self,
        prompts: Prompts,
        *,
        max_new_tokens: int | Sequence[int],
        sampling: SamplingParams | Sequence[SamplingParams] = _GREEDY,
        stop_token_ids: Sequence[int] | None = None,
        stop_strings: Sequence[str] = (),
        on_token: Callable[[StreamEvent], object] | None = None,
        block_size: int | None = None,
        cancellation: Cancellation | None = None,
    ) -> Generations:
        """Continues every prompt.

        Args:
            prompts: one text, several texts, or several lists of token ids.
            max_new_tokens: for all prompts or one per prompt; 0 gives an empty answer.
            sampling: for all prompts or one per prompt. Prompts that share a seed draw the same random numbers.
            stop_token_ids: end an answer and are part of its tokens; None: the target's end-of-text ids.
            stop_strings: end an answer, whose text is cut before them, wherever the borders of tokens lie.
            on_token: called with every token as soon as it is committed. What it raises ends the call.
            block_size: rows per draft block, at most the drafter's; None: the drafter's. An adaptive decoder takes this
                number or less.
            cancellation: through which requests of this call can be ended while it runs.

        Returns:
            one `Generation` per prompt, in order, and the stats of the call.

        Raises:
            TypeError, ValueError: an argument is not as above, or a request can never fit: more tokens than the models
                have positions for or than `max_tokens` allows. Nothing has been computed then.
        """
        session = self._session(
            self.drafter, prompts, max_new_tokens, sampling, stop_token_ids, stop_strings, block_size, cancellation
        )
        return _run(session, on_token)

    def generate_autoregressive(
        self,
        prompts: Prompts,
        *,
        max_new_tokens: int | Sequence[int],
        sampling: SamplingParams | Sequence[SamplingParams] = _GREEDY,
        stop_token_ids: Sequence[int] | None = None,
        stop_strings: Sequence[str] = (),
        on_token: Callable[[StreamEvent], object] | None = None,
        cancellation: Cancellation | None = None,
    ) -> Generations:
        """As `generate`, without the drafter: the plain decoding that a speedup is measured against."""
        session = self._session(
            None, prompts, max_new_tokens, sampling, stop_token_ids, stop_strings, None, cancellation
        )
        return _run(session, on_token)

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        max_new_tokens: int,
        sampling: SamplingParams = _GREEDY,
        stop_token_ids: Sequence[int] | None = None,
        stop_strings: Sequence[str] = (),
        block_size: int | None = None,
    ) -> Iterator[StreamEvent]:
        """Continues one prompt, yielding its tokens as they are committed; the last event carries the generation.

        Arguments and errors as `generate`; errors are raised by the call itself, not by the first event. Closing the
        iterator ends the work.
        """
        session = self._session(
            self.drafter,
            prompt if isinstance(prompt, str) else [prompt],
            max_new_tokens,
            sampling,
            stop_token_ids,
            stop_strings,
            block_size,
        )
        return session.events()

    def _session(
        self,
        drafter: Drafter | None,
        prompts: Prompts,
        max_new_tokens: int | Sequence[int],
        sampling: SamplingParams | Sequence[SamplingParams],
        stop_token_ids: Sequence[int] | None,
        stop_strings: Sequence[str],
        block_size: int | None,
        cancellation: Cancellation | None = None,
    ) -> DecodeSession:
        tokenizer = _tokenizer(self.target)
        stop_strings = _checked_stop_strings(stop_strings, tokenizer)
        requests = read_requests(prompts, tokenizer, self.target.vocab_size, max_new_tokens, sampling)
        plans = self._plans(drafter, block_size)
        limits = self._limits(drafter, requests, plans[0][0].verify_rows)
        stops = self.target.eos_token_ids if stop_token_ids is None else tuple(stop_token_ids)
        speculation: Speculation = FixedSpeculation(plans[0][0])
        if drafter is not None and self.adaptive is not None:
            speculation = AdaptiveSpeculation(plans, self.adaptive)
        return DecodeSession(
            self.target,
            drafter,
            self.draft_context,
            speculation,
            requests,
            limits,
            stops,
            stop_strings,
            tokenizer,
            self.clock,
            cancellation,
        )

    def _plans(self, drafter: Drafter | None, block_size: int | None) -> list[list[RoundPlan]]:
        """What a round may be: for each block size, the largest first, one plan per budget, the greatest first."""
        if drafter is None:
            if block_size is not None:
                raise ValueError(f"block_size: expected None without a drafter, got {block_size}")
            return [[PLAIN_ROUND]]
        undrafted = drafter.block_size - drafter.num_draft_tokens
        rows = drafter.block_size if block_size is None else block_size
        if not undrafted < rows <= drafter.block_size:
            raise ValueError(f"block_size: expected {undrafted + 1}..{drafter.block_size}, got {rows}")
        plans = []
        while rows > undrafted:
            verify_rows = rows - undrafted + 1
            plans.append([RoundPlan(rows, verify_rows, budget) for budget in self.draft_context.budgets()])
            rows //= 2
        return plans

    def _limits(self, drafter: Drafter | None, requests: list[Request], verify_rows: int) -> SessionLimits:
        """Sizes of a session that holds the requests; refuses a request that could never be served."""
        max_positions = _max_positions(self.target, drafter)
        pages_needed = [0]
        for request in requests:
            length = len(request.prompt) + request.max_new_tokens
            if max_positions is not None and length > max_positions:
                raise ValueError(
                    f"prompts[{request.index}]: expected at most {max_positions} tokens (the models' positions), got "
                    f"{len(request.prompt)} of the prompt and max_new_tokens {request.max_new_tokens}"
                )
            cached = request.cached_tokens(verify_rows)
            pages = -(-cached // self.page_size)
            if self.max_tokens is not None and pages * self.page_size > self.max_tokens:
                raise ValueError(
                    f"prompts[{request.index}]: expected at most max_tokens {self.max_tokens}, got {cached}, rounded "
                    f"up to whole pages of {self.page_size}: {len(request.prompt)} of the prompt, max_new_tokens "
                    f"{request.max_new_tokens}, {verify_rows - 2} of the last block"
                )
            if request.max_new_tokens:
                pages_needed.append(pages)
        max_batch = max(1, min(self.max_batch, len(pages_needed) - 1))
        num_pages = sum(sorted(pages_needed, reverse=True)[:max_batch])
        if self.max_tokens is not None:
            num_pages = min(num_pages, self.max_tokens // self.page_size)
        return SessionLimits(
            num_pages=max(1, num_pages),
            page_size=self.page_size,
            max_batch=max_batch,
            max_pages_per_request=max(1, *pages_needed),
            verify_rows=verify_rows,
            prefill_chunk=self.prefill_chunk,
            max_positions=max_positions,
        )


def _run(session: DecodeSession, on_token: Callable[[StreamEvent], object] | None) -> Generations:
    finished: dict[int, Generation] = {}
    for event in session.events():
        if event.generation is not None:
            finished[event.request] = event.generation
        if on_token is not None:
            on_token(event)
    return Generations([finished[index] for index in sorted(finished)], session.stats)


def _max_positions(target: Target, drafter: Drafter | None) -> int | None:
    of_target = getattr(target.config, "max_position_embeddings", None)
    of_drafter = None if drafter is None else drafter.max_positions
    return min((limit for limit in (of_target, of_drafter) if limit is not None), default=None)


def _tokenizer(target: Target) -> Any:
    """The target's tokenizer; None when it has none, which only requests on text need."""
    try:
        return target.tokenizer
    except (ValueError, OSError):
        return None


def _checked_stop_strings(stop_strings: Sequence[str], tokenizer: Any) -> tuple[str, ...]:
    if isinstance(stop_strings, str):
        stop_strings = (stop_strings,)
    if any(not stop for stop in stop_strings):
        raise ValueError("stop_strings: expected texts of at least one character, got an empty one")
    if stop_strings and tokenizer is None:
        raise ValueError("stop_strings: expected none, as the target has no tokenizer, got some")
    return tuple(stop_strings)
