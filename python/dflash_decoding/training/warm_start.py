"""Draft layers that start as copies of the target's own, which saves a small training budget its slow beginning."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from .model import TrainableDrafter


def copy_target_layers(model: TrainableDrafter, target_layers: Sequence[nn.Module], chosen: Sequence[int]) -> None:
    """Overwrites the draft layers with the target layers `chosen`, one for each draft layer.

    Parameters are matched by name; what a target layer lacks (q and k norms in many models) keeps its initial value. If
    the layer below the first chosen one is tapped, `fc` starts by passing that tap through beside small weights for the
    others, and `hidden_norm` as the first chosen layer's input norm: the first draft layer's context K/V are then
    nearly those which the target computes there.

    Raises:
        ValueError: not one layer per draft layer, no such layer, or a parameter of another shape.
    """
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
        _pass_tap_through(model, chosen[0], target_layers[chosen[0]])


def _pass_tap_through(model: TrainableDrafter, layer: int, target_layer: nn.Module) -> None:
    taps, hidden = model.config.target_layer_ids, model.config.hidden_size
    input_norm = getattr(target_layer, "input_layernorm", None)
    if layer - 1 not in taps or model.config.target_hidden_size != hidden or input_norm is None:
        return
    start = taps.index(layer - 1) * hidden
    model.fc.weight[:, start : start + hidden] += torch.eye(hidden)
    model.hidden_norm.weight.copy_(input_norm.weight)
