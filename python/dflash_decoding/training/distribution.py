"""Training in several processes, one per device, started by torchrun: who computes what, and what is exchanged.

Every process knows the plan of every step, since batches are functions of the step. So each takes its share of a
step's chats and knows the weight of all rows without asking; only gradients and losses are exchanged.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from .model import TrainableDrafter

DDP = "ddp"
FSDP2 = "fsdp2"
METHODS = (DDP, FSDP2)


class Distribution:
    """One process among `size` that train together; by itself if size is 1.

    Attributes:
        rank, size: this process and how many there are.
        method: "ddp": every process holds the whole drafter. "fsdp2": each holds a share of every weight and of its
            optimizer moments, and gathers a layer's weights when it computes it.

    Raises:
        ValueError: an unknown method.
    """

    def __init__(self, rank: int = 0, size: int = 1, method: str = DDP) -> None:
        if method not in METHODS:
            raise ValueError(f"parallel: expected {' or '.join(METHODS)}, got {method}")
        self.rank = rank
        self.size = size
        self.method = method

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files and the progress bar."""
        return self.rank == 0

    def wrap(self, model: TrainableDrafter) -> nn.Module:
        """The module to call in training. With FSDP2 the parameters of `model` become shards: wrap before the optimizer
        is made."""
        if self.size == 1:
            return model
        if self.method == DDP:
            with warnings.catch_warnings():
                # Only newer torch knows the new name of this option. The buffers are the same everywhere: embedding, RoPE.
                warnings.simplefilter("ignore", FutureWarning)
                return DistributedDataParallel(model, broadcast_buffers=False)
        for layer in model.layers:
            fully_shard(layer)
        return fully_shard(model)

    @property
    def gradient_scale(self) -> float:
        """Factor of a process's loss: gradients are averaged over the processes, but the loss is a sum over them."""
        return float(self.size)

    @contextmanager
    def exchange(self, module: nn.Module, now: bool) -> Iterator[None]:
        """Around forward and backward of a batch: gradients are exchanged with the last batch of a step only (`now`)."""
        if isinstance(module, FSDPModule):
            module.set_requires_gradient_sync(now)
        local = module.no_sync() if isinstance(module, DistributedDataParallel) and not now else nullcontext()
        with local:
            yield

    def sum(self, value: Tensor) -> Tensor:
        """`value` summed over the processes; all must call."""
        if self.size > 1:
            value = value.clone()
            dist.all_reduce(value)
        return value


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor that may be sharded; all processes must call."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def laid_out_like(tensor: Tensor, model: Tensor) -> Tensor:
    """`tensor`, sharded as `model` is. Every process passes the whole tensor, the same one."""
    if not isinstance(model, DTensor):
        return tensor
    return distribute_tensor(tensor, model.device_mesh, model.placements, src_data_rank=None)


@contextmanager
def distribution(method: str) -> Iterator[Distribution]:
    """The processes that torchrun has started, as its environment variables say; this one alone without them.

    A process group that exists already is used and left alone.

    Raises:
        ValueError: an unknown method.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    result = Distribution(int(os.environ.get("RANK", "0")), size, method)
    if size == 1 or dist.is_initialized():
        yield result
        return
    dist.init_process_group("gloo")
    try:
        yield result
    finally:
        dist.destroy_process_group()
