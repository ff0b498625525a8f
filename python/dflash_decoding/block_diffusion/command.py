"""`python -m dflash_decoding block-diffusion train | generate`."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import MISSING, fields
from pathlib import Path

import torch

from dflash_decoding.models import DEFAULT_MODEL
from dflash_decoding.target import Target
from dflash_decoding.text import encode_prompt
from dflash_decoding.training.command import DEFAULT_CHATS, SMOLLM2_MASK_TOKEN_ID
from dflash_decoding.training.data import load_chats, split_chats
from dflash_decoding.training.trainer import CHECKPOINT_FOLDER
from dflash_decoding.training.warm_start import target_parts

from .config import BlockDiffusionConfig
from .decoder import BlockDiffusionDecoder
from .model import BlockDiffusionModel
from .training import BlockDiffusionTrainer, BlockTrainSettings

_SETTING_HELP = {
    "steps": "optimizer steps",
    "chats_per_batch": "chats packed into one step",
    "copies": "noisy copies of each block per step",
    "learning_rate": "peak learning rate of AdamW",
    "warmup": "share of the steps that warm up",
    "clip": "largest gradient norm",
    "weight_decay": "weight decay of matrices",
    "max_weight": "clips the loss weights 1 / mask ratio",
    "train_vocab": "run the loss over this many frequent ids, the targets and a sample of the rest; 0: all ids",
    "train_vocab_sampled": "size of that sample",
    "seed": "seed of weights, order and noise",
    "validate_every": "steps between validations, each of which also writes the checkpoint",
    "save_every": "steps between saved states",
    "logit_chunk_rows": "rows whose logits exist at a time",
    "autocast": "compute in bfloat16, keep weights and optimizer in float32",
}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def add_commands(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    """Options of both commands; those of `BlockTrainSettings` bear its names."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    train = actions.add_parser("train", parents=[common], help="train a model (docs/block_diffusion.md)")
    train.add_argument("--output", required=True, type=Path, metavar="FOLDER", help="folder of the run")
    train.add_argument("--resume", action="store_true", help="go on from the state in the folder, if there is one")
    train.add_argument("--target", default=DEFAULT_MODEL, help="whose layers, embedding and head to use")
    train.add_argument("--chats", type=Path, default=DEFAULT_CHATS, metavar="FILE", help=f"default {DEFAULT_CHATS}")
    train.add_argument("--held-out", type=int, default=64, metavar="N", help="chats for validation (default 64)")
    train.add_argument("--limit", type=int, metavar="N", help="train on N chats only")
    train.add_argument(
        "--layers", required=True, metavar="I,J,..", help="target layers that the model's layers start as copies of"
    )
    train.add_argument("--block-size", type=int, default=8, help="tokens per block (default 8)")
    train.add_argument("--mask-token-id", type=int, default=SMOLLM2_MASK_TOKEN_ID, help="an id the chats never use")
    for field in fields(BlockTrainSettings):
        option, text = "--" + field.name.replace("_", "-"), _SETTING_HELP[field.name]
        if field.type == "bool":
            train.add_argument(option, action="store_true", help=text)
        elif field.default is MISSING:
            train.add_argument(option, type=int, required=True, help=text)
        else:
            kind = {"int": int, "float": float}[str(field.type)]
            train.add_argument(option, type=kind, default=field.default, help=f"{text} (default {field.default})")
    train.set_defaults(run=_train)

    generate = actions.add_parser("generate", parents=[common], help="continue a prompt")
    generate.add_argument("--model", required=True, type=Path, metavar="FOLDER", help="checkpoint folder of a run")
    generate.add_argument("--target", default=DEFAULT_MODEL, help="whose embedding, head and tokenizer to use")
    generate.add_argument("--prompt", required=True, help="what to say to the model")
    generate.add_argument("--raw", action="store_true", help="continue the text itself, without the chat template")
    generate.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="default 128")
    generate.add_argument("--steps", type=int, help="denoising steps per block (default: the block size)")
    generate.add_argument("--dtype", choices=_DTYPES, default="float32", help="default float32")
    generate.set_defaults(run=_generate)


def target_config(target: Target, layers: int, block_size: int, mask_token_id: int) -> BlockDiffusionConfig:
    """A model of `layers` layers with the widths, heads and rotation of `target`.

    Raises:
        ValueError: the target has no end token, or RoPE of another kind than Llama's first.
    """
    source = target.config
    rope = getattr(source, "rope_parameters", None) or {}
    if not target.eos_token_ids:
        raise ValueError("target: expected a model with an end token, got none")
    if rope.get("rope_type", "default") != "default":
        raise ValueError(f"target: expected rope_type 'default', got {rope['rope_type']!r}")
    heads = source.num_attention_heads
    return BlockDiffusionConfig(
        block_size=block_size,
        mask_token_id=mask_token_id,
        end_token_id=target.eos_token_ids[0],
        hidden_size=target.hidden_size,
        intermediate_size=source.intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=getattr(source, "num_key_value_heads", None) or heads,
        head_dim=getattr(source, "head_dim", None) or target.hidden_size // heads,
        vocab_size=target.vocab_size,
        max_position_embeddings=source.max_position_embeddings,
        rope_theta=rope.get("rope_theta", 10000.0),
        rms_norm_eps=source.rms_norm_eps,
    )


def _train(options: argparse.Namespace) -> int:
    settings = BlockTrainSettings(**{field.name: getattr(options, field.name) for field in fields(BlockTrainSettings)})
    layers = [int(part) for part in options.layers.split(",")]
    target = Target.from_pretrained(options.target, torch.float32)
    config = target_config(target, len(layers), options.block_size, options.mask_token_id)
    model = BlockDiffusionModel(config, target.embed_weight, target.lm_head_weight)
    parts = target_parts(target.model, target.layers)
    model.copy_target_layers(parts.layers, parts.final_norm, layers)
    chats = load_chats(options.chats, target.vocab_size)
    training, held_out = split_chats(chats, options.held_out, settings.seed)
    trainer = BlockDiffusionTrainer(
        model,
        settings,
        chats,
        options.output,
        training=training[: options.limit],
        held_out=held_out,
        resume=options.resume,
    )
    if trainer.step:
        print(f"resuming at step {trainer.step} of {settings.steps}")
    result = trainer.run()
    print(f"held-out chats: loss {result.loss:.3f}, {100 * result.agreement:.1f} % right in one denoising step")
    print(f"model: {options.output / CHECKPOINT_FOLDER}")
    return 0


def _generate(options: argparse.Namespace) -> int:
    target = Target.from_pretrained(options.target, _DTYPES[options.dtype])
    model = BlockDiffusionModel.from_folder(options.model, target.embed_weight, target.lm_head_weight)
    decoder = BlockDiffusionDecoder(model, max_batch=1)
    prompt = encode_prompt(target, options.prompt, raw=options.raw)
    began = time.perf_counter()
    (answer,) = decoder.generate([prompt], max_new_tokens=options.max_new_tokens, steps=options.steps)
    seconds = time.perf_counter() - began
    print(target.tokenizer.decode(answer.token_ids, skip_special_tokens=True))
    tokens = len(answer.token_ids)
    print(f"[{tokens} tokens, {answer.forwards} forwards, {tokens / seconds:.1f} tokens/s]", file=sys.stderr)
    return 0
