"""Trains a drafter: AdamW, warm-up and cosine, periodic validation, checkpoints to resume from and to decode with."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from dflash_decoding.config import DraftConfig

from .data import BatchPlan, Chats
from .distribution import Distribution, whole
from .loss import TrainingHead, default_gamma, position_weights
from .model import BlockPredictor, TrainableDrafter, block_shape
from .run_log import RunLog
from .state import STATE_FILE, load_state, save_state
from .step import CROSS_ENTROPY, LOSSES, batch_loss, plan_step
from .validation import Acceptance, TapSource, validate, validation_batches
from .warm_start import TargetParts, copy_drafter, copy_target_layers

CHECKPOINT_FOLDER = "checkpoint"
# Settings a run may change when it is resumed: they decide what is written when, not what is computed.
_FREE_SETTINGS = ("validate_every", "save_every", "logit_chunk_rows")
_LATER_SETTINGS = ("accumulate", "loss", "autocast", "init_drafter")


@dataclass(frozen=True)
class TrainSettings:
    """How to train. The defaults are the paper's where it names a value (learning rate, warm-up, clip, gamma).

    Attributes:
        steps: optimizer steps in all; the cosine ends there.
        accumulate: batches per step, one after the other; the same as so many times `chats_per_batch`, in less memory.
        loss: "ce": cross-entropy with the target's answer; "kl": KL divergence from the target's distribution.
        gamma: decay of the row weights; None takes the paper's value for the block size.
        train_vocab: loss over this many frequent ids, the batch's targets and `train_vocab_sampled` others; 0: all ids.
        init_layers: target layers that the draft layers start as copies of (`warm_start`); None: random weights.
        init_drafter: folder or hub id of a trained drafter to go on from, of the same shape; its block may be larger or
            smaller.
        logit_chunk_rows: rows whose logits exist at a time.
        autocast: matrix products, attention and activations in bfloat16; weights and optimizer stay float32.
        validate_every, save_every: steps between validations (each also writes the checkpoint) and saved states.
    """

    steps: int
    chats_per_batch: int = 4
    accumulate: int = 1
    anchors_per_chat: int = 32
    loss: str = CROSS_ENTROPY
    learning_rate: float = 6e-4
    warmup: float = 0.04
    clip: float = 1.0
    weight_decay: float = 0.01
    gamma: float | None = None
    train_vocab: int = 0
    train_vocab_sampled: int = 1024
    init_layers: tuple[int, ...] | None = None
    init_drafter: str | None = None
    seed: int = 0
    validate_every: int = 200
    save_every: int = 100
    validation_anchors: int = 8
    logit_chunk_rows: int = 512
    autocast: bool = False

    def __post_init__(self) -> None:
        for name in ("steps", "validate_every", "save_every", "validation_anchors", "logit_chunk_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        for name in ("learning_rate", "clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: expected a positive number, got {getattr(self, name)}")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup: expected a share of the steps in [0, 1), got {self.warmup}")
        if self.loss not in LOSSES:
            raise ValueError(f"loss: expected {' or '.join(LOSSES)}, got {self.loss}")
        if self.init_layers is not None and self.init_drafter is not None:
            raise ValueError("init_drafter: expected it or init_layers, got both")

    def rate(self, step: int) -> float:
        """Learning rate of 0-based `step`: linear warm-up, then half a cosine down to 0."""
        warm = round(self.warmup * self.steps)
        if step < warm:
            return self.learning_rate * (step + 1) / warm
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, self.steps - warm)))


def _later_settings() -> dict[str, Any]:
    """Settings that came after the first states had been written, as those states' runs had them."""
    return {field.name: field.default for field in fields(TrainSettings) if field.name in _LATER_SETTINGS}


