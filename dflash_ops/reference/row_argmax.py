"""Definition of ``row_argmax``."""

import torch
from torch import Tensor


def row_argmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """``logits [n, V]`` -> (ids int64 [n], values [n]): the first NaN of a row, else its first maximum."""
    columns = torch.arange(logits.shape[1], device=logits.device).expand_as(logits)
    is_nan = logits.isnan()
    top = logits.masked_fill(is_nan, -torch.inf).amax(dim=1, keepdim=True)
    wanted = torch.where(is_nan.any(dim=1, keepdim=True), is_nan, logits == top)
    ids = columns.masked_fill(~wanted, logits.shape[1]).amin(dim=1)
    return ids, logits.gather(1, ids[:, None]).squeeze(1)
