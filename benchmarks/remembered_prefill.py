"""A target that computes the prefill of a prompt once and has it ready when the same prompt comes again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dflash_decoding import Target, TargetOutput
from torch import Tensor


@dataclass
class _Chunk:
    k: list[Tensor]
    v: list[Tensor]
    taps: dict[int, Tensor]
    logits: Tensor | None


class RememberedPrefill:
    """The target itself, except that chunks of a prompt are looked up: so many methods can answer one long prompt.

    Only what one request alone sends is remembered, by the tokens up to the end of the chunk. K and V are copied to the
    slots that the caller names, so the caches are exactly what a prefill leaves.

    Args:
        tap_layers: all layers that any method taps.
    """

    def __init__(self, target: Target, tap_layers: tuple[int, ...]) -> None:
        self._target = target
        self._tap_layers = tap_layers
        self._known: dict[tuple[int, ...], _Chunk] = {}
        self._so_far: tuple[int, ...] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def forget(self) -> None:
        """Gives the memory back."""
        self._known.clear()

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        slot_mapping: Tensor,
        cache: Any,
        page_table: Tensor,
        context_lens: Tensor,
        *,
        tap_layers: tuple[int, ...],
        logit_rows: Any,
    ) -> TargetOutput:
        arguments = (input_ids, positions, slot_mapping, cache, page_table, context_lens)
        if isinstance(logit_rows, str):  # "all": a round of decoding
            return self._target.forward(*arguments, tap_layers=tap_layers, logit_rows=logit_rows)
        self._so_far = (*self._so_far[: int(positions[0])], *input_ids.tolist())
        chunk = self._known.get(self._so_far)
        flat_k, flat_v = ([tensor.flatten(0, 1) for tensor in tensors] for tensors in (cache.k, cache.v))
        if chunk is None:
            output = self._target.forward(*arguments, tap_layers=self._tap_layers, logit_rows=logit_rows)
            self._known[self._so_far] = chunk = _Chunk(
                [tensor[slot_mapping] for tensor in flat_k],
                [tensor[slot_mapping] for tensor in flat_v],
                {layer: tap.clone() for layer, tap in zip(self._tap_layers, output.taps, strict=True)},
                None if output.logits is None else output.logits.clone(),
            )
        for flat, kept in zip((*flat_k, *flat_v), (*chunk.k, *chunk.v), strict=True):
            flat[slot_mapping] = kept
        return TargetOutput(chunk.logits, [chunk.taps[layer] for layer in tap_layers])
