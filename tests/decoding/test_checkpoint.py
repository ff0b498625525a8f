"""Draft checkpoints: every layout loads to the same tensors, and nothing doubtful gets through."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from dflash_decoding.checkpoint import draft_tensor_specs, load_draft_weights, save_draft_checkpoint
from dflash_decoding.config import DraftConfig
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.decoding.test_config import SPECULATORS, plain

CONFIG = DraftConfig.from_dict(plain())
REDUCED = DraftConfig.from_dict(SPECULATORS)


def random_weights(config: DraftConfig, seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Required tensors of a checkpoint, and a vocabulary map onto every third-or-so target id."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, spec in draft_tensor_specs(config).items():
        if spec.required and name != "d2t":
            weights[name] = (torch.randn(spec.shape, generator=generator) * 0.2).to(dtype)
    if config.reduced_vocabulary:
        targets = torch.randperm(config.vocab_size, generator=generator)[: config.draft_vocab_size].sort().values
        weights["d2t"] = targets - torch.arange(targets.numel())
    return weights


def write(folder: Path, weights: dict[str, Tensor], name: str = "model.safetensors") -> Path:
    save_file(weights, folder / name)
    return folder


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert sorted(left) == sorted(right)
    for name in left:
        assert left[name].dtype == right[name].dtype
        assert torch.equal(left[name], right[name]), name


def test_plain_checkpoint_has_58_tensors_for_5_layers() -> None:
    specs = draft_tensor_specs(DraftConfig.from_dict(plain(num_hidden_layers=5)))
    assert sum(spec.required for spec in specs.values()) == 58


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_single_file(tmp_path: Path, dtype: torch.dtype) -> None:
    weights = random_weights(CONFIG, dtype=dtype)
    assert_same(load_draft_weights(write(tmp_path, weights), CONFIG), weights)


def test_shards(tmp_path: Path) -> None:
    weights = random_weights(CONFIG)
    names = sorted(weights)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, members in parts.items():
        write(tmp_path, {name: weights[name] for name in members}, file)
    index = {"weight_map": {name: file for file, members in parts.items() for name in members}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_same(load_draft_weights(tmp_path, CONFIG), weights)

    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="expected shard model-00002"):
        load_draft_weights(tmp_path, CONFIG)
    index["weight_map"]["fc.weight"] = "../outside.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="expected shard file names"):
        load_draft_weights(tmp_path, CONFIG)


@pytest.mark.parametrize("bias", [False, True])
def test_fused_qkv_is_split(tmp_path: Path, bias: bool) -> None:
    config = DraftConfig.from_dict(plain(attention_bias=bias))
    weights = random_weights(config)
    stored = dict(weights)
    for layer in range(config.num_hidden_layers):
        for kind in ("weight", "bias") if bias else ("weight",):
            names = [f"layers.{layer}.self_attn.{part}_proj.{kind}" for part in "qkv"]
            stored[f"layers.{layer}.self_attn.qkv_proj.{kind}"] = torch.cat([stored.pop(name) for name in names])
    assert_same(load_draft_weights(write(tmp_path, stored), config), weights)
    stored["layers.0.self_attn.k_proj.weight"] = weights["layers.0.self_attn.k_proj.weight"]
    with pytest.raises(ValueError, match=r"qkv_proj.weight: expected it alone, got .*k_proj.weight"):
        load_draft_weights(write(tmp_path, stored), config)


def test_reduced_vocabulary_and_training_leftovers(tmp_path: Path) -> None:
    weights = random_weights(REDUCED)
    targets = torch.arange(40) + weights["d2t"]
    marked = torch.zeros(64, dtype=torch.bool)
    marked[targets] = True
    stored = {
        **weights,
        "t2d": marked,
        "verifier_norm.weight": torch.ones(48),
        "embed_tokens.weight": torch.ones(64, 48),
    }
    loaded = load_draft_weights(write(tmp_path, stored), REDUCED)
    assert_same(loaded, {**weights, "embed_tokens.weight": torch.ones(64, 48)})

    marked[targets[0]] = False
    with pytest.raises(ValueError, match="t2d: expected it to mark exactly"):
        load_draft_weights(write(tmp_path, stored), REDUCED)
    for change, message in (
        ({"d2t": torch.full((40,), 60)}, "d2t: expected target ids"),
        ({"d2t": -torch.arange(40)}, "d2t: expected distinct"),
        ({"d2t": torch.zeros(40)}, r"d2t: expected \[40\] I64/I32, got \[40\] F32"),
    ):
        with pytest.raises(ValueError, match=message):
            load_draft_weights(write(tmp_path, {**weights, **change}), REDUCED)
    for name in ("d2t", "lm_head.weight"):
        with pytest.raises(ValueError, match=f"missing {name}"):
            load_draft_weights(write(tmp_path, {k: v for k, v in weights.items() if k != name}), REDUCED)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fc.weight": None}, "missing fc.weight; unexpected none"),
        ({"layers.2.mlp.up_proj.weight": torch.ones(1)}, "unexpected layers.2.mlp.up_proj.weight"),
        ({"fc.weight": torch.ones(48, 48)}, r"fc.weight: expected \[48, 96\] F32/F16/BF16, got \[48, 48\] F32"),
        ({"norm.weight": torch.ones(48, dtype=torch.float64)}, r"norm.weight: .* got \[48\] F64"),
        ({"fc.weight": torch.ones(48, 96, dtype=torch.int8)}, r"unquantised weights .* got fc.weight \(I8\)"),
        (
            {"fc.weight": torch.ones(48, 96).to(torch.float8_e4m3fn)},
            r"unquantised weights .* got fc.weight \(F8_E4M3\)",
        ),
        ({"fc.weight_scale": torch.ones(1)}, "unquantised weights .* got fc.weight_scale"),
        ({"layers.0.self_attn.q_proj.bias": torch.ones(64)}, "unexpected layers.0.self_attn.q_proj.bias"),
        ({"mask_embedding": torch.ones(48)}, "unexpected mask_embedding"),
    ],
)
def test_refusals(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    weights: dict[str, Any] = {**random_weights(CONFIG), **change}
    stored = {name: tensor for name, tensor in weights.items() if tensor is not None}
    with pytest.raises(ValueError, match=message):
        load_draft_weights(write(tmp_path, stored), CONFIG)


def test_pickle_is_never_opened(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"not even a pickle")
    with pytest.raises(FileNotFoundError, match=r"only pytorch_model\.bin \(pickle files can run code"):
        load_draft_weights(tmp_path, CONFIG)
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(FileNotFoundError, match="got neither"):
        load_draft_weights(tmp_path, CONFIG)


@pytest.mark.parametrize("config", [CONFIG, REDUCED], ids=["plain", "reduced"])
def test_save_round_trip(tmp_path: Path, config: DraftConfig) -> None:
    weights = random_weights(config, dtype=torch.bfloat16)
    save_draft_checkpoint(tmp_path / "new", config, weights)
    assert DraftConfig.from_pretrained(tmp_path / "new") == config
    assert_same(load_draft_weights(tmp_path / "new", config), weights)
    assert sorted(entry.name for entry in (tmp_path / "new").iterdir()) == ["config.json", "model.safetensors"]


def test_save_takes_views_and_refuses_what_load_would(tmp_path: Path) -> None:
    weights = random_weights(CONFIG)
    flat = torch.randn(48 * 96 * 2)
    weights["fc.weight"] = flat[: 48 * 96].view(96, 48).t()
    weights["layers.0.mlp.gate_proj.weight"] = flat[48 * 96 :].view(96, 48)
    save_draft_checkpoint(tmp_path, CONFIG, weights)
    assert torch.equal(load_file(tmp_path / "model.safetensors")["fc.weight"], weights["fc.weight"])
    with pytest.raises(ValueError, match=r"missing norm\.weight"):
        save_draft_checkpoint(tmp_path, CONFIG, {k: v for k, v in weights.items() if k != "norm.weight"})


def test_interrupted_save_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = random_weights(CONFIG, seed=1)
    save_draft_checkpoint(tmp_path, CONFIG, old)

    def broken(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("dflash_decoding.files.save_file", broken)
    with pytest.raises(OSError, match="disk full"):
        save_draft_checkpoint(tmp_path, CONFIG, random_weights(CONFIG, seed=2))
    assert_same(load_draft_weights(tmp_path, CONFIG), old)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
