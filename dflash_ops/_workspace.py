"""Allocates an op's workspace when the caller passes none."""

import torch
from torch import Tensor

from dflash_ops import _host


def new_workspace(like: Tensor, op: str, sizes: list[int]) -> Tensor:
    """A uint8 workspace on ``like``'s device: of ``_host.<op>_workspace_size(*sizes, threads)`` bytes, uninitialised, on
    the CPU; of ``_host.<op>_cuda_workspace_size(*sizes, multiprocessors)`` zeros on a GPU.

    Sizes may be symbolic under ``torch.compile``: the size is then computed when the graph runs.
    """
    if torch.compiler.is_compiling():
        return _new_workspace(like, op, sizes)
    if like.is_cuda:
        multiprocessors = torch.cuda.get_device_properties(like.device).multi_processor_count
        size = getattr(_host, f"{op}_cuda_workspace_size")(*sizes, multiprocessors)
        return like.new_zeros((size,), dtype=torch.uint8)
    size = getattr(_host, f"{op}_workspace_size")(*sizes, torch.get_num_threads())
    return like.new_empty((size,), dtype=torch.uint8)


def stream_workspace(like: Tensor, size: int) -> Tensor:
    """A uint8 workspace of ``size`` bytes on ``like``'s device; zero on CUDA, where it begins with arrival counters."""
    new = like.new_zeros if like.is_cuda else like.new_empty
    return new((size,), dtype=torch.uint8)


@torch.library.custom_op("dflash_ops::new_workspace", mutates_args=())
def _new_workspace(like: Tensor, op: str, sizes: list[int]) -> Tensor:
    return new_workspace(like, op, sizes)


@_new_workspace.register_fake
def _(like: Tensor, op: str, sizes: list[int]) -> Tensor:
    size = torch.library.get_ctx().new_dynamic_size()
    return like.new_empty((size,), dtype=torch.uint8)
