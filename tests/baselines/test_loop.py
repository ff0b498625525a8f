"""The baselines in the decoding loop and in the trainer, on a tiny target."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from dflash_decoding import DFlashDecoder, Drafter, PagePool, SamplingParams, Target, cli
from dflash_decoding.baselines import autoregressive_drafter, parallel_heads, without_injection
from dflash_decoding.baselines.autoregressive_drafter import AutoregressiveDrafter
from dflash_decoding.baselines.denoising_drafter import DenoisingDrafter
from dflash_decoding.baselines.kinds import KINDS, load_drafter
from dflash_decoding.baselines.parallel_heads import ParallelHeadsDrafter
from dflash_decoding.baselines.without_injection import DFlashWithoutInjection
from dflash_decoding.target import EMBEDDING_TAP

from tests.baselines.world import make_config, random_tensors
from tests.decoding.drafters import one_thread
from tests.decoding.tiny import BYTES, LAYERS, MASK, VOCAB, tiny_drafter, tiny_target

PROMPTS = [[7], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], [30, 40], list(range(50, 83))]
NEW_TOKENS = [9, 14, 3, 20]
NAMES = [*KINDS, "denoising"]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def random_drafter(name: str, target: Target) -> Drafter:
    """A drafter with random weights, block 5, or 8 for DFlash's."""
    shapes: dict[str, Any] = {"vocab_size": VOCAB, "mask_token_id": MASK}
    embedding, head = target.embed_weight, target.lm_head_weight
    if name == "autoregressive":
        config = make_config(**shapes)
        return AutoregressiveDrafter(
            config, random_tensors(autoregressive_drafter.tensor_specs(config)), embedding, head
        )
    if name == "parallel_heads":
        config = make_config(**shapes, target_layer_ids=(LAYERS - 1,))
        return ParallelHeadsDrafter(config, random_tensors(parallel_heads.tensor_specs(config)), head)
    if name == "dflash_without_injection":
        config = make_config(**shapes, target_layer_ids=(0,))
        return DFlashWithoutInjection(config, random_tensors(without_injection.tensor_specs(config)), embedding, head)
    return DenoisingDrafter(tiny_drafter(target), 3) if name == "denoising" else tiny_drafter(target)


@pytest.mark.parametrize("name", NAMES)
def test_greedy_text_is_the_targets(name: str) -> None:
    target = tiny_target()
    drafter = random_drafter(name, target)
    plain = DFlashDecoder(target).generate(PROMPTS, max_new_tokens=NEW_TOKENS, stop_token_ids=())
    for max_batch, block_size in ((1, None), (3, None), (4, 3)):
        decoder = DFlashDecoder(target, drafter, page_size=4, max_batch=max_batch, prefill_chunk=7)
        got = decoder.generate(PROMPTS, max_new_tokens=NEW_TOKENS, stop_token_ids=(), block_size=block_size)
        assert [answer.token_ids for answer in got] == [answer.token_ids for answer in plain]
    with pytest.raises(ValueError, match=rf"block_size: expected 2\.\.{drafter.block_size}, got"):
        decoder.generate(PROMPTS, max_new_tokens=2, block_size=drafter.block_size + 1)


@pytest.mark.parametrize("name", NAMES)
def test_sampled_text_is_the_targets(name: str) -> None:
    target = tiny_target()
    sampling = [SamplingParams(0.9, 20, 0.95, seed) for seed in range(len(PROMPTS))]
    plain = DFlashDecoder(target).generate(PROMPTS, max_new_tokens=NEW_TOKENS, sampling=sampling)
    got = DFlashDecoder(target, random_drafter(name, target), page_size=4).generate(
        PROMPTS, max_new_tokens=NEW_TOKENS, sampling=sampling
    )
    assert [answer.token_ids for answer in got] == [answer.token_ids for answer in plain]


def test_a_text_up_to_the_last_position() -> None:
    """The last blocks reach beyond the positions of the models and of a request's pages."""
    target = tiny_target(max_position_embeddings=24)
    for name in NAMES:
        drafter = random_drafter(name, target)
        plain = DFlashDecoder(target).generate([[5, 6]], max_new_tokens=22, stop_token_ids=())
        got = DFlashDecoder(target, drafter, page_size=2).generate([[5, 6]], max_new_tokens=22, stop_token_ids=())
        assert got[0].token_ids == plain[0].token_ids


def test_the_embedding_is_a_tap() -> None:
    target = tiny_target()
    pool = PagePool(2, 8, 1, 2)
    pool.allocate(0, 5)
    tokens = torch.tensor([3, 9, 9, 200, 1])
    inputs = (tokens, torch.arange(5), pool.slot_mapping(0, 0, 5), target.new_cache(pool))
    output = target.forward(*inputs, pool.page_table, pool.context_lens, tap_layers=[2, EMBEDDING_TAP])
    assert torch.equal(output.taps[1], target.embed_weight[tokens])
    alone = target.forward(*inputs, pool.page_table, pool.context_lens, tap_layers=[2])
    assert torch.equal(output.taps[0], alone.taps[0])


