"""What ptxas makes of the kernels for each architecture: no spills, no stack, registers for the occupancy of the plan."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURES = ["80", "86", "89", "90a", "100a", "120a"]
ENTRIES = sorted((ROOT / "csrc" / "cuda").glob("*/entries.cu"))
NVCC = shutil.which("nvcc")
# What leaves each of an SM's 65536 registers to the blocks that the plans count on (csrc/plan/cuda): four of 256 threads,
# two of 384 (write_context_kv), two of 512 (norm_rope_qkv), one of 512 (verify_sampled).
MOST_REGISTERS = {
    "row_argmax": 64,
    "verify_greedy": 64,
    "begin_block": 64,
    "commit_block": 64,
    "remask": 64,
    "write_context_kv": 80,
    "norm_rope_qkv": 64,
    "verify_sampled": 128,
}


@pytest.mark.skipif(NVCC is None, reason="no nvcc")
@pytest.mark.parametrize("source", ENTRIES, ids=lambda path: path.parent.name)
def test_nothing_spills(source: Path, tmp_path: Path) -> None:
    op = source.parent.name
    names = re.findall(r"DFLASH_ENTRY\((\w+)\)", source.read_text())
    targets = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in ARCHITECTURES]
    command = [str(NVCC), "-std=c++17", "-O3", f"-I{ROOT / 'csrc'}", "-Xptxas=-v", "-fatbin", *targets, str(source)]
    result = subprocess.run([*command, "-o", str(tmp_path / "out")], capture_output=True, text=True, check=True)
    text = result.stdout + result.stderr
    frames = {}
    for report in text.split("Compiling entry function ")[1:]:
        entry = re.match(r"'(\w+)' for 'sm_(\w+)'", report)
        assert entry is not None
        frame = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", report)
        registers = re.findall(r"Used (\d+) registers", report)
        frames[entry.groups()] = (frame, registers)
        print(*entry.groups(), *frame, *registers)
    assert sorted(frames) == sorted((name, arch) for name in names for arch in ARCHITECTURES)
    assert {entry: frame for entry, (frame, _) in frames.items() if set(frame) != {("0", "0", "0")}} == {}
    assert max(int(count) for _, registers in frames.values() for count in registers) <= MOST_REGISTERS[op]
