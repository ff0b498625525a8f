"""What a drafter keeps and reads of its context: all of it, selected pages, a window, or a window made anew."""

from __future__ import annotations

from typing import Any

from .base import BudgetedContext, ContextAttention, DraftCache, DraftContext
from .cache_free import CacheFreeContext
from .full import FullContext
from .layers import ContextLayers
from .sparse import SparseContext
from .window import WindowContext

DRAFT_CONTEXTS: dict[str, type[DraftContext]] = {
    policy.name: policy for policy in (FullContext, SparseContext, WindowContext, CacheFreeContext)
}


def draft_context(name: str, **options: Any) -> DraftContext:
    """The policy of a name; options as its class has them, those that are None left out.

    Raises:
        ValueError: no such name, an option that the policy does not have, or one out of its range.
    """
    if name not in DRAFT_CONTEXTS:
        raise ValueError(f"draft_context: expected one of {', '.join(DRAFT_CONTEXTS)}, got {name}")
    given = {option: value for option, value in options.items() if value is not None}
    unknown = set(given) - set(DRAFT_CONTEXTS[name].__dataclass_fields__)
    if unknown:
        raise ValueError(f"draft_context {name}: expected no {', '.join(sorted(unknown))}, got some")
    return DRAFT_CONTEXTS[name](**given)


__all__ = [
    "DRAFT_CONTEXTS",
    "BudgetedContext",
    "CacheFreeContext",
    "ContextAttention",
    "ContextLayers",
    "DraftCache",
    "DraftContext",
    "FullContext",
    "SparseContext",
    "WindowContext",
    "draft_context",
]
