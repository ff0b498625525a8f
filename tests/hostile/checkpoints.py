"""Tiny checkpoints of every kind that is loaded, and what a damaged or lying file does to them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from dflash_decoding.baselines import autoregressive_drafter, parallel_heads, without_injection
from dflash_decoding.baselines.storage import save_baseline
from dflash_decoding.block_diffusion.model import BlockDiffusionModel
from dflash_decoding.checkpoint import draft_tensor_specs, save_draft_checkpoint
from dflash_decoding.drafter import DFlashDrafter
from safetensors.torch import load_file, save_file

from tests.baselines.world import LAYERS, make_config, random_tensors, shared_weights
from tests.block_diffusion.dense import tiny_config, tiny_model

Load = Callable[[Path], Any]
BASELINES = {"autoregressive": autoregressive_drafter, "without_injection": without_injection}


def write_checkpoint(kind: str, folder: Path) -> Load:
    """A sound checkpoint in `folder`; returns what loads it."""
    embedding, head = shared_weights()
    if kind == "block_diffusion":
        model = tiny_model(tiny_config(block_size=4))
        model.save(folder)
        return lambda path: BlockDiffusionModel.from_folder(path, model.embedding, model.lm_head)
    config = make_config()
    if kind == "dflash":
        save_draft_checkpoint(folder, config, random_tensors(draft_tensor_specs(config)))
        return lambda path: DFlashDrafter.from_pretrained(path, embedding, head)
    if kind == "parallel_heads":
        config = make_config(target_layer_ids=(LAYERS - 1,))
        specs = parallel_heads.tensor_specs
        save_baseline(folder, parallel_heads.MODEL_TYPE, config, random_tensors(specs(config)), specs)
        return lambda path: parallel_heads.ParallelHeadsDrafter.from_pretrained(path, embedding, head)
    module: Any = BASELINES[kind]
    config = make_config(target_layer_ids=module.STAND_IN_TAPS) if kind == "without_injection" else config
    specs = module.tensor_specs
    save_baseline(folder, module.MODEL_TYPE, config, random_tensors(specs(config)), specs)
    drafter = module.AutoregressiveDrafter if kind == "autoregressive" else module.DFlashWithoutInjection
    return lambda path: drafter.from_pretrained(path, embedding, head)


KINDS = ("dflash", "autoregressive", "parallel_heads", "without_injection", "block_diffusion")


def read_file(path: Path) -> tuple[dict[str, Any], bytes]:
    """Header and data of a safetensors file."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def write_file(path: Path, header: dict[str, Any] | str, data: bytes, length: int | None = None) -> None:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)


def _tensor(header: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = header["norm.weight"] if "norm.weight" in header else header[sorted(header)[-1]]
    return entry


def _duplicated(header: dict[str, Any]) -> str:
    name = next(name for name in header if name != "__metadata__")
    return json.dumps(header)[:-1] + f", {json.dumps(name)}: {json.dumps(header[name])}}}"


def _with(header: dict[str, Any], **changes: Any) -> dict[str, Any]:
    _tensor(header).update(changes)
    return header


def _shifted(header: dict[str, Any], begin: int, end: int) -> dict[str, Any]:
    old = _tensor(header)["data_offsets"]
    return _with(header, data_offsets=[old[0] + begin, old[1] + end])


# Name -> what it makes of (header, data): header or its text, data, and the length it claims (None: the true one).
Lie = Callable[[dict[str, Any], bytes], tuple[dict[str, Any] | str, bytes, int | None]]
LIES: dict[str, Lie] = {
    "header longer than the file": lambda header, data: (header, data, 10**6),
    "header of 2^63 bytes": lambda header, data: (header, data, 2**63),
    "header of no bytes": lambda header, data: (header, data, 0),
    "header cut": lambda header, data: (header, data, len(json.dumps(header)) - 3),
    "header no JSON": lambda header, data: ("{" * 50, data, None),
    "header a list": lambda header, data: ("[]", data, None),
    "header nested deeply": lambda header, data: ('{"a":' * 100000, data, None),
    "header empty": lambda header, data: ({}, data, None),
    "data cut by one byte": lambda header, data: (header, data[:-1], None),
    "data longer": lambda header, data: (header, data + bytes(8), None),
    "no data": lambda header, data: (header, b"", None),
    "offsets beyond the file": lambda header, data: (_shifted(header, 10**9, 10**9), data, None),
    "offsets overlap": lambda header, data: (_shifted(header, -8, -8), data, None),
    "offsets reversed": lambda header, data: (
        _with(header, data_offsets=_tensor(header)["data_offsets"][::-1]),
        data,
        None,
    ),
    "offsets negative": lambda header, data: (_with(header, data_offsets=[-8, 0]), data, None),
    "offsets of 2^64": lambda header, data: (_with(header, data_offsets=[0, 2**64]), data, None),
    "shape of 2^64 elements": lambda header, data: (_with(header, shape=[2**32, 2**32]), data, None),
    "shape negative": lambda header, data: (_with(header, shape=[-1]), data, None),
    "shape of texts": lambda header, data: (_with(header, shape=["32"]), data, None),
    "another dtype": lambda header, data: (_with(header, dtype="I32"), data, None),
    "unknown dtype": lambda header, data: (_with(header, dtype="F31"), data, None),
    "a name twice": lambda header, data: (_duplicated(header), data, None),
}


# Values that a field of config.json must not have; NaN and infinity are what Python's json reads and writes.
VALUES: list[Any] = [
    *(-1, 0, 2**31, 2**62, 10**30, 0.5, -0.5, float("nan"), float("inf"), True, "x", "", [], [1], {}, {"a": 1}),
    *([float("nan")], ["full_attention"] * 3, [0, 0], [10**9], [{}], {"rope_type": "default"}),
    *({"rope_type": "linear", "factor": float("nan")}, {"rope_type": "yarn", "factor": "2", "rope_theta": 1e4}),
    *({"rope_type": "linear", "factor": 1e300, "rope_theta": 1e4}, {"rope_type": "default", "rope_theta": -1.0}),
]


def hostile_config(random: Random, config: dict[str, Any]) -> str:
    """Changes one or two fields in place; says how."""
    said = []
    for _ in range(random.choice([1, 1, 2])):
        section = config
        if isinstance(config.get("dflash_config"), dict) and random.random() < 0.2:
            section = config["dflash_config"]
        name = random.choice(sorted(section))
        if random.random() < 0.15:
            del section[name]
            said.append(f"no {name}")
        else:
            section[name] = random.choice(VALUES)
            said.append(f"{name} = {section[name]!r}")
    return ", ".join(said)


def spoil(folder: Path, value: float) -> str:
    """Writes a NaN or an infinity into one weight; returns the tensor's name."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    name = sorted(weights)[len(weights) // 2]
    weights[name].view(-1)[-1] = value
    save_file(weights, path)
    return name


def random_bytes(random: Random, path: Path) -> str:
    """Flips, cuts or fills a part of a file, most often within its first kilobyte."""
    content = bytearray(path.read_bytes())
    place = random.randrange(min(len(content), random.choice([16, 1024, len(content)])))
    kind = random.choice(["flip", "cut", "fill"])
    if kind == "flip":
        content[place] ^= 1 << random.randrange(8)
    elif kind == "cut":
        del content[place:]
    else:
        content[place : place + 8] = bytes([random.choice([0, 255])]) * 8
    path.write_bytes(bytes(content))
    return f"{kind} at {place}"
