"""What an installation says about itself, and that every op comes with all that belongs to it."""

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._library.simple_registry import singleton as fake_registry

import dflash_ops
from dflash_ops import reference
from tests.ops.harness import ISAS, cpu_isa

ROOT = Path(__file__).resolve().parents[1]
HELPERS = {"cpu_isa", "set_cpu_isa", "cuda_ops", "new_workspace"}  # no computation of the contract
WHOLE = "masked_block_attention"
PARTS = {f"{WHOLE}_forward": WHOLE, f"{WHOLE}_backward": WHOLE}
SCHEMAS = sorted(
    name.removeprefix("dflash_ops::")
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("dflash_ops::") and name.removeprefix("dflash_ops::") not in HELPERS
)
OPS = sorted({PARTS.get(name, name) for name in SCHEMAS})


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, timeout=120
    )


def test_every_schema_of_the_table_is_registered() -> None:
    table = (ROOT / "csrc" / "bindings" / "schemas.cpp").read_text()
    assert sorted(re.findall(r'm\.def\(\s*"(\w+)\(', table)) == SCHEMAS


@pytest.mark.parametrize("op", OPS)
def test_every_op_is_complete(op: str) -> None:
    assert callable(getattr(dflash_ops, op))
    assert op in dflash_ops.__all__
    assert callable(getattr(reference, op))
    for file in (
        f"docs/ops/{op}.md",
        f"tests/ops/test_{op}.py",
        f"benchmarks/bench_{op}.py",
        f"csrc/bindings/{op}.cpp",
    ):
        assert (ROOT / file).is_file(), file
    assert f"`{op}`" in (ROOT / "docs" / "ops-contract.md").read_text()


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_has_its_kernels_and_a_fake(name: str) -> None:
    qualified = f"dflash_ops::{name}"
    assert fake_registry.find(qualified).fake_impl.kernel is not None
    for key in ("CPU", "CUDA"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(qualified, key), key


def test_build_info() -> None:
    info = dflash_ops.build_info()
    assert set(info) == {
        "version",
        "compiler",
        "torch_built_with",
        "torch_stable_abi",
        "torch",
        "cpu_isa",
        "cuda",
        "cuda_ops",
    }
    assert re.fullmatch(r"\d+\.\d+\.\d+", info["version"])
    assert info["torch"] == torch.__version__
    assert info["torch_stable_abi"] == "2.10"
    assert re.match(r"(GNU|Clang|AppleClang) \d+", info["compiler"])
    assert info["cpu_isa"] == dflash_ops.cpu_isa()
    cuda = info["cuda"]
    assert set(cuda) == {"built", "toolkit", "archs", "status"}
    assert cuda["built"] == (Path(dflash_ops.__file__).parent / "_cuda.so").exists()
    assert cuda["built"] == (cuda["toolkit"] is not None) == bool(cuda["archs"])
    assert cuda["status"] == dflash_ops.cuda_status()
    assert set(info["cuda_ops"]) <= set(SCHEMAS)


def test_cuda_status_is_a_sentence_on_every_machine() -> None:
    status = dflash_ops.cuda_status()
    if not dflash_ops.build_info()["cuda"]["built"]:
        assert status == "the CUDA library is not built: no nvcc was found when dflash_ops was installed"
    elif torch.cuda.is_available():
        assert re.match(r"(ready for|this build has no code for) .+ \(sm_\d+\)", status)
    else:
        assert status.startswith("no usable CUDA device: ")
        assert len(status) > len("no usable CUDA device: ")


@pytest.mark.parametrize("isa", ISAS)
def test_instruction_sets_can_be_chosen(isa: str) -> None:
    with cpu_isa(isa):
        assert dflash_ops.cpu_isa() == isa
        assert dflash_ops.build_info()["cpu_isa"] == isa


@pytest.mark.parametrize("name", ["avx9000", "", "AVX2", "avx512_bf16 "])
def test_an_unknown_instruction_set_is_refused(name: str) -> None:
    before = dflash_ops.cpu_isa()
    with pytest.raises(RuntimeError, match=f"set_cpu_isa: name: expected one of portable, avx2, .*, got {name}"):
        dflash_ops.set_cpu_isa(name)
    assert dflash_ops.cpu_isa() == before


@pytest.mark.skipif(ISAS[-1] == "avx512_bf16", reason="this machine has every instruction set")
def test_instructions_that_the_machine_lacks_are_refused() -> None:
    with pytest.raises(RuntimeError, match=rf"up to {ISAS[-1]} \(what this machine has\), got avx512_bf16"):
        dflash_ops.set_cpu_isa("avx512_bf16")


def test_the_environment_chooses_the_instruction_set() -> None:
    code = "import dflash_ops; print(dflash_ops.cpu_isa())"
    result = run_python(code, DFLASH_OPS_CPU_ISA="portable", PYTHONPATH=str(ROOT))
    assert result.stdout.strip() == "portable", result.stderr


def test_import_without_the_library_says_what_to_do(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "dflash_ops", tmp_path / "dflash_ops", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import dflash_ops"
    result = run_python(code)
    assert result.returncode != 0
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: dflash_ops is not built: expected _ops.so beside _library.py.")
    assert "pip install --no-build-isolation -e ." in last
    assert "make dev" in last


def test_switches_of_one_build_do_not_outlive_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CMake keeps what it was once told; each build says everything."""
    monkeypatch.setattr("setuptools.setup", lambda **_: None)
    cmake_build = runpy.run_path(str(ROOT / "setup.py"))["cmake_build"]
    commands: list[list[str]] = []
    monkeypatch.setattr("subprocess.run", lambda command, **_: commands.append(command))

    def configured() -> set[str]:
        commands.clear()
        cmake_build(tmp_path, tmp_path / "build", False)
        return {argument for argument in commands[0] if "CUDA" in argument or "SANITIZE" in argument}

    for name, value in (("CUDA", "0"), ("CUDA_ARCHS", "80,90a"), ("SANITIZE", "1")):
        monkeypatch.setenv(f"DFLASH_OPS_{name}", value)
    assert configured() == {"-DDFLASH_CUDA=OFF", "-DDFLASH_CUDA_ARCHS=80;90a", "-DDFLASH_SANITIZE=ON"}
    for name in ("CUDA", "CUDA_ARCHS", "SANITIZE"):
        monkeypatch.delenv(f"DFLASH_OPS_{name}")
    assert configured() == {"-DDFLASH_CUDA=ON", "-UDFLASH_CUDA_ARCHS", "-DDFLASH_SANITIZE=OFF"}
