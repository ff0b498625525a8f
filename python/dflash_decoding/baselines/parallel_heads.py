"""Baseline: parallel heads in the manner of Medusa (arXiv 2401.10774), a greedy chain without a tree.

Head k is a residual MLP on the target's last hidden state and predicts the token k places after the newest one. The
heads know neither each other's tokens nor the newest one, only the state that chose it. The output projection is the
target's own head for all of them, since one of its own per head would be most of the weights of a small target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dflash_ops
from dflash_decoding.cache import PagePool
from dflash_decoding.checkpoint import TensorSpec
from dflash_decoding.config import DraftConfig
from dflash_decoding.config_layouts import BASELINE_PREFIX
from dflash_decoding.training.data import Batch
from dflash_decoding.training.model import BlockPredictor, RMSNorm

from .paged_features import PagedFeatures
from .storage import baseline_config, load_baseline, save_baseline

MODEL_TYPE = BASELINE_PREFIX + "parallel_heads"


def tensor_specs(config: DraftConfig) -> dict[str, TensorSpec]:
    """Name -> spec of every tensor of the checkpoint."""
    hidden, inner = config.hidden_size, config.intermediate_size
    specs = {"norm.weight": TensorSpec((hidden,))}
    for head in range(config.num_draft_tokens):
        specs[f"heads.{head}.up_proj.weight"] = TensorSpec((inner, hidden))
        specs[f"heads.{head}.down_proj.weight"] = TensorSpec((hidden, inner))
    return specs


def _check(config: DraftConfig) -> None:
    if len(config.target_layer_ids) != 1 or config.target_hidden_size != config.hidden_size:
        raise ValueError(
            "target_layer_ids: expected one tap (the last layer's) as wide as the heads, got "
            f"{list(config.target_layer_ids)} of {config.target_hidden_size}"
        )
    if config.sample_from_anchor or config.reduced_vocabulary:
        raise ValueError("config: expected neither sample_from_anchor nor a reduced vocabulary, got one of them")


class ParallelHeadsDrafter:
    """The drafter; see the module. Of the config, the attention fields mean nothing here.

    Attributes: as `DFlashDrafter`'s.
    """

    def __init__(
        self,
        config: DraftConfig,
        weights: Mapping[str, Tensor],
        target_lm_head: Tensor,
        *,
        dtype: torch.dtype | None = None,
        block_size: int | None = None,
    ) -> None:
        _check(config)
        self.config = config
        self.block_size = config.block_size if block_size is None else block_size
        self.num_draft_tokens = self._drafted_tokens(self.block_size)
        self.mask_token_id = config.mask_token_id
        self.tap_layers = config.target_layer_ids
        self.max_positions: int | None = None
        self.dtype = target_lm_head.dtype if dtype is None else dtype
        self.lm_head = target_lm_head.detach()
        self._norm = weights["norm.weight"].detach().to(self.lm_head.device, torch.float32)
        heads = range(config.num_draft_tokens)
        self._up, self._down = (
            torch.stack([weights[f"heads.{head}.{part}_proj.weight"] for head in heads])
            .detach()
            .to(self.lm_head.device, self.dtype)
            for part in ("up", "down")
        )

    @classmethod
    def from_pretrained(
        cls, name_or_path: str | Path, target_embedding: Tensor, target_lm_head: Tensor, **options: Any
    ) -> ParallelHeadsDrafter:
        """Loads what training has saved; arguments and errors as `DFlashDrafter.from_pretrained`."""
        return cls(*load_baseline(name_or_path, MODEL_TYPE, tensor_specs), target_lm_head, **options)

    def new_cache(self, pool: PagePool) -> PagedFeatures:
        """The last hidden states of the context, of which a draft reads the newest."""
        return PagedFeatures(pool, self.config.hidden_size, torch.float32)

    @torch.no_grad()
    def inject(self, taps: Sequence[Tensor], positions: Tensor, slot_mapping: Tensor, cache: PagedFeatures) -> None:
        """Keeps the target's last hidden states [n, H], the only tap; slot -1: not accepted."""
        cache.write(taps[0].float(), slot_mapping)

    @torch.no_grad()
    def draft(
        self, input_ids: Tensor, positions: Tensor, cache: PagedFeatures, page_table: Tensor, context_lens: Tensor
    ) -> Tensor:
        """Draft tokens int64 [b, B - 1] of one block per request, each by its own head.

        Raises:
            ValueError: B is larger than trained.
        """
        batch, block = input_ids.shape
        drafted = self._drafted_tokens(block)
        newest = cache.newest(page_table, context_lens)
        state = F.rms_norm(newest, newest.shape[-1:], self._norm, self.config.rms_norm_eps).to(self.dtype)
        inner = F.silu(torch.matmul(state, self._up[:drafted].transpose(1, 2)))
        rows = state + torch.matmul(inner, self._down[:drafted].transpose(1, 2))
        ids, _ = dflash_ops.lm_head_argmax(rows.flatten(0, 1).to(self.lm_head.dtype), self.lm_head)
        return ids.view(drafted, batch).t()

    def _drafted_tokens(self, block: int) -> int:
        if not 2 <= block <= self.config.block_size:
            raise ValueError(f"block_size: expected 2..{self.config.block_size} (the trained block size), got {block}")
        return block - 1


class ResidualHead(nn.Module):
    """x + down(silu(up(x)))."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down_proj(F.silu(self.up_proj(x)))


class TrainableParallelHeads(BlockPredictor):
    """To train; taps [S, 1, H] are the target's last hidden states, before its final norm.

    Args:
        embedding, max_positions: not used; here for the sake of one signature.
        final_norm: [H] weight of the target's final norm, which the heads' own starts from.
    """

    def __init__(
        self,
        config: DraftConfig,
        embedding: Tensor,
        *,
        max_positions: int,
        autocast: bool = False,
        final_norm: Tensor | None = None,
    ) -> None:
        _check(config)
        super().__init__()
        self.config = config
        self.autocast = autocast
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.heads = nn.ModuleList(
            ResidualHead(config.hidden_size, config.intermediate_size) for _ in range(config.num_draft_tokens)
        )
        # Detached: a parameter would become one of this model, too.
        self._final_norm = None if final_norm is None else final_norm.detach()

    def initialize(self, lm_head: Tensor, seed: int, std: float = 0.02) -> None:
        """As for all models, but with the target's final norm where it is known: its head expects that."""
        super().initialize(lm_head, seed, std)
        if self._final_norm is not None:
            with torch.no_grad():
                self.norm.weight.copy_(self._final_norm)

    def _hidden_rows(self, taps: Tensor, batch: Batch) -> Tensor:
        """Rows [N, predictions, H], one per head, from the state before each anchor, which chose the anchor's token."""
        newest = taps[batch.anchors.long() - 1, 0]
        state = self.norm(newest.to(torch.bfloat16 if self.autocast else self.norm.weight.dtype))
        return torch.stack([head(state) for head in self.heads], dim=1)

    def checkpoint_config(self) -> dict[str, Any]:
        return baseline_config(MODEL_TYPE, self.config)

    def save(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        save_baseline(folder, MODEL_TYPE, self.config, weights, tensor_specs)
