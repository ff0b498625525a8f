"""Drafters whose acceptance is known beforehand: random, oracle, and oracle with planted wrong tokens.

`WatchedTarget` notes which token went into which cache slot. The oracle reads the text of a request back through the
page table, so it also proves, in every round, that pages, slots, positions and lengths are those of the right request:
a slot that was not injected, or that holds another request's token, fails the test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from dflash_decoding import PagedKVCache, PagePool
from dflash_decoding.target import Target, TargetOutput
from torch import Tensor


class RandomDrafter:
    """Proposes random tokens, the same ones for the same text position, so that it is deterministic."""

    def __init__(self, vocab_size: int, block_size: int, mask_token_id: int = 0, from_anchor: bool = False) -> None:
        self.block_size = block_size
        self.rows_without_draft = 0 if from_anchor else 1
        self.num_draft_tokens = block_size - self.rows_without_draft
        self.mask_token_id = mask_token_id
        self.tap_layers: tuple[int, ...] = ()
        self.max_positions: int | None = None
        generator = torch.Generator().manual_seed(vocab_size)
        self._tokens = torch.randint(vocab_size, (9973,), generator=generator)

    def new_cache(self, pool: PagePool) -> Any:
        return None

    def inject(self, taps: Sequence[Tensor], positions: Tensor, slot_mapping: Tensor, cache: Any) -> None:
        assert not taps

    def draft(
        self, input_ids: Tensor, positions: Tensor, cache: Any, page_table: Tensor, context_lens: Tensor
    ) -> Tensor:
        assert bool((input_ids[:, 1:] == self.mask_token_id).all())
        places = positions[:, self.rows_without_draft :] * 31 + input_ids[:, :1] * 7
        return self._tokens[places % len(self._tokens)]


class OracleDrafter:
    """Proposes what is known to follow.

    Args:
        target: only tokens that this watched target has seen count as context.
        sequences: prompt and continuation of every request, and longer than the answers by a block where acceptance is
            to be exact at their end (past its end, a sequence is continued with token 0).
        strict: whether a text that is no beginning of a sequence fails; else zeros are drafted from there on, as it
            must be where the target's own answer may leave the known one at a tie.
        spoil: changes the draft at a place of the text: (absolute position, right token) -> drafted token.
    """

    def __init__(
        self,
        target: WatchedTarget,
        sequences: Sequence[Sequence[int]],
        block_size: int,
        *,
        spoil: Callable[[int, int], int] = lambda position, token: token,
        tap_layers: tuple[int, ...] = (0,),
        from_anchor: bool = False,
        strict: bool = True,
    ) -> None:
        self.block_size = block_size
        self.num_draft_tokens = block_size if from_anchor else block_size - 1
        self.mask_token_id = 0
        self.tap_layers = tap_layers
        self.max_positions: int | None = None
        self.drafted_rows = 0
        self._target = target
        self._sequences = [list(sequence) for sequence in sequences]
        self._spoil = spoil
        self._strict = strict

    def new_cache(self, pool: PagePool) -> Tensor:
        """Position that was injected at each slot; -1 for none."""
        return torch.full((pool.num_pages * pool.page_size,), -1)

    def inject(self, taps: Sequence[Tensor], positions: Tensor, slot_mapping: Tensor, cache: Tensor) -> None:
        assert len(taps) == len(self.tap_layers)
        assert all(tap.shape[0] == len(positions) for tap in taps)
        kept = slot_mapping >= 0
        cache[slot_mapping[kept]] = positions[kept]

    def draft(
        self, input_ids: Tensor, positions: Tensor, cache: Tensor, page_table: Tensor, context_lens: Tensor
    ) -> Tensor:
        page_size = self._target.pool.page_size
        count = input_ids.shape[1] - (self.block_size - self.num_draft_tokens)
        drafts = []
        for row, length in enumerate(context_lens.tolist()):
            where = torch.arange(length)
            slots = page_table[row, where // page_size].long() * page_size + where % page_size
            assert torch.equal(cache[slots], where), "a context token was not injected, or at a wrong position"
            text = [*self._target.token_at[slots].tolist(), int(input_ids[row, 0])]
            known = next((s for s in self._sequences if s[: length + 1] == text), None)
            assert known is not None or not self._strict, f"row {row}: the cache holds a text that no request has"
            following = ((known or [])[length + 1 :] + [0] * count)[:count]
            drafts.append([self._spoil(length + 1 + i, token) for i, token in enumerate(following)])
            self.drafted_rows += 1
        return torch.tensor(drafts, dtype=torch.int64).view(-1, count)


class WatchedTarget:
    """A target that notes the token written to each slot; otherwise the target itself."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.pool: PagePool
        self.token_at: Tensor
        self.chunks: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def new_cache(self, pool: PagePool) -> PagedKVCache:
        self.pool = pool
        self.token_at = torch.full((pool.num_pages * pool.page_size,), -1)
        cache = self._target.new_cache(pool)
        for tensor in (*cache.k, *cache.v):
            tensor.fill_(float("nan"))  # what no one wrote must not be read
        return cache

    def forward(
        self, input_ids: Tensor, positions: Tensor, slot_mapping: Tensor, *args: Any, **kw: Any
    ) -> TargetOutput:
        output = self._target.forward(input_ids, positions, slot_mapping, *args, **kw)
        kept = slot_mapping >= 0
        self.token_at[slot_mapping[kept]] = input_ids[kept]
        self.chunks.append(len(input_ids))
        return output


def planted_acceptance(
    first: int, last: int, draft_tokens: int, is_wrong: Callable[[int], bool]
) -> tuple[list[int], int]:
    """Acceptance histogram and number of rounds of an oracle that is wrong at chosen positions.

    Args:
        first: position of the first generated token, which the prefill chooses.
        last: position of the last token of the answer.
        draft_tokens: drafted per round.
        is_wrong: by absolute position.
    """
    acceptance = [0] * (draft_tokens + 1)
    newest = first
    while newest < last:
        accepted = 0
        while accepted < draft_tokens and not is_wrong(newest + 1 + accepted):
            accepted += 1
        acceptance[accepted] += 1
        newest += accepted + 1
    return acceptance, sum(acceptance)


@contextmanager
def one_thread() -> Iterator[None]:
    """The tensors of tiny models are too small to share between threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