class Trainer:
    """One training run in one folder.

    The folder holds `state.safetensors` (to resume), `checkpoint/` (the drafter so far, in the DFlash layout, usable at
    any time), `train.csv` and `validation.csv`.

    Args:
        embedding, lm_head: [V, H] of the target, frozen.
        target: what `settings.init_layers` starts from; needed with that only.
        taps: `TapStore` of the chats; for the KL loss with the target's final hidden state as the last tap.
        make_model: (config, embedding, max_positions=, autocast=) -> the model; a DFlash drafter unless it is a baseline.
        training, held_out: chat indices.
        resume: go on from the folder's state if there is one.
        distribution: the processes that train together, each with a `Trainer` of the same arguments; default: one.

    Raises:
        ValueError: the folder holds another run (or a run, without `resume`), or settings do not fit the data.
    """

    def __init__(
        self,
        config: DraftConfig,
        settings: TrainSettings,
        chats: Chats,
        taps: TapSource,
        embedding: Tensor,
        lm_head: Tensor,
        folder: str | Path,
        *,
        training: Sequence[int],
        held_out: Sequence[int],
        target: TargetParts | None = None,
        make_model: Callable[..., BlockPredictor] = TrainableDrafter,
        resume: bool = False,
        distribution: Distribution | None = None,
    ) -> None:
        self.distribution = Distribution() if distribution is None else distribution
        self.config = config
        self.settings = settings
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        if not resume and (self.folder / STATE_FILE).is_file():
            raise ValueError(
                f"folder: expected an empty folder, got the run in {self.folder}; resume it or choose another"
            )
        shape = block_shape(config)
        if settings.chats_per_batch < self.distribution.size:
            raise ValueError(
                f"chats_per_batch: expected at least one per process ({self.distribution.size}), got "
                f"{settings.chats_per_batch}"
            )
        self.plan = BatchPlan(
            chats,
            training,
            shape,
            settings.chats_per_batch,
            settings.anchors_per_chat,
            settings.seed,
            settings.accumulate,
        )
        longest = max(chats.length(index) for index in (*training, *held_out))
        self.model = make_model(
            config, embedding, max_positions=longest + config.block_size, autocast=settings.autocast
        )
        self._taps = taps
        self._lm_head = lm_head.detach().to(torch.bfloat16 if settings.autocast else torch.float32)
        self.model.initialize(lm_head, settings.seed)
        self._warm_start(target)
        counts = chats.answer_counts(training, config.vocab_size)
        self._head = TrainingHead(
            self._lm_head, counts, settings.train_vocab, settings.train_vocab_sampled, settings.seed
        )
        gamma = default_gamma(config.block_size) if settings.gamma is None else settings.gamma
        self._row_weights = position_weights(shape.predictions, gamma)
        self._validation = validation_batches(chats, held_out, shape, settings.validation_anchors)
        self._module = self.distribution.wrap(self.model)
        self._optimizer = self._make_optimizer()
        self._identity = self._make_identity(chats, training, held_out)
        self.step = load_state(self.folder, self.model, self._optimizer, self._identity, _later_settings()) or 0

    def _warm_start(self, target: TargetParts | None) -> None:
        settings = self.settings
        asked = "init_layers" if settings.init_layers is not None else "init_drafter"
        if getattr(settings, asked) is None:
            return
        if not isinstance(self.model, TrainableDrafter):
            raise ValueError(f"{asked}: expected none for a {type(self.model).__name__}, which has no such layers")
        if settings.init_drafter is not None:
            copy_drafter(self.model, settings.init_drafter)
            return
        if target is None:
            raise ValueError("target: expected the parts that init_layers starts from, got none")
        assert settings.init_layers is not None
        copy_target_layers(self.model, target, settings.init_layers)

    def _make_optimizer(self) -> torch.optim.AdamW:
        matrices = [p for p in self.model.parameters() if p.ndim == 2]
        vectors = [p for p in self.model.parameters() if p.ndim != 2]
        groups = [
            {"params": matrices, "weight_decay": self.settings.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=self.settings.learning_rate, betas=(0.9, 0.95))

    def _make_identity(self, chats: Chats, training: Sequence[int], held_out: Sequence[int]) -> dict[str, Any]:
        settings = {key: value for key, value in asdict(self.settings).items() if key not in _FREE_SETTINGS}
        data = {"chats": chats.fingerprint(), "training": len(training), "held_out": len(held_out)}
        return {**settings, **data, "config": self.model.checkpoint_config()}

    def run(self, *, stop_at: int | None = None, progress: bool = True) -> Acceptance:
        """Trains up to `stop_at` (default: all steps) and returns the last validation.

        The state is saved every `save_every` steps and at the end. An interrupt saves nothing: it may have come in the
        middle of an update, and half an update is no state to go on from.
        """
        end = self.settings.steps if stop_at is None else min(stop_at, self.settings.steps)
        is_main = self.distribution.is_main
        with RunLog(self.folder, self._row_weights.numel(), self.step, write=is_main) as log:
            bar = tqdm(total=self.settings.steps, initial=self.step, unit="step", disable=not (progress and is_main))
            result: Acceptance | None = None
            with bar:
                while self.step < end:
                    loss, norm, rate = self._train_step(self.step)
                    self.step += 1
                    log.step(self.step, loss, self.settings.rate(self.step - 1), norm, rate)
                    bar.update()
                    tau = f"{result.tau:.3f}" if result else "-"
                    bar.set_postfix(loss=f"{loss:.3f}", tau=tau, rows=f"{rate:.0f}/s")
                    if self.step % self.settings.validate_every == 0 and self.step < end:
                        result = self._validate(log)
                    if self.step % self.settings.save_every == 0 and self.step < end:
                        self.save()
                result = self._validate(log)
                self.save()
        return result

    def _train_step(self, step: int) -> tuple[float, float, float]:
        """One optimizer step: (loss, gradient norm before clipping, predictions per second of all processes)."""
        start = time.perf_counter()
        for group in self._optimizer.param_groups:
            group["lr"] = self.settings.rate(step)
        processes = self.distribution
        plan = plan_step(self.plan, self._head, self._row_weights, step, processes.rank, processes.size)
        self._optimizer.zero_grad(set_to_none=True)
        loss = torch.zeros(())
        for index in range(len(plan.batches)):
            with processes.exchange(self._module, now=index == len(plan.batches) - 1):
                part = batch_loss(
                    plan,
                    index,
                    self._module,
                    self._taps,
                    self._row_weights,
                    num_taps=self.model.num_taps,
                    loss=self.settings.loss,
                    chunk_rows=self.settings.logit_chunk_rows,
                )
                (part * processes.gradient_scale).backward()
            loss += part.detach()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip, error_if_nonfinite=True)
        self._optimizer.step()
        return float(processes.sum(loss)), float(whole(norm)), plan.predictions / (time.perf_counter() - start)

    def _validate(self, log: RunLog) -> Acceptance:
        """Measures acceptance on the held-out chats and writes the checkpoint of this moment.

        Every process measures all of them: with sharded weights all must take part in every forward.
        """
        result = validate(self.model, self._lm_head, self._validation, self._taps)
        log.validation(self.step, result.tau, result.prefix)
        self.export()
        return result

    def save(self) -> None:
        """Writes the state to resume from; all processes must call, the main one writes."""
        write = self.distribution.is_main
        save_state(self.folder, self.model, self._optimizer, self.step, self._identity, write=write)

    def export(self) -> Path:
        """Writes the drafter as a bfloat16 checkpoint; returns its folder. As for `save`, all must call."""
        folder = self.folder / CHECKPOINT_FOLDER
        weights = {name: whole(weight) for name, weight in self.model.checkpoint_weights().items()}
        if self.distribution.is_main:
            self.model.save(folder, weights)
        return folder
