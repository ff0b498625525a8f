"""A toy world for training tests: 64 token ids, chats that count upwards, taps that are functions of the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dflash_decoding.config import DraftConfig
from dflash_decoding.training.data import Chats, make_chats
from dflash_decoding.training.distribution import Distribution
from dflash_decoding.training.taps import TapStore
from dflash_decoding.training.trainer import Trainer, TrainSettings
from torch import Tensor

VOCAB = 64
HIDDEN = 48
MASK = 63


def tiny_config(**changes: Any) -> DraftConfig:
    """Two layers, one of them sliding, block 4, GQA 3."""
    config = DraftConfig(
        block_size=4,
        mask_token_id=MASK,
        hidden_size=HIDDEN,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=16,
        vocab_size=VOCAB,
        target_layer_ids=(0, 2, 3),
        layer_types=("sliding_attention", "full_attention"),
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        max_position_embeddings=128,
        sliding_window=8,
    )
    return replace(config, **changes)


def tiny_weights(seed: int = 7) -> tuple[Tensor, Tensor]:
    """(embedding, lm_head) of a target, [VOCAB, HIDDEN] each."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(VOCAB, HIDDEN, generator=generator), torch.randn(VOCAB, HIDDEN, generator=generator)


def tiny_chats(count: int = 12, seed: int = 3) -> Chats:
    """Answers count upwards by a stride that the prompt's last token names, so there is something to learn."""
    generator = np.random.default_rng(seed)
    lens, prompts, tokens = [], [], []
    for _ in range(count):
        prompt, answer = int(generator.integers(1, 6)), int(generator.integers(8, 25))
        stride = int(generator.integers(1, 4))
        question = generator.integers(0, 60, prompt)
        question[-1] = stride
        tokens.append(np.concatenate([question, (stride * np.arange(1, answer + 1)) % 60]))
        lens.append(prompt + answer)
        prompts.append(prompt)
    return make_chats(np.concatenate(tokens).astype(np.int64), np.array(lens), np.array(prompts), VOCAB)


def fake_taps(config: DraftConfig, *, final: bool = False) -> Any:
    """A stand-in for the target: taps that tell the token and its predecessor.

    With `final`, the last tap is a final hidden state from which the head says the chat's next token, most probably.
    """
    _, lm_head = tiny_weights()
    generator = torch.Generator().manual_seed(11)
    taps = len(config.target_layer_ids)
    table = torch.randn(2, VOCAB, taps, HIDDEN, generator=generator)

    def compute(chats: Sequence[np.ndarray]) -> list[Tensor]:
        result = []
        for tokens in chats:
            now = torch.from_numpy(tokens)
            before = torch.cat([now[:1], now[:-1]])
            tapped = table[0, now] + table[1, before]
            following = torch.cat([now[1:], now[-1:]])
            result.append(torch.cat([tapped, 0.3 * lm_head[following, None]], dim=1) if final else tapped)
        return result

    return compute


def tiny_trainer(
    folder: Path,
    *,
    config: DraftConfig | None = None,
    resume: bool = False,
    distribution: Distribution | None = None,
    **settings: Any,
) -> Trainer:
    """A trainer over the toy world; 10 chats to train on, 2 held out."""
    chats, config = tiny_chats(), config or tiny_config()
    embedding, lm_head = tiny_weights()
    taps = TapStore(None, chats, fake_taps(config, final=settings.get("loss") == "kl"))
    values: dict[str, Any] = {
        "steps": 12,
        "chats_per_batch": 3,
        "anchors_per_chat": 5,
        "learning_rate": 3e-3,
        "train_vocab": 40,
        "train_vocab_sampled": 8,
        "validate_every": 5,
        "save_every": 4,
        "logit_chunk_rows": 16,
    }
    return Trainer(
        config,
        TrainSettings(**{**values, **settings}),
        chats,
        taps,
        embedding,
        lm_head,
        folder,
        training=range(10),
        held_out=[10, 11],
        resume=resume,
        distribution=distribution,
    )
