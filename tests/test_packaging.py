"""What leaves the repository: the source archive, the libraries' symbols, and what a bug report says."""

import getpass
import json
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch

import dflash_ops
from tests.test_build import ROOT

LIBRARIES = sorted((ROOT / "dflash_ops").glob("*.so"))
# What a build from source needs, and what a reader of the archive looks for.
SHIPPED_FOLDERS = ("csrc/", "dflash_ops/", "python/dflash_decoding/")
SHIPPED_FILES = {"CMakeLists.txt", "setup.py", "pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff"}
# LibTorch's stable C interface. Mangled names (c10, at, torch) change between torch versions.
STABLE_SYMBOL = re.compile(r"(aoti_)?torch_[a-z0-9_]+")
MANGLED_TORCH = re.compile(r"(?<!\d)(2at|3c10|5torch|6caffe2)\d")  # a namespace, as its length and its name


def tracked_files() -> list[str]:
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listing.stdout.splitlines() if (ROOT / name).exists()]


def undefined_symbols(library: Path) -> list[str]:
    listing = subprocess.run(
        ["nm", "-D", "--undefined-only", str(library)], capture_output=True, text=True, check=True
    ).stdout
    return [line.split()[-1].split("@")[0] for line in listing.splitlines()]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the list of tracked files")
def test_source_archive_holds_what_a_build_needs_and_no_more(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in tracked_files():
        if not name.startswith(("docs/", "training_data/", "benchmarks/")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    (source / "dflash_ops" / "_ops.so").write_bytes(b"a library built here")
    code = f"from setuptools.build_meta import build_sdist; build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, check=True, timeout=120)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames() if not tar.getmember(name).isdir()}
    expected = {name for name in tracked_files() if name.startswith(SHIPPED_FOLDERS)} | SHIPPED_FILES
    assert expected <= names, sorted(expected - names)
    generated = {name for name in names if ".egg-info/" in name} | {"PKG-INFO", "setup.cfg", "MANIFEST.in"}
    assert names <= expected | generated, sorted(names - expected - generated)


@pytest.mark.skipif(shutil.which("nm") is None, reason="nm of binutils is not installed")
@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name.split(".")[0])
def test_libraries_use_no_symbol_of_torch_but_the_stable_ones(library: Path) -> None:
    symbols = undefined_symbols(library)
    assert not [name for name in symbols if MANGLED_TORCH.search(name)]
    of_torch = [name for name in symbols if "torch" in name or name.startswith("aoti")]
    assert all(STABLE_SYMBOL.fullmatch(name) for name in of_torch), of_torch
    assert bool(of_torch) == (library.name == "_ops.so")


def test_the_symbol_check_knows_torch_symbols_from_others() -> None:
    for name in ("_ZN2at6Tensor", "_ZNK3c1010TensorImpl4sizeEl", "_ZNSt6vectorIN5torch3jitE"):
        assert MANGLED_TORCH.search(name), name
    for name in ("_ZNSt6vectorIiE", "_ZN6dflash4plan", "_ZdlPvm", "_ZN12at6TensorE12"):
        assert not MANGLED_TORCH.search(name), name


def test_the_version_stands_in_one_place() -> None:
    (version,) = re.findall(r'^VERSION = "(.+)"$', (ROOT / "setup.py").read_text(), re.MULTILINE)
    assert dflash_ops.__version__ == version == dflash_ops.build_info()["version"]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == version


def test_collect_env_says_what_a_bug_report_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASH_OPS_CUDA", "0")
    monkeypatch.setenv("SECRET_OF_THE_USER", "secret")
    report = dflash_ops.collect_env()
    assert set(report) == {"build", "python", "platform", "packages", "tools", "cpu", "cuda", "variables"}
    assert report["build"] == dflash_ops.build_info()
    assert platform.python_version() in report["python"]
    assert report["packages"]["torch"] == torch.__version__
    assert report["cpu"]["threads"] == torch.get_num_threads()
    assert len(report["cuda"]["devices"]) == torch.cuda.device_count()
    assert report["variables"]["DFLASH_OPS_CUDA"] == "0"
    assert "secret" not in json.dumps(report)
    assert report["tools"]["cmake"] is None or re.match(r"\d+\.\d+", report["tools"]["cmake"])


def test_collect_env_survives_a_machine_without_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    report = dflash_ops.collect_env()
    assert set(report["tools"].values()) == {None}
    assert report["cuda"]["driver"] is None


def test_collect_env_as_a_command_names_nobody() -> None:
    command = [sys.executable, "-W", "error", "-m", "dflash_ops.collect_env"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["build"]["version"] == dflash_ops.__version__
    words = set(re.findall(r"[\w.-]+", result.stdout))
    assert not words & {getpass.getuser(), platform.node(), str(Path.home())}
    assert str(ROOT) not in result.stdout
