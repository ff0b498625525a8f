"""Generation by block diffusion: blocks one after the other, each denoised over several steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import dflash_ops
from dflash_decoding.cache import PagedKVCache, PagePool
from dflash_decoding.request import FinishReason, Request, read_requests
from dflash_decoding.sampling import SamplingParams
from dflash_decoding.workspace import Workspace

from .model import BlockDiffusionModel, decoding_attention


@dataclass(frozen=True)
class BlockGeneration:
    """The finished answer to one prompt.

    Attributes:
        token_ids: generated tokens, up to and including a stop token.
        finish_reason: "stop_token", or "length" at max_new_tokens.
        forwards: forwards it took part in.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    forwards: int


@dataclass
class _ActiveRequest:
    """A request in decoding.

    Attributes:
        row: its row of the page pool.
        block: int64 [B], tokens of the block being denoised, masks where unknown.
        steps_left: denoising steps until `block` is full.
        masked: masks in `block`, known without reading it: every step reveals as many as it was told.
        clean: full blocks before `block` whose keys and values are not cached yet.
        known: tokens of the prompt and of full blocks, together.
    """

    request: Request
    row: int
    block: Tensor
    steps_left: int
    masked: int
    clean: list[int]
    known: int
    answer: list[int] = field(default_factory=list)
    forwards: int = 0


