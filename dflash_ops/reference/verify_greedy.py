"""Definition of ``verify_greedy``."""

import torch
from torch import Tensor

from dflash_ops.reference.row_argmax import row_argmax


def accept_run(draft_tokens: Tensor, draft_lens: Tensor | None, target_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``draft_tokens [b, n]``, ``draft_lens [b]``, ``target_ids [b, n+1]`` -> (accepted, tokens, next_token)."""
    batch, drafts = draft_tokens.shape
    lens = torch.full((batch,), drafts) if draft_lens is None else draft_lens.long()
    columns = torch.arange(drafts + 1)
    matches = (draft_tokens == target_ids[:, :drafts]) & (columns[:drafts] < lens[:, None])
    accepted = matches.long().cumprod(dim=1).sum(dim=1)
    idle = lens < 0
    tokens = target_ids.masked_fill((columns > accepted[:, None]) | idle[:, None], -1)
    next_token = target_ids.gather(1, accepted[:, None]).squeeze(1).masked_fill(idle, -1)
    return accepted.masked_fill(idle, 0).int(), tokens, next_token


def verify_greedy(
    draft_tokens: Tensor,
    *,
    target_logits: Tensor | None = None,
    target_ids: Tensor | None = None,
    draft_lens: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The target's choice after row i is its argmax; the leading run of drafts equal to it is accepted."""
    if target_ids is None:
        assert target_logits is not None
        ids, _ = row_argmax(target_logits.flatten(0, 1))
        target_ids = ids.view(target_logits.shape[:2])
    return accept_run(draft_tokens, draft_lens, target_ids)
