"""Drafters that start from copies of target layers, which spares a small training budget its slow beginning, or from a
trained drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor, nn

from dflash_decoding.checkpoint import load_draft_weights
from dflash_decoding.config import DraftConfig

from .model import TrainableDrafter


@dataclass(frozen=True)
class TargetParts:
    """What of a target a drafter can start from: its decoder layers, and the final norm [H_t] its head expects."""

    layers: Sequence[nn.Module]
    final_norm: Tensor


def target_parts(model: nn.Module, layers: Sequence[nn.Module]) -> TargetParts:
    """Parts of a Hugging Face causal LM.

    Raises:
        ValueError: its final norm is not where models of the Llama family have it.
    """
    norm = getattr(model.get_decoder(), "norm", None)  # type: ignore[operator]
    if norm is None or not isinstance(getattr(norm, "weight", None), Tensor):
        raise ValueError(f"init_layers: expected a decoder with a final `norm`, got {type(model).__name__}")
    return TargetParts(layers, norm.weight)


def copy_target_layers(model: TrainableDrafter, target: TargetParts, chosen: Sequence[int]) -> None:
    """Overwrites the draft layers with the target layers `chosen`, one for each draft layer, and the final norm.

    Parameters are matched by name; what a target layer lacks (q and k norms in many models) keeps its initial value. If
    the layer below the first chosen one is tapped, `fc` starts by passing that tap through beside small weights for the
    others, and `hidden_norm` as the first chosen layer's input norm: the first draft layer's context K/V are then
    nearly those which the target computes there.

    Raises:
        ValueError: not one layer per draft layer, no such layer, or a parameter of another shape.
    """
    target_layers = target.layers
    if len(chosen) != len(model.layers):
        raise ValueError(f"init_layers: expected {len(model.layers)} target layers (draft layers), got {len(chosen)}")
    with torch.no_grad():
        for draft, index in zip(model.layers, chosen, strict=True):
            if not 0 <= index < len(target_layers):
                raise ValueError(f"init_layers: expected layers in 0..{len(target_layers) - 1}, got {index}")
            source = dict(target_layers[index].named_parameters())
            for name, parameter in draft.named_parameters():
                if name not in source:
                    continue
                if source[name].shape != parameter.shape:
                    raise ValueError(
                        f"init_layers: {name}: expected {list(parameter.shape)} as in the drafter, got "
                        f"{list(source[name].shape)} in target layer {index}"
                    )
                parameter.copy_(source[name])
        model.norm.weight.copy_(target.final_norm)
        _pass_tap_through(model, chosen[0], target_layers[chosen[0]])


def _pass_tap_through(model: TrainableDrafter, layer: int, target_layer: nn.Module) -> None:
    taps, hidden = model.config.target_layer_ids, model.config.hidden_size
    input_norm = getattr(target_layer, "input_layernorm", None)
    if layer - 1 not in taps or model.config.target_hidden_size != hidden or input_norm is None:
        return
    model.pass_tap_through(taps.index(layer - 1), input_norm.weight)


def copy_drafter(model: TrainableDrafter, name_or_path: str | Path) -> None:
    """Overwrites all weights with those of a trained drafter, of the same shape but for the size of its block.

    Raises:
        OSError: no such drafter.
        ValueError: it differs in more than the block size, or has weights of its own in place of the target's.
    """
    source = DraftConfig.from_pretrained(name_or_path)
    for field in fields(DraftConfig):
        wanted, found = getattr(model.config, field.name), getattr(source, field.name)
        if field.name != "block_size" and wanted != found:
            raise ValueError(f"init_drafter: {field.name}: expected {wanted} as in this run, got {found}")
    weights = load_draft_weights(name_or_path, source)
    own = dict(model.named_parameters())
    further = sorted(set(weights) - set(own))
    if further:
        raise ValueError(f"init_drafter: expected the target's own embedding and head, got {', '.join(further)}")
    with torch.no_grad():
        for name, weight in weights.items():
            own[name].copy_(weight)
