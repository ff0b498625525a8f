"""Linear layers of a target on the library's matrix product for few rows.

Verifying multiplies a handful of rows by every weight of the target. There `dflash_ops.fuse_features` with a single tap
and no norm is a plain product that streams the weights once, and it is row-invariant: a row's result is the same bits
whether it is computed alone or among 64. Plain decoding (1 row) and verification (a block) then round alike.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dflash_ops

# By docs/kernels/skinny_gemm.md; above it a product is bound by arithmetic, which torch's own does better.
MAX_ROWS = 64


class FewRowLinear(nn.Module):
    """x W^T + b as `nn.Linear` computes it, sharing its parameters; for 1 to `MAX_ROWS` rows row-invariant.

    More rows, other devices and gradients go to torch.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.weight = linear.weight
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features], of the weight's dtype."""
        rows = x.shape[:-1].numel()
        if not 0 < rows <= MAX_ROWS or x.dtype != self.weight.dtype or x.device.type != "cpu":
            return F.linear(x, self.weight, self.bias)
        if torch.is_grad_enabled() and (x.requires_grad or self.weight.requires_grad):
            return F.linear(x, self.weight, self.bias)
        out = dflash_ops.fuse_features([x.reshape(rows, self.in_features)], self.weight)
        if self.bias is not None:
            out += self.bias
        return out.view(*x.shape[:-1], self.out_features)


def use_few_row_products(model: nn.Module) -> None:
    """Replaces every plain `nn.Linear` within `model`; parameters stay the same objects, so tied weights stay tied."""
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear:
            parent, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(parent), attribute, FewRowLinear(module))
