"""Trains a block-diffusion model: AdamW, warm-up and cosine, validation, a state to resume from."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

import dflash_ops
from dflash_decoding.training.data import Chats
from dflash_decoding.training.loss import TrainingHead, chunked_cross_entropy
from dflash_decoding.training.run_log import CsvLog
from dflash_decoding.training.state import STATE_FILE, load_state, save_state
from dflash_decoding.training.trainer import CHECKPOINT_FOLDER, TrainSettings

from .batches import NoisyBatch, noisy_batch
from .config import BlockDiffusionConfig
from .model import BlockDiffusionModel, training_attention

# Settings a run may change when it is resumed: they decide what is written when, not what is computed.
_FREE_SETTINGS = ("validate_every", "save_every", "logit_chunk_rows")


@dataclass(frozen=True)
class BlockTrainSettings:
    """How to train.

    Attributes:
        steps: optimizer steps in all; the cosine ends there.
        copies: noisy copies of each block per step; the clean rows serve them all.
        max_weight: clips the loss weights m / n (see `noisy_batch`).
        train_vocab, train_vocab_sampled: the loss runs over this many frequent ids, the targets and a sample of the
            others (`TrainingHead`); 0: over all.
        autocast: matrix products and attention in bfloat16; weights and optimizer stay float32.
    """

    steps: int
    chats_per_batch: int = 4
    copies: int = 2
    learning_rate: float = 6e-4
    warmup: float = 0.04
    clip: float = 1.0
    weight_decay: float = 0.01
    max_weight: float = 4.0
    train_vocab: int = 0
    train_vocab_sampled: int = 1024
    seed: int = 0
    validate_every: int = 200
    save_every: int = 100
    logit_chunk_rows: int = 512
    autocast: bool = False

    def __post_init__(self) -> None:
        for name in ("steps", "chats_per_batch", "copies", "validate_every", "save_every", "logit_chunk_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.max_weight < 1:
            raise ValueError(f"max_weight: expected at least 1, got {self.max_weight}")
        self.schedule()

    def schedule(self) -> TrainSettings:
        """The drafter training's learning rates over steps; checks what it is made of."""
        return TrainSettings(steps=self.steps, learning_rate=self.learning_rate, warmup=self.warmup, clip=self.clip)


@dataclass(frozen=True)
class Validation:
    """On held-out chats, under noise that is the same each time.

    Attributes:
        loss: cross-entropy per masked token at random mask ratios, weighted as in training.
        agreement: share of tokens right when a block's answer tokens are all masked: one denoising step.
    """

    loss: float
    agreement: float


