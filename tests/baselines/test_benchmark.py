"""The decoding benchmark and its plots, on a tiny target with untrained drafters."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from dflash_decoding.baselines import autoregressive_drafter
from dflash_decoding.baselines.storage import save_baseline
from dflash_decoding.checkpoint import save_draft_checkpoint
from dflash_decoding.training.data import load_chats, split_chats

from benchmarks import decode, plot_decode
from benchmarks.prompts import DOMAINS, domain_prompts, held_out_prompts, mtbench_prompts, spread
from tests.baselines.world import make_config, random_tensors
from tests.decoding.drafter_world import random_weights
from tests.decoding.drafters import one_thread
from tests.decoding.tiny import MASK, VOCAB, tiny_drafter, tiny_target


@pytest.fixture
def drafters(tmp_path: Path) -> list[str]:
    import torch

    config = tiny_drafter(tiny_target()).config
    save_draft_checkpoint(tmp_path / "block", config, random_weights(config, torch.Generator().manual_seed(0)))
    config = make_config(vocab_size=VOCAB, mask_token_id=MASK)
    weights = random_tensors(autoregressive_drafter.tensor_specs(config))
    save_baseline(
        tmp_path / "eagle", autoregressive_drafter.MODEL_TYPE, config, weights, autoregressive_drafter.tensor_specs
    )
    return ["--drafter", str(tmp_path / "block"), "--drafter", f"eagle={tmp_path / 'eagle'}"]


def test_measures_and_plots(target_folder: Path, chats: Path, drafters: list[str], tmp_path: Path) -> None:
    options = ["--target", str(target_folder), *drafters, "--dtype", "float32", "--json", str(tmp_path / "result.json")]
    options += ["--domains", "math", "held_out", "--chats", str(chats), "--held-out", "3", "--prompts", "3"]
    options += ["--max-new-tokens", "5", "--batch", "1", "2", "--denoising-steps", "2", "--sweep-prompts", "1"]
    with one_thread():
        assert decode.main(options) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["method"] == "dflash"
    assert all(isinstance(result[name], float) for name in ("tau", "eta", "tokens_per_s"))
    assert [run["batch"] for run in result["runs"]] == [1, 2]
    for run in result["runs"]:
        assert set(run["domains"]) == {"math", "held_out"}
        assert list(run["methods"]) == ["autoregressive", "transformers", "dflash", "dflash_2_steps", "eagle"]
        for name, drafts in (("dflash", 7), ("dflash_2_steps", 7), ("eagle", 4)):
            numbers = run["methods"][name]
            assert numbers["tokens"] == 6 * 5
            assert numbers["tau"] >= 1.0
            assert numbers["t_draft"] > 0 < numbers["t_verify"]
            assert len(numbers["prefix_acceptance"]) == len(numbers["position_acceptance"]) == drafts
            assert numbers["eta_difference"] == pytest.approx(numbers["eta_predicted"] / numbers["eta"] - 1)
            assert run["greedy"][name] == {"answers": 6, "identical": 6, "largest_gap": 0.0}
    sweep = [(row["method"], row["gamma"]) for row in result["block_sizes"]]
    seven = range(1, 8)
    assert sweep == [(name, g) for name in ("dflash", "dflash_2_steps") for g in seven] + [
        ("eagle", g) for g in (1, 2, 3, 4)
    ]
    assert plot_decode.main([str(tmp_path / "result.json"), "--output", str(tmp_path / "images")]) == 0
    images = sorted((tmp_path / "images").iterdir())
    assert [path.name for path in images] == ["decode_acceptance.png", "decode_draft_time.png", "decode_speedup.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in images)


def test_refuses_two_drafters_of_one_name(target_folder: Path, drafters: list[str]) -> None:
    options = ["--target", str(target_folder), "--drafter", drafters[1], "--drafter", drafters[1]]
    with pytest.raises(ValueError, match="got dflash twice"):
        decode.main(options)
    with pytest.raises(ValueError, match="--drafter: expected a drafter for this target"):
        decode.main(options[:2])


def test_prompts(chats: Path) -> None:
    assert spread(range(10), 3) == [0, 3, 6]
    assert spread("ab", 5) == ["a", "b"]
    assert len(mtbench_prompts()) == 80
    for domain in DOMAINS[:4]:
        assert len(set(domain_prompts(domain, 8))) == 8
    everything = load_chats(chats, VOCAB)
    training, held_out = split_chats(everything, 3, 7)
    prompts = held_out_prompts(chats, VOCAB, 3, 7, 60)
    assert prompts == [everything.chat(index)[:2].tolist() for index in held_out]
    assert not any(np.array_equal(everything.chat(index)[:2], prompt) for index in training for prompt in prompts)
