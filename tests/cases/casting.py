"""An op's arguments in another dtype, for its definition."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def in_dtype(arguments: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """The arguments with floating-point tensors as `dtype`."""
    return {
        name: value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in arguments.items()
    }
