"""The target's tapped hidden states of the training chats: computed once, kept on disk, one file per chat."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dflash_decoding.cache import PagePool
from dflash_decoding.target import Target

from .data import Chats

# Token ids of some chats -> their taps, each [tokens, T, H_t].
ComputeTaps = Callable[[Sequence[np.ndarray]], list[Tensor]]

PAGE_SIZE = 16
# More than a safetensors file of one tensor holds beside the tensor.
HEADER_BYTES = 256


def target_taps(target: Target, tap_layers: Sequence[int], *, final: bool = False) -> ComputeTaps:
    """A function that runs chats through the target, packed, and returns the tapped layers' outputs.

    Args:
        final: one more tap, the last of them: what the target's head reads, i.e. its hidden state after the final norm.

    The function raises ValueError if `final` is asked of a target whose logits are not its head times that state.
    """

    def compute(chats: Sequence[np.ndarray]) -> list[Tensor]:
        lengths = [len(tokens) for tokens in chats]
        pages = [-(-length // PAGE_SIZE) for length in lengths]
        pool = PagePool(sum(pages), PAGE_SIZE, len(chats), max(pages), device=target.device)
        for row, length in enumerate(lengths):
            pool.allocate(row, length)
        slots = torch.cat([pool.slot_mapping(row, 0, length) for row, length in enumerate(lengths)])
        boundaries = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        recording: AbstractContextManager[list[Tensor]] = _final_hidden(target) if final else nullcontext([])
        with recording as final_hidden:
            output = target.forward(
                torch.from_numpy(np.concatenate(chats)).to(target.device),
                torch.cat([torch.arange(length) for length in lengths]).to(target.device),
                slots,
                target.new_cache(pool),
                pool.page_table,
                pool.context_lens,
                torch.from_numpy(boundaries).to(target.device),
                tap_layers=tap_layers,
                logit_rows=torch.tensor([sum(lengths) - 1], device=target.device) if final else None,
            )
        taps = list(output.taps)
        if final:
            assert output.logits is not None
            _check_head(final_hidden[0][-1] @ target.lm_head_weight.t(), output.logits[0])
            taps += final_hidden
        return list(torch.stack(taps, dim=1).split(lengths))

    return compute


@contextmanager
def _final_hidden(target: Target) -> Iterator[list[Tensor]]:
    """Collects the decoder's output [tokens, H] of each forward while the `with` block runs."""
    outputs: list[Tensor] = []

    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        outputs.append(output.last_hidden_state[0])

    handle = target.model.get_decoder().register_forward_hook(hook)  # type: ignore[operator]
    try:
        yield outputs
    finally:
        handle.remove()


def _check_head(computed: Tensor, logits: Tensor) -> None:
    """Some models scale or cap their logits; the loss knows only the head."""
    largest = float(logits.float().abs().max())
    error = float((computed.float() - logits.float()).abs().max())
    if error > 0.02 * largest:
        raise ValueError(
            f"target: expected logits that are its head times its final hidden state, got others (up to {error:.3g} "
            f"apart, largest {largest:.3g}); this loss cannot train on it"
        )


def tap_folder(
    root: Path, target_name: str, tap_layers: Sequence[int], dtype: torch.dtype, *, final: bool = False
) -> Path:
    """Folder under `root` for these taps of any chats: another target, its dtype or layers give another folder."""
    layers: list[int | str] = [*tap_layers, "final"] if final else [*tap_layers]
    content = [target_name, layers, str(dtype)]
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
    return root / f"taps-{digest}"


class TapStore:
    """Taps of chats by index, from disk where they are, else from `compute` and then on disk.

    Files are named by the chats' token ids, so that other sets of chats with the same ones among them share the files.

    Args:
        folder: where the files lie; None keeps nothing, every chat is computed anew each time.
        compute: see `ComputeTaps`.
        dtype: dtype kept; bfloat16 halves the space (T * H_t * 2 bytes per token).
        max_bytes: the folder grows no further than this; None: without bound. Nothing is thrown out for new chats: an
            epoch visits every chat once, so that whatever is kept saves as much as anything else would.
        writers: processes that fill the folder at the same time; each may take an equal part of what is left.
    """

    def __init__(
        self,
        folder: Path | None,
        chats: Chats,
        compute: ComputeTaps,
        *,
        dtype: torch.dtype = torch.bfloat16,
        max_bytes: int | None = None,
        writers: int = 1,
    ) -> None:
        self._folder = folder
        self._chats = chats
        self._compute = compute
        self._dtype = dtype
        self._free_bytes = math.inf
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            if max_bytes is not None:
                used = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
                self._free_bytes = (max_bytes - used) / writers

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
        if self._folder is None:
            return None
        return self._folder / f"{self._chats.chat_fingerprint(index)}.safetensors"

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
        if taps.nbytes + HEADER_BYTES > self._free_bytes:
            return
        partial = path.with_suffix(f".partial-{os.getpid()}")
        save_file({"taps": taps.cpu().contiguous()}, partial)
        self._free_bytes -= partial.stat().st_size
        os.replace(partial, path)
