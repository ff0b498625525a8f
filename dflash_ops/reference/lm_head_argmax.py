"""Definition of ``lm_head_argmax``."""

import torch
from torch import Tensor

from dflash_ops.reference.row_argmax import row_argmax


def lm_head_argmax(hidden: Tensor, weight: Tensor, vocab_offset: int, softcap: float) -> tuple[Tensor, Tensor]:
    """``hidden [n, H]``, ``weight [V, H]`` -> argmax of the (soft-capped) logits, ids plus ``vocab_offset``."""
    logits = hidden @ weight.T
    if softcap > 0:
        logits = softcap * torch.tanh(logits / softcap)
    ids, values = row_argmax(logits)
    return ids + vocab_offset, values
