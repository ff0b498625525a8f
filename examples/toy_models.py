"""The target and the drafter of `engine_loop.py`: toy transformers with what DFlash adds to one.

The target hands out hidden states of a few layers (taps). The drafter has the target's embedding and head instead of its
own, and a context that is projected from those taps.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

import dflash_ops
from examples.toy_transformer import EPS, Transformer, ops

HIDDEN = 128
VOCAB = 24
TAPS = (0, 2)  # the target's layers whose outputs condition the drafter


class Target(Transformer):
    """Three layers, an embedding and a head."""

    def __init__(self, cache: tuple[int, int], positions: int, like: Tensor) -> None:
        super().__init__(3, HIDDEN, cache, positions, like, seed=1)
        generator = torch.Generator().manual_seed(3)
        self.embedding, self.head = torch.randn(2, VOCAB, HIDDEN, generator=generator).to(like)

    def logits(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        page_table: Tensor,
        context_lens: Tensor,
        workspace: Tensor,
    ) -> tuple[Tensor, list[Tensor]]:
        """One causal forward of ids [n] of b requests, n / b each: logits [n, VOCAB], and taps [n, HIDDEN] each."""
        hidden = F.embedding(ids, self.embedding)
        hidden, outputs = self.forward(hidden, positions, page_table, context_lens, workspace, causal=True, slots=slots)
        return hidden @ self.head.T, [outputs[layer] for layer in TAPS]


class Drafter(Transformer):
    """Two layers that predict a block at once."""

    def __init__(self, target: Target, cache: tuple[int, int], positions: int, like: Tensor) -> None:
        super().__init__(2, HIDDEN, cache, positions, like, seed=2)
        self.target = target
        self.fuse_weight = (torch.eye(HIDDEN).repeat(1, len(TAPS)) / len(TAPS)).to(like)
        self.kv_weight = self.qkv[:, -self.kv_rows :]  # the rows that project the context, too

    def workspace_size(self, rows: int, batch: int, max_context: int, device: torch.device) -> int:
        """Bytes that the ops of `draft` and `inject` need, which run one after another."""
        return max(
            super().workspace_size(rows, batch, max_context, device),
            dflash_ops.lm_head_argmax_workspace_size(rows, HIDDEN, VOCAB, device),
            dflash_ops.fuse_features_workspace_size(rows, len(TAPS), HIDDEN, HIDDEN, device),
            dflash_ops.project_context_kv_workspace_size(rows, HIDDEN, self.kv_weight.shape[:2].numel(), device),
        )

    def draft(
        self, ids: Tensor, positions: Tensor, page_table: Tensor, context_lens: Tensor, workspace: Tensor
    ) -> None:
        """One non-causal forward of blocks ids [b, B]. Row i predicts the token at position i, which replaces its mask."""
        hidden = F.embedding(ids.view(-1), self.target.embedding)
        hidden, _ = self.forward(hidden, positions, page_table, context_lens, workspace, causal=False)
        predicting = hidden.view(*ids.shape, HIDDEN)[:, 1:].reshape(-1, HIDDEN)
        drafted = ids.new_empty(len(predicting))
        ops.lm_head_argmax(predicting, self.target.head, 0, 0.0, drafted, None, workspace)
        ids[:, 1:] = drafted.view(len(ids), -1)

    def inject(self, taps: list[Tensor], positions: Tensor, slots: Tensor, workspace: Tensor) -> None:
        """The taps of committed tokens become context keys and values of every draft layer; slot -1: rejected."""
        features = torch.empty_like(taps[0])
        ops.fuse_features(taps, self.fuse_weight, None, EPS, None, features, workspace)
        ops.project_context_kv(
            features, self.kv_weight, None, self.k_norm, self.cos_sin, positions, slots, None,
            EPS, False, self.k_caches, self.v_caches, [], workspace,
        )  # fmt: skip
