"""Chats to train on, and how anchors and blocks are drawn from them.

Everything random here is a function of (seed, epoch, chat): the n-th batch is the same in every run, so a resumed
training needs no stored random state to go on exactly where it stopped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

ARRAYS = ("tokens", "lens", "prompt_len")


@dataclass(frozen=True)
class Chats:
    """Tokenised chats, end to end.

    Attributes:
        tokens: int64 [total].
        offsets: int64 [chats + 1]; chat i is tokens[offsets[i]:offsets[i + 1]].
        prompt_lens: int64 [chats]; the first prompt_lens[i] tokens of chat i are the prompt, the rest the answer.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    prompt_lens: np.ndarray

    def __len__(self) -> int:
        return len(self.prompt_lens)

    def chat(self, index: int) -> np.ndarray:
        """Token ids of one chat."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def length(self, index: int) -> int:
        """Number of tokens of one chat."""
        return int(self.offsets[index + 1] - self.offsets[index])

    def fingerprint(self) -> str:
        """Digest of the token ids and boundaries; ties caches and training states to the data they belong to."""
        digest = hashlib.sha256()
        for array in (self.tokens, self.offsets, self.prompt_lens):
            digest.update(np.ascontiguousarray(array, dtype=np.int64).tobytes())
        return digest.hexdigest()[:16]

    def chat_fingerprint(self, index: int) -> str:
        """Digest of one chat's token ids."""
        return hashlib.sha256(np.ascontiguousarray(self.chat(index), dtype=np.int64).tobytes()).hexdigest()[:32]

    def answer_counts(self, indices: Sequence[int], vocab_size: int) -> np.ndarray:
        """How often each token id occurs in the answers of the given chats: int64 [vocab_size]."""
        counts = np.zeros(vocab_size, dtype=np.int64)
        for index in indices:
            counts += np.bincount(self.chat(index)[self.prompt_lens[index] :], minlength=vocab_size)
        return counts


