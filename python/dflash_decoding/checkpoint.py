"""Draft weights on disk: safetensors in, checked tensor by tensor before use; safetensors out, atomically."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers.utils import cached_file

from .config import DraftConfig
from .files import WEIGHTS_FILE, read_json_object, write_checkpoint_files

INDEX_FILE = "model.safetensors.index.json"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
FLOAT_DTYPES = ("F32", "F16", "BF16")
INTEGER_DTYPES = ("I64", "I32")
MASK_DTYPES = ("BOOL", "U8")


@dataclass(frozen=True)
class TensorSpec:
    """What a tensor of a draft checkpoint must look like."""

    shape: tuple[int, ...]
    dtypes: tuple[str, ...] = FLOAT_DTYPES
    required: bool = True


def draft_tensor_specs(config: DraftConfig) -> dict[str, TensorSpec]:
    """Name -> spec of every tensor a drafter may have, in the names of the DFlash layout.

    Optional are an own embedding and head, the vocabulary maps `d2t` (target id = draft id + d2t[draft id]) and `t2d`
    (mask of the target ids the draft can say), and `verifier_norm`, which only training reads. A reduced vocabulary
    makes `lm_head.weight` and `d2t` required.
    """
    hidden, head = config.hidden_size, config.head_dim
    q_rows, kv_rows = config.num_attention_heads * head, config.num_key_value_heads * head
    target_hidden = config.target_hidden_size or hidden
    draft_vocab = config.draft_vocab_size or config.vocab_size
    specs = {
        "fc.weight": TensorSpec((hidden, len(config.target_layer_ids) * target_hidden)),
        "hidden_norm.weight": TensorSpec((hidden,)),
        "norm.weight": TensorSpec((hidden,)),
    }
    for layer in range(config.num_hidden_layers):
        at = f"layers.{layer}."
        specs[at + "input_layernorm.weight"] = TensorSpec((hidden,))
        for name, shape in (("q", (q_rows, hidden)), ("k", (kv_rows, hidden)), ("v", (kv_rows, hidden))):
            specs[f"{at}self_attn.{name}_proj.weight"] = TensorSpec(shape)
            if config.attention_bias:
                specs[f"{at}self_attn.{name}_proj.bias"] = TensorSpec(shape[:1])
        specs[at + "self_attn.o_proj.weight"] = TensorSpec((hidden, q_rows))
        if config.attention_bias:
            specs[at + "self_attn.o_proj.bias"] = TensorSpec((hidden,))
        specs[at + "self_attn.q_norm.weight"] = TensorSpec((head,))
        specs[at + "self_attn.k_norm.weight"] = TensorSpec((head,))
        specs[at + "post_attention_layernorm.weight"] = TensorSpec((hidden,))
        specs[at + "mlp.gate_proj.weight"] = TensorSpec((config.intermediate_size, hidden))
        specs[at + "mlp.up_proj.weight"] = TensorSpec((config.intermediate_size, hidden))
        specs[at + "mlp.down_proj.weight"] = TensorSpec((hidden, config.intermediate_size))
    reduced = config.reduced_vocabulary
    specs["embed_tokens.weight"] = TensorSpec((config.vocab_size, hidden), required=False)
    specs["lm_head.weight"] = TensorSpec((draft_vocab, hidden), required=reduced)
    specs["d2t"] = TensorSpec((draft_vocab,), INTEGER_DTYPES, required=reduced)
    specs["t2d"] = TensorSpec((config.vocab_size,), MASK_DTYPES, required=False)
    specs["verifier_norm.weight"] = TensorSpec((target_hidden,), required=False)
    return specs


def load_draft_weights(name_or_path: str | Path, config: DraftConfig) -> dict[str, Tensor]:
    """Reads the weights of a local folder or a hub id.

    Names, shapes and dtypes of all tensors are compared with the config before the first weight is read. A fused
    `qkv_proj` is split. `t2d` and `verifier_norm` are checked and left out: drafting needs neither.

    Returns:
        Canonical name (`draft_tensor_specs`) -> CPU tensor in the dtype stored; `d2t` is int64.

    Raises:
        FileNotFoundError: no safetensors weights there (pickle files are never opened).
        ValueError: tensors missing, unexpected, misshapen, of another dtype, or quantised; vocabulary maps that
            contradict each other or leave the target's vocabulary.
    """
    specs = draft_tensor_specs(config)
    weights: dict[str, Tensor] = {}
    for name, tensor in read_tensors(name_or_path, specs, _fused_specs(config)).items():
        weights.update(_split_fused(name, tensor, config))
    _check_vocabulary_maps(weights, config)
    weights.pop("t2d", None)
    weights.pop("verifier_norm.weight", None)
    return {name: weights[name] for name in specs if name in weights}


def read_tensors(
    name_or_path: str | Path, specs: Mapping[str, TensorSpec], fused: Mapping[str, TensorSpec] | None = None
) -> dict[str, Tensor]:
    """All tensors of a local folder or a hub id, names, shapes and dtypes checked before the first one is read.

    Args:
        fused: further tensors that stand for the q, k and v parts of the same name.

    Raises:
        FileNotFoundError, ValueError: as `load_draft_weights`.
    """
    found = _read_headers(_weight_files(str(name_or_path)))
    _check_tensors(found, specs, fused or {})
    by_file: dict[Path, list[str]] = {}
    for name, header in found.items():
        by_file.setdefault(header.file, []).append(name)
    tensors: dict[str, Tensor] = {}
    for file, names in by_file.items():
        with _opened(file) as handle:
            for name in names:
                tensors[name] = handle.get_tensor(name)
                _check_finite(file, name, tensors[name])
    return tensors


def save_draft_checkpoint(folder: str | Path, config: DraftConfig, weights: Mapping[str, Tensor]) -> None:
    """Writes `config.json` and `model.safetensors` (DFlash layout) into `folder`, created if absent.

    An interrupted run leaves the old checkpoint or the new one (`write_checkpoint_files`).

    Raises:
        ValueError: weights that `load_draft_weights` would refuse for this config.
    """
    _check_vocabulary_maps(weights, config)
    write_checkpoint(folder, config.to_dict(), weights, draft_tensor_specs(config), _fused_specs(config))


def write_checkpoint(
    folder: str | Path,
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    specs: Mapping[str, TensorSpec],
    fused: Mapping[str, TensorSpec] | None = None,
) -> None:
    """Writes `config.json` and `model.safetensors` into `folder`; an interrupted run leaves no mixture of two.

    Raises:
        ValueError: weights that `read_tensors` would refuse.
    """
    found = {
        name: _Header(Path(WEIGHTS_FILE), tuple(tensor.shape), _DTYPE_NAMES.get(tensor.dtype, str(tensor.dtype)))
        for name, tensor in weights.items()
    }
    _check_tensors(found, specs, fused or {})
    # clone: safetensors refuses tensors that share memory, and trainers hand over views of flat parameters.
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}
    write_checkpoint_files(Path(folder), config, tensors)


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """A safetensors file; what is wrong with it is said with its name."""
    try:
        with safe_open(file, framework="pt") as handle:
            yield handle
    except SafetensorError as error:
        raise ValueError(f"draft checkpoint: {file}: expected a whole safetensors file, got: {error}") from error


def _check_names(file: Path) -> None:
    """That a name stands once in the header of a file that safetensors has accepted: it takes the last of several."""
    with file.open("rb") as stream:
        header = stream.read(int.from_bytes(stream.read(8), "little"))

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"draft checkpoint: {file}: {twice}: expected once, got it twice")
        return dict(pairs)

    json.loads(header, object_pairs_hook=unique)


def _check_finite(file: Path, name: str, tensor: Tensor) -> None:
    """One pass that allocates nothing: NaN is the minimum of what holds one."""
    if tensor.is_floating_point() and tensor.numel():
        least, most = (bound.item() for bound in tensor.aminmax())
        if not (math.isfinite(least) and math.isfinite(most)):
            raise ValueError(f"draft checkpoint: {file}: {name}: expected finite weights, got {least} to {most}")


@dataclass(frozen=True)
class _Header:
    file: Path
    shape: tuple[int, ...]
    dtype: str


_DTYPE_NAMES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.bool: "BOOL",
    torch.uint8: "U8",
}


def _find(name_or_path: str, file: str) -> Path | None:
    found = cached_file(
        name_or_path, file, _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_gated_repo=True
    )
    return None if found is None else Path(found)


def _weight_files(name_or_path: str) -> list[Path]:
    """The safetensors file, or every shard its index names."""
    single = _find(name_or_path, WEIGHTS_FILE)
    if single is not None:
        return [single]
    index = _find(name_or_path, INDEX_FILE)
    if index is None:
        folder = Path(name_or_path)
        others = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
        pickles = [name for name in others if name.endswith(PICKLE_SUFFIXES)]
        got = "neither" if folder.is_dir() else "neither, neither cached nor from the hub"
        if pickles:
            got = f"only {', '.join(pickles)} (pickle files can run code and are never opened)"
        raise FileNotFoundError(
            f"draft checkpoint {name_or_path}: expected {WEIGHTS_FILE} or {INDEX_FILE}, got {got}; convert the "
            "weights to safetensors"
        )
    weight_map = read_json_object(index, f"draft checkpoint {name_or_path}").get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"draft checkpoint {name_or_path}: {INDEX_FILE}: expected a weight_map, got none")
    shards = []
    for shard in sorted(set(map(str, weight_map.values()))):
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise ValueError(f"draft checkpoint {name_or_path}: {INDEX_FILE}: expected shard file names, got {shard!r}")
        path = _find(name_or_path, shard)
        if path is None:
            raise FileNotFoundError(f"draft checkpoint {name_or_path}: expected shard {shard}, got none")
        shards.append(path)
    return shards


def _read_headers(files: list[Path]) -> dict[str, _Header]:
    found: dict[str, _Header] = {}
    for file in files:
        with _opened(file) as handle:
            _check_names(file)
            names = handle.keys()
            for name in names:
                if name in found:
                    raise ValueError(
                        f"draft checkpoint: {name}: expected once, got it in {found[name].file} and {file}"
                    )
                view = handle.get_slice(name)
                found[name] = _Header(file, tuple(view.get_shape()), view.get_dtype())
    return found


_QUANTIZED_MARKS = ("scale", "zero_point", "zeros", "qweight", "packed", "g_idx", "absmax", "quant")


def _check_tensors(
    found: Mapping[str, _Header], specs: Mapping[str, TensorSpec], fused: Mapping[str, TensorSpec]
) -> None:
    """Compares names, then shapes and dtypes, with the specs; all differences of a kind are named at once."""
    known = {**specs, **fused}
    unexpected = sorted(set(found) - set(known))
    quantized = [name for name in unexpected if any(mark in name.rsplit(".", 1)[-1] for mark in _QUANTIZED_MARKS)]
    quantized += [
        f"{name} ({header.dtype})"
        for name, header in found.items()
        if name in known
        and known[name].dtypes == FLOAT_DTYPES
        and header.dtype not in FLOAT_DTYPES
        and header.dtype != "F64"
    ]
    if quantized:
        raise ValueError(
            f"draft checkpoint: expected unquantised weights ({', '.join(FLOAT_DTYPES)}), got {', '.join(quantized)}: "
            "quantised layouts are not understood and refused"
        )
    present = set(found)
    for name in fused:
        if name in found:
            parts = set(_fused_parts(name))
            if parts & present:
                raise ValueError(f"draft checkpoint: {name}: expected it alone, got {sorted(parts & present)} too")
            present |= parts
    missing = sorted(name for name, spec in specs.items() if spec.required and name not in present)
    if missing or unexpected:
        raise ValueError(
            "draft checkpoint: tensors do not match the config: missing "
            f"{', '.join(missing) or 'none'}; unexpected {', '.join(unexpected) or 'none'}"
        )
    wrong = [
        f"{name}: expected {list(known[name].shape)} {'/'.join(known[name].dtypes)}, "
        f"got {list(header.shape)} {header.dtype}"
        for name, header in found.items()
        if header.shape != known[name].shape or header.dtype not in known[name].dtypes
    ]
    if wrong:
        raise ValueError("draft checkpoint: " + "; ".join(wrong))


def _fused_specs(config: DraftConfig) -> dict[str, TensorSpec]:
    rows = (config.num_attention_heads + 2 * config.num_key_value_heads) * config.head_dim
    specs = {}
    for layer in range(config.num_hidden_layers):
        name = f"layers.{layer}.self_attn.qkv_proj."
        specs[name + "weight"] = TensorSpec((rows, config.hidden_size))
        if config.attention_bias:
            specs[name + "bias"] = TensorSpec((rows,))
    return specs


def _fused_parts(name: str) -> list[str]:
    return [name.replace("qkv_proj", f"{part}_proj") for part in "qkv"]


def _split_fused(name: str, tensor: Tensor, config: DraftConfig) -> dict[str, Tensor]:
    if ".qkv_proj." not in name:
        return {name: tensor}
    q_rows, kv_rows = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
    return dict(zip(_fused_parts(name), tensor.split((q_rows, kv_rows, kv_rows)), strict=True))


def _check_vocabulary_maps(weights: Mapping[str, Tensor], config: DraftConfig) -> None:
    """Draft ids must map to distinct target ids, and t2d must mark exactly those."""
    offsets = weights.get("d2t")
    if offsets is None:
        if "t2d" in weights and not weights["t2d"].bool().all():
            raise ValueError("draft checkpoint: d2t: expected it beside t2d, got none")
        return
    targets = torch.arange(offsets.numel()) + offsets.cpu().long()
    outside = (targets < 0) | (targets >= config.vocab_size)
    if outside.any():
        raise ValueError(
            f"draft checkpoint: d2t: expected target ids (draft id + d2t) in 0..{config.vocab_size - 1}, "
            f"got {targets[outside][0].item()}"
        )
    marked = torch.zeros(config.vocab_size, dtype=torch.bool)
    marked[targets] = True
    if marked.sum() != targets.numel():
        raise ValueError("draft checkpoint: d2t: expected distinct target ids, got duplicates")
    if "t2d" in weights and not torch.equal(weights["t2d"].cpu().bool(), marked):
        raise ValueError("draft checkpoint: t2d: expected it to mark exactly the target ids of d2t, got other ids")
