"""What the decoder's loop asks of any drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from .cache import PagePool


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
