"""RoPE fields of a draft config: old and new spelling, checked and brought to one `rope_parameters` dict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

ROPE_FIELDS = (
    *("rope_theta", "rope_parameters", "rope_scaling", "partial_rotary_factor"),
    "original_max_position_embeddings",
)

# rope_type -> (required, optional) beside rope_theta and partial_rotary_factor; transformers reads the same names.
_ROPE_TYPES: dict[str, tuple[set[str], set[str]]] = {
    "default": (set(), set()),
    "linear": ({"factor"}, set()),
    "dynamic": ({"factor"}, set()),
    "yarn": (
        {"factor"},
        {"original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}
        | {"truncate"},
    ),
    "longrope": (
        {"short_factor", "long_factor", "original_max_position_embeddings"},
        {"factor", "attention_factor"},
    ),
    "llama3": ({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}, set()),
    "proportional": (set(), {"factor"}),
}

# Of them those that are positive numbers.
_NUMBERS = {
    *("factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale"),
    *("mscale_all_dim", "low_freq_factor", "high_freq_factor"),
}

# Multimodal RoPE gives text tokens the same position in every section, which is plain RoPE.
_TEXT_ONLY_NEUTRAL = {"mrope_section", "mrope_interleaved"}


def read_rope_parameters(merged: Mapping[str, Any], max_position_embeddings: int) -> dict[str, Any]:
    """`rope_parameters` with rope_type and rope_theta always present.

    Args:
        merged: all config fields, absent ones left out.
        max_position_embeddings: stands in for an absent original length (as in transformers).

    Raises:
        ValueError: no rope_theta, an unknown rope_type, unknown or missing parameters, or two fields that disagree.
    """
    given = [_flat(name, merged[name], merged) for name in ("rope_parameters", "rope_scaling") if name in merged]
    given = [parameters for parameters in given if parameters]
    rope = dict(given[0]) if given else {}
    for name in ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings"):
        values = [source[name] for source in (*given, merged) if source.get(name) is not None]
        if any(value != values[0] for value in values):
            raise ValueError(f"draft config: {name}: expected one value, got {values}")
        if values and (name != "original_max_position_embeddings" or _takes(rope, name)):
            rope[name] = values[0]
    rope.setdefault("rope_type", "default")
    if len(given) == 2:
        for name in set(given[0]) & set(given[1]):
            if given[0][name] != given[1][name]:
                raise ValueError(
                    f"draft config: rope_scaling: expected the {name} of rope_parameters, {given[0][name]!r}, "
                    f"got {given[1][name]!r}"
                )
        for name, value in given[1].items():
            rope.setdefault(name, value)
    if rope.get("partial_rotary_factor") == 1.0:
        del rope["partial_rotary_factor"]
    if rope["rope_type"] == "yarn":
        rope.setdefault("original_max_position_embeddings", max_position_embeddings)
    _check(rope)
    return rope


def _takes(rope: Mapping[str, Any], name: str) -> bool:
    required, optional = _ROPE_TYPES.get(rope.get("rope_type", "default"), (set(), set()))
    return name in required | optional


def _flat(name: str, parameters: Any, merged: Mapping[str, Any]) -> dict[str, Any]:
    """One flat dict: `type` becomes rope_type, per-layer-type dicts must agree (the drafter has one RoPE table)."""
    if not isinstance(parameters, Mapping):
        raise ValueError(f"draft config: {name}: expected an object, got {parameters!r}")
    if parameters and all(isinstance(value, Mapping) for value in parameters.values()):
        used = merged.get("layer_types") or list(parameters)
        chosen = [_flat(name, parameters[kind], merged) for kind in dict.fromkeys(used) if kind in parameters]
        if not chosen or any(entry != chosen[0] for entry in chosen):
            raise ValueError(
                f"draft config: {name}: expected the same RoPE for every layer type in use, got {dict(parameters)}"
            )
        return chosen[0]
    flat = {
        key: value
        for key, value in parameters.items()
        if key != "type" and key not in _TEXT_ONLY_NEUTRAL and value is not None
    }
    kind = parameters.get("type")
    if kind == "mrope":
        kind = "default"
    if kind is not None and flat.setdefault("rope_type", kind) != kind:
        raise ValueError(f"draft config: {name}: expected type to equal rope_type, got {kind!r}, {flat['rope_type']!r}")
    return flat


def _check(rope: Mapping[str, Any]) -> None:
    kind = rope["rope_type"]
    if kind not in _ROPE_TYPES:
        raise ValueError(f"draft config: rope_type: expected one of {', '.join(_ROPE_TYPES)}, got {kind!r}")
    required, optional = _ROPE_TYPES[kind]
    names = set(rope) - {"rope_type", "rope_theta", "partial_rotary_factor"}
    if required - names:
        raise ValueError(f"draft config: {kind} RoPE: expected {sorted(required)}, got no {sorted(required - names)}")
    if names - required - optional:
        raise ValueError(f"draft config: {kind} RoPE: unknown parameters: {sorted(names - required - optional)}")
    for name in ("rope_theta", *sorted(names & _NUMBERS)):
        value = rope.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise ValueError(f"draft config: {name}: expected a positive number, got {value!r}")
    for name in sorted(names & {"short_factor", "long_factor"}):
        values = rope[name]
        if not isinstance(values, list | tuple) or not all(
            isinstance(value, int | float) and 0 < value < math.inf for value in values
        ):
            raise ValueError(f"draft config: {name}: expected a list of positive numbers, got {values!r}")
