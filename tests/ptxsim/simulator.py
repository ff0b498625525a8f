"""Launching kernels on the interpreter, and reading its reports. README.md shows the use."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.ptxsim import _core  # type: ignore[attr-defined]
from tests.ptxsim.compiler import ptx_file

Argument = Any  # numpy array or scalar, int, float, bytes, bool


@dataclass(frozen=True)
class Place:
    """An instruction: its PTX, and the .cu line it came from (`outer_*`: the line of the kernel that inlined it)."""

    text: str
    ptx_line: int
    file: str
    line: int
    outer_file: str
    outer_line: int

    def __str__(self) -> str:
        at = f"{Path(self.file).name}:{self.line}" if self.file else f"PTX line {self.ptx_line}"
        if (self.file, self.line) != (self.outer_file, self.outer_line):
            at += f" (inlined at {Path(self.outer_file).name}:{self.outer_line})"
        return f"{at}: {self.text}"


@dataclass(frozen=True)
class Finding:
    """A bug of the kernel. `other` is the second instruction of a race; `count` how often it happened."""

    kind: str
    message: str
    place: Place
    other: Place | None
    count: int

    def __str__(self) -> str:
        text = f"{self.kind}: {self.message}\n    {self.place}"
        return text + (f"\n    {self.other}" if self.other else "")


class SimulationError(AssertionError):
    """A launch had findings."""

    def __init__(self, entry: str, findings: Sequence[Finding]) -> None:
        lines = "\n".join(str(finding) for finding in findings)
        super().__init__(f"{entry}: {len(findings)} findings\n{lines}")
        self.findings = findings


class CountError(AssertionError):
    """A launch did more than it has to, or less than it must."""


def assert_count(what: str, actual: int, least: int, slack: float = 1.0) -> None:
    """For what only a report's counts show: from `least` to `slack` times as much."""
    if not least <= actual <= slack * least:
        raise CountError(f"{what}: expected {least} to {slack * least:.10g}, got {actual}")


@dataclass(frozen=True)
class InstructionCount:
    """What one instruction did over the whole launch (warp instructions; bytes as lanes request them)."""

    place: Place
    executions: int
    active_lanes: int
    global_bytes: int
    sectors: int
    ideal_sectors: int
    wavefronts: int
    ideal_wavefronts: int

    @property
    def opcode(self) -> str:
        words = self.place.text.split()
        return words[1] if words[0].startswith("@") else words[0]


@dataclass(frozen=True)
class BufferCount:
    """Global traffic of one buffer."""

    load_bytes: int
    store_bytes: int
    load_sectors: int
    store_sectors: int


@dataclass
class Report:
    """What a launch did and what was wrong with it."""

    entry: str
    completed: bool
    findings: list[Finding]
    instructions: list[InstructionCount]
    buffers: dict[str, BufferCount]
    warp_instructions: int
    barriers: int

    def check(self) -> "Report":
        """Raises SimulationError when there is any finding; returns itself."""
        if self.findings:
            raise SimulationError(self.entry, self.findings)
        return self

    def kinds(self) -> set[str]:
        """The kinds of findings."""
        return {finding.kind for finding in self.findings}

    def count(self, opcode: str) -> int:
        """Executions (warp instructions) of all instructions whose opcode starts with `opcode`."""
        return sum(row.executions for row in self.instructions if row.opcode.startswith(opcode))

    def total(self, name: str) -> int:
        """Sum of a column of `InstructionCount` over all instructions."""
        return sum(getattr(row, name) for row in self.instructions)

    def by_line(self) -> dict[str, dict[str, int]]:
        """The counters summed by .cu line, "file:line" -> column -> sum."""
        columns = [name for name in InstructionCount.__dataclass_fields__ if name != "place"]
        lines: dict[str, dict[str, int]] = {}
        for row in self.instructions:
            key = f"{row.place.file}:{row.place.line}" if row.place.file else f"ptx:{row.place.ptx_line}"
            sums = lines.setdefault(key, dict.fromkeys(columns, 0))
            for name in columns:
                sums[name] += getattr(row, name)
        return lines

    def to_json(self) -> str:
        """Everything but the per-instruction rows, with the counters by .cu line."""
        values = {key: value for key, value in asdict(self).items() if key != "instructions"}
        return json.dumps(values | {"lines": self.by_line()}, indent=1)


def _place(row: Mapping[str, Any]) -> Place:
    return Place(**{name: row[name] for name in Place.__dataclass_fields__})


def _report(raw: Mapping[str, Any]) -> Report:
    findings = [
        Finding(row["kind"], row["message"], _place(row), _place(row["other"]) if row["other"] else None, row["count"])
        for row in raw["findings"]
    ]
    columns = [name for name in InstructionCount.__dataclass_fields__ if name != "place"]
    instructions = [
        InstructionCount(_place(row), **{name: row[name] for name in columns}) for row in raw["instructions"]
    ]
    buffers = {name: BufferCount(**row) for name, row in raw["buffers"].items()}
    return Report(
        raw["entry"],
        raw["completed"],
        findings,
        instructions,
        buffers,
        raw["warp_instructions"],
        raw["barriers"],
    )


