"""What a CUDA graph does, on the CPU: records the ops of a function once and replays them on the same memory."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

READS_OF_THE_HOST = ("aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal", "aten::nonzero", "aten::item")


class GraphRecorder(TorchDispatchMode):
    """Records ops with the very tensors they ran on. Values of tensors are read anew at each replay, nothing else is.

    Raises:
        AssertionError: an op brings a tensor's value to the host.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().split(".")[0]
        assert name not in READS_OF_THE_HOST, f"{name} reads a tensor on the host"
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]))
        return out

    def replay(self) -> None:
        """Runs every recorded op again, its results into the memory that they had while recording."""
        for func, args, kwargs, outputs in self.calls:
            if func.is_view:
                continue  # an address, which has not changed
            again = [leaf for leaf in tree_leaves(func(*args, **kwargs)) if isinstance(leaf, Tensor)]
            for recorded, result in zip(outputs, again, strict=True):
                if recorded.data_ptr() != result.data_ptr():
                    recorded.copy_(result)
