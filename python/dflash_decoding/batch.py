"""Device state of the requests being decoded together, and the host's record of each."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .cache import PagePool
from .request import FinishReason, Generation, Request
from .stats import DecodeStats
from .text import TextAssembler


@dataclass
class ActiveRequest:
    """The host's record of a request: what it has emitted so far."""

    request: Request
    assembler: TextAssembler
    stats: DecodeStats
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    def generation(self) -> Generation:
        """The finished answer; `finish_reason` must be set."""
        assert self.finish_reason is not None
        return Generation(
            self.request.prompt, tuple(self.token_ids), self.assembler.text, self.finish_reason, self.stats
        )


@dataclass(frozen=True)
class RoundBuffers:
    """int64 [max_batch, rows] each: blocks to verify, and what becomes of them. Leading rows are contiguous."""

    input_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    tokens: Tensor
    context_slots: Tensor


class DecodeBatch:
    """Tensors of up to `pool.max_batch` requests, the active ones in the leading rows without gaps.

    A leading slice of any tensor here is what an op gets, so that a batch with few requests left costs no more than
    these. All rows and all buffers are allocated once per call of the decoder; a round allocates nothing here.

    Attributes:
        requests: the active requests, in row order.
        next_token: int64 [b], newest committed token, whose K/V is not in the cache yet.
        output_ids: int64 [b, capacity], output_lens: int32 [b], finished: bool [b], max_output_lens: int32 [b].
        temperature, top_k, top_p, seed, offset: of `verify_sampled`, [b] each.
        accepted, committed: int32 [b], bonus: int64 [b], buffers of a round.
    """

    def __init__(self, pool: PagePool, block_rows: int, capacity: int) -> None:
        self.pool = pool
        self.requests: list[ActiveRequest] = []
        batch = pool.max_batch

        def zeros(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros((batch, *shape), dtype=dtype, device=pool.device)

        self.next_token = zeros(torch.int64)
        self.output_ids = zeros(torch.int64, capacity)
        self.output_lens = zeros(torch.int32)
        self.max_output_lens = zeros(torch.int32)
        self.finished = zeros(torch.bool)
        self.temperature = zeros(torch.float32)
        self.top_k = zeros(torch.int32)
        self.top_p = zeros(torch.float32)
        self.seed = zeros(torch.int64)
        self.offset = zeros(torch.int64)
        self._state = (
            self.next_token, self.output_ids, self.output_lens, self.max_output_lens, self.finished,
            self.temperature, self.top_k, self.top_p, self.seed, self.offset,
        )  # fmt: skip
        self._round_memory = tuple(zeros(torch.int64, block_rows) for _ in range(5))
        self.accepted = zeros(torch.int32)
        self.committed = zeros(torch.int32)
        self.bonus = zeros(torch.int64)

    def __len__(self) -> int:
        return len(self.requests)

    def round_buffers(self, block_rows: int) -> RoundBuffers:
        """Buffers of a round of so many rows per request, at most those of the constructor, on the same memory."""
        batch = self.pool.max_batch
        return RoundBuffers(*(memory.flatten()[: batch * block_rows].view(batch, -1) for memory in self._round_memory))

    @property
    def has_free_row(self) -> bool:
        """Whether another request can be added."""
        return len(self.requests) < self.pool.max_batch

    def add(self, active: ActiveRequest, num_tokens: int) -> int:
        """Takes the next row for a request, with pages for `num_tokens` tokens and all state set anew.

        Returns:
            The row.

        Raises:
            OutOfPages: before anything is changed.
        """
        row = len(self.requests)
        self.pool.allocate(row, num_tokens)
        sampling = active.request.sampling
        for tensor in self._state:
            tensor[row].zero_()
        self.max_output_lens[row].fill_(active.request.max_new_tokens)
        self.temperature[row].fill_(sampling.temperature)
        self.top_k[row].fill_(sampling.top_k)
        self.top_p[row].fill_(sampling.top_p)
        self.seed[row].fill_(sampling.seed or 0)
        self.requests.append(active)
        return row

    def remove_finished(self) -> None:
        """Frees the rows of finished requests and closes the gaps with requests from the end."""
        for row in range(len(self.requests) - 1, -1, -1):
            if self.requests[row].finish_reason is None:
                continue
            self.pool.release(row)
            last = self.requests.pop()
            end = len(self.requests)
            if row < end:
                self.requests[row] = last
                self.pool.move(end, row)
                for tensor in self._state:
                    tensor[row].copy_(tensor[end])


def host_results(batch: DecodeBatch, rows: slice, buffers: RoundBuffers) -> list[tuple[list[int], int, bool]]:
    """What a round did to each request, in the one transfer to the host that a round makes.

    Returns:
        per row: committed tokens, number of accepted draft tokens, finished by stop token or length.
    """
    columns = (
        buffers.tokens[rows],
        batch.committed[rows, None],
        batch.accepted[rows, None],
        batch.finished[rows, None],
    )
    packed = torch.cat([column.to(torch.int64) for column in columns], dim=1).tolist()
    return [(line[: line[-3]], line[-2], bool(line[-1])) for line in packed]
