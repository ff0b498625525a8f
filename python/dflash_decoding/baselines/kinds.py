"""The kinds of drafters: how each is shaped, trained and loaded, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from dflash_decoding.drafter import DFlashDrafter
from dflash_decoding.target import Target
from dflash_decoding.training.data import Chats
from dflash_decoding.training.model import BlockPredictor, TrainableDrafter
from dflash_decoding.training.taps import TapStore
from dflash_decoding.training.validation import TapSource
from dflash_decoding.training.warm_start import target_parts

from . import autoregressive_drafter, parallel_heads, without_injection
from .denoising_drafter import DenoisingDrafter
from .storage import read_model_type

LoadedDrafter: TypeAlias = DFlashDrafter | parallel_heads.ParallelHeadsDrafter | DenoisingDrafter
DFLASH = "dflash"


class EmbeddedTaps:
    """Taps of chats with the embedded tokens [S, H] before them as a further, first one (or as the only one).

    Args:
        store: the target's taps; None: the embedding alone.
        embedding: [V, H] of the target; scale: factor on it.
    """

    def __init__(self, store: TapSource | None, chats: Chats, embedding: Tensor, scale: float) -> None:
        self._store = store
        self._chats = chats
        self._embedding = embedding.detach()
        self._scale = scale

    def get(self, indices: Sequence[int]) -> Tensor:
        """[sum of lengths, T + 1, H] of the chats packed in this order."""
        tokens = torch.cat([torch.from_numpy(self._chats.chat(index)) for index in indices])
        embedded = (self._embedding[tokens.to(self._embedding.device)] * self._scale)[:, None]
        if self._store is None:
            return embedded
        taps = self._store.get(indices)
        return torch.cat([embedded, taps.to(embedded.dtype)], dim=1)


@dataclass(frozen=True)
class DrafterKind:
    """One kind of drafter.

    Attributes:
        layers: draft layers where the number is not free; None: as asked for.
        tap_layers: tapped layers where they are not free, from the target's number of layers; None: as asked for.
        reads_taps: whether it is trained on the target's taps.
        reads_embedding: whether it is trained on the embedded tokens, too.
        make_model: from the target, what builds the trainable model.
        load: (folder, embedding, head, dtype=) -> the drafter.
    """

    make_model: Callable[[Target], Callable[..., BlockPredictor]]
    load: Callable[..., LoadedDrafter]
    model_type: str | None = None
    layers: int | None = None
    tap_layers: Callable[[int], tuple[int, ...]] | None = None
    reads_taps: bool = True
    reads_embedding: bool = False

    def taps(self, store: TapStore | None, chats: Chats, embedding: Tensor, scale: float) -> TapSource:
        """What the trainable model is fed with; `store` has what the target gives, None: nothing is needed of it."""
        if self.reads_embedding:
            return EmbeddedTaps(store, chats, embedding, scale)
        assert store is not None
        return store


def _heads_of(target: Target) -> Callable[..., BlockPredictor]:
    final_norm = target_parts(target.model, target.layers).final_norm
    return partial(parallel_heads.TrainableParallelHeads, final_norm=final_norm)


KINDS: dict[str, DrafterKind] = {
    DFLASH: DrafterKind(lambda target: TrainableDrafter, DFlashDrafter.from_pretrained),
    "autoregressive": DrafterKind(
        lambda target: autoregressive_drafter.TrainableAutoregressive,
        autoregressive_drafter.AutoregressiveDrafter.from_pretrained,
        model_type=autoregressive_drafter.MODEL_TYPE,
        layers=1,
        reads_embedding=True,
    ),
    "parallel_heads": DrafterKind(
        _heads_of,
        parallel_heads.ParallelHeadsDrafter.from_pretrained,
        model_type=parallel_heads.MODEL_TYPE,
        layers=1,
        tap_layers=lambda layers: (layers - 1,),
    ),
    "dflash_without_injection": DrafterKind(
        lambda target: without_injection.TrainableWithoutInjection,
        without_injection.DFlashWithoutInjection.from_pretrained,
        model_type=without_injection.MODEL_TYPE,
        tap_layers=lambda layers: without_injection.STAND_IN_TAPS,
        reads_taps=False,
        reads_embedding=True,
    ),
}


def load_drafter(
    name_or_path: str | Path, target: Target, dtype: torch.dtype, denoising_steps: int = 1
) -> LoadedDrafter:
    """The drafter of a folder or hub id, of whichever kind its config.json says.

    Args:
        denoising_steps: forwards per block; more than one is for DFlash drafters only.

    Raises:
        OSError: a file is missing.
        ValueError: an unknown kind, a checkpoint that is refused or does not fit the target, or `denoising_steps` for
            another kind of drafter.
    """
    model_type = read_model_type(name_or_path)
    kind = next((kind for kind in KINDS.values() if kind.model_type == model_type), None)
    if kind is None:
        known = ", ".join(str(kind.model_type) for kind in KINDS.values() if kind.model_type)
        raise ValueError(f"drafter {name_or_path}: model_type: expected a DFlash drafter or {known}, got {model_type}")
    drafter = kind.load(name_or_path, target.embed_weight, target.lm_head_weight, dtype=dtype)
    if denoising_steps == 1:
        return drafter
    if not isinstance(drafter, DFlashDrafter) or model_type is not None:
        raise ValueError(f"denoising_steps: expected 1 for a drafter of {model_type}, got {denoising_steps}")
    return DenoisingDrafter(drafter, denoising_steps)
