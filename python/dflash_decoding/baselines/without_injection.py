"""Ablation: DFlash whose context is the embedded text itself, not the target's hidden states.

Everything else is the DFlash drafter: context K/V come from `fc` and `hidden_norm` as ever, but of one "tap", the token
embedding. What the target has understood of the text reaches the drafter no more; it has to read for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dflash_decoding.checkpoint import TensorSpec, draft_tensor_specs
from dflash_decoding.config import DraftConfig
from dflash_decoding.config_layouts import BASELINE_PREFIX
from dflash_decoding.drafter import DFlashDrafter
from dflash_decoding.target import EMBEDDING_TAP
from dflash_decoding.training.model import TrainableDrafter

from .storage import baseline_config, load_baseline, save_baseline

MODEL_TYPE = BASELINE_PREFIX + "without_injection"
# The config knows taps of layers only; one of them stands for the embedding.
STAND_IN_TAPS = (0,)


def tensor_specs(config: DraftConfig) -> dict[str, TensorSpec]:
    """Name -> spec of every tensor of the checkpoint."""
    return {name: spec for name, spec in draft_tensor_specs(config).items() if spec.required}


class DFlashWithoutInjection(DFlashDrafter):
    """The drafter; see the module."""

    def __init__(
        self,
        config: DraftConfig,
        weights: dict[str, Tensor],
        target_embedding: Tensor,
        target_lm_head: Tensor,
        **options: Any,
    ) -> None:
        if config.target_layer_ids != STAND_IN_TAPS:
            raise ValueError(f"target_layer_ids: expected {list(STAND_IN_TAPS)}, got {list(config.target_layer_ids)}")
        super().__init__(config, weights, target_embedding, target_lm_head, **options)
        self.tap_layers = (EMBEDDING_TAP,)

    @classmethod
    def from_pretrained(
        cls, name_or_path: str | Path, target_embedding: Tensor, target_lm_head: Tensor, **options: Any
    ) -> DFlashWithoutInjection:
        """Loads what training has saved; arguments and errors as `DFlashDrafter.from_pretrained`."""
        return cls(*load_baseline(name_or_path, MODEL_TYPE, tensor_specs), target_embedding, target_lm_head, **options)


class TrainableWithoutInjection(TrainableDrafter):
    """To train; taps [S, 1, H] are the embedded tokens."""

    def checkpoint_config(self) -> dict[str, Any]:
        return baseline_config(MODEL_TYPE, self.config)

    def save(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        save_baseline(folder, MODEL_TYPE, self.config, weights, tensor_specs)
