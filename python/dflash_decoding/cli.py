"""Command line: `python -m dflash_decoding generate | make-data | train | block-diffusion | bench | info`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import dflash_ops

from .adaptive import AdaptiveOptions
from .baselines.kinds import LoadedDrafter, load_drafter
from .block_diffusion import command as block_diffusion_command
from .decoder import DFlashDecoder
from .draft_context import arguments as draft_context_arguments
from .models import DEFAULT_MODEL, resolve_drafter
from .request import Generation
from .sampling import SamplingParams
from .speedup import Speedup
from .target import Target
from .text import encode_prompt
from .training import command as train_command
from .training import make_data_command

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NO_DRAFTER = "none"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status: 0, 2 for unusable arguments or files, 130 when interrupted."""
    parser = _parser()
    options, unknown = parser.parse_known_args(arguments)
    if options.command == "bench":
        options.benchmark_options = unknown
    elif unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if options.threads is not None:
        if options.threads < 1:
            parser.error(f"--threads: expected at least 1, got {options.threads}")
        torch.set_num_threads(options.threads)
    try:
        status: int = options.run(options)
    except (ValueError, OSError) as error:
        print(f"dflash_decoding {options.command}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dflash_decoding", description="DFlash speculative decoding.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: torch's choice)")

    generate = commands.add_parser("generate", parents=[common], help="continue a prompt, streaming the text")
    _add_models(generate)
    text = generate.add_mutually_exclusive_group()
    text.add_argument("--prompt", help="what to say to the model (default: read from standard input)")
    text.add_argument("--prompt-file", type=Path, metavar="FILE", help="read the prompt from a UTF-8 file")
    generate.add_argument("--raw", action="store_true", help="continue the text itself, without the chat template")
    generate.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="default 128")
    generate.add_argument("--block-size", type=int, metavar="B", help="rows per draft block (default: as trained)")
    generate.add_argument(
        "--denoising-steps", type=int, default=1, metavar="N", help="forwards per block of a DFlash drafter (default 1)"
    )
    draft_context_arguments.add_arguments(generate)
    generate.add_argument(
        "--adaptive",
        action="store_true",
        help="choose block size and budget while decoding, and decode plainly where drafting loses",
    )
    generate.add_argument("--temperature", type=float, default=0.0, help="0 (default) is greedy")
    generate.add_argument("--top-k", type=int, default=0, help="0 (default) is off")
    generate.add_argument("--top-p", type=float, default=1.0, help="1 (default) is off")
    generate.add_argument("--seed", type=int, help="seed of sampling (default: a fresh one)")
    generate.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before this text; repeatable"
    )
    generate.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object instead: text, token ids, tau, acceptance histogram, times, and eta against plain "
        "autoregressive decoding of the same prompt, which is run too",
    )
    generate.set_defaults(run=_generate)

    make_data = commands.add_parser(
        "make-data", parents=[common], help="have a target answer prompts, to train on (docs/training.md)"
    )
    make_data_command.add_arguments(make_data)
    make_data.add_argument("--dtype", choices=DTYPES, default="float32", help="of the target (default float32)")
    make_data.set_defaults(run=lambda options: make_data_command.run(options, DTYPES[options.dtype]))

    train = commands.add_parser("train", parents=[common], help="train a drafter (docs/training.md)")
    train_command.add_arguments(train)
    train.set_defaults(run=train_command.run)

    block_diffusion = commands.add_parser("block-diffusion", help="train and run stand-alone block diffusion")
    block_diffusion_command.add_commands(block_diffusion, common)

    # Without help of its own: --help, like every option but --threads, goes to benchmarks/decode.py.
    bench = commands.add_parser("bench", parents=[common], help="measure decoding (in a checkout)", add_help=False)
    bench.set_defaults(run=_bench)

    info = commands.add_parser("info", parents=[common], help="say what is installed and which models would be used")
    _add_models(info)
    info.add_argument("--json", action="store_true", help="print one JSON object instead")
    info.set_defaults(run=_info)
    return parser


def _add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default=DEFAULT_MODEL, help="'smollm2' (default), a local folder or a hub id")
    parser.add_argument(
        "--drafter",
        help=f"'smollm2', a local folder, a hub id, or '{NO_DRAFTER}' for plain decoding (default: the bundled one)",
    )
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of both models (default float32)")