class BlockDiffusionTrainer:
    """One training run in one folder: `state.safetensors`, `checkpoint/`, `train.csv`, `validation.csv`.

    Args:
        model: where training starts; float32.
        training, held_out: chat indices.
        resume: go on from the folder's state if there is one.

    Raises:
        ValueError: the folder holds another run (or a run, without `resume`), the chats use the mask token, or there are
            fewer chats than a batch takes.
    """

    def __init__(
        self,
        model: BlockDiffusionModel,
        settings: BlockTrainSettings,
        chats: Chats,
        folder: str | Path,
        *,
        training: Sequence[int],
        held_out: Sequence[int],
        resume: bool = False,
    ) -> None:
        config = model.config
        self.model, self.config, self.settings = model, config, settings
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        if not resume and (self.folder / STATE_FILE).is_file():
            raise ValueError(
                f"folder: expected an empty folder, got the run in {self.folder}; resume it or choose another"
            )
        if (chats.tokens == config.mask_token_id).any():
            raise ValueError(f"mask_token_id: expected an id the chats never use, got {config.mask_token_id}")
        self._chats = chats
        self._training = [index for index in training if _learnable(chats, index, config)]
        self._held_out = [index for index in held_out if _learnable(chats, index, config)]
        if settings.chats_per_batch > len(self._training):
            raise ValueError(
                f"chats_per_batch: expected at most {len(self._training)} (chats to train on), got "
                f"{settings.chats_per_batch}"
            )
        self._schedule = settings.schedule()
        dtype = torch.bfloat16 if settings.autocast else torch.float32
        self._lm_head = model.lm_head.to(dtype)
        self._head = TrainingHead(
            self._lm_head,
            chats.answer_counts(self._training, config.vocab_size),
            settings.train_vocab,
            settings.train_vocab_sampled,
            settings.seed,
        )
        matrices = [p for p in model.parameters() if p.ndim == 2]
        vectors = [p for p in model.parameters() if p.ndim != 2]
        self._optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
            lr=settings.learning_rate,
            betas=(0.9, 0.95),
        )
        kept = {key: value for key, value in asdict(settings).items() if key not in _FREE_SETTINGS}
        data = {"chats": chats.fingerprint(), "training": len(training), "held_out": len(held_out)}
        self._identity: dict[str, Any] = {**kept, **data, "config": config.to_dict()}
        self.step = load_state(self.folder, model, self._optimizer, self._identity, {}) or 0

    def batch(self, step: int) -> NoisyBatch:
        """The batch of 0-based `step`: each epoch visits all chats in a new order under new noise."""
        size, seed = self.settings.chats_per_batch, self.settings.seed
        epoch, place = divmod(step, len(self._training) // size)
        order = np.random.default_rng((seed, epoch)).permutation(len(self._training))
        chosen = [self._training[at] for at in order[place * size : (place + 1) * size]]
        generators = [np.random.default_rng((seed, epoch, index)) for index in chosen]
        return noisy_batch(
            self._chats,
            chosen,
            self.config,
            generators,
            copies=self.settings.copies,
            max_weight=self.settings.max_weight,
        )

    def hidden_rows(self, batch: NoisyBatch) -> Tensor:
        """What the head reads in the masked rows, [M, H] in the head's dtype."""
        attend = training_attention(self.config, batch.anchors, batch.cu_seqlens)
        with torch.autocast(self._lm_head.device.type, torch.bfloat16, enabled=self.settings.autocast):
            rows = self.model(batch.input_ids, batch.positions, attend)
        clean = batch.input_ids.numel() - batch.anchors.numel() * self.config.block_size
        return rows[clean + batch.masked].to(self._lm_head.dtype)

    def loss(self, batch: NoisyBatch, step: int) -> Tensor:
        """The training loss of one batch: float32 scalar."""
        weight, bias, targets = self._head.select(batch.targets, step)
        return chunked_cross_entropy(
            self.hidden_rows(batch),
            weight,
            targets,
            batch.weights,
            bias=bias,
            chunk_rows=self.settings.logit_chunk_rows,
        )

    def run(self, *, stop_at: int | None = None, progress: bool = True) -> Validation:
        """Trains up to `stop_at` (default: all steps), saving as it goes, and returns the last validation."""
        end = self.settings.steps if stop_at is None else min(stop_at, self.settings.steps)
        log = CsvLog(
            self.folder / "train.csv",
            ("step", "loss", "learning_rate", "gradient_norm", "predictions_per_s"),
            self.step,
        )
        results = CsvLog(self.folder / "validation.csv", ("step", "loss", "agreement"), self.step)
        bar = tqdm(total=self.settings.steps, initial=self.step, unit="step", disable=not progress)
        try:
            while self.step < end:
                loss = self._train_step(log)
                bar.update()
                bar.set_postfix(loss=f"{loss:.3f}")
                if self.step % self.settings.validate_every == 0 and self.step < end:
                    self._record(results)
                if self.step % self.settings.save_every == 0 and self.step < end:
                    self.save()
            result = self._record(results)
            self.save()
        finally:
            bar.close()
            log.close()
            results.close()
        return result

    def _train_step(self, log: CsvLog) -> float:
        start = time.perf_counter()
        rate = self._schedule.rate(self.step)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        batch = self.batch(self.step)
        loss = self.loss(batch, self.step)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip, error_if_nonfinite=True)
        self._optimizer.step()
        self.step += 1
        predictions = batch.masked.numel() / (time.perf_counter() - start)
        log.write(self.step, float(loss.detach()), rate, float(norm), predictions)
        return float(loss.detach())

    def _record(self, results: CsvLog) -> Validation:
        result = self.validate()
        results.write(self.step, result.loss, result.agreement)
        self.model.save(self.folder / CHECKPOINT_FOLDER)
        return result

    @torch.no_grad()
    def validate(self, chats_per_batch: int = 8) -> Validation:
        """Measures the held-out chats over the whole vocabulary."""
        losses, weights, right, count = 0.0, 0.0, 0, 0
        for start in range(0, len(self._held_out), chats_per_batch):
            chosen = self._held_out[start : start + chats_per_batch]
            for all_masked in (False, True):
                generators = [np.random.default_rng(index) for index in chosen]
                batch = noisy_batch(
                    self._chats,
                    chosen,
                    self.config,
                    generators,
                    max_weight=self.settings.max_weight,
                    all_masked=all_masked,
                )
                rows = self.hidden_rows(batch)
                if all_masked:
                    found, _ = dflash_ops.lm_head_argmax(rows, self._lm_head)
                    right += int((found == batch.targets).sum())
                    count += batch.targets.numel()
                else:
                    weight = float(batch.weights.sum())
                    losses += weight * float(chunked_cross_entropy(rows, self._lm_head, batch.targets, batch.weights))
                    weights += weight
        return Validation(losses / max(weights, 1.0), right / max(count, 1))

    def save(self) -> None:
        """Writes the state to resume from."""
        save_state(self.folder, self.model, self._optimizer, self.step, self._identity)


def _learnable(chats: Chats, index: int, config: BlockDiffusionConfig) -> bool:
    """Does the chat have an answer token within its whole blocks? A short answer that was cut off may have none."""
    ends = chats.chat(index)[-1] == config.end_token_id
    return bool(ends) or chats.length(index) // config.block_size * config.block_size > chats.prompt_lens[index]
