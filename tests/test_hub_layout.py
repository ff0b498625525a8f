"""The kernel hub's layout of the package: what its loader reads, and that a package loaded from there works."""

import base64
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.test_build import ROOT

# What the hub's loader does with a folder: metadata's id becomes the module's name. Nothing of the repository is in reach.
LOADED = """
import importlib.util, json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
name = json.loads((folder / "metadata.json").read_text())["id"]
spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
module = sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
"""
CALLED = """
import torch
print(module.row_argmax(torch.tensor([[1.0, 5.0, 2.0]]))[0].tolist(), module.build_info()["version"])
import dflash_ops, dflash_ops.ops.row_argmax as op
print(dflash_ops is module, pathlib.Path(op.__file__).is_relative_to(folder))
"""
LOADED_BESIDE_ANOTHER = """
for name in [name for name in sys.modules if name.startswith("dflash_ops")]:
    del sys.modules[name]
sys.path.insert(0, sys.argv[2])
try:
    import dflash_ops
except ImportError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def variant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("hub")
    command = [sys.executable, "setup.py", "-q", "hub_layout", f"--output={output}"]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=120)
    (folder,) = (output / "build").iterdir()
    return folder


def run(code: str, *arguments: object) -> str:
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    result = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_variant_names_torch_backend_and_machine(variant: Path) -> None:
    match = re.fullmatch(r"torch(\d+)-cxx11-(cpu|cu\d+)-(x86_64|aarch64)-linux", variant.name)
    assert match is not None
    assert match[1] == "".join(torch.__version__.split(".")[:2])
    metadata = json.loads((variant / "metadata.json").read_text())
    assert metadata["backend"]["type"] == ("cpu" if match[2] == "cpu" else "cuda")
    assert (variant / "_cuda.so").exists() == (match[2] != "cpu")
    files = {str(path.relative_to(variant)) for path in variant.rglob("*") if path.is_file()} - {"metadata.json"}
    assert set(metadata["digest"]["files"]) == files
    for name, digest in metadata["digest"]["files"].items():
        assert hashlib.sha256((variant / name).read_bytes()).digest() == base64.b64decode(digest)


def test_the_package_works_from_there(variant: Path) -> None:
    import dflash_ops

    assert run(LOADED + CALLED, variant).splitlines() == [f"[1] {dflash_ops.__version__}", "True True"]


def test_a_second_copy_in_a_process_is_refused(variant: Path) -> None:
    """Its library would register the ops again, which ends the process."""
    message = run(LOADED + LOADED_BESIDE_ANOTHER, variant, ROOT)
    assert "expected one copy in a process, got the ops of another" in message
