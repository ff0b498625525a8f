"""Drafter and head cut over the ranks of a torch.distributed group: heads, MLP columns and vocabulary.

Each rank holds its share of the weights and the K/V of its own heads. Two sums over the ranks a layer, as usual; the
head needs one exchange of a (value, id) pair per row. What the ranks choose a token by are the gathered pairs, the same
bytes on every rank, and so is the choice: ranks cannot disagree, however their own hidden states were rounded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import dflash_ops

from .config import DraftConfig
from .drafter import DFlashDrafter
from .drafter_weights import BlockBuffers
from .workspace import Workspace


def share(count: int, rank: int, ranks: int) -> slice:
    """The contiguous part of `count` things that a rank holds; parts differ by one at most."""
    return slice(count * rank // ranks, count * (rank + 1) // ranks)


def largest_of_ranks(values: Tensor, ids: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """For each row the id of the largest value of all ranks, the lowest id where values tie; a NaN is the largest.

    Args:
        values: float32 [n], ids: int64 [n] below 2^53: what `lm_head_argmax` found in this rank's part of the vocabulary,
            whose ids all lie above those of lower ranks.

    Returns:
        int64 [n], the same on every rank.
    """
    # Both are exact in float64, so one collective carries them.
    mine = torch.stack([values.double(), ids.double()])
    gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, mine, group=group)
    pairs = torch.stack(gathered, dim=-1)  # [2, n, ranks]
    winner, _ = dflash_ops.row_argmax(pairs[0].float().contiguous())
    return pairs[1].gather(1, winner[:, None])[:, 0].long()


class ShardedHead:
    """A language-model head of which each rank holds some rows.

    Attributes:
        weight: [rows, H], this rank's part.
        vocab_offset: id of its first row.
    """

    def __init__(
        self, weight: Tensor, group: dist.ProcessGroup | None = None, device: torch.device | str | None = None
    ) -> None:
        """Takes this rank's part of a whole head [V, H]: a view of it, or a copy on another device.

        Raises:
            ValueError: fewer rows than ranks.
        """
        ranks = dist.get_world_size(group)
        if weight.shape[0] < ranks:
            raise ValueError(f"weight: expected at least {ranks} rows (one a rank), got {weight.shape[0]}")
        part = share(weight.shape[0], dist.get_rank(group), ranks)
        self.weight = weight[part].to(weight.device if device is None else device)
        self.vocab_offset = part.start
        self._group = group
        self._workspace = Workspace(self.weight.device)

    def argmax(self, hidden: Tensor, softcap: float = 0.0) -> Tensor:
        """Greedy ids int64 [n] of the whole vocabulary for hidden states [n, H], the same on every rank.

        They are what `lm_head_argmax` gives with the whole head: a row's logit does not depend on the rows beside it.
        """
        size = dflash_ops.lm_head_argmax_workspace_size(*hidden.shape, self.weight.shape[0], device=hidden.device)
        ids, values = dflash_ops.lm_head_argmax(
            hidden,
            self.weight,
            vocab_offset=self.vocab_offset,
            softcap=softcap,
            workspace=self._workspace.of(size),
        )
        return largest_of_ranks(values, ids, self._group)


class TensorParallelDrafter(DFlashDrafter):
    """A `DFlashDrafter` of which each rank computes some heads, MLP columns and vocabulary rows.

    Every rank calls it with the same arguments, in the same order. `from_pretrained` and `from_weights` take the whole
    checkpoint. Fusing the taps is not cut: it is small, and each rank needs all of it. With ragged shares (3 ranks, 4
    heads) the rank with most heads sets the pace.

    Attributes:
        config: of this rank's part; whole_config: of the checkpoint.

    Raises:
        ValueError: fewer key/value heads, MLP columns or vocabulary rows than ranks.
    """

    def __init__(
        self,
        config: DraftConfig,
        weights: Mapping[str, Tensor],
        target_embedding: Tensor,
        target_lm_head: Tensor,
        *,
        group: dist.ProcessGroup | None = None,
        **arguments: Any,
    ) -> None:
        self.whole_config = config
        self._group = group
        head = weights.get("lm_head.weight", target_lm_head).detach()
        if head.shape[0] != config.draft_vocab_size:
            raise ValueError(f"lm_head: expected {config.draft_vocab_size} rows (the draft's ids), got {head.shape[0]}")
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        self._sharded_head = ShardedHead(head, group, arguments.get("device"))
        local = {**shard_weights(config, weights, rank, ranks), "lm_head.weight": self._sharded_head.weight}
        local_config = shard_config(config, rank, ranks, self._sharded_head.weight.shape[0])
        arguments["dtype"] = arguments.get("dtype") or target_lm_head.dtype
        super().__init__(local_config, local, target_embedding, self._sharded_head.weight, **arguments)

    def _head_argmax(self, rows: Tensor) -> Tensor:
        return self._sharded_head.argmax(rows.to(self.lm_head.dtype))

    def _add_projected(self, buffers: BlockBuffers) -> None:
        partial = buffers.projected.float()  # summed as the residual stream is, not in 16 bits
        dist.all_reduce(partial, group=self._group)
        buffers.residual.add_(partial)


def shard_config(config: DraftConfig, rank: int, ranks: int, vocabulary: int) -> DraftConfig:
    """The config of a rank's part, with `vocabulary` rows of the head.

    Raises:
        ValueError: fewer heads or columns than ranks.
    """
    for name in ("num_key_value_heads", "intermediate_size"):
        if getattr(config, name) < ranks:
            raise ValueError(f"{name}: expected at least {ranks} (one a rank), got {getattr(config, name)}")
    group = config.num_attention_heads // config.num_key_value_heads
    kv_heads = _length(share(config.num_key_value_heads, rank, ranks))
    return dataclasses.replace(
        config,
        num_key_value_heads=kv_heads,
        num_attention_heads=kv_heads * group,
        intermediate_size=_length(share(config.intermediate_size, rank, ranks)),
        draft_vocab_size=vocabulary,
    )


def shard_weights(config: DraftConfig, weights: Mapping[str, Tensor], rank: int, ranks: int) -> dict[str, Tensor]:
    """A rank's part of a checkpoint (canonical names): whole tensors where nothing is cut, views elsewhere.

    The bias of a cut product's sum belongs to rank 0 alone; the others have zeros.
    """
    group = config.num_attention_heads // config.num_key_value_heads
    kv = share(config.num_key_value_heads, rank, ranks)
    kv_rows = slice(kv.start * config.head_dim, kv.stop * config.head_dim)
    q_rows = slice(kv_rows.start * group, kv_rows.stop * group)
    columns = share(config.intermediate_size, rank, ranks)
    rows_of = {"q_proj": q_rows, "k_proj": kv_rows, "v_proj": kv_rows, "gate_proj": columns, "up_proj": columns}
    columns_of = {"o_proj": q_rows, "down_proj": columns}
    result = {}
    for name, tensor in weights.items():
        module, _, kind = name.rpartition(".")
        part = module.rpartition(".")[2]
        if part in rows_of:
            result[name] = tensor[rows_of[part]]
        elif part in columns_of and kind == "weight":
            result[name] = tensor[:, columns_of[part]]
        elif part in columns_of and rank:
            result[name] = torch.zeros_like(tensor)
        else:
            result[name] = tensor
    return result


def _length(part: slice) -> int:
    return part.stop - part.start
