"""The two interfaces of a draft context: the policy, chosen once, and the cache it makes for a call of the decoder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

from torch import Tensor

from dflash_decoding.cache import PagePool
from dflash_decoding.drafter_weights import BlockBuffers

from .layers import ContextLayers

# Attention of one layer (by index) over the context and the block's q, k and v, into its `attended` and `lse`.
ContextAttention: TypeAlias = Callable[[int, BlockBuffers], None]


class DraftCache(ABC):
    """What a drafter keeps of the contexts of one pool's requests, and how its layers read it.

    Attributes:
        pool: whose pages, tables and slots describe the contexts.
        max_write_rows: rows that one `write` may bring; None: any number.
        budget_tokens: tokens of the context that a row of the block sees at most, where the policy has a budget. May be
            lowered and raised again between forwards, up to what the policy was made with.
    """

    pool: PagePool
    max_write_rows: int | None = None
    budget_tokens: int | None = None

    @abstractmethod
    def write(self, features: Tensor, positions: Tensor, slot_mapping: Tensor) -> None:
        """Takes in n context tokens: fused features [n, H], positions and slots of the pool int64 [n]; slot -1: skip.

        Tokens of a request come in the order of the text.
        """

    @abstractmethod
    def begin(self, page_table: Tensor, context_lens: Tensor) -> ContextAttention:
        """Starts a forward over the contexts of b requests: page_table int32 [b, pages], context_lens int32 [b]."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Size of all it holds from round to round, and of its scratch. Page tables (4 bytes a page) do not count."""


@runtime_checkable
class ContextDrafter(Protocol):
    """A drafter that reads its context through a `DraftCache`; None: one whose context is of its own kind."""

    @property
    def context_layers(self) -> ContextLayers | None: ...


@dataclass(frozen=True)
class DraftContext(ABC):
    """How much of a context the drafter keeps and reads. A policy holds no state: one serves any number of calls.

    Whatever it leaves out, the target's output stays the same; what may change is how many drafts are accepted.
    """

    name: ClassVar[str]

    @abstractmethod
    def new_cache(self, drafter: Any, pool: PagePool) -> Any:
        """An empty cache for the contexts of `pool`: what the drafter's `inject` and `draft` get.

        Raises:
            ValueError: as `check`.
        """

    @abstractmethod
    def check(self, drafter: Any) -> None:
        """Refuses a drafter that the policy does not fit.

        Raises:
            ValueError: the drafter keeps a context of its own kind, or its block is larger than the budget.
        """

    def budgets(self) -> tuple[int | None, ...]:
        """Budgets an adaptive decoder may choose from, the greatest first; (None,): there is no budget."""
        return (None,)

    @abstractmethod
    def set_budget(self, cache: Any, budget_tokens: int | None) -> None:
        """Lets the next forwards on `cache` read so many tokens, one of `budgets`."""

    def request_bytes(self, drafter: Any, tokens: int, page_size: int) -> int:
        """Bytes that the draft cache of one request of so many tokens takes, without allocating it."""
        pages = -(-tokens // page_size)
        size: int = self.new_cache(drafter, PagePool(pages, page_size, 1, pages, device="meta")).num_bytes
        return size


@dataclass(frozen=True)
class BudgetedContext(DraftContext):
    """A policy with a budget in tokens.

    Attributes:
        budget_tokens: tokens of the context that a row of the block sees at most.

    Raises:
        ValueError: the budget is not positive.
    """

    budget_tokens: int = 1024

    def __post_init__(self) -> None:
        if self.budget_tokens < 1:
            raise ValueError(f"budget_tokens: expected a positive number, got {self.budget_tokens}")

    @property
    def least_budget(self) -> int:
        """The smallest budget that makes sense beside the other options."""
        return 1

    def check(self, drafter: Any) -> None:
        layers_of(drafter, self.name)
        if self.budget_tokens < drafter.block_size:
            raise ValueError(
                f"budget_tokens: expected at least the drafter's block of {drafter.block_size}, got {self.budget_tokens}"
            )

    def budgets(self) -> tuple[int | None, ...]:
        halved = {max(self.least_budget, self.budget_tokens // part) for part in (2, 4)}
        return tuple(sorted({self.budget_tokens, *(b for b in halved if b < self.budget_tokens)}, reverse=True))

    def set_budget(self, cache: DraftCache, budget_tokens: int | None) -> None:
        cache.budget_tokens = self.budget_tokens if budget_tokens is None else budget_tokens


def layers_of(drafter: Any, context_name: str) -> ContextLayers:
    """The layers of a drafter that reads its context through a `DraftCache`.

    Raises:
        ValueError: it keeps a context of its own kind.
    """
    layers = drafter.context_layers if isinstance(drafter, ContextDrafter) else None
    if layers is None:
        raise ValueError(
            f"draft_context: expected full for a drafter with a context of its own kind "
            f"({type(drafter).__name__}), got {context_name}"
        )
    return layers
