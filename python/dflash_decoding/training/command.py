"""`python -m dflash_decoding train`: options, the drafter's default shape, and the run."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import torch

from dflash_decoding.baselines.kinds import DFLASH, KINDS, DrafterKind
from dflash_decoding.config import DraftConfig
from dflash_decoding.config_layouts import FULL, SLIDING, default_target_layer_ids
from dflash_decoding.models import DEFAULT_MODEL
from dflash_decoding.smollm2 import cache_root
from dflash_decoding.target import Target

from .data import Chats, join_chats, load_chats, split_chats
from .distribution import DDP, METHODS, Distribution, distribution
from .step import KL, LOSSES
from .taps import TapStore, tap_folder, target_taps
from .trainer import CHECKPOINT_FOLDER, Trainer, TrainSettings
from .warm_start import target_parts

DEFAULT_CHATS = Path("training_data") / "smollm2_chats.npz"
# <reponame>, a special token that SmolLM2's chats never contain.
SMOLLM2_MASK_TOKEN_ID = 4
NO_CACHE = "none"

_SETTING_HELP = {
    "steps": "optimizer steps",
    "chats_per_batch": "chats packed into one batch",
    "accumulate": "such batches per step, one after the other: the same as larger ones, in less memory",
    "loss": "ce: cross-entropy with the target's answer; kl: KL divergence from the target's whole distribution",
    "anchors_per_chat": "blocks drawn from each chat each time",
    "learning_rate": "peak learning rate of AdamW",
    "warmup": "share of the steps that warm up",
    "clip": "largest gradient norm",
    "weight_decay": "weight decay of matrices",
    "gamma": "decay of the row weights exp(-(k-1)/gamma); default 7, 5, 4 for blocks of 16, 10, 8",
    "train_vocab": "run the loss over this many frequent ids, the targets and a sample of the rest; 0: all ids",
    "train_vocab_sampled": "size of that sample",
    "init_layers": "target layers to start the draft layers from, one each; default: random weights",
    "init_drafter": "folder or hub id of a trained drafter of this shape to go on from; its block size may differ",
    "seed": "seed of weights, order and anchors",
    "validate_every": "steps between validations, each of which also writes the checkpoint",
    "save_every": "steps between saved states",
    "validation_anchors": "blocks measured per held-out chat",
    "logit_chunk_rows": "rows whose logits exist at a time",
    "autocast": "compute in bfloat16, keep weights and optimizer in float32",
}


def _layer_list(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


_CHOICES = {"loss": LOSSES}
# By the annotation of the setting's field.
_OPTION_TYPES: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "float | None": float,
    "str | None": str,
    "tuple[int, ...] | None": _layer_list,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the training command; those of `TrainSettings` bear its names."""
    parser.add_argument("--output", required=True, type=Path, metavar="FOLDER", help="folder of the run")
    parser.add_argument("--resume", action="store_true", help="go on from the state in the folder, if there is one")
    parser.add_argument("--target", default=DEFAULT_MODEL, help="'smollm2', a local folder or a hub id")
    parser.add_argument("--chats", type=Path, default=DEFAULT_CHATS, metavar="FILE", help=f"default {DEFAULT_CHATS}")
    parser.add_argument(
        "--more-chats",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="chats to train on beside those; none of them is held out",
    )
    parser.add_argument("--held-out", type=int, default=64, metavar="N", help="chats for validation (default 64)")
    parser.add_argument("--limit", type=int, metavar="N", help="train on N chats only")
    parser.add_argument(
        "--tap-cache",
        metavar="FOLDER",
        help=f"where tapped hidden states are kept between epochs and runs; '{NO_CACHE}' computes them anew each time "
        "(default: the cache folder of this package)",
    )
    parser.add_argument(
        "--tap-cache-limit",
        type=float,
        metavar="GB",
        help="keep no more than this much of them; the rest is computed anew each time (default: no limit)",
    )
    parser.add_argument(
        "--parallel",
        choices=METHODS,
        default=DDP,
        help="under torchrun: ddp (default) keeps the whole drafter in every process, fsdp2 a share of it",
    )
    shape = parser.add_argument_group("the drafter")
    shape.add_argument("--drafter", choices=KINDS, default=DFLASH, help=f"kind of drafter (default {DFLASH})")
    shape.add_argument("--layers", type=int, help="draft layers (default 2; an autoregressive drafter has 1)")
    shape.add_argument("--block-size", type=int, default=8, help="rows per block (default 8)")
    shape.add_argument("--intermediate-size", type=int, help="width of the MLP (default: the target's)")
    shape.add_argument("--tap-layers", type=_layer_list, metavar="I,J,..", help="default: 5 spread over the target")
    shape.add_argument("--mask-token-id", type=int, help="an id the chats never use (default 4 for smollm2)")
    shape.add_argument("--sliding-window", type=int, metavar="W", help="all layers but the last see W positions only")
    settings = parser.add_argument_group("training")
    for field in fields(TrainSettings):
        option = "--" + field.name.replace("_", "-")
        if field.type == "bool":
            settings.add_argument(option, action="store_true", help=_SETTING_HELP[field.name])
            continue
        kind = _OPTION_TYPES[str(field.type)]
        if field.default is MISSING:
            settings.add_argument(option, type=kind, required=True, help=_SETTING_HELP[field.name])
        else:
            shown = "" if field.default is None else f" (default {field.default})"
            settings.add_argument(
                option,
                type=kind,
                default=field.default,
                choices=_CHOICES.get(field.name),
                help=_SETTING_HELP[field.name] + shown,
            )


