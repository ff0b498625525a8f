"""Baseline: DFlash with several denoising steps per block, in the order of confidence."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import dflash_ops
from dflash_decoding.cache import PagePool
from dflash_decoding.draft_context.base import DraftCache
from dflash_decoding.draft_context.full import FullCache
from dflash_decoding.draft_context.window import WindowCache
from dflash_decoding.drafter import DFlashDrafter
from dflash_decoding.workspace import Workspace


class DenoisingDrafter:
    """A trained DFlash drafter that drafts a block in `steps` forwards instead of one.

    Every step keeps the most confident of the tokens still open, an equal share of the block, and the next one sees them
    in place of their masks. A drafter trained on masks alone has never seen such a block.

    Raises:
        ValueError: `steps` is not positive, or the drafter has a vocabulary of its own, whose ids are no inputs.
    """

    def __init__(self, drafter: DFlashDrafter, steps: int = 2) -> None:
        if steps < 1:
            raise ValueError(f"steps: expected at least 1, got {steps}")
        if drafter.config.reduced_vocabulary:
            raise ValueError("drafter: expected one that drafts the target's ids, got a reduced vocabulary")
        self.drafter = drafter
        self.config = drafter.config
        self._workspace = Workspace(drafter.device)
        self.steps = steps
        self.block_size = drafter.block_size
        self.num_draft_tokens = drafter.num_draft_tokens
        self.mask_token_id = drafter.mask_token_id
        self.tap_layers = drafter.tap_layers
        self.max_positions = drafter.max_positions
        self.context_layers = drafter.context_layers

    def new_cache(self, pool: PagePool) -> FullCache | WindowCache:
        """The drafter's."""
        return self.drafter.new_cache(pool)

    def inject(self, taps: Sequence[Tensor], positions: Tensor, slot_mapping: Tensor, cache: DraftCache) -> None:
        """The drafter's."""
        self.drafter.inject(taps, positions, slot_mapping, cache)

    @torch.no_grad()
    def draft(
        self, input_ids: Tensor, positions: Tensor, cache: DraftCache, page_table: Tensor, context_lens: Tensor
    ) -> Tensor:
        """As `DFlashDrafter.draft`."""
        block = input_ids.clone()
        head = self.drafter.lm_head
        tokens: Tensor | None = None
        for step in range(self.steps):
            hidden = self.drafter.hidden_states(block, positions, cache, page_table, context_lens)
            if tokens is None:
                tokens = input_ids.new_full(hidden.shape[:2], self.mask_token_id)
            logits = hidden.to(head.dtype) @ head.t()
            count = tokens.shape[1]
            share = count * (step + 1) // self.steps - count * step // self.steps
            keep = torch.full(tokens.shape[:1], share, dtype=torch.int32, device=tokens.device)
            workspace = self._workspace.of(dflash_ops.remask_workspace_size(*tokens.shape))
            dflash_ops.remask(logits, tokens, mask_token_id=self.mask_token_id, keep=keep, workspace=workspace)
            # Draft token i stands at the block's row i + 1, where there is one.
            block[:, 1:] = tokens[:, : block.shape[1] - 1]
        assert tokens is not None
        return tokens
