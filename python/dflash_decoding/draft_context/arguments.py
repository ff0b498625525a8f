"""Command-line options of the draft context."""

from __future__ import annotations

import argparse

from . import DRAFT_CONTEXTS, DraftContext, draft_context


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `policy` reads."""
    group = parser.add_argument_group("draft context", "what the drafter keeps and reads of a long context")
    group.add_argument(
        "--draft-context",
        choices=DRAFT_CONTEXTS,
        default="full",
        help="all of it (default), or as docs/decoding.md says",
    )
    group.add_argument("--draft-budget", type=int, metavar="N", help="tokens of the context that a draft row sees")
    for option, meaning in (
        ("--draft-sink-tokens", "sparse: first tokens that are always kept"),
        ("--draft-local-tokens", "sparse: last tokens that are always kept"),
        ("--draft-round-interval", "sparse: rounds that use one selection of pages"),
        ("--draft-layer-interval", "sparse: full-attention layers that share a selection"),
    ):
        group.add_argument(option, type=int, metavar="N", help=meaning)


def policy(options: argparse.Namespace) -> DraftContext:
    """The draft context asked for.

    Raises:
        ValueError: as `draft_context`.
    """
    return draft_context(
        options.draft_context,
        budget_tokens=options.draft_budget,
        sink_tokens=options.draft_sink_tokens,
        local_tokens=options.draft_local_tokens,
        round_interval=options.draft_round_interval,
        layer_interval=options.draft_layer_interval,
    )
