"""The least a call can move to and from memory: what tests and the kernel sheet compare kernels with."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Traffic:
    """Bytes: every input byte the result depends on once, every output byte once, no workspace."""

    loads: int
    stores: int

    @property
    def total(self) -> int:
        return self.loads + self.stores
