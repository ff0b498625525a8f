"""rope_table: equal to transformers' own rotary module, and rotation by it means what RoPE means."""

from typing import Any

import pytest
import torch
from dflash_decoding.config import DraftConfig
from dflash_decoding.rope import rope_table
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tests.decoding.test_config import plain

POSITIONS = 700
KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 2.5},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 128},
    "yarn_mscale": {"factor": 4.0, "original_max_position_embeddings": 128, "mscale": 0.7, "mscale_all_dim": 0.5},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "longrope": {
        "short_factor": [1.0 + i / 8 for i in range(8)],
        "long_factor": [2.0 + i for i in range(8)],
        "original_max_position_embeddings": 128,
        "factor": 4.0,
    },
    "proportional": {"partial_rotary_factor": 0.5},
}


def _raw(kind: str) -> dict[str, Any]:
    return {"rope_type": kind.split("_")[0], "rope_theta": 10000.0, **KINDS[kind]}


@pytest.mark.parametrize("kind", KINDS)
def test_equals_transformers(kind: str) -> None:
    config = DraftConfig.from_dict(plain(rope_theta=..., rope_parameters=_raw(kind)))
    table = rope_table(config, POSITIONS)
    reference_config = LlamaConfig(
        hidden_size=48,
        num_attention_heads=4,
        head_dim=16,
        max_position_embeddings=512,
        rope_parameters=_raw(kind),
    )
    positions = torch.arange(POSITIONS)[None]
    cos, sin = LlamaRotaryEmbedding(reference_config)(torch.zeros(1), positions)
    half = cos.shape[-1] // 2
    assert table.dtype == torch.float32
    torch.testing.assert_close(table, torch.cat([cos[0, :, :half], sin[0, :, :half]], dim=1), rtol=0, atol=0)
    torch.testing.assert_close(rope_table(reference_config, POSITIONS), table, rtol=0, atol=0)


def test_default_follows_the_formula() -> None:
    table = rope_table(DraftConfig.from_dict(plain()), 64).double()
    frequencies = 10000.0 ** (-torch.arange(0, 16, 2, dtype=torch.float64) / 16)
    angles = torch.arange(64, dtype=torch.float64)[:, None] * frequencies
    torch.testing.assert_close(table, torch.cat([angles.cos(), angles.sin()], dim=1), rtol=0, atol=2e-5)


def test_partial_rotary_narrows_the_table() -> None:
    config = DraftConfig.from_dict(plain(partial_rotary_factor=0.25))
    assert config.rotary_dim == 4
    assert rope_table(config, 10).shape == (10, 4)


def test_size_comes_from_the_config() -> None:
    assert rope_table(DraftConfig.from_dict(plain())).shape[0] == 512
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    assert rope_table(DraftConfig.from_dict(plain(rope_scaling=yarn))).shape[0] == 2048
    with pytest.raises(ValueError, match="max_positions: expected at least 1, got 0"):
        rope_table(DraftConfig.from_dict(plain()), 0)


def test_longrope_and_dynamic_choose_by_table_length() -> None:
    for kind, limit in (("longrope", 128), ("dynamic", 512)):
        config = DraftConfig.from_dict(plain(rope_theta=..., rope_parameters=_raw(kind)))
        short, at_limit, long = (rope_table(config, n)[:64] for n in (64, limit, limit + 1))
        assert torch.equal(short, at_limit)
        assert not torch.equal(short, long)


def test_unknown_kind_and_dtype() -> None:
    config = Qwen3Config(head_dim=16, hidden_size=48, num_attention_heads=4, num_key_value_heads=2)
    assert rope_table(config, 4, torch.bfloat16).dtype == torch.bfloat16
    config.rope_parameters = {"rope_type": "spiral", "rope_theta": 1.0}
    with pytest.raises(ValueError, match="rope_type: expected one of default"):
        rope_table(config, 4)


def test_per_layer_type_parameters() -> None:
    config = Qwen3Config(head_dim=16, hidden_size=48, num_attention_heads=4, num_key_value_heads=2)
    config.rope_parameters = {
        "full_attention": {"rope_type": "default", "rope_theta": 100.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10.0},
    }
    full = rope_table(config, 8, layer_type="full_attention")
    assert torch.allclose(full[3, 1], torch.cos(torch.tensor(3 * 100.0 ** (-2 / 16))))
