"""Batches under noise, the loss, and a whole small run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dflash_decoding.block_diffusion import BlockDiffusionDecoder, BlockDiffusionModel
from dflash_decoding.block_diffusion.batches import noisy_batch, whole_blocks
from dflash_decoding.block_diffusion.training import BlockDiffusionTrainer, BlockTrainSettings
from dflash_decoding.training.data import Chats, make_chats

from tests.block_diffusion.dense import END, MASK, VOCAB, dense_hidden, tiny_config, tiny_model


def _chats(count: int = 14, seed: int = 2) -> Chats:
    """Prompts name a stride, answers count upwards by it; every second one ends with the end token."""
    generator = np.random.default_rng(seed)
    texts, prompts = [], []
    for index in range(count):
        prompt, answer = int(generator.integers(1, 9)), int(generator.integers(6, 20))
        stride = int(generator.integers(1, 3))
        text = np.concatenate([generator.integers(0, 50, prompt - 1), [stride], stride * np.arange(answer) % 50])
        texts.append(np.append(text, END) if index % 2 else text)
        prompts.append(prompt)
    return make_chats(
        np.concatenate(texts).astype(np.int64), np.array([len(t) for t in texts]), np.array(prompts), VOCAB
    )


def _generators(count: int) -> list[np.random.Generator]:
    return [np.random.default_rng(index) for index in range(count)]


def test_whole_blocks_fill_ended_chats_and_cut_others() -> None:
    tokens = np.array([1, 2, 3, 4, 5, 6, END, 1, 2, 3, 4, 5, 6, 7], dtype=np.int64)
    chats = make_chats(tokens, np.array([7, 7]), np.array([2, 2]), VOCAB)
    blocks, learnt = whole_blocks(chats, 0, tiny_config())
    assert blocks.tolist() == [[1, 2, 3, 4, 5], [6, END, END, END, END]]
    assert learnt.tolist() == [[False, False, True, True, True], [True] * 5]
    blocks, _ = whole_blocks(chats, 1, tiny_config())
    assert blocks.tolist() == [[1, 2, 3, 4, 5]]


def test_noisy_batch_is_what_it_says() -> None:
    chats, config = _chats(), tiny_config()
    indices = [3, 0, 5]
    batch = noisy_batch(chats, indices, config, _generators(3), copies=3, max_weight=2.5)
    clean = int(batch.cu_seqlens[-1])
    noisy = batch.input_ids[clean:].view(-1, 5)
    assert len(noisy) == len(batch.anchors)
    targets = torch.full((noisy.numel(),), -1)
    targets[batch.masked] = batch.targets
    weights = torch.zeros(noisy.numel())
    weights[batch.masked] = batch.weights
    seen: dict[int, int] = {}
    for block, anchor in enumerate(batch.anchors.tolist()):
        seen[anchor] = seen.get(anchor, 0) + 1
        text = int(np.searchsorted(batch.cu_seqlens.numpy(), anchor, side="right")) - 1
        start = anchor - int(batch.cu_seqlens[text])
        blocks, learnt = whole_blocks(chats, indices[text], config)
        original, may_hide = torch.from_numpy(blocks[start // 5]), torch.from_numpy(learnt[start // 5])
        hidden = noisy[block] == MASK
        assert 1 <= int(hidden.sum()) <= int(may_hide.sum())
        assert not (hidden & ~may_hide).any()
        assert torch.equal(torch.where(hidden, original, noisy[block]), original)
        assert torch.equal(targets.view(-1, 5)[block], torch.where(hidden, original, -1))
        expected = min(2.5, int(may_hide.sum()) / int(hidden.sum()))
        torch.testing.assert_close(weights.view(-1, 5)[block], hidden * torch.tensor(expected))
        assert batch.positions[clean + block * 5 : clean + block * 5 + 5].tolist() == list(range(start, start + 5))
    answers = sum(int(whole_blocks(chats, index, config)[1].any(axis=1).sum()) for index in indices)
    assert len(seen) == answers
    assert set(seen.values()) == {3}


def test_noise_is_even_over_counts_and_places() -> None:
    tokens = np.arange(12, dtype=np.int64)
    chats = make_chats(tokens, np.array([12]), np.array([2]), VOCAB)
    batch = noisy_batch(chats, [0], tiny_config(block_size=6), _generators(1), copies=20000, max_weight=100.0)
    hidden = (batch.input_ids[12:] == MASK).view(20000, 2, 6)
    counts = hidden[:, 0].sum(dim=1).bincount(minlength=5)[1:].double() / 20000
    torch.testing.assert_close(counts, torch.full((4,), 0.25, dtype=torch.float64), atol=0.02, rtol=0)
    assert not hidden[:, 0, :2].any()
    # E[1 / ratio where masked] is 1 for every place: the weighted sum is an unbiased bound.
    weights = torch.zeros(hidden.numel())
    weights[batch.masked] = batch.weights
    expected = torch.tensor([0.0, 0.0, *[1.0] * 10])
    torch.testing.assert_close(weights.view(20000, 12).mean(dim=0), expected, atol=0.05, rtol=0)


def test_all_masked() -> None:
    chats = _chats()
    batch = noisy_batch(chats, [1], tiny_config(), _generators(1), all_masked=True)
    assert batch.masked.numel() == whole_blocks(chats, 1, tiny_config())[1].sum()
    assert bool((batch.weights == 1).all())


def _trainer(folder: Path, *, resume: bool = False, **settings: Any) -> BlockDiffusionTrainer:
    values: dict[str, Any] = {
        "steps": 10,
        "chats_per_batch": 3,
        "learning_rate": 3e-3,
        "train_vocab": 40,
        "train_vocab_sampled": 8,
        "validate_every": 4,
        "save_every": 3,
        "logit_chunk_rows": 16,
    }
    model = tiny_model()
    model.initialize(5, std=0.1)
    return BlockDiffusionTrainer(
        model,
        BlockTrainSettings(**{**values, **settings}),
        _chats(),
        folder,
        training=range(12),
        held_out=[12, 13],
        resume=resume,
    )


def test_loss_matches_dense_definition(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, train_vocab=0)
    batch = trainer.batch(4)
    loss = trainer.loss(batch, 4)
    model, clean = trainer.model, int(batch.cu_seqlens[-1])
    text = torch.from_numpy(np.searchsorted(batch.cu_seqlens.numpy(), np.arange(clean), side="right"))
    rows = (batch.anchors.long()[:, None] + torch.arange(5)).flatten()
    texts = torch.cat([text, text[rows]])
    blocks = batch.positions // 5
    copy = torch.cat([torch.full((clean,), -1), torch.repeat_interleave(torch.arange(len(batch.anchors)), 5)])
    same, is_noisy = texts[:, None] == texts[None, :], copy >= 0
    earlier = blocks[:, None] > blocks[None, :]
    sees = same & ~is_noisy[None, :] & (earlier | (~is_noisy[:, None] & (blocks[:, None] == blocks[None, :])))
    sees |= is_noisy[:, None] & (copy[:, None] == copy[None, :])
    weights = {name: w.double() for name, w in model.state_dict().items()}
    hidden = dense_hidden(model.config, weights, model.embedding, batch.input_ids, batch.positions, sees)
    logits = hidden[clean + batch.masked] @ model.lm_head.double().t()
    losses = torch.nn.functional.cross_entropy(logits, batch.targets, reduction="none")
    expected = (losses * batch.weights).sum() / batch.weights.sum()
    torch.testing.assert_close(loss.double(), expected, atol=1e-5, rtol=1e-5)


def test_resumed_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    whole, parts = _trainer(tmp_path / "whole"), _trainer(tmp_path / "parts")
    expected = whole.run(progress=False)
    parts.run(stop_at=7, progress=False)
    resumed = _trainer(tmp_path / "parts", resume=True)
    assert resumed.step == 7
    assert resumed.run(progress=False) == expected
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name
    for file in ("train.csv", "validation.csv"):
        steps = [line.split(",")[0] for line in (tmp_path / "parts" / file).read_text().split()[1:]]
        assert steps == sorted(set(steps), key=int)
    with pytest.raises(ValueError, match="expected an empty folder"):
        _trainer(tmp_path / "parts")
    with pytest.raises(ValueError, match="copies"):
        _trainer(tmp_path / "parts", resume=True, copies=3)


def test_learns_and_generates_what_it_learnt(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, steps=120, copies=4, learning_rate=1e-2, train_vocab=0, validate_every=1000)
    before, after = trainer.validate(), trainer.run(progress=False)
    assert after.loss < 0.5 * before.loss
    assert after.agreement > 0.4 > before.agreement
    model = BlockDiffusionModel.from_folder(tmp_path / "checkpoint", trainer.model.embedding, trainer.model.lm_head)
    chats = _chats()
    chat, prompt = chats.chat(1).tolist(), int(chats.prompt_lens[1])
    (answer,) = BlockDiffusionDecoder(model).generate([chat[:prompt]], max_new_tokens=50, steps=5)
    assert list(answer.token_ids) == chat[prompt:]
    assert answer.finish_reason == "stop_token"


def test_autocast_follows_float32(tmp_path: Path) -> None:
    exact, half = (_trainer(tmp_path / str(autocast), steps=4, autocast=autocast) for autocast in (False, True))
    assert half.run(progress=False).loss == pytest.approx(exact.run(progress=False).loss, rel=0.02)
    assert next(half.model.parameters()).dtype == torch.float32


def test_refusals(tmp_path: Path) -> None:
    for changes, message in (
        ({"steps": 0}, "steps"),
        ({"max_weight": 0.5}, "max_weight"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"chats_per_batch": 13}, "chats_per_batch"),
    ):
        with pytest.raises(ValueError, match=message):
            _trainer(tmp_path, **changes)
    chats = make_chats(np.array([1, MASK, 3, 4, 5]), np.array([5]), np.array([1]), VOCAB)
    with pytest.raises(ValueError, match="mask_token_id"):
        BlockDiffusionTrainer(tiny_model(), BlockTrainSettings(steps=1), chats, tmp_path, training=[0], held_out=[])
