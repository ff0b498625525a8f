"""One call of the decoder: admission, prefill, and rounds of drafting and verifying on the device ops."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

import dflash_ops

from .batch import ActiveRequest, DecodeBatch, host_results
from .cache import PagePool
from .request import Cancellation, Request, StreamEvent
from .stats import DecodeStats, PhaseTimer
from .target import Target
from .text import TextAssembler
from .workspace import Workspace


class Drafter(Protocol):
    """What the decoder asks of a drafter: to propose, deterministically, tokens that the target then verifies.

    Attributes:
        block_size: largest number of rows of a draft block.
        num_draft_tokens: tokens that a block of block_size rows drafts: block_size - 1, or block_size.
        mask_token_id: fills the rows of a block after the first one.
        tap_layers: target layers whose outputs `inject` takes, in this order; may be empty.
        max_positions: positions it can handle, None for no limit.
    """

    @property
    def block_size(self) -> int: ...
    @property
    def num_draft_tokens(self) -> int: ...
    @property
    def mask_token_id(self) -> int: ...
    @property
    def tap_layers(self) -> Sequence[int]: ...
    @property
    def max_positions(self) -> int | None: ...

    def new_cache(self, pool: PagePool) -> Any:
        """Whatever it keeps per context token, over the pages of `pool`; comes back in `inject` and `draft`."""

    def inject(self, taps: list[Tensor], positions: Tensor, slot_mapping: Tensor, cache: Any) -> None:
        """Takes in n context tokens: taps [n, H_t] each, positions and slots int64 [n]; slot -1: not accepted, skip."""

    def draft(
        self, input_ids: Tensor, positions: Tensor, cache: Any, page_table: Tensor, context_lens: Tensor
    ) -> Tensor:
        """Draft tokens int64 [b, n] for blocks [b, B], the newest token first and then masks; n grows with B."""


@dataclass(frozen=True)
class SessionLimits:
    """Sizes of a session, fixed before it starts.

    Attributes:
        num_pages, page_size, max_batch, max_pages_per_request: of the page pool.
        block_rows: rows that draft, 0 without a drafter.
        verify_rows: rows that the target verifies: the newest token and the draft tokens.
        prefill_chunk: prompt tokens per forward.
        max_positions: positions of the target and the drafter; None: no limit known.
    """

    num_pages: int
    page_size: int
    max_batch: int
    max_pages_per_request: int
    block_rows: int
    verify_rows: int
    prefill_chunk: int
    max_positions: int | None


class DecodeSession:
    """Decodes requests, more than fit at once if need be; their order of admission is their order in the call.

    A round is: begin_block, draft, target forward, verify, commit_block, inject. It makes a single host read, for
    streaming and for the host's own bookkeeping. A row whose request has finished is refilled from the queue.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        requests: Sequence[Request],
        limits: SessionLimits,
        stop_token_ids: Sequence[int],
        stop_strings: Sequence[str],
        tokenizer: Any,
        cancellation: Cancellation | None = None,
    ) -> None:
        self._target = target
        self._cancellation = Cancellation() if cancellation is None else cancellation
        self._drafter = drafter
        self._limits = limits
        self._queue = deque(requests)
        self._stop_token_ids = frozenset(stop_token_ids)
        self._stop_strings = tuple(stop_strings)
        self._tokenizer = tokenizer
        self._device = target.device
        self._all_greedy = all(request.sampling.is_greedy for request in requests)
        self._stop_tensor = torch.tensor(sorted(self._stop_token_ids), dtype=torch.int64, device=self._device)
        self._pool = PagePool(
            limits.num_pages, limits.page_size, limits.max_batch, limits.max_pages_per_request, self._device
        )
        self._target_cache = target.new_cache(self._pool)
        self._draft_cache = drafter.new_cache(self._pool) if drafter is not None else None
        self._tap_layers = tuple(drafter.tap_layers) if drafter is not None else ()
        capacity = max((request.max_new_tokens for request in requests), default=0)
        self._batch = DecodeBatch(self._pool, limits.verify_rows, capacity)
        self._workspace = Workspace(self._device)
        self._timer = PhaseTimer(self._device)
        self.stats = DecodeStats(limits.verify_rows)

    def events(self) -> Iterator[StreamEvent]:
        """Runs all requests to their end, yielding every token as soon as it is committed."""
        while self._queue or len(self._batch):
            if self._cancellation:
                yield from self._cancel()
            while self._queue and self._can_admit(self._queue[0]):
                yield from self._admit(self._queue.popleft())
            if len(self._batch):
                yield from self._round()

    def _cancel(self) -> list[StreamEvent]:
        """Ends cancelled requests, those in the queue and those in rows of the batch."""
        ended = [active for active in self._batch.requests if active.request.index in self._cancellation]
        for request in [request for request in self._queue if request.index in self._cancellation]:
            self._queue.remove(request)
            stats = DecodeStats(self._limits.verify_rows)
            stats.add_prefill(0, 0, 0.0)
            ended.append(ActiveRequest(request, TextAssembler(self._tokenizer, self._stop_strings), stats))
        events = []
        for active in ended:
            text = active.assembler.finish()
            active.finish_reason = "cancelled"
            events.append(StreamEvent(active.request.index, None, text, active.generation()))
        self._batch.remove_finished()
        return events

    def _can_admit(self, request: Request) -> bool:
        needed = self._pool.pages_for(request.cached_tokens(self._limits.verify_rows))
        return request.max_new_tokens == 0 or (self._batch.has_free_row and needed <= self._pool.num_free_pages)

    def _admit(self, request: Request) -> list[StreamEvent]:
        """Prefills one request and emits its first token."""
        stats = DecodeStats(self._limits.verify_rows)
        active = ActiveRequest(request, TextAssembler(self._tokenizer, self._stop_strings), stats)
        if request.max_new_tokens == 0:
            active.finish_reason = "length"
            for counted in (stats, self.stats):
                counted.add_prefill(0, 0, 0.0)
            return [StreamEvent(request.index, None, "", active.generation())]
        row = self._batch.add(active, request.cached_tokens(self._limits.verify_rows))
        rows = slice(row, row + 1)
        self._timer.mark("prefill")
        logits = self._prefill(request, row)
        # The last prompt token is a block of one row whose choice is verified against no draft.
        self._pool.context_lens[rows] -= 1
        last_slot = self._pool.slot_mapping(row, len(request.prompt) - 1, len(request.prompt)).unsqueeze(0)
        self._verify_and_commit(rows, logits, last_slot)
        self._timer.stop()
        ((tokens, _, finished),) = host_results(self._batch, rows, 1)
        seconds = self._timer.seconds()["prefill"]
        events = self._emit(active, tokens, finished)
        for counted in (stats, self.stats):
            counted.add_prefill(len(request.prompt), len(events), seconds)
        self._batch.remove_finished()
        return events

    def _prefill(self, request: Request, row: int) -> Tensor:
        """Computes target and draft K/V of a prompt, a chunk at a time; returns the logits [1, V] of its last row."""
        rows = slice(row, row + 1)
        length = len(request.prompt)
        prompt = torch.tensor(request.prompt, dtype=torch.int64, device=self._device)
        logits: Tensor | None = None
        for start in range(0, length, self._limits.prefill_chunk):
            stop = min(start + self._limits.prefill_chunk, length)
            positions = torch.arange(start, stop, device=self._device)
            slots = self._pool.slot_mapping(row, start, stop)
            output = self._target.forward(
                prompt[start:stop],
                positions,
                slots,
                self._target_cache,
                self._pool.page_table[rows],
                self._pool.context_lens[rows],
                tap_layers=self._tap_layers,
                logit_rows=torch.tensor([stop - start - 1], device=self._device) if stop == length else None,
            )
            if self._drafter is not None:
                self._drafter.inject(output.taps, positions, slots, self._draft_cache)
            self._pool.context_lens[rows] += stop - start
            logits = output.logits
        assert logits is not None
        return logits

    def _round(self) -> list[StreamEvent]:
        """Drafts and verifies one block of every active request."""
        began = time.perf_counter()
        batch, pool, drafter = self._batch, self._pool, self._drafter
        rows = slice(0, len(batch))
        input_ids, positions, slots = batch.input_ids[rows], batch.positions[rows], batch.slot_mapping[rows]
        page_table, context_lens = pool.page_table[rows], pool.context_lens[rows]
        self._timer.mark("verify" if drafter is None else "draft")
        dflash_ops.begin_block(
            batch.next_token[rows],
            context_lens,
            page_table,
            page_size=pool.page_size,
            mask_token_id=0 if drafter is None else drafter.mask_token_id,
            input_ids=input_ids,
            positions=positions,
            slot_mapping=slots,
        )
        if self._limits.max_positions is not None:
            # The last block of a request may reach beyond what a model has positions for. Rows there lie beyond the
            # request's limit, so they are never committed, and no committed row sees them.
            positions.clamp_(max=self._limits.max_positions - 1)
        if drafter is not None:
            block = slice(0, self._limits.block_rows)
            drafts = drafter.draft(
                input_ids[:, block], positions[:, block], self._draft_cache, page_table, context_lens
            )
            input_ids[:, 1:] = drafts
            self._timer.mark("verify")
        output = self._target.forward(
            input_ids.flatten(),
            positions.flatten(),
            slots.flatten(),
            self._target_cache,
            page_table,
            context_lens,
            tap_layers=self._tap_layers,
            logit_rows="all",
        )
        assert output.logits is not None
        self._verify_and_commit(rows, output.logits, slots)
        if drafter is not None:
            self._timer.mark("draft")
            context_slots = batch.context_slots[rows].flatten()
            drafter.inject(output.taps, positions.flatten(), context_slots, self._draft_cache)
        self._timer.stop()
        results = host_results(batch, rows, self._limits.verify_rows)
        phases = self._timer.seconds()
        events: list[StreamEvent] = []
        active_requests = list(batch.requests)
        for active, (tokens, accepted, finished) in zip(active_requests, results, strict=True):
            emitted = self._emit(active, tokens, finished)
            for counted in (active.stats, self.stats):
                counted.add_round(accepted, len(emitted))
            events += emitted
        batch.remove_finished()
        seconds = time.perf_counter() - began
        for counted in (self.stats, *(active.stats for active in active_requests)):
            counted.add_step(phases, seconds)
        return events

    def _verify_and_commit(self, rows: slice, logits: Tensor, slots: Tensor) -> None:
        """Matches the draft in `batch.input_ids[rows]` with logits [b * v, V] and commits; slots int64 [b, v]."""
        batch = self._batch
        verify_rows = slots.shape[1]
        outputs = {
            "accepted": batch.accepted[rows],
            "tokens": batch.tokens[rows, :verify_rows],
            "next_token": batch.bonus[rows],
        }
        drafts = batch.input_ids[rows, 1:verify_rows]
        target_logits = logits.view(*slots.shape, -1)
        if self._all_greedy:
            size = dflash_ops.verify_greedy_workspace_size(*drafts.shape)
            dflash_ops.verify_greedy(drafts, target_logits=target_logits, workspace=self._workspace.of(size), **outputs)
        else:
            size = dflash_ops.verify_sampled_workspace_size(*drafts.shape, target_logits.shape[2])
            dflash_ops.verify_sampled(
                drafts,
                target_logits=target_logits,
                temperature=batch.temperature[rows],
                top_k=batch.top_k[rows],
                top_p=batch.top_p[rows],
                seed=batch.seed[rows],
                offset=batch.offset[rows],
                workspace=self._workspace.of(size),
                **outputs,
            )
        dflash_ops.commit_block(
            batch.tokens[rows, :verify_rows],
            batch.accepted[rows],
            slots,
            stop_token_ids=self._stop_tensor,
            max_output_lens=batch.max_output_lens[rows],
            context_lens=self._pool.context_lens[rows],
            next_token=batch.next_token[rows],
            output_ids=batch.output_ids[rows],
            output_lens=batch.output_lens[rows],
            finished=batch.finished[rows],
            committed=batch.committed[rows],
            context_slots=batch.context_slots[rows, :verify_rows],
        )

    def _emit(self, active: ActiveRequest, tokens: Sequence[int], finished: bool) -> list[StreamEvent]:
        """Events of newly committed tokens. Ends the request at a stop string, dropping the tokens after it."""
        events = []
        for place, token in enumerate(tokens):
            active.token_ids.append(token)
            text = active.assembler.push(token)
            ends = finished and place == len(tokens) - 1
            if ends:
                text += active.assembler.finish()
            if active.assembler.stopped:
                active.finish_reason = "stop_string"
            elif ends:
                active.finish_reason = "stop_token" if token in self._stop_token_ids else "length"
            generation = None if active.finish_reason is None else active.generation()
            events.append(StreamEvent(active.request.index, token, text, generation))
            if generation is not None:
                break
        return events
