"""Bugs planted in the kernels, one module for each kernel. Their checks are the kernels' own tests: a bug that none of
them sees is a missing test. `python -m tests.ptxsim.mutate` runs them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Check = Callable[[], object]
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

    def text(self, root: Path) -> str:
        """The file of a tree with the bug in it."""
        text = (root / self.file).read_text()
        for old, new in self.edits:
            if text.count(old) != 1:
                raise ValueError(f"{self.name}: expected once in {self.file}, got {text.count(old)} times: {old}")
            text = text.replace(old, new)
        return text


@dataclass(frozen=True)
class Suite:
    """A kernel's planted bugs and the checks they are run on."""

    kernel: str
    checks: dict[str, Check]
    mutants: tuple[Mutant, ...]
