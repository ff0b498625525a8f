"""The two `config.json` layouts of DFlash drafters, brought to the keyword arguments of `DraftConfig`.

"DFlash": transformer fields at top level, drafting fields at top level or in `dflash_config`.
"speculators": transformer fields in `transformer_layer_config`, drafting fields at top level.
A field in neither table below is refused: what is not understood must not be run by guess.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from .config_rope import ROPE_FIELDS, read_rope_parameters

# Numbers of a config and their bounds. The upper ones are far above any model's and keep what is made of the config (a
# list of layers, a table of positions) from taking all memory before the weights could contradict it.
_LARGE = 2**31 - 1
MOST_POSITIONS = 2**24
INTEGERS = {
    **dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size", "target_hidden_size"), (1, _LARGE)),
    **dict.fromkeys(("draft_vocab_size", "head_dim", "sliding_window", "swa_window_size"), (1, _LARGE)),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "num_target_layers"), (1, 2**16)),
    **dict.fromkeys(("max_position_embeddings", "original_max_position_embeddings"), (1, MOST_POSITIONS)),
    **{"num_hidden_layers": (1, 128), "block_size": (1, 2**16), "mask_token_id": (0, _LARGE)},
    "max_window_layers": (0, _LARGE),
}
# Scaling by a positive number and soft-capping are monotone: the argmax, all that drafting needs, stays.
POSITIVE = ("rms_norm_eps", "output_multiplier", "logit_scale", "input_embedding_scale", "rope_theta")
FRACTIONS = ("partial_rotary_factor",)
NOT_NEGATIVE = ("final_logit_softcapping",)

REQUIRED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "block_size")

TRANSFORMER_FIELDS = {
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "vocab_size", "rms_norm_eps", "hidden_act", "attention_bias", "mlp_bias", "is_neox_style"),
    *("max_position_embeddings", "layer_types", "sliding_window", "use_sliding_window", "max_window_layers"),
    *ROPE_FIELDS,
}

DRAFT_FIELDS = {
    *("block_size", "mask_token_id", "target_layer_ids", "num_target_layers", "target_hidden_size"),
    *("causal", "is_causal", "use_swa", "swa_window_size", "sample_from_anchor", "draft_vocab_size"),
    *("input_embedding_scale", "output_multiplier", "logit_scale", "final_logit_softcapping"),
    *("attention_sink_bias", "add_swa_attention_sink_bias"),
}

SPECULATORS_FIELDS = {
    *("speculators_model_type", "speculators_config", "aux_hidden_state_layer_ids", "sliding_window_non_causal"),
    *("projector_type", "shift_label"),
}

# Fields that say nothing about what the drafter computes: bookkeeping of transformers and of training.
IGNORED_FIELDS = {
    *("architectures", "auto_map", "model_type", "transformers_version", "speculators_version", "_name_or_path"),
    *("dtype", "torch_dtype", "initializer_range", "attention_dropout", "use_cache", "tie_word_embeddings"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "pretraining_tp", "_attn_implementation"),
    *("is_decoder", "is_encoder_decoder", "output_attentions", "output_hidden_states", "return_dict"),
    *("max_anchors", "auf", "pure_draft_prefix_len", "emb_dim", "gru_hidden_dim"),
    *("lambda_base_start", "lambda_base_decay_ratio"),
}

# `model_type` of the drafters in `baselines`, which share fields and tensors with DFlash but mean something else by them.
BASELINE_PREFIX = "dflash_baseline_"

QUANTIZATION_FIELDS = ("quantization_config", "compression_config")
DEFAULT_MAX_POSITIONS = 32768  # transformers' own default for Qwen3, whose layers the drafters are made of
FULL = "full_attention"
SLIDING = "sliding_attention"


def check_number(name: str, value: Any) -> None:
    """That a field which holds a number holds one within its bounds; other fields pass.

    Raises:
        ValueError: it does not.
    """
    real = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if name in INTEGERS:
        least, most = INTEGERS[name]
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError(f"draft config: {name}: expected an integer >= {least}, at most {most}, got {value!r}")
    elif name in POSITIVE and not (real and value > 0):
        raise ValueError(f"draft config: {name}: expected a positive number, got {value!r}")
    elif name in FRACTIONS and not (real and 0 < value <= 1):
        raise ValueError(f"draft config: {name}: expected a number above 0, up to 1, got {value!r}")
    elif name in NOT_NEGATIVE and not (real and value >= 0):
        raise ValueError(f"draft config: {name}: expected no negative number, got {value!r}")


def read_config_fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of `DraftConfig` from a parsed `config.json`.

    Raises:
        ValueError: unknown, contradictory, missing or unsupported fields.
    """
    model_type = raw.get("model_type")
    if isinstance(model_type, str) and model_type.startswith(BASELINE_PREFIX):
        raise ValueError(f"draft config: model_type: expected a DFlash drafter, got {model_type}")
    merged = _merge(raw)
    for name in REQUIRED:
        if name not in merged:
            raise ValueError(f"draft config: {name}: expected a value, got none")
    for name, value in merged.items():
        check_number(name, value)
    _check_supported(merged)
    heads, hidden = merged["num_attention_heads"], merged["hidden_size"]
    max_positions = merged.get("max_position_embeddings", DEFAULT_MAX_POSITIONS)
    result: dict[str, Any] = {
        name: merged[name]
        for name in (
            *("block_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
            *("vocab_size", "rms_norm_eps", "hidden_act", "attention_bias", "target_hidden_size"),
            *("num_target_layers", "draft_vocab_size", "sample_from_anchor", "input_embedding_scale"),
        )
        if name in merged
    }
    if "mask_token_id" not in merged:
        raise ValueError("draft config: mask_token_id: expected a token id at top level or in dflash_config, got none")
    result["mask_token_id"] = merged["mask_token_id"]
    result["num_key_value_heads"] = merged.get("num_key_value_heads", heads)
    if "head_dim" not in merged and hidden % heads:
        raise ValueError(
            f"draft config: head_dim: expected a value (hidden_size {hidden} is no multiple of {heads} heads), got none"
        )
    result["head_dim"] = merged.get("head_dim", hidden // heads)
    result["interleaved"] = not _flag(merged, "is_neox_style", True)
    result["max_position_embeddings"] = max_positions
    result["target_layer_ids"] = _taps(merged)
    result.update(_attention(merged))
    result["rope_parameters"] = read_rope_parameters(merged, max_positions)
    for name in ("attention_bias", "sample_from_anchor"):
        result[name] = _flag(merged, name, False)
    _check_proposal(merged, result)
    return result


def _merge(raw: Mapping[str, Any]) -> dict[str, Any]:
    """All fields under one roof; a field that stands in two places must say the same in both. null is absent."""
    speculators = "speculators_model_type" in raw or "transformer_layer_config" in raw
    sections: list[tuple[str, Mapping[str, Any], set[str]]] = []
    if speculators:
        inner = _section(raw, "transformer_layer_config")
        # Engines also write the attention fields of the inner config at top level.
        top = DRAFT_FIELDS | SPECULATORS_FIELDS | TRANSFORMER_FIELDS
        sections.append(("", raw, top))
        sections.append(("transformer_layer_config.", inner, TRANSFORMER_FIELDS))
    else:
        sections.append(("", raw, DRAFT_FIELDS | TRANSFORMER_FIELDS))
    sections.append(("dflash_config.", _section(raw, "dflash_config"), DRAFT_FIELDS))

    merged: dict[str, Any] = {}
    origin: dict[str, str] = {}
    unknown: list[str] = []
    for prefix, section, known in sections:
        for name, value in section.items():
            if value is None or name in IGNORED_FIELDS or (not prefix and name in _SECTION_NAMES):
                continue
            if name in QUANTIZATION_FIELDS:
                raise ValueError(
                    f"draft config: {prefix}{name}: quantised drafters are refused, their weight layout is not "
                    "understood; load an unquantised checkpoint"
                )
            if name not in known:
                unknown.append(prefix + name)
            elif name in merged and merged[name] != value:
                raise ValueError(
                    f"draft config: {name}: expected one value, got {merged[name]!r} at {origin[name]} "
                    f"and {value!r} at {prefix}{name}"
                )
            else:
                merged.setdefault(name, value)
                origin.setdefault(name, prefix + name)
    if unknown:
        raise ValueError(f"draft config: unknown fields: {', '.join(sorted(unknown))}")
    merged["architectures"] = raw.get("architectures") or []
    for name in ("architectures", "layer_types"):
        texts = merged.get(name, [])
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"draft config: {name}: expected a list of texts, got {texts!r}")
    return merged


_SECTION_NAMES = ("dflash_config", "transformer_layer_config")


def _section(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = raw.get(name)
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        raise ValueError(f"draft config: {name}: expected an object, got {type(section).__name__}")
    return section


def _flag(merged: Mapping[str, Any], name: str, default: bool) -> bool:
    value = merged.get(name, default)
    if not isinstance(value, bool):
        raise ValueError(f"draft config: {name}: expected true or false, got {value!r}")
    return value


def _check_supported(merged: Mapping[str, Any]) -> None:
    """Refuses fields whose value would change the computation in a way the drafter does not implement."""
    for architecture in merged["architectures"]:
        if "DFlash2" in architecture:
            raise ValueError(
                f"draft config: architectures: expected a first-version DFlash drafter, got {architecture}"
            )
    kind = merged.get("speculators_model_type", "dflash")
    if kind != "dflash":
        raise ValueError(f"draft config: speculators_model_type: expected 'dflash', got {kind!r}")
    if merged.get("projector_type", "dflash") != "dflash":
        raise ValueError(f"draft config: projector_type: expected 'dflash', got {merged['projector_type']!r}")
    for name in ("mlp_bias", "shift_label", "attention_sink_bias", "add_swa_attention_sink_bias"):
        if _flag(merged, name, False):
            raise ValueError(f"draft config: {name}: expected false (not implemented), got true")


def default_target_layer_ids(num_target_layers: int, num_draft_layers: int) -> tuple[int, ...]:
    """Taps of a checkpoint that names none: the middle layer for one draft layer, else spread over 1..N-3.

    Raises:
        ValueError: the target has too few layers for distinct taps.
    """
    if num_draft_layers == 1:
        return (num_target_layers // 2,)
    steps = num_draft_layers - 1
    taps = tuple(round(1 + i * (num_target_layers - 4) / steps) for i in range(num_draft_layers))
    if any(later <= earlier for earlier, later in pairwise(taps)):
        raise ValueError(
            f"draft config: target_layer_ids: expected explicit taps ({num_target_layers} target layers are too few "
            f"for {num_draft_layers} default ones), got none"
        )
    return taps


def _taps(merged: Mapping[str, Any]) -> tuple[int, ...]:
    """Tapped layers as 0-based layer outputs.

    `aux_hidden_state_layer_ids` counts differently: id k is the residual stream ENTERING layer k, i.e. the output of
    layer k - 1 (the public training library captures states that way, and converted checkpoints show it: taps
    1,10,19,28,37 of the DFlash layout are aux ids 2,11,20,29,38).
    """
    auxiliary, taps = merged.get("aux_hidden_state_layer_ids"), merged.get("target_layer_ids")
    for name, ids in (("aux_hidden_state_layer_ids", auxiliary), ("target_layer_ids", taps)):
        if ids is not None and not (
            isinstance(ids, list | tuple) and all(isinstance(i, int) and not isinstance(i, bool) for i in ids)
        ):
            raise ValueError(f"draft config: {name}: expected a list of layer ids, got {ids!r}")
    if auxiliary is not None:
        if any(i < 1 for i in auxiliary):
            raise ValueError(
                "draft config: aux_hidden_state_layer_ids: expected ids >= 1 (id k is the output of layer k - 1; "
                f"0 would be the embedding), got {list(auxiliary)}"
            )
        converted = tuple(i - 1 for i in auxiliary)
        if taps is not None and tuple(taps) != converted:
            raise ValueError(
                f"draft config: target_layer_ids: expected {list(converted)} (aux_hidden_state_layer_ids less one), "
                f"got {list(taps)}"
            )
        return converted
    if taps is not None:
        return tuple(taps)
    if "num_target_layers" not in merged:
        raise ValueError("draft config: target_layer_ids: expected taps, or num_target_layers to derive them, got none")
    return default_target_layer_ids(merged["num_target_layers"], merged["num_hidden_layers"])


def _attention(merged: Mapping[str, Any]) -> dict[str, Any]:
    """layer_types, sliding_window and is_causal, from the many fields that speak about them."""
    layers = merged["num_hidden_layers"]
    use_swa = _flag(merged, "use_swa", False)
    window, swa_window = merged.get("sliding_window"), merged.get("swa_window_size")
    use_window = merged.get("use_sliding_window")
    types = merged.get("layer_types")
    if types is None:
        types = _layer_types_from_switches(merged, layers)
    types = list(types)
    forced = use_swa and SLIDING not in types
    if forced:
        types = [SLIDING] * layers
    sliding = SLIDING in types
    if sliding and merged.get("use_swa") is False:
        raise ValueError("draft config: use_swa: expected true (layer_types holds sliding layers), got false")
    if sliding and not forced and use_window is False:
        raise ValueError("draft config: use_sliding_window: expected true (there are sliding layers), got false")
    if use_window and not sliding:
        raise ValueError("draft config: layer_types: expected a sliding layer (use_sliding_window is true), got none")
    if swa_window is not None and not sliding and "use_swa" not in merged:
        raise ValueError("draft config: swa_window_size: expected a sliding layer or use_swa, got neither")
    if sliding and window is not None and swa_window is not None and window != swa_window:
        raise ValueError(
            f"draft config: swa_window_size: expected the value of sliding_window, {window}, got {swa_window}"
        )
    chosen = window if window is not None else swa_window
    return {
        "layer_types": tuple(types),
        "sliding_window": chosen if sliding else None,
        "is_causal": _block_causality(merged, forced),
    }


def _layer_types_from_switches(merged: Mapping[str, Any], layers: int) -> list[str]:
    """Layer types of a config that lists none: transformers' Qwen3 rule, sliding from layer max_window_layers on."""
    use_window = merged.get("use_sliding_window")
    if use_window:
        first = merged.get("max_window_layers", layers)
        return [SLIDING if i >= first else FULL for i in range(layers)]
    if use_window is None and "sliding_window" in merged and not merged.get("use_swa"):
        raise ValueError(
            "draft config: sliding_window: expected layer_types, use_sliding_window or use_swa to say which layers "
            f"slide, got none of them beside sliding_window {merged['sliding_window']}"
        )
    return [FULL] * layers


def _block_causality(merged: Mapping[str, Any], forced_window: bool) -> bool | None:
    """One causality for all layers, or None for the rule of `DraftConfig.causal`."""
    non_causal_window = _flag(merged, "sliding_window_non_causal", False)
    for name in ("is_causal", "causal"):
        if name in merged:
            causal = _flag(merged, name, False)
            if causal and non_causal_window:
                raise ValueError(f"draft config: sliding_window_non_causal: expected false ({name} is true), got true")
            return causal
    # A window laid over full layers by use_swa bounds what they see; it does not make them causal. (Published
    # checkpoints with use_swa were trained that way, and engines run them so.)
    return False if non_causal_window or forced_window else None


def _check_proposal(merged: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    """speculators_config repeats how many tokens a block drafts: more than the rows give means a wrong reading."""
    section = merged.get("speculators_config")
    if section is None:
        return
    if not isinstance(section, Mapping):
        raise ValueError(f"draft config: speculators_config: expected an object, got {type(section).__name__}")
    algorithm = section.get("algorithm", "dflash")
    if algorithm != "dflash":
        raise ValueError(f"draft config: speculators_config.algorithm: expected 'dflash', got {algorithm!r}")
    drafted = result["block_size"] if result["sample_from_anchor"] else result["block_size"] - 1
    for method in section.get("proposal_methods") or []:
        tokens = method.get("speculative_tokens") if isinstance(method, Mapping) else None
        if tokens is not None and tokens > drafted:
            raise ValueError(
                f"draft config: speculative_tokens: expected at most {drafted} (block_size {result['block_size']}, "
                f"sample_from_anchor {result['sample_from_anchor']}), got {tokens}"
            )