def load_models(
    target_name: str, drafter_name: str | None, dtype: torch.dtype, denoising_steps: int = 1
) -> tuple[Target, LoadedDrafter | None]:
    """Target and drafter by name; no drafter for the name "none".

    Raises:
        ValueError: no drafter named for a target that has none bundled, or files that do not fit.
        OSError: a model that cannot be found.
    """
    if drafter_name is None:
        if target_name != DEFAULT_MODEL:
            raise ValueError(f"--drafter: expected a drafter for this target, or '{NO_DRAFTER}', got none")
        drafter_name = DEFAULT_MODEL
    target = Target.from_pretrained(target_name, dtype)
    if drafter_name == NO_DRAFTER:
        return target, None
    return target, load_drafter(resolve_drafter(drafter_name).path, target, dtype, denoising_steps)


def _read_prompt(options: argparse.Namespace) -> str:
    if options.prompt is not None:
        text = options.prompt
    elif options.prompt_file is not None:
        try:
            text = options.prompt_file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"--prompt-file: expected UTF-8 text in {options.prompt_file}, got: {error}") from error
    else:
        text = sys.stdin.read()
    if not text.strip():
        raise ValueError("prompt: expected some text, got none")
    return text


def _generate(options: argparse.Namespace) -> int:
    text = _read_prompt(options)
    sampling = SamplingParams(options.temperature, options.top_k, options.top_p, options.seed).seeded()
    target, drafter = load_models(options.target, options.drafter, DTYPES[options.dtype], options.denoising_steps)
    decoder = DFlashDecoder(
        target,
        drafter,
        max_batch=1,
        draft_context=draft_context_arguments.policy(options),
        adaptive=AdaptiveOptions() if options.adaptive else None,
    )
    prompt = encode_prompt(target, text, raw=options.raw)
    limits: dict[str, Any] = {
        "max_new_tokens": options.max_new_tokens,
        "sampling": sampling,
        "stop_strings": options.stop,
    }
    events = decoder.stream(prompt, block_size=options.block_size, **limits)
    generation: Generation | None = None
    for event in events:
        generation = event.generation or generation
        if not options.json:
            print(event.text, end="", flush=True)
    assert generation is not None
    if options.json:
        plain = decoder.generate_autoregressive([prompt], **limits)
        numbers = {**generation.stats.to_dict(), **Speedup.of(generation.stats, plain.stats).to_dict()}
        numbers["autoregressive"] = plain.stats.to_dict()
        answer = {
            "text": generation.text,
            "token_ids": list(generation.token_ids),
            "finish_reason": generation.finish_reason,
            "seed": sampling.seed,
            "same_as_autoregressive": generation.token_ids == plain[0].token_ids,
            **numbers,
        }
        print(json.dumps(answer, indent=2))
        return 0
    print()
    stats = generation.stats
    print(
        f"[{stats.tokens} tokens, {stats.tokens_per_s:.1f} tokens/s, tau {stats.tau:.2f}, "
        f"T_draft {1e3 * stats.t_draft:.1f} ms, T_verify {1e3 * stats.t_verify:.1f} ms]",
        file=sys.stderr,
    )
    return 0


def _bench(options: argparse.Namespace) -> int:
    """Benchmarks stay outside of the installed package; they are found from a checkout's root."""
    try:
        from benchmarks import decode
    except ImportError as error:
        raise ValueError(f"bench: expected to run in the root of a source checkout, got: {error}") from error
    status: int = decode.main(options.benchmark_options)
    return status


def _info(options: argparse.Namespace) -> int:
    target, drafter = load_models(options.target, options.drafter, DTYPES[options.dtype])
    config = target.config
    heads = config.num_attention_heads
    facts: dict[str, dict[str, Any]] = {
        "build": {**dflash_ops.build_info(), "cpu_isa": dflash_ops.cpu_isa(), "torch": torch.__version__},
        "target": {
            "name": options.target,
            "class": type(target.model).__name__,
            "layers": target.num_layers,
            "hidden_size": target.hidden_size,
            "heads": f"{heads}/{getattr(config, 'num_key_value_heads', heads)}",
            "vocab_size": target.vocab_size,
            "parameters": sum(parameter.numel() for parameter in target.model.parameters()),
            "dtype": options.dtype,
        },
    }
    if drafter is not None:
        facts["drafter"] = {
            "name": options.drafter or options.target,
            "class": type(drafter).__name__,
            "layers": drafter.config.num_hidden_layers,
            "hidden_size": drafter.config.hidden_size,
            "intermediate_size": drafter.config.intermediate_size,
            "heads": f"{drafter.config.num_attention_heads}/{drafter.config.num_key_value_heads}",
            "block_size": drafter.config.block_size,
            "mask_token_id": drafter.config.mask_token_id,
            "target_layer_ids": list(drafter.config.target_layer_ids),
            "layer_types": list(drafter.config.layer_types),
        }
    if options.json:
        print(json.dumps(facts, indent=2, default=str))
        return 0
    for part, values in facts.items():
        print(part)
        for name, value in values.items():
            print(f"  {name:<18} {value}")
    return 0
