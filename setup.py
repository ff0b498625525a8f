"""Builds the three libraries of dflash_ops with CMake and ninja; everything else stands in pyproject.toml.

`python setup.py build_libraries` builds into the work tree (what `make dev` does); `hub_layout` copies what was built there
to build/hub in the layout of Hugging Face's kernel hub.
"""

import base64
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
VERSION = "0.1.0"


def cmake_build(output: Path, build: Path, for_tests: bool) -> None:
    """Configures and builds every library into `output`; MAX_JOBS bounds the compile jobs (default: one a core).

    `for_tests` adds the PTX interpreter, which goes beside its Python files in tests/ptxsim.
    """
    import pybind11
    import torch

    cmake = shutil.which("cmake")
    if cmake is None:
        raise RuntimeError(
            "cmake: expected on PATH, got none (install it with your system's packages or pip install cmake)"
        )
    torch_dir = Path(torch.__file__).parent
    build.mkdir(parents=True, exist_ok=True)
    definitions = {
        "DFLASH_OUTPUT_DIR": output,
        "DFLASH_TORCH_DIR": torch_dir,
        "DFLASH_TORCH_VERSION": torch.__version__,
        "DFLASH_PYBIND11_INCLUDE": pybind11.get_include(),
        "DFLASH_PYTHON_INCLUDE": sysconfig.get_path("include"),
        "DFLASH_PYTHON_SUFFIX": sysconfig.get_config_var("EXT_SUFFIX"),
        "DFLASH_VERSION": VERSION,
    }
    ptxsim = for_tests and (ROOT / "tests" / "ptxsim").is_dir() and os.environ.get("DFLASH_OPS_PTXSIM", "1") == "1"
    switches = {
        "DFLASH_CUDA": os.environ.get("DFLASH_OPS_CUDA", "1") != "0",
        "DFLASH_EMULATE_AVX512": os.environ.get("DFLASH_OPS_EMULATE_AVX512", "0") == "1",
        "DFLASH_SANITIZE": os.environ.get("DFLASH_OPS_SANITIZE", "0") == "1",
        "DFLASH_PTXSIM": ptxsim,
    }
    # All of them each time: what an earlier build asked for stays in CMake's cache.
    definitions |= {name: "ON" if on else "OFF" for name, on in switches.items()}
    archs = os.environ.get("DFLASH_OPS_CUDA_ARCHS", "").replace(",", ";")
    choice = f"-DDFLASH_CUDA_ARCHS={archs}" if archs else "-UDFLASH_CUDA_ARCHS"
    ninja = shutil.which("ninja", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    configure = [cmake, "-S", str(ROOT), "-B", str(build), "-G", "Ninja", choice]
    if ninja:
        configure.append(f"-DCMAKE_MAKE_PROGRAM={ninja}")
    configure += [f"-D{name}={value}" for name, value in definitions.items()]
    subprocess.run(configure, check=True)
    jobs = os.environ.get("MAX_JOBS", str(os.cpu_count() or 1))
    subprocess.run([cmake, "--build", str(build), "--parallel", jobs], check=True)


class BuildExtension(build_ext):
    """Runs CMake once for all extensions; an editable install builds into the work tree."""

    def run(self) -> None:
        inplace = bool(self.editable_mode or self.inplace)
        output = ROOT / "dflash_ops" if inplace else Path(self.build_lib).resolve() / "dflash_ops"
        cmake_build(output, ROOT / "build" / "cmake" if inplace else Path(self.build_temp).resolve(), inplace)

    def get_outputs(self) -> list[str]:
        return []


class BuildLibraries(Command):
    """Builds the libraries into the work tree without installing anything."""

    user_options: ClassVar[list[tuple[str, str, str]]] = []

    def initialize_options(self) -> None: ...

    def finalize_options(self) -> None: ...

    def run(self) -> None:
        cmake_build(ROOT / "dflash_ops", ROOT / "build" / "cmake", True)


class HubLayout(Command):
    """Lays the package as built in the work tree out for `kernels.get_local_kernel(Path("build/hub"))`.

    build/hub/build/<variant> is the package itself, with metadata.json. The variant names the torch that runs this: the
    loader compares it with its own, though the libraries, which use torch's stable ABI alone, serve all from 2.10 on.
    """

    user_options: ClassVar[list[tuple[str, str | None, str]]] = [("output=", None, "where to (default: build/hub)")]

    def initialize_options(self) -> None:
        self.output = str(ROOT / "build" / "hub")

    def finalize_options(self) -> None: ...

    def run(self) -> None:
        import torch

        sys.path.insert(0, str(ROOT))
        import dflash_ops

        cuda = dflash_ops.build_info()["cuda"]
        on_cuda = torch.version.cuda is not None and cuda["built"]
        release = "".join(torch.__version__.split(".")[:2])
        backend = "cu" + "".join(cuda["toolkit"].split(".")[:2]) if on_cuda else "cpu"
        variant = f"torch{release}-cxx11-{backend}-{platform.machine()}-{platform.system().lower()}"
        folder = Path(self.output) / "build" / variant
        shutil.rmtree(folder, ignore_errors=True)
        unused = ["__pycache__", *([] if on_cuda else ["_cuda.so"])]
        shutil.copytree(ROOT / "dflash_ops", folder, ignore=shutil.ignore_patterns(*unused))
        digests = {
            str(path.relative_to(folder)): base64.b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        archs = [f"{arch.rstrip('af')[:-1]}.{arch.rstrip('af')[-1]}" for arch in cuda["archs"]]
        metadata = {
            "id": "dflash_ops",  # the module's name and the ops' namespace, so that absolute imports find this copy
            "name": "dflash-ops",
            "version": 0,
            "license": "apache-2.0",
            "python-depends": [],
            "backend": {"type": "cuda", "archs": archs} if on_cuda else {"type": "cpu"},
            "digest": {"algorithm": "sha256", "files": digests},
        }
        (folder / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")
        print(folder)


setup(
    version=VERSION,
    # What an isolated build installs beside pyproject.toml's requirements: cmake, where the system has none.
    setup_requires=[] if shutil.which("cmake") else ["cmake>=3.22"],
    ext_modules=[Extension("dflash_ops._host", sources=[])],
    cmdclass={"build_ext": BuildExtension, "build_libraries": BuildLibraries, "hub_layout": HubLayout},
)