def load_chats(path: str | Path, vocab_size: int) -> Chats:
    """Reads an .npz file with `tokens` (integers, all chats end to end), `lens` [n] and `prompt_len` [n].

    Raises:
        FileNotFoundError: no such file.
        ValueError: not such a file, an array is missing or of another kind, lengths contradict each other, a chat has
            no prompt or no answer, or a token id lies outside 0..vocab_size-1.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"chats: expected an .npz file, got no such file: {path}")
    try:
        # Pickled objects inside an .npz run code when loaded; numpy refuses them here.
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in ARRAYS if name in archive}
    except (ValueError, OSError, EOFError, AttributeError, TypeError) as error:
        raise ValueError(f"chats: {path}: expected an .npz file of plain arrays, got: {error}") from error
    for name in ARRAYS:
        if name not in arrays:
            raise ValueError(
                f"chats: {path}: expected the arrays {', '.join(ARRAYS)}, got {', '.join(arrays) or 'none'}"
            )
        array = arrays[name]
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise ValueError(f"chats: {name}: expected integers [n], got {array.dtype} {list(array.shape)}")
    tokens, lens, prompt_lens = (arrays[name].astype(np.int64) for name in ARRAYS)
    return make_chats(tokens, lens, prompt_lens, vocab_size)


def make_chats(tokens: np.ndarray, lens: np.ndarray, prompt_lens: np.ndarray, vocab_size: int) -> Chats:
    """`Chats` from int64 arrays, checked as `load_chats` says."""
    if len(lens) != len(prompt_lens):
        raise ValueError(f"chats: prompt_len: expected one per chat ({len(lens)}), got {len(prompt_lens)}")
    if len(lens) == 0:
        raise ValueError("chats: lens: expected at least one chat, got none")
    bad = np.flatnonzero((prompt_lens < 1) | (prompt_lens >= lens))
    if len(bad):
        at = int(bad[0])
        raise ValueError(
            f"chats: chat {at}: expected a prompt and an answer of at least one token each, got prompt_len "
            f"{prompt_lens[at]} of {lens[at]}"
        )
    if int(lens.sum()) != len(tokens):
        raise ValueError(f"chats: tokens: expected {int(lens.sum())} ids (sum of lens), got {len(tokens)}")
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        raise ValueError(f"chats: tokens: expected ids in 0..{vocab_size - 1}, got {tokens.min()}..{tokens.max()}")
    offsets = np.zeros(len(lens) + 1, dtype=np.int64)
    np.cumsum(lens, out=offsets[1:])
    return Chats(tokens, offsets, prompt_lens)


def join_chats(parts: Sequence[Chats]) -> Chats:
    """All chats of several sets, in that order."""
    ends = np.cumsum([0] + [len(part.tokens) for part in parts])
    starts = [part.offsets[:-1] + end for part, end in zip(parts, ends[:-1], strict=True)]
    return Chats(
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([*starts, ends[-1:]]),
        np.concatenate([part.prompt_lens for part in parts]),
    )


def split_chats(chats: Chats, held_out: int, seed: int) -> tuple[list[int], list[int]]:
    """Chat indices (training, held out), drawn by `seed`.

    Raises:
        ValueError: `held_out` leaves nothing to train on or is negative.
    """
    if not 0 <= held_out < len(chats):
        raise ValueError(f"held_out: expected 0..{len(chats) - 1} of {len(chats)} chats, got {held_out}")
    order = np.random.default_rng(seed).permutation(len(chats)).tolist()
    return order[: len(order) - held_out], order[len(order) - held_out :]


@dataclass(frozen=True)
class BlockShape:
    """What a drafter's block means for its training rows (`training_shape` of the config).

    Attributes:
        block_size: rows of a block; row 0 holds the anchor token, the others the mask token.
        mask_token_id: the id of the mask token.
        first_row: first row that predicts: 1, or 0 if the drafter samples from the anchor row.
    """

    block_size: int
    mask_token_id: int
    first_row: int = 1

    @property
    def predictions(self) -> int:
        """Rows that predict; the j-th of them predicts the token j + 1 places after the anchor."""
        return self.block_size - self.first_row


@dataclass(frozen=True)
class Batch:
    """Some chats packed end to end (S tokens in all) and N blocks over them.

    Attributes:
        chats: chat indices, in packing order.
        positions: int64 [S], position of each token within its chat.
        cu_seqlens: int32 [chats + 1], packed boundaries.
        anchors: int32 [N], packed index of each block's anchor token.
        input_ids: int64 [N, block_size], anchor token then mask tokens.
        block_positions: int64 [N, block_size], position within the chat.
        targets: int64 [N, predictions], token to predict; 0 where `valid` is False.
        valid: bool [N, predictions], False past the chat's end.
    """

    chats: tuple[int, ...]
    positions: Tensor
    cu_seqlens: Tensor
    anchors: Tensor
    input_ids: Tensor
    block_positions: Tensor
    targets: Tensor
    valid: Tensor

    def predicted_from(self) -> Tensor:
        """int64 [N, predictions]: packed index of the token before each target, where the target model predicts it; of
        the last token where that lies past the end."""
        ahead = self.anchors.long()[:, None] + torch.arange(self.targets.shape[1], device=self.anchors.device)
        return ahead.clamp_(max=self.positions.shape[0] - 1)


def make_batch(chats: Chats, indices: Sequence[int], anchors: Sequence[np.ndarray], shape: BlockShape) -> Batch:
    """Packs chats and lays blocks at the given anchors (positions within the chat, one array per chat)."""
    lengths = np.array([chats.length(index) for index in indices], dtype=np.int64)
    boundaries = np.concatenate([[0], np.cumsum(lengths)])
    packed = np.concatenate([chats.chat(index) for index in indices])
    starts = np.concatenate([np.full(len(a), start) for a, start in zip(anchors, boundaries[:-1], strict=True)])
    ends = np.concatenate([np.full(len(a), end) for a, end in zip(anchors, boundaries[1:], strict=True)])
    packed_anchors = np.concatenate([np.asarray(a, dtype=np.int64) for a in anchors]) + starts.astype(np.int64)

    wanted = packed_anchors[:, None] + 1 + np.arange(shape.predictions)[None, :]
    valid = wanted < ends[:, None]
    input_ids = np.full((len(packed_anchors), shape.block_size), shape.mask_token_id, dtype=np.int64)
    input_ids[:, 0] = packed[packed_anchors]
    block_positions = (packed_anchors - starts.astype(np.int64))[:, None] + np.arange(shape.block_size)[None, :]
    return Batch(
        chats=tuple(int(index) for index in indices),
        positions=torch.from_numpy(np.concatenate([np.arange(length) for length in lengths])),
        cu_seqlens=torch.from_numpy(boundaries.astype(np.int32)),
        anchors=torch.from_numpy(packed_anchors.astype(np.int32)),
        input_ids=torch.from_numpy(input_ids),
        block_positions=torch.from_numpy(block_positions),
        targets=torch.from_numpy(np.where(valid, packed[np.where(valid, wanted, 0)], 0)),
        valid=torch.from_numpy(valid),
    )


def possible_anchors(chats: Chats, index: int) -> np.ndarray:
    """Positions of chat `index` that can be an anchor: answer tokens with another one after them.

    A decoding round starts at a token the target has chosen, so prompt tokens are no anchors.
    """
    return np.arange(chats.prompt_lens[index], chats.length(index) - 1)


@dataclass(frozen=True)
class BatchPlan:
    """Which chats and anchors each training step sees.

    Attributes:
        indices: chats to train on; each epoch visits them in a new order, `chats_per_batch` at a time. What does not
            fill a batch is left out of that epoch.
        anchors_per_chat: anchors drawn without replacement from each chat's possible ones (all of them if fewer).
        accumulate: batches per step.
    """

    chats: Chats
    indices: Sequence[int]
    shape: BlockShape
    chats_per_batch: int
    anchors_per_chat: int
    seed: int
    accumulate: int = 1

    def __post_init__(self) -> None:
        for name in ("anchors_per_chat", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        most = len(self.indices) // self.accumulate
        if not 1 <= self.chats_per_batch <= most:
            raise ValueError(
                f"chats_per_batch: expected 1..{most} (chats to train on / batches per step), got {self.chats_per_batch}"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Full steps in one pass over the chats."""
        return len(self.indices) // (self.chats_per_batch * self.accumulate)

    def batches(self, step: int, shares: int = 1) -> list[list[Batch]]:
        """The batches of 0-based `step`, each cut into `shares` parts of about as many chats: [accumulate][shares].

        Which chats and anchors the step sees depends on the product of `chats_per_batch` and `accumulate` alone.
        """
        epoch, place = divmod(step, self.steps_per_epoch)
        count = self.chats_per_batch * self.accumulate
        order = np.random.default_rng((self.seed, epoch)).permutation(len(self.indices))
        places = order[place * count : (place + 1) * count]
        return [
            [self._batch([self.indices[at] for at in part], epoch) for part in np.array_split(batch, shares)]
            for batch in np.split(places, self.accumulate)
        ]

    def _batch(self, chosen: Sequence[int], epoch: int) -> Batch:
        return make_batch(self.chats, chosen, [self._anchors(index, epoch) for index in chosen], self.shape)

    def _anchors(self, index: int, epoch: int) -> np.ndarray:
        possible = possible_anchors(self.chats, index)
        count = min(self.anchors_per_chat, len(possible))
        generator = np.random.default_rng((self.seed, epoch, index))
        return np.sort(generator.choice(possible, count, replace=False))