def reveal_count(masked: int, steps_left: int) -> int:
    """Positions to reveal now, so that `masked` are gone after `steps_left` steps, the earlier ones taking the rest."""
    return -(-masked // steps_left) if steps_left else 0


class BlockDiffusionDecoder:
    """Greedy generation with a model trained by block diffusion.

    A block starts as masks (the first one with the prompt's last tokens that fill no whole block) and every step is one
    forward, whose most confident predictions are revealed (`remask`); the number of steps per block trades quality for
    speed, from all tokens at once to one by one. A full block is recomputed once without masks, and its keys and values
    stay in the cache: that costs no forward of its own, since its rows ride along with the first step of the next block,
    as a whole prompt does with the first step of all. Requests advance on their own; a row whose request has ended is
    refilled.

    Args:
        tokenizer: needed for prompts that are text only.
        page_size: tokens per cache page, a power of two up to 256.
        max_batch: most requests decoded at once.
    """

    def __init__(
        self, model: BlockDiffusionModel, tokenizer: Any = None, *, page_size: int = 16, max_batch: int = 8
    ) -> None:
        if max_batch < 1:
            raise ValueError(f"max_batch: expected a positive number, got {max_batch}")
        self.model = model
        self.config = model.config
        self._workspace = Workspace(model.lm_head.device)
        self.tokenizer = tokenizer
        self.page_size = page_size
        self.max_batch = max_batch

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[int]],
        *,
        max_new_tokens: int | Sequence[int],
        steps: int | None = None,
        stop_token_ids: Sequence[int] | None = None,
    ) -> list[BlockGeneration]:
        """Continues every prompt.

        Args:
            prompts: one text, several texts, or several lists of token ids.
            max_new_tokens: for all prompts or one per prompt; 0 gives an empty answer.
            steps: denoising steps per block, 1..block_size; None: block_size, one token per step.
            stop_token_ids: end an answer and are part of it; None: the end token of the config.

        Raises:
            TypeError, ValueError: an argument is not as above, or a request needs more positions than the model has.
        """
        config = self.config
        steps = config.block_size if steps is None else steps
        self._check_steps(steps)
        requests = read_requests(prompts, self.tokenizer, config.vocab_size, max_new_tokens, SamplingParams())
        for request in requests:
            if config.mask_token_id in request.prompt:
                raise ValueError(
                    f"prompts[{request.index}]: expected no mask token {config.mask_token_id}, got one at "
                    f"{request.prompt.index(config.mask_token_id)}"
                )
            length = len(request.prompt) + request.max_new_tokens
            if length > config.max_position_embeddings:
                raise ValueError(
                    f"prompts[{request.index}]: expected at most {config.max_position_embeddings} tokens, got {length} "
                    "of the prompt and max_new_tokens"
                )
        stops = frozenset((config.end_token_id,) if stop_token_ids is None else stop_token_ids)
        answers = dict(_Session(self, requests, steps, stops).run())
        return [answers[index] for index in range(len(requests))]

    @torch.no_grad()
    def denoise_text(self, text: Sequence[int], known: Tensor, steps: int) -> Tensor:
        """Fills every block of a text that is whole blocks long, each over the text's own earlier blocks.

        All blocks are done at once. This is the teacher-forced counterpart of `generate`, to measure a model with.

        Args:
            text: token ids, a multiple of block_size of them.
            known: bool [len(text)], tokens that are given; the others are to be found.
            steps: denoising steps per block, as in `generate`.

        Returns:
            int64 [len(text)], `text` where known.

        Raises:
            ValueError: steps is out of range, or the text is not as above.
        """
        self._check_steps(steps)
        size = self.config.block_size
        if not text or len(text) % size or len(text) > self.config.max_positions:
            raise ValueError(
                f"text: expected whole blocks of {size} tokens, at most {self.config.max_positions} tokens, got {len(text)}"
            )
        device = self.model.embedding.device
        pool = PagePool(-(-len(text) // self.page_size), self.page_size, 1, -(-len(text) // self.page_size), device)
        pool.allocate(0, len(text))
        cache = self.model.new_cache(pool)
        clean = torch.tensor(text, dtype=torch.int64, device=device).view(-1, size)
        starts = torch.arange(0, len(text), size, device=device)
        pages = pool.page_table.expand(len(starts), -1)
        self.forward(clean, starts, cache, pages, pool.slot_mapping(0, 0, len(text)))
        tokens = clean.masked_fill(~known.to(device).view_as(clean), self.config.mask_token_id)
        masked = (~known).view(-1, size).sum(dim=1).tolist()
        left = [min(steps, count) for count in masked]
        while any(left):
            keep = [reveal_count(count, remaining) for count, remaining in zip(masked, left, strict=True)]
            self.reveal(self.forward(tokens, starts, cache, pages), tokens, keep)
            masked = [count - now for count, now in zip(masked, keep, strict=True)]
            left = [max(0, remaining - 1) for remaining in left]
        return tokens.flatten()

    def forward(
        self,
        blocks: Tensor,
        starts: Tensor,
        cache: PagedKVCache,
        page_table: Tensor,
        slot_mapping: Tensor | None = None,
    ) -> Tensor:
        """Rows that the head reads, [n, B, H], of blocks [n, B] at positions `starts` int64 [n] of their texts.

        page_table int32 [n, max_pages]; slot_mapping int64 [n * B] as in `decoding_attention`.
        """
        size = self.config.block_size
        positions = starts[:, None] + torch.arange(size, device=starts.device)
        attend = decoding_attention(cache, page_table, starts.to(torch.int32), slot_mapping)
        return self.model(blocks.flatten(), positions.flatten(), attend).view(*blocks.shape, -1)

    def reveal(self, hidden: Tensor, tokens: Tensor, keep: Sequence[int]) -> None:
        """Sets the keep[i] most confident masks of tokens [n, B] to their predictions, in place; hidden [n, B, H]."""
        logits = hidden.to(self.model.lm_head.dtype) @ self.model.lm_head.t()
        counts = torch.tensor(keep, dtype=torch.int32, device=tokens.device)
        workspace = self._workspace.of(dflash_ops.remask_workspace_size(*tokens.shape))
        dflash_ops.remask(logits, tokens, mask_token_id=self.config.mask_token_id, keep=counts, workspace=workspace)

    def _check_steps(self, steps: int) -> None:
        if not 1 <= steps <= self.config.block_size:
            raise ValueError(f"steps: expected 1..{self.config.block_size} (the block size), got {steps}")


class _Session:
    """One call of `generate`."""

    def __init__(
        self, decoder: BlockDiffusionDecoder, requests: Sequence[Request], steps: int, stops: frozenset[int]
    ) -> None:
        self._decoder = decoder
        self._size = decoder.config.block_size
        self._steps = steps
        self._stops = stops
        self._queue = deque(requests)
        self._device = decoder.model.embedding.device
        needed = [-(-self._cached_tokens(request) // decoder.page_size) for request in requests]
        batch = max(1, min(decoder.max_batch, len(requests)))
        pages = sum(sorted(needed, reverse=True)[:batch])
        self._pool = PagePool(max(1, pages), decoder.page_size, batch, max(1, *needed, 1), self._device)
        self._cache = decoder.model.new_cache(self._pool)
        self._active: list[_ActiveRequest] = []

    def run(self) -> Iterator[tuple[int, BlockGeneration]]:
        """Finished requests with their index, as they finish."""
        free_rows = list(range(self._pool.max_batch))
        with torch.no_grad():
            while self._queue or self._active:
                while self._queue and free_rows:
                    request = self._queue.popleft()
                    if request.max_new_tokens == 0:
                        yield request.index, BlockGeneration((), "length", 0)
                    else:
                        self._active.append(self._admit(request, free_rows.pop()))
                if self._active:
                    self._step()
                for active in [active for active in self._active if not active.steps_left]:
                    reason = self._finish_block(active)
                    if reason is not None:
                        self._active.remove(active)
                        self._pool.release(active.row)
                        free_rows.append(active.row)
                        answer = BlockGeneration(tuple(active.answer), reason, active.forwards)
                        yield active.request.index, answer

    def _cached_tokens(self, request: Request) -> int:
        """Whole blocks before the last one: the only tokens that are ever looked up."""
        return (len(request.prompt) + request.max_new_tokens - 1) // self._size * self._size

    def _admit(self, request: Request, row: int) -> _ActiveRequest:
        self._pool.allocate(row, self._cached_tokens(request))
        known = len(request.prompt)
        whole = known // self._size * self._size
        empty = torch.empty(0, dtype=torch.int64, device=self._device)
        active = _ActiveRequest(request, row, empty, 0, 0, list(request.prompt[:whole]), known)
        self._begin_block(active, request.prompt[whole:])
        return active

    def _begin_block(self, active: _ActiveRequest, given: Sequence[int]) -> None:
        """A block of masks behind the tokens `given`, less than a block of them."""
        active.masked = self._size - len(given)
        active.steps_left = min(self._steps, active.masked)
        masks = [self._decoder.config.mask_token_id] * active.masked
        active.block = torch.tensor([*given, *masks], dtype=torch.int64, device=self._device)

    def _step(self) -> None:
        """One denoising step of every active request; clean blocks that wait go into the cache with it."""
        size = self._size
        clean: list[int] = []
        starts: list[int] = []
        rows: list[int] = []
        slots: list[Tensor] = []
        for active in self._active:
            count = len(active.clean)
            end = active.known // size * size
            if count:
                clean += active.clean
                slots.append(self._pool.slot_mapping(active.row, end - count, end))
                rows += [active.row] * (count // size)
                starts += range(end - count, end, size)
                active.clean = []
        waiting = len(starts)
        rows += [active.row for active in self._active]
        starts += [active.known // size * size for active in self._active]
        noisy = torch.stack([active.block for active in self._active])
        blocks = torch.cat([torch.tensor(clean, dtype=torch.int64, device=self._device).view(-1, size), noisy])
        slot_mapping = torch.cat([*slots, noisy.new_full((noisy.numel(),), -1)]) if slots else None
        hidden = self._decoder.forward(
            blocks,
            torch.tensor(starts, dtype=torch.int64, device=self._device),
            self._cache,
            self._pool.page_table[torch.tensor(rows, device=self._device)],
            slot_mapping,
        )[waiting:]
        keep = [reveal_count(active.masked, active.steps_left) for active in self._active]
        self._decoder.reveal(hidden, noisy, keep)
        for active, block, revealed in zip(self._active, noisy, keep, strict=True):
            active.block = block
            active.masked -= revealed
            active.steps_left -= 1
            active.forwards += 1

    def _finish_block(self, active: _ActiveRequest) -> FinishReason | None:
        """Takes the tokens of a full block; begins the next one, or says why the answer ends."""
        block = active.block.tolist()
        for token in block[active.known % self._size :]:
            active.answer.append(token)
            if token in self._stops:
                return "stop_token"
            if len(active.answer) == active.request.max_new_tokens:
                return "length"
        active.clean = block
        active.known = active.known // self._size * self._size + self._size
        self._begin_block(active, ())
        return None
