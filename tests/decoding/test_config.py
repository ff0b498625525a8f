"""DraftConfig: every public config loads, both layouts mean the same, and what is not understood is refused."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from dflash_decoding.config import DraftConfig

CONFIGS = sorted((Path(__file__).parents[1] / "data" / "checkpoint_configs").glob("*.json"))
QWEN = json.loads((CONFIGS[0].parent / "qwen3.6-27b-dflash.json").read_text())

SPECULATORS: dict[str, Any] = {
    "architectures": ["DFlashSpeculator"],
    "auto_map": {"": "config.DFlashSpeculatorConfig"},
    "aux_hidden_state_layer_ids": [2, 11, 20],
    "block_size": 8,
    "draft_vocab_size": 40,
    "dtype": "bfloat16",
    "mask_token_id": 63,
    "max_anchors": 256,
    "sliding_window_non_causal": False,
    "speculators_config": {
        "algorithm": "dflash",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 7}],
        "verifier": {"architectures": ["Qwen3ForCausalLM"], "name_or_path": "target"},
    },
    "speculators_model_type": "dflash",
    "speculators_version": "0.5.0",
    "target_hidden_size": None,
    "tie_word_embeddings": False,
    "transformer_layer_config": {
        "attention_bias": False,
        "head_dim": 16,
        "hidden_act": "silu",
        "hidden_size": 48,
        "intermediate_size": 96,
        "layer_types": ["sliding_attention", "full_attention"],
        "max_position_embeddings": 512,
        "model_type": "qwen3",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"},
        "sliding_window": 32,
        "use_sliding_window": True,
        "vocab_size": 64,
    },
}


def plain(**changes: Any) -> dict[str, Any]:
    """A small DFlash-layout config with `changes`; a value of ... removes the field."""
    raw: dict[str, Any] = {
        "block_size": 8,
        "dflash_config": {"mask_token_id": 63, "target_layer_ids": [1, 3]},
        "head_dim": 16,
        "hidden_size": 48,
        "intermediate_size": 96,
        "max_position_embeddings": 512,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "vocab_size": 64,
    }
    raw.update(changes)
    return {name: value for name, value in raw.items() if value is not ...}


def nested(**changes: Any) -> dict[str, Any]:
    return {"mask_token_id": 63, "target_layer_ids": [1, 3], **changes}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_public_configs_load_and_round_trip(path: Path, tmp_path: Path) -> None:
    raw = json.loads(path.read_text())
    config = DraftConfig.from_dict(raw)
    assert config.block_size == raw["block_size"]
    assert config.target_layer_ids == tuple(raw["dflash_config"]["target_layer_ids"])
    assert config.mask_token_id == raw["dflash_config"]["mask_token_id"]
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": raw["rope_theta"]}
    assert config.num_draft_tokens == 15
    assert not config.interleaved
    assert DraftConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    (tmp_path / "config.json").write_text(path.read_text())
    assert DraftConfig.from_pretrained(tmp_path) == config


def test_sliding_layers_are_causal_and_full_layers_are_not() -> None:
    config = DraftConfig.from_dict(QWEN)
    assert config.windows == (2048, 2048, 2048, 2048, 0)
    assert config.causal == (True, True, True, True, False)


def test_speculators_layout() -> None:
    config = DraftConfig.from_dict(SPECULATORS)
    # aux_hidden_state_layer_ids name the states entering a layer: one more than the layer outputs of the DFlash layout.
    assert config.target_layer_ids == (1, 10, 19)
    assert (config.draft_vocab_size, config.vocab_size, config.reduced_vocabulary) == (40, 64, True)
    assert config.windows == (32, 0)
    assert config.causal == (True, False)
    assert config.rope_parameters["rope_theta"] == 5000.0
    assert config.num_draft_tokens == 7
    assert DraftConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("changes", "causal"),
    [({"sliding_window_non_causal": True}, (False, False)), ({"is_causal": True}, (True, True))],
)
def test_speculators_causality(changes: dict[str, Any], causal: tuple[bool, ...]) -> None:
    config = DraftConfig.from_dict({**SPECULATORS, **changes})
    assert config.causal == causal
    assert DraftConfig.from_dict(config.to_dict()) == config


def test_sample_from_anchor_drafts_one_more() -> None:
    raw = copy.deepcopy(SPECULATORS)
    raw["sample_from_anchor"] = True
    raw["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = 8
    assert DraftConfig.from_dict(raw).num_draft_tokens == 8


SLIDING = ["sliding_attention", "full_attention"]


@pytest.mark.parametrize(
    ("changes", "windows", "causal"),
    [
        ({}, (0, 0), (False, False)),
        ({"is_causal": True}, (0, 0), (True, True)),
        ({"dflash_config": nested(causal=True)}, (0, 0), (True, True)),
        ({"is_causal": False, "dflash_config": nested(causal=True)}, (0, 0), (False, False)),
        ({"layer_types": SLIDING, "sliding_window": 9}, (9, 0), (True, False)),
        ({"layer_types": SLIDING, "sliding_window": 9, "is_causal": False}, (9, 0), (False, False)),
        ({"layer_types": SLIDING, "sliding_window": 9, "dflash_config": nested(causal=False)}, (9, 0), (False, False)),
        ({"layer_types": SLIDING, "dflash_config": nested(swa_window_size=7)}, (7, 0), (True, False)),
        # A window that use_swa lays over full layers leaves them non-causal.
        ({"dflash_config": nested(use_swa=True, swa_window_size=7)}, (7, 7), (False, False)),
        ({"dflash_config": nested(use_swa=True), "sliding_window": 5}, (5, 5), (False, False)),
        ({"dflash_config": nested(use_swa=True, swa_window_size=7, causal=True)}, (7, 7), (True, True)),
        ({"dflash_config": nested(use_swa=False, swa_window_size=7)}, (0, 0), (False, False)),
        # transformers' rule for Qwen3 when layer_types is absent
        ({"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}, (0, 9), (False, True)),
        ({"use_sliding_window": False, "sliding_window": 9}, (0, 0), (False, False)),
    ],
)
def test_window_and_causality_per_layer(
    changes: dict[str, Any], windows: tuple[int, ...], causal: tuple[bool, ...]
) -> None:
    config = DraftConfig.from_dict(plain(**changes))
    assert config.windows == windows
    assert config.causal == causal
    assert DraftConfig.from_dict(config.to_dict()) == config


def test_block_size_and_mask_token_at_either_level() -> None:
    top = plain(mask_token_id=63, dflash_config={"target_layer_ids": [1, 3]})
    inner = plain(block_size=..., dflash_config=nested(block_size=8))
    both = plain(mask_token_id=63, dflash_config=nested(block_size=8))
    expected = DraftConfig.from_dict(plain())
    assert all(DraftConfig.from_dict(raw) == expected for raw in (top, inner, both))


@pytest.mark.parametrize(
    ("layers", "target_layers", "taps"),
    [
        (5, 36, (1, 9, 17, 25, 33)),
        (5, 64, (1, 16, 31, 46, 61)),
        (1, 30, (15,)),
        (2, 30, (1, 27)),
        (5, 24, (1, 6, 11, 16, 21)),
    ],
)
def test_default_taps(layers: int, target_layers: int, taps: tuple[int, ...]) -> None:
    raw = plain(dflash_config={"mask_token_id": 63}, num_hidden_layers=layers, num_target_layers=target_layers)
    assert DraftConfig.from_dict(raw).target_layer_ids == taps


def test_default_taps_need_enough_target_layers() -> None:
    with pytest.raises(ValueError, match=r"target_layer_ids.*too few"):
        DraftConfig.from_dict(plain(dflash_config={"mask_token_id": 63}, num_hidden_layers=4, num_target_layers=5))
    with pytest.raises(ValueError, match=r"target_layer_ids: expected taps, or num_target_layers"):
        DraftConfig.from_dict(plain(dflash_config={"mask_token_id": 63}))


def test_tap_on_the_last_layer_and_more_taps_than_layers() -> None:
    raw = plain(num_target_layers=12, dflash_config=nested(target_layer_ids=[0, 5, 11]))
    assert DraftConfig.from_dict(raw).target_layer_ids == (0, 5, 11)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rope_theta": ..., "rope_parameters": {"rope_theta": 7.0}}, {"rope_type": "default", "rope_theta": 7.0}),
        ({"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}, {"rope_type": "default"}),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, {"rope_type": "linear", "factor": 2.0}),
        ({"rope_scaling": YARN}, YARN),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, YARN),
        ({"rope_scaling": YARN, "rope_parameters": {"rope_theta": 10000.0, **YARN}}, YARN),
        ({"partial_rotary_factor": 0.5}, {"rope_type": "default", "partial_rotary_factor": 0.5}),
        ({"rope_parameters": {"partial_rotary_factor": 1.0}}, {"rope_type": "default"}),
        ({"rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]}}, {"rope_type": "default"}),
        (
            {
                "rope_theta": ...,
                "rope_parameters": {k: {"rope_theta": 3.0} for k in ("full_attention", "sliding_attention")},
            },
            {"rope_type": "default", "rope_theta": 3.0},
        ),
    ],
)
def test_rope_fields(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    config = DraftConfig.from_dict(plain(**changes))
    assert config.rope_parameters == {"rope_theta": 10000.0, **expected}
    assert DraftConfig.from_dict(config.to_dict()) == config


def test_yarn_stretches_the_positions() -> None:
    assert DraftConfig.from_dict(plain()).max_positions == 512
    assert DraftConfig.from_dict(plain(rope_scaling=YARN)).max_positions == 2048


def test_null_is_absent_and_defaults_are_derived() -> None:
    config = DraftConfig.from_dict(plain(head_dim=None, num_key_value_heads=..., rope_scaling=None, is_causal=None))
    assert (config.head_dim, config.num_key_value_heads, config.target_hidden_size) == (12, 4, 48)
    assert config.is_causal is None


def test_rope_style_is_read() -> None:
    config = DraftConfig.from_dict(plain(is_neox_style=False))
    assert config.interleaved
    assert DraftConfig.from_dict(config.to_dict()).interleaved


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"surprise": 1}, "unknown fields: surprise"),
        ({"dflash_config": nested(surprise=1)}, "unknown fields: dflash_config.surprise"),
        ({"dflash_config": nested(block_size=16)}, "block_size: expected one value, got 8 at block_size and 16"),
        ({"mask_token_id": 5}, "mask_token_id: expected one value, got 5"),
        ({"dflash_config": {"target_layer_ids": [1]}}, "mask_token_id: expected a token id"),
        ({"dflash_config": nested(mask_token_id=64)}, "mask_token_id: expected an id below vocab_size 64, got 64"),
        ({"block_size": ...}, "block_size: expected a value, got none"),
        ({"block_size": 1}, "block_size: expected at least 2"),
        ({"block_size": "8"}, "block_size: expected an integer"),
        ({"hidden_size": ...}, "hidden_size: expected a value"),
        ({"num_key_value_heads": 3}, "num_attention_heads: expected a multiple"),
        ({"head_dim": ..., "num_attention_heads": 5}, "head_dim: expected a value"),
        ({"layer_types": ["full_attention"]}, r"layer_types: expected 2 entries \(num_hidden_layers\), got 1"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layer_types: expected full_attention or sliding"),
        ({"layer_types": SLIDING}, "sliding_window: expected a window"),
        ({"layer_types": SLIDING, "sliding_window": 0}, "sliding_window: expected an integer >= 1"),
        (
            {"layer_types": SLIDING, "sliding_window": 9, "use_sliding_window": False},
            "use_sliding_window: expected true",
        ),
        (
            {"layer_types": SLIDING, "sliding_window": 9, "dflash_config": nested(use_swa=False)},
            "use_swa: expected true",
        ),
        ({"layer_types": SLIDING, "sliding_window": 9, "dflash_config": nested(swa_window_size=8)}, "swa_window_size"),
        ({"use_sliding_window": True, "sliding_window": 9}, "layer_types: expected a sliding layer"),
        ({"sliding_window": 9}, "sliding_window: expected layer_types"),
        ({"dflash_config": nested(swa_window_size=7)}, "swa_window_size: expected a sliding layer"),
        ({"dflash_config": nested(use_swa=True)}, "sliding_window: expected a window"),
        ({"dflash_config": nested(causal="yes")}, "causal: expected true or false"),
        ({"dflash_config": nested(target_layer_ids=[])}, "target_layer_ids: expected at least one"),
        ({"dflash_config": nested(target_layer_ids=[1, 1])}, "target_layer_ids: expected each layer once"),
        ({"dflash_config": nested(target_layer_ids=[-1])}, "target_layer_ids: expected 0-based"),
        ({"dflash_config": nested(target_layer_ids=3)}, "target_layer_ids: expected a list"),
        ({"num_target_layers": 3}, "target_layer_ids: expected 0-based layer ids below num_target_layers 3"),
        ({"rope_theta": ...}, "rope_theta: expected a positive number, got None"),
        ({"rope_parameters": {"rope_theta": 1.0}}, "rope_theta: expected one value"),
        ({"rope_scaling": {"rope_type": "spiral"}}, "rope_type: expected one of"),
        ({"rope_scaling": {"rope_type": "linear"}}, r"linear RoPE: expected \['factor'\]"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2, "wobble": 1}}, "linear RoPE: unknown parameters"),
        ({"rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 2}}, "expected type to equal rope_type"),
        ({"rope_scaling": YARN, "rope_parameters": {**YARN, "factor": 2.0}}, "rope_scaling: expected the factor"),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1.0}, "sliding_attention": {"rope_theta": 2.0}}},
            "same RoPE",
        ),
        ({"partial_rotary_factor": 0.05}, "partial_rotary_factor: expected an even number"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config: quantised drafters are refused"),
        ({"architectures": ["DFlash2DraftModel"]}, "architectures: expected a first-version"),
        ({"hidden_act": "relu"}, "hidden_act: expected one of silu"),
        ({"mlp_bias": True}, "mlp_bias: expected false"),
        ({"dflash_config": nested(attention_sink_bias=True)}, "attention_sink_bias: expected false"),
        ({"dflash_config": nested(output_multiplier=-1.0)}, "output_multiplier: expected a positive number"),
        ({"draft_vocab_size": 65}, "draft_vocab_size: expected at most"),
        ({"dflash_config": [1]}, "dflash_config: expected an object"),
        ({"aux_hidden_state_layer_ids": [2, 4]}, "unknown fields: aux_hidden_state_layer_ids"),
    ],
)
def test_refusals(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DraftConfig.from_dict(plain(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculators_model_type": "eagle3"}, "speculators_model_type: expected 'dflash'"),
        ({"projector_type": "domino"}, "projector_type: expected 'dflash'"),
        ({"shift_label": True}, "shift_label: expected false"),
        ({"aux_hidden_state_layer_ids": [0, 3]}, "aux_hidden_state_layer_ids: expected ids >= 1"),
        ({"dflash_config": {"target_layer_ids": [2, 11, 20]}}, r"target_layer_ids: expected \[1, 10, 19\]"),
        ({"is_causal": True, "sliding_window_non_causal": True}, "sliding_window_non_causal: expected false"),
        ({"sliding_window": 16}, "sliding_window: expected one value"),
        ({"block_size": 4}, "speculative_tokens: expected at most 3"),
        (
            {"transformer_layer_config": {**SPECULATORS["transformer_layer_config"], "odd": 1}},
            "transformer_layer_config.odd",
        ),
        ({"markov_rank": 8}, "unknown fields: markov_rank"),
    ],
)
def test_speculators_refusals(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DraftConfig.from_dict({**copy.deepcopy(SPECULATORS), **changes})


def test_from_pretrained_names_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"config\.json"):
        DraftConfig.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ValueError, match="expected a JSON object"):
        DraftConfig.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="expected JSON"):
        DraftConfig.from_pretrained(tmp_path)