def run(arguments: argparse.Namespace) -> int:
    """Trains as the options say and prints the held-out acceptance; under torchrun, as one process of several.

    Raises:
        ValueError, OSError: an option, a file or a model is not usable.
    """
    with distribution(arguments.parallel) as processes:
        return _run(arguments, processes)


def _run(arguments: argparse.Namespace, processes: Distribution) -> int:
    settings = TrainSettings(**{field.name: getattr(arguments, field.name) for field in fields(TrainSettings)})
    target = Target.from_pretrained(arguments.target, torch.bfloat16 if settings.autocast else torch.float32)
    first, *more = (load_chats(path, target.vocab_size) for path in (arguments.chats, *arguments.more_chats))
    chats = join_chats([first, *more])
    kind = KINDS[arguments.drafter]
    config = draft_config(target, arguments, kind)
    _check_mask_token(chats, config.mask_token_id)
    training, held_out = split_chats(first, arguments.held_out, settings.seed)
    training += range(len(first), len(chats))
    if arguments.limit is not None:
        training = training[: arguments.limit]
    final = settings.loss == KL
    tap_layers = config.target_layer_ids if kind.reads_taps else ()
    reads_target = kind.reads_taps or final
    folder: Path | None = None
    if arguments.tap_cache != NO_CACHE and reads_target:
        root = cache_root() if arguments.tap_cache is None else Path(arguments.tap_cache)
        folder = tap_folder(root, str(arguments.target), tap_layers, target.dtype, final=final)
    limit = arguments.tap_cache_limit
    store = TapStore(
        folder,
        chats,
        target_taps(target, tap_layers, final=final),
        max_bytes=None if limit is None else round(limit * 1e9),
        writers=processes.size,
    )
    trainer = Trainer(
        config,
        settings,
        chats,
        kind.taps(store if reads_target else None, chats, target.embed_weight, config.input_embedding_scale),
        target.embed_weight,
        target.lm_head_weight,
        arguments.output,
        training=training,
        held_out=held_out,
        target=None if settings.init_layers is None else target_parts(target.model, target.layers),
        make_model=kind.make_model(target),
        resume=arguments.resume,
        distribution=processes,
    )
    if trainer.step and processes.is_main:
        print(f"resuming at step {trainer.step} of {settings.steps}")
    result = trainer.run()
    if not processes.is_main:
        return 0
    print(f"held-out chats: tau {result.tau:.3f} over {result.blocks} blocks")
    print("share of blocks with the first k drafts right: " + " ".join(f"{share:.3f}" for share in result.prefix))
    print(f"drafter: {arguments.output / CHECKPOINT_FOLDER}")
    return 0


def draft_config(target: Target, arguments: argparse.Namespace, kind: DrafterKind) -> DraftConfig:
    """The drafter asked for: heads, widths and RoPE base as the target's, unless an option says otherwise."""
    source = target.config
    layers = _fixed_or_asked("--layers", kind.layers, arguments.layers) or 2
    fixed_taps = None if kind.tap_layers is None else kind.tap_layers(target.num_layers)
    taps = _fixed_or_asked("--tap-layers", fixed_taps, arguments.tap_layers)
    mask_token_id = arguments.mask_token_id
    if mask_token_id is None:
        if arguments.target != DEFAULT_MODEL:
            raise ValueError("--mask-token-id: expected an id for this target, got none")
        mask_token_id = SMOLLM2_MASK_TOKEN_ID
    window = arguments.sliding_window
    layer_types = (FULL,) * layers if window is None else (SLIDING,) * (layers - 1) + (FULL,)
    heads = source.num_attention_heads
    rope: dict[str, Any] = getattr(source, "rope_parameters", None) or {}
    return DraftConfig(
        block_size=arguments.block_size,
        mask_token_id=mask_token_id,
        hidden_size=target.hidden_size,
        intermediate_size=arguments.intermediate_size or source.intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=getattr(source, "num_key_value_heads", None) or heads,
        head_dim=getattr(source, "head_dim", None) or target.hidden_size // heads,
        vocab_size=target.vocab_size,
        target_layer_ids=taps or default_target_layer_ids(target.num_layers, 5),
        layer_types=layer_types,
        rope_parameters={"rope_type": "default", "rope_theta": rope.get("rope_theta", 10000.0)},
        max_position_embeddings=source.max_position_embeddings,
        sliding_window=window,
        rms_norm_eps=getattr(source, "rms_norm_eps", 1e-6),
        num_target_layers=target.num_layers,
    )


def _fixed_or_asked(option: str, fixed: Any, asked: Any) -> Any:
    """What the kind of drafter fixes, else what is asked for; None for neither."""
    if fixed is not None and asked is not None and asked != fixed:
        raise ValueError(f"{option}: expected {fixed} for this kind of drafter, got {asked}")
    return asked if fixed is None else fixed


def _check_mask_token(chats: Chats, mask_token_id: int) -> None:
    uses = int((chats.tokens == mask_token_id).sum())
    if uses:
        raise ValueError(f"--mask-token-id: expected an id the chats never use, got {mask_token_id} ({uses} uses)")
