"""Checks of what the Python functions read themselves before the op, which checks everything, gets to see it."""

from typing import Any

import torch
from torch import Tensor


def check_dims(op: str, **tensors: tuple[Any, int]) -> None:
    """That every named argument is a tensor of so many dimensions.

    Raises:
        TypeError: no tensor.
        RuntimeError: one of another rank.
    """
    for name, (tensor, dims) in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{op}: {name}: expected a tensor, got {type(tensor).__name__}")
        if tensor.dim() != dims:
            raise RuntimeError(f"{op}: {name}: expected {dims} dimensions, got shape {list(tensor.shape)}")


def check_count(op: str, name: str, value: int, least: int = 0) -> None:
    """That a number is an integer of at least `least`, and of 63 bits.

    Raises:
        TypeError: no integer.
        RuntimeError: one out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int | torch.SymInt):
        raise TypeError(f"{op}: {name}: expected an integer, got {type(value).__name__}")
    if not least <= value < 2**63:
        raise RuntimeError(f"{op}: {name}: expected {least} or more, got {value}")


def tensor_list(op: str, name: str, tensors: Any) -> list[Tensor]:
    """A sequence of tensors as the list that ops take.

    Raises:
        TypeError: not a sequence of tensors.
    """
    if isinstance(tensors, Tensor) or not hasattr(tensors, "__iter__"):
        raise TypeError(f"{op}: {name}: expected a list of tensors, got {type(tensors).__name__}")
    entries = list(tensors)
    for index, entry in enumerate(entries):  # torch's own message would print all values of all tensors
        if not isinstance(entry, Tensor):
            raise TypeError(f"{op}: {name}[{index}]: expected a tensor, got {type(entry).__name__}")
    return entries


def default_scale(head_dim: int) -> float:
    """``head_dim ** -0.5``; 1 for heads without channels, which the ops refuse by name."""
    return head_dim**-0.5 if head_dim else 1.0


def register_out_variant(op: str) -> None:
    """Registers the fake of an op that only writes into its arguments: there is nothing to compute.

    A tensor on meta among others would send the whole call here, so the devices are compared.
    """
    names = [argument.name for argument in getattr(torch.ops.dflash_ops, op).default._schema.arguments]

    def fake(*args: Any) -> None:
        check_one_device(op, dict(zip(names, args, strict=False)))

    torch.library.register_fake(f"dflash_ops::{op}")(fake)


def check_one_device(op: str, arguments: dict[str, Any]) -> None:
    """That all tensors among the arguments sit on one device.

    Raises:
        RuntimeError: they do not.
    """
    first: Tensor | None = None
    for name, value in arguments.items():
        for tensor in value if isinstance(value, list) else [value]:
            if not isinstance(tensor, Tensor):
                continue
            first = tensor if first is None else first
            if tensor.device != first.device:
                raise RuntimeError(f"{op}: {name}: expected a tensor on {first.device}, got one on {tensor.device}")
