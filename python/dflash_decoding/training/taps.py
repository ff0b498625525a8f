"""The target's tapped hidden states of the training chats: computed once, kept on disk, one file per chat."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dflash_decoding.cache import PagePool
from dflash_decoding.target import Target

from .data import Chats

# Token ids of some chats -> their taps, each [tokens, T, H_t].
ComputeTaps = Callable[[Sequence[np.ndarray]], list[Tensor]]

PAGE_SIZE = 16


def target_taps(target: Target, tap_layers: Sequence[int]) -> ComputeTaps:
    """A function that runs chats through the target, packed, and returns the tapped layers' outputs."""

    def compute(chats: Sequence[np.ndarray]) -> list[Tensor]:
        lengths = [len(tokens) for tokens in chats]
        pages = [-(-length // PAGE_SIZE) for length in lengths]
        pool = PagePool(sum(pages), PAGE_SIZE, len(chats), max(pages), device=target.device)
        for row, length in enumerate(lengths):
            pool.allocate(row, length)
        slots = torch.cat([pool.slot_mapping(row, 0, length) for row, length in enumerate(lengths)])
        boundaries = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        output = target.forward(
            torch.from_numpy(np.concatenate(chats)).to(target.device),
            torch.cat([torch.arange(length) for length in lengths]).to(target.device),
            slots,
            target.new_cache(pool),
            pool.page_table,
            pool.context_lens,
            torch.from_numpy(boundaries).to(target.device),
            tap_layers=tap_layers,
            logit_rows=None,
        )
        return list(torch.stack(list(output.taps), dim=1).split(lengths))

    return compute


def tap_folder(root: Path, target_name: str, chats: Chats, tap_layers: Sequence[int], dtype: torch.dtype) -> Path:
    """Folder under `root` for the taps of these chats: another target, its dtype, data or layers give another folder."""
    content = [target_name, chats.fingerprint(), list(tap_layers), str(dtype)]
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
    return root / f"taps-{digest}"


class TapStore:
    """Taps of chats by index, from disk where they are, else from `compute` and then on disk.

    Args:
        folder: where the files lie; None keeps nothing, every chat is computed anew each time.
        compute: see `ComputeTaps`.
        dtype: dtype kept; bfloat16 halves the space (T * H_t * 2 bytes per token).
    """

    def __init__(
        self, folder: Path | None, chats: Chats, compute: ComputeTaps, *, dtype: torch.dtype = torch.bfloat16
    ) -> None:
        self._folder = folder
        self._chats = chats
        self._compute = compute
        self._dtype = dtype
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def get(self, indices: Sequence[int]) -> Tensor:
        """Taps of the chats packed in this order: [sum of lengths, T, H_t]."""
        found = {index: self._load(index) for index in indices}
        missing = [index for index, taps in found.items() if taps is None]
        if missing:
            with torch.no_grad():
                computed = self._compute([self._chats.chat(index) for index in missing])
            for index, taps in zip(missing, computed, strict=True):
                found[index] = taps.to(self._dtype)
                self._save(index, found[index])
        return torch.cat([taps for taps in (found[index] for index in indices) if taps is not None])

    def _path(self, index: int) -> Path | None:
        return None if self._folder is None else self._folder / f"{index:06d}.safetensors"

    def _load(self, index: int) -> Tensor | None:
        path = self._path(index)
        if path is None or not path.is_file():
            return None
        try:
            taps = load_file(path)["taps"]
        except (SafetensorError, KeyError) as error:
            raise ValueError(f"taps: {path}: expected the taps of a chat, got: {error}; delete the file") from error
        if taps.ndim != 3 or taps.shape[0] != self._chats.length(index):
            raise ValueError(
                f"taps: {path}: expected {self._chats.length(index)} rows of [T, H_t], got {list(taps.shape)}; "
                "delete the file"
            )
        return taps

    def _save(self, index: int, taps: Tensor | None) -> None:
        path = self._path(index)
        if path is None or taps is None:
            return
        partial = path.with_suffix(f".partial-{os.getpid()}")
        save_file({"taps": taps.cpu().contiguous()}, partial)
        os.replace(partial, path)
