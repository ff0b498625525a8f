"""Bugs planted in the kernels, one module for each kernel. Their checks are the kernels' own tests: a bug that none of
them sees is a missing test. `python -m tests.ptxsim.mutate` runs them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["value", "order", "bounds", "count"]


@dataclass(frozen=True)
class Mutant:
    """A bug. `edits` are exact texts of the file, each of which must occur once, and what takes their place; `kind` is
    what the bug breaks: results, the order of accesses, where they go, or only how much is moved."""

    name: str
    kind: Kind
    file: str
    edits: tuple[tuple[str, str], ...]
    checks: tuple[str, ...]  # names in the kernel's Suite, run in this order until one fails

    def apply(self, root: Path) -> None:
        """Plants the bug in a copy of the tree."""
        path = root / self.file
        text = path.read_text()
        for old, new in self.edits:
            if text.count(old) != 1:
                raise ValueError(f"{self.name}: expected once in {self.file}, got {text.count(old)} times: {old}")
            text = text.replace(old, new)
        path.write_text(text)


@dataclass(frozen=True)
class Suite:
    """A kernel's planted bugs and the checks they are run on."""

    kernel: str
    checks: dict[str, Callable[[], object]]
    mutants: tuple[Mutant, ...]
