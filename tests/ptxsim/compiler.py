"""PTX from CUDA sources with nvcc, cached under build/ by the content of everything that goes into it."""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "ptx"
_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
_roots = [ROOT]


def source_root() -> Path:
    """The tree whose kernels are compiled: this one, or the one that `sources_from` names."""
    return _roots[-1]


@contextmanager
def sources_from(root: Path) -> Iterator[None]:
    """Tests take their kernels from another tree, laid out as this one."""
    _roots.append(root.resolve())
    try:
        yield
    finally:
        _roots.pop()


def _name_in_tree(path: Path) -> str:
    """Where a file lies in its tree, so that equal files of two trees share their PTX."""
    return str(path.relative_to(source_root())) if path.is_relative_to(source_root()) else str(path)


def find_nvcc() -> str | None:
    """The CUDA compiler, by the rule CMakeLists.txt uses; None when there is none."""
    candidates = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
    path = os.pathsep.join([os.environ.get("PATH", ""), *(f"{home}/bin" for home in candidates if home)])
    return shutil.which("nvcc", path=path)


def _sources(path: Path, include_dirs: Sequence[Path], seen: dict[Path, bytes]) -> None:
    """Collects a file and, recursively, the project headers it includes in quotes."""
    path = path.resolve()
    if path in seen:
        return
    seen[path] = path.read_bytes()
    for name in _INCLUDE.findall(seen[path].decode()):
        for folder in [path.parent, *include_dirs]:
            if (folder / name).is_file():
                _sources(folder / name, include_dirs, seen)
                break


def compile_cached(path: Path, flags: Sequence[str], include_dirs: Sequence[str | Path], suffix: str) -> Path:
    """What nvcc makes of a .cu file; what it printed lies beside it, as `<name>.log`.

    Raises RuntimeError with nvcc's output when it fails, or when there is no nvcc.
    """
    nvcc = find_nvcc()
    if nvcc is None:
        raise RuntimeError("nvcc: expected on PATH or in CUDA_HOME, got none")
    folders = [Path(folder).resolve() for folder in include_dirs]
    files: dict[Path, bytes] = {}
    _sources(path, folders, files)
    names = map(_name_in_tree, folders)
    digest = hashlib.sha256("\0".join([nvcc, str(Path(nvcc).stat().st_mtime), *flags, *names]).encode())
    for name in sorted(files):
        digest.update(_name_in_tree(name).encode() + files[name])
    cached = CACHE / f"{path.stem}.{digest.hexdigest()[:24]}.{suffix}"
    if not cached.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        partial = cached.with_suffix(f".{os.getpid()}")
        command = [nvcc, *flags, *(f"-I{folder}" for folder in folders), str(path), "-o", str(partial)]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}\n{result.stdout}{result.stderr}")
        cached.with_suffix(".log").write_text(result.stdout + result.stderr)
        partial.replace(cached)
    return cached


def ptx_file(
    path: str | Path,
    arch: str = "sm_80",
    defines: Mapping[str, str | int | None] | None = None,
    include_dirs: Sequence[str | Path] = (),
    options: Sequence[str] = (),
) -> Path:
    """PTX of a .cu file with line information.

    `defines` maps macro names to values (None: defined without one).
    """
    flags = ["-ptx", "-lineinfo", "-std=c++17", "-O3", f"-arch={arch}", *options]
    flags += [f"-D{name}" if value is None else f"-D{name}={value}" for name, value in (defines or {}).items()]
    return compile_cached(Path(path), flags, include_dirs, "ptx")
