"""What ptxas makes of an op's kernels for one architecture: its own report, and the instructions in the binary."""

import functools
import os
import re
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ptxsim.compiler import compile_cached, find_nvcc

SOURCES = Path(__file__).resolve().parents[2] / "csrc"
ARCHITECTURES = ("80", "86", "89", "90a", "100a", "120a")  # as CMakeLists.txt builds them
# Folders of kernels; those that end in _sm90a belong to the op without it and to one architecture.
OPS = sorted(path.parent.name for path in (SOURCES / "cuda").glob("*/entries.cu"))

_TENSOR_OPCODES = ("HMMA", "IMMA", "QMMA", "OMMA", "HGMMA", "IGMMA", "QGMMA", "UTCHMMA", "UTCQMMA")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);", re.MULTILINE)


@dataclass(frozen=True)
class Instruction:
    opcode: str  # with its modifiers
    operands: str

    def is_a(self, *names: str) -> bool:
        """Whether the opcode, without modifiers, is one of these."""
        return self.opcode.split(".")[0] in names

    @property
    def access_bytes(self) -> int:
        """Of each lane, for a load or store."""
        modifiers = self.opcode.split(".")[1:]
        bits = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}
        return next((bits[modifier] for modifier in modifiers if modifier in bits), 32) // 8


@dataclass(frozen=True)
class KernelCode:
    """One kernel, compiled for one architecture."""

    name: str
    arch: str
    registers: int  # of a thread
    shared_bytes: int  # static, of a block
    stack_bytes: int
    spill_bytes: int  # stored and loaded
    losses: tuple[str, ...]  # what ptxas says makes it slower, wgmma that run one after the other above all
    instructions: tuple[Instruction, ...]

    @property
    def local_accesses(self) -> int:
        """Loads and stores of a thread's own memory: spills, or arrays indexed at run time."""
        return sum(one.is_a("LDL", "STL") for one in self.instructions)

    @property
    def tensor_instructions(self) -> int:
        return sum(one.is_a(*_TENSOR_OPCODES) for one in self.instructions)

    def global_accesses(self, opcode: str, least_bytes: int = 1) -> int:
        """How many instructions "LDG" or "STG" access at least so many bytes a lane."""
        return sum(one.is_a(opcode) and one.access_bytes >= least_bytes for one in self.instructions)

    @property
    def load_bytes_in_flight(self) -> int:
        """The most bytes that a lane has requested from global memory before it needs the first of them.

        Read off the listing: a load is under way until an instruction names one of its registers. Code after a jump
        counts as its continuation unless the jump is always taken.
        """
        under_way: list[tuple[range, int]] = []
        most = 0
        for one in self.instructions:
            named = {int(number) for number in re.findall(r"\bR(\d+)", one.operands)}
            under_way = [(registers, size) for registers, size in under_way if not named & set(registers)]
            if one.is_a("LDG"):
                first = int(re.findall(r"\bR(\d+)", one.operands)[0])
                under_way.append((range(first, first + max(1, one.access_bytes // 4)), one.access_bytes))
                most = max(most, sum(size for _, size in under_way))
            if one.is_a("RET", "BRX"):
                under_way = []
        return most


def architectures_of(op: str) -> tuple[str, ...]:
    """What a folder of kernels is compiled for."""
    return ("90a",) if op.endswith("_sm90a") else ARCHITECTURES


def entry_names(op: str) -> list[str]:
    """The kernels that csrc/cuda/<op>/entries.cu registers."""
    return sorted(re.findall(r"DFLASH_ENTRY\((\w+)\)", (SOURCES / "cuda" / op / "entries.cu").read_text()))


def find_cuobjdump() -> Path | None:
    """NVIDIA's disassembler front end: on PATH, or where its Python package puts it."""
    packaged = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin"
    found = shutil.which("cuobjdump", path=os.pathsep.join([str(packaged), os.environ.get("PATH", "")]))
    return None if found is None else Path(found)


@functools.cache
def machine_code(op: str, arch: str) -> dict[str, KernelCode]:
    """The op's kernels by name, as CMakeLists.txt compiles them. Cached under build/ by the content of the sources."""
    cuobjdump = find_cuobjdump()
    if find_nvcc() is None or cuobjdump is None:
        pytest.skip("no nvcc or no cuobjdump")
    flags = ["-cubin", "-std=c++17", "-O3", "-Xptxas=-v", f"-arch=sm_{arch}"]
    cubin = compile_cached(SOURCES / "cuda" / op / "entries.cu", flags, [SOURCES], "cubin")
    listing = cubin.with_suffix(".sass")
    if not listing.exists():
        path = os.pathsep.join([str(cuobjdump.parent), os.environ.get("PATH", "")])  # cuobjdump calls nvdisasm
        command = [str(cuobjdump), "-sass", str(cubin)]
        result = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"PATH": path})
        partial = listing.with_suffix(f".{os.getpid()}")
        partial.write_text(result.stdout)
        partial.replace(listing)
    return parse(cubin.with_suffix(".log").read_text(), listing.read_text(), arch)


def parse(log: str, listing: str, arch: str) -> dict[str, KernelCode]:
    """`log`: what ptxas -v printed; `listing`: what cuobjdump -sass printed."""
    functions = {
        part.split("\n", 1)[0].strip(): tuple(Instruction(*found) for found in _INSTRUCTION.findall(part))
        for part in listing.split("Function : ")[1:]
    }
    losses = re.findall(r"Potential Performance Loss: (.*) in the function '(\w+)'", log)
    kernels = {}
    for part in log.split("Compiling entry function ")[1:]:
        name = part.split("'")[1]
        frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
        registers = re.search(r"Used (\d+) registers", part)
        shared = re.search(r"(\d+) bytes smem", part)
        if frame is None or registers is None:
            raise ValueError(f"ptxas: no resources of {name} in\n{part}")
        stack, stores, loads = map(int, frame.groups())
        kernels[name] = KernelCode(
            name,
            arch,
            registers=int(registers.group(1)),
            shared_bytes=0 if shared is None else int(shared.group(1)),
            stack_bytes=stack,
            spill_bytes=stores + loads,
            losses=tuple(loss for loss, of in losses if of == name),
            instructions=functions[name],
        )
    return kernels