@dataclass
class DeviceMemory:
    """Named global buffers. `add` gives the device address, an integer pointers can be computed from."""

    _memory: Any = field(default_factory=_core.Memory)

    def add(
        self,
        name: str,
        array: Any,
        *,
        read_only: bool = False,
        undefined: bool = False,
        settled: bool = False,
        misalign: int = 0,
    ) -> int:
        """Makes a C-contiguous numpy array a buffer, without a copy.

        `read_only`: a store is a finding. `undefined`: reading a byte the kernels have not written is a finding.
        `settled`: no launch that may still be running writes it (see `dependent` of `Module.launch`).
        `misalign`: bytes by which the base misses its 256-byte alignment.
        """
        address: int = self._memory.add(name, array, read_only, undefined, settled, misalign)
        return address


class Module:
    """A PTX module; its .global variables keep their contents between launches."""

    def __init__(self, text: str) -> None:
        self._program = _core.Program(text)

    @classmethod
    def from_ptx(cls, text: str) -> "Module":
        """Parses PTX text; an unknown opcode or modifier raises ValueError with its line."""
        return cls(text)

    @classmethod
    def compile(
        cls,
        path: str | Path,
        arch: str = "sm_80",
        defines: Mapping[str, str | int | None] | None = None,
        include_dirs: Sequence[str | Path] = (),
    ) -> "Module":
        """Compiles a .cu file to PTX (cached) and parses it."""
        return cls(ptx_file(path, arch, defines, include_dirs).read_text())

    def kernel_names(self) -> list[str]:
        """The entries of the module."""
        names: list[str] = self._program.kernel_names()
        return names

    def kernel_info(self, entry: str) -> dict[str, Any]:
        """Parameters as (name, offset, size), static shared memory, local bytes of a lane, number of instructions."""
        info: dict[str, Any] = self._program.kernel_info(entry)
        return info

    def read_variable(self, name: str) -> bytes:
        """Contents of a module-scope variable."""
        contents: bytes = self._program.read_variable(name)
        return contents

    def write_variable(self, name: str, contents: bytes) -> None:
        """Sets a module-scope variable."""
        self._program.write_variable(name, contents)

    def launch(
        self,
        entry: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        arguments: Sequence[Argument],
        *,
        shared: int = 0,
        memory: DeviceMemory | None = None,
        completion: str = "late",
        schedule: str = "round_robin",
        seed: int = 0,
        races: bool = True,
        warp_races: bool = True,
        dependent: bool = False,
        threads: int = 1,
        instruction_limit: int = 2_000_000_000,
    ) -> Report:
        """Runs a kernel.

        `arguments`, one a parameter: a numpy array becomes a buffer named "argN" and passes its address; numpy scalars
        and bytes (a struct, packed as the compiler lays it out) pass as they are; int and float take the parameter's
        size. Addresses from `memory` are ints. `shared` is the dynamic shared memory in bytes.
        `dependent`: the launch may start before those before it have ended: until a thread's griddepcontrol.wait, all it
        may touch are loads of settled buffers.
        `completion` of asynchronous copies: early, late, random. `schedule` of warps: round_robin, random, greedy.
        """
        memory = memory or DeviceMemory()
        parameters = self.kernel_info(entry)["parameters"]
        if len(parameters) != len(arguments):
            raise ValueError(f"arguments: expected {len(parameters)}, got {len(arguments)}")
        packed = bytearray()
        for index, ((_, offset, size), argument) in enumerate(zip(parameters, arguments, strict=True)):
            value = _pack(memory, index, size, argument)
            packed += bytes(offset - len(packed)) + value
        options = {
            "completion": completion,
            "schedule": schedule,
            "seed": seed,
            "races": races,
            "warp_races": warp_races,
            "dependent": dependent,
            "threads": threads,
            "instruction_limit": instruction_limit,
        }
        raw = _core.launch(
            self._program, entry, memory._memory, _three(grid), _three(block), shared, bytes(packed), options
        )
        return _report(raw)


def _three(size: int | Sequence[int]) -> list[int]:
    values = [size] if isinstance(size, int) else list(size)
    return values + [1] * (3 - len(values))


def _pack(memory: DeviceMemory, index: int, size: int, argument: Argument) -> bytes:
    """The bytes of one parameter of `size` bytes."""
    if isinstance(argument, np.ndarray):
        argument = memory.add(f"arg{index}", argument, read_only=not argument.flags.writeable)
    if isinstance(argument, bool | int):
        value = int(argument).to_bytes(size, "little", signed=argument < 0)
    elif isinstance(argument, float):
        value = np.float32(argument).tobytes() if size == 4 else np.float64(argument).tobytes()
    else:
        value = bytes(argument) if isinstance(argument, bytes | bytearray) else np.asarray(argument).tobytes()
    if len(value) != size:
        raise ValueError(f"argument {index}: expected {size} bytes, got {len(value)}")
    return value