def train(name: str, target_folder: Path, chats: Path, folder: Path, *more: str) -> int:
    options = ["train", "--drafter", name, "--output", str(folder), "--target", str(target_folder)]
    options += ["--chats", str(chats), "--held-out", "1", "--tap-cache", "none", "--mask-token-id", str(BYTES + 3)]
    options += ["--block-size", "5", "--chats-per-batch", "7", "--anchors-per-chat", "12"]
    if name in ("dflash", "autoregressive"):
        options += ["--tap-layers", "0,2"]
    return cli.main([*options, "--learning-rate", "5e-3", "--gamma", "2", "--seed", "1", *more])


@pytest.mark.parametrize("options", [["--autocast"], ["--loss", "kl"]], ids=["autocast", "kl"])
@pytest.mark.parametrize("name", KINDS)
def test_trains_otherwise(name: str, options: list[str], target_folder: Path, chats: Path, tmp_path: Path) -> None:
    """In bfloat16, and towards the target's whole distribution."""
    assert train(name, target_folder, chats, tmp_path, "--steps", "60", *options) == 0
    with (tmp_path / "train.csv").open(newline="") as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file)]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


@pytest.mark.parametrize("name", KINDS)
def test_trains_and_speeds_decoding_up(
    name: str, target_folder: Path, chats: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a random model to one that has learnt the target's answers: the loss falls, drafts are accepted."""
    assert train(name, target_folder, chats, tmp_path, "--steps", "120") == 0
    with (tmp_path / "train.csv").open(newline="") as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file)]
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
    target = Target.from_pretrained(target_folder)
    drafter = load_drafter(tmp_path / "checkpoint", target, torch.float32)
    prompts = [[start, start + 1] for start in range(97, 105)]
    plain = DFlashDecoder(target).generate(prompts, max_new_tokens=20, stop_token_ids=())
    got = DFlashDecoder(target, drafter, max_batch=3).generate(prompts, max_new_tokens=20, stop_token_ids=())
    assert [answer.token_ids for answer in got] == [answer.token_ids for answer in plain]
    assert got.stats.tau > 1.5
    capsys.readouterr()
    options = ["--target", str(target_folder), "--drafter", str(tmp_path / "checkpoint")]
    assert cli.main(["generate", *options, "--raw", "--prompt", "ab", "--max-new-tokens", "6", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["same_as_autoregressive"] is True
    assert cli.main(["info", *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["drafter"]["class"] == type(drafter).__name__


def test_resumes_its_own_kind_only(
    target_folder: Path, chats: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = (target_folder, chats, tmp_path, "--layers", "1", "--resume", "--steps")
    assert train("autoregressive", *run, "2") == 0
    assert train("autoregressive", *run, "2") == 0
    assert train("dflash", *run, "2") == 2
    assert "resume: the run was started otherwise: config" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("autoregressive", ["--layers", "2"], "--layers: expected 1 for this kind of drafter, got 2"),
        ("parallel_heads", ["--tap-layers", "0"], r"--tap-layers: expected (3,) for this kind of drafter, got (0,)"),
        ("parallel_heads", ["--init-layers", "1"], "init_layers: expected none for a TrainableParallelHeads"),
    ],
)
def test_train_refuses(
    name: str,
    options: list[str],
    message: str,
    target_folder: Path,
    chats: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert train(name, target_folder, chats, tmp_path, "--steps", "2", *options) == 2
    assert message in capsys.readouterr().err


def test_loading_refuses(target_folder: Path, chats: Path, tmp_path: Path) -> None:
    assert train("parallel_heads", target_folder, chats, tmp_path / "heads", "--steps", "1") == 0
    target = Target.from_pretrained(target_folder)
    with pytest.raises(ValueError, match="denoising_steps: expected 1 for a drafter of dflash_baseline_parallel_heads"):
        load_drafter(tmp_path / "heads" / "checkpoint", target, torch.float32, denoising_steps=2)
    config = tmp_path / "heads" / "checkpoint" / "config.json"
    config.write_text(config.read_text().replace("dflash_baseline_parallel_heads", "dflash_baseline_unheard_of"))
    with pytest.raises(ValueError, match="got dflash_baseline_unheard_of"):
        load_drafter(config.parent, target, torch.float32)


def test_warm_start(target_folder: Path, chats: Path, tmp_path: Path) -> None:
    """The autoregressive drafter can start from a target layer, as DFlash can; without a step nothing has moved yet."""
    options = ["--steps", "1", "--learning-rate", "1e-30", "--init-layers", "3"]
    assert train("autoregressive", target_folder, chats, tmp_path, *options) == 0
    target = Target.from_pretrained(target_folder)
    drafter = load_drafter(tmp_path / "checkpoint", target, torch.float32)
    assert isinstance(drafter, AutoregressiveDrafter)
    layer = dict(target.layers[3].named_parameters())
    # Checkpoints are bfloat16.
    assert torch.equal(drafter._layers[0].o_weight, layer["self_attn.o_proj.weight"].bfloat16().float())
    feature_part = drafter._input_weight[:, target.hidden_size :]
    assert torch.allclose(feature_part, torch.eye(target.hidden_size), atol=0.2)
