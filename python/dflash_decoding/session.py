"""One call of the decoder: admission, prefill, and rounds of drafting and verifying on the device ops."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import dflash_ops

from .batch import ActiveRequest, DecodeBatch, RoundBuffers, host_results
from .cache import PagePool
from .draft_context import DraftContext
from .drafter_protocol import Drafter
from .request import Cancellation, Request, StreamEvent
from .speculation import Speculation
from .stats import Clock, DecodeStats, PhaseTimer
from .target import Target
from .text import TextAssembler
from .workspace import Workspace


@dataclass(frozen=True)
class SessionLimits:
    """Sizes of a session, fixed before it starts.

    Attributes:
        num_pages, page_size, max_batch, max_pages_per_request: of the page pool.
        verify_rows: most rows that the target verifies in a round: the newest token and the draft tokens.
        prefill_chunk: prompt tokens per forward.
        max_positions: positions of the target and the drafter; None: no limit known.
    """

    num_pages: int
    page_size: int
    max_batch: int
    max_pages_per_request: int
    verify_rows: int
    prefill_chunk: int
    max_positions: int | None


class DecodeSession:
    """Decodes requests, more than fit at once if need be; their order of admission is their order in the call.

    A round is: begin_block, draft, target forward, verify, commit_block, inject. It makes a single host read, for
    streaming and for the host's own bookkeeping. A row whose request has finished is refilled from the queue.

    Args:
        draft_context: what the drafter keeps and reads of the contexts.
        speculation: says before every round whether, and how, it drafts.
        clock: seconds, of the times that are measured.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        draft_context: DraftContext,
        speculation: Speculation,
        requests: Sequence[Request],
        limits: SessionLimits,
        stop_token_ids: Sequence[int],
        stop_strings: Sequence[str],
        tokenizer: Any,
        clock: Clock,
        cancellation: Cancellation | None = None,
    ) -> None:
        self._target = target
        self._cancellation = Cancellation() if cancellation is None else cancellation
        self._drafter = drafter
        self._draft_context = draft_context
        self._speculation = speculation
        self._clock = clock
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
        self.draft_cache = draft_context.new_cache(drafter, self._pool) if drafter is not None else None
        self._tap_layers = tuple(drafter.tap_layers) if drafter is not None else ()
        capacity = max((request.max_new_tokens for request in requests), default=0)
        self._batch = DecodeBatch(self._pool, limits.verify_rows, capacity)
        self._workspace = Workspace(self._device)
        self._timer = PhaseTimer(self._device, clock)
        self.stats = DecodeStats(limits.verify_rows, draft_cache_bytes=getattr(self.draft_cache, "num_bytes", 0))

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
        buffers = self._batch.round_buffers(1)
        self._verify_and_commit(rows, buffers, logits, last_slot)
        self._timer.stop()
        ((tokens, _, finished),) = host_results(self._batch, rows, buffers)
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
                self._drafter.inject(output.taps, positions, slots, self.draft_cache)
            self._pool.context_lens[rows] += stop - start
            logits = output.logits
        assert logits is not None
        return logits

    def _round(self) -> list[StreamEvent]:
        """Verifies one block of every active request, drafted or the newest token alone."""
        began = self._clock()
        plan = self._speculation.next_round()
        batch, pool, drafter = self._batch, self._pool, self._drafter
        rows = slice(0, len(batch))
        buffers = batch.round_buffers(plan.verify_rows)
        input_ids, positions, slots = buffers.input_ids[rows], buffers.positions[rows], buffers.slot_mapping[rows]
        page_table, context_lens = pool.page_table[rows], pool.context_lens[rows]
        self._timer.mark("draft" if plan.block_rows else "verify")
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
        if drafter is not None and plan.block_rows:
            self._draft_context.set_budget(self.draft_cache, plan.budget_tokens)
            block = slice(0, plan.block_rows)
            input_ids[:, 1:] = drafter.draft(
                input_ids[:, block], positions[:, block], self.draft_cache, page_table, context_lens
            )
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
        self._verify_and_commit(rows, buffers, output.logits, slots)
        if drafter is not None:
            self._timer.mark("draft")
            context_slots = buffers.context_slots[rows].flatten()
            drafter.inject(output.taps, positions.flatten(), context_slots, self.draft_cache)
        self._timer.stop()
        results = host_results(batch, rows, buffers)
        phases = self._timer.seconds()
        events: list[StreamEvent] = []
        active_requests = list(batch.requests)
        for active, (tokens, accepted, finished) in zip(active_requests, results, strict=True):
            emitted = self._emit(active, tokens, finished)
            for counted in (active.stats, self.stats):
                counted.add_round(accepted, len(emitted))
            events += emitted
        self._speculation.record(1.0 + sum(accepted for _, accepted, _ in results) / len(results), sum(phases.values()))
        batch.remove_finished()
        seconds = self._clock() - began
        for counted in (self.stats, *(active.stats for active in active_requests)):
            counted.add_step(phases, seconds, plan.name)
        return events

    def _verify_and_commit(self, rows: slice, buffers: RoundBuffers, logits: Tensor, slots: Tensor) -> None:
        """Matches the draft in `buffers.input_ids[rows]` with logits [b * v, V] and commits; slots int64 [b, v]."""
        batch = self._batch
        outputs = {
            "accepted": batch.accepted[rows],
            "tokens": buffers.tokens[rows],
            "next_token": batch.bonus[rows],
        }
        drafts = buffers.input_ids[rows, 1:]
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
            buffers.tokens[rows],
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
            context_slots=buffers.context_slots[rows],
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
