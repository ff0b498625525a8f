"""Plants bugs in the kernels and runs their tests: `python -m tests.ptxsim.mutate [--kernel NAME] [--only TEXT]
[--json FILE] [--table FILE]`. Prints which check killed each; exits with 1 if one survives."""

import argparse
import contextlib
import importlib
import json
import os
import pkgutil
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.ptxsim import CountError, SimulationError, find_nvcc, mutants, sources_from
from tests.ptxsim.compiler import ROOT
from tests.ptxsim.mutants import Check, Mutant, Suite

_TREES = ["csrc", "tests/ptxsim/kernels"]


@dataclass(frozen=True)
class Result:
    """What became of a planted bug. `killed_by`: what its check saw first (a finding of the interpreter, a wrong value, a
    count); None if it survived."""

    kernel: str
    mutant: str
    kind: str
    killed_by: str | None
    check: str | None
    seconds: float


def all_suites() -> list[Suite]:
    """Of all modules of tests/ptxsim/mutants."""
    names = sorted(module.name for module in pkgutil.iter_modules(mutants.__path__))
    return [importlib.import_module(f"{mutants.__name__}.{name}").SUITE for name in names]


def failure_of(check: Check) -> str | None:
    """What the check saw first."""
    try:
        check()
    except SimulationError as error:
        return error.findings[0].kind
    except CountError:
        return "count"
    except AssertionError:
        return "value"
    return None


@contextlib.contextmanager
def mutated(mutant: Mutant) -> Iterator[None]:
    """The kernels of a copy of the tree with the bug in it."""
    with tempfile.TemporaryDirectory() as folder:
        for tree in _TREES:
            shutil.copytree(ROOT / tree, Path(folder) / tree)
        (Path(folder) / mutant.file).write_text(mutant.text(ROOT))
        with sources_from(Path(folder)):
            yield


def run_mutant(suite: Suite, mutant: Mutant) -> Result:
    """Runs the mutant's checks until one fails."""
    start = time.perf_counter()
    with mutated(mutant):
        for name in mutant.checks:
            killed_by = failure_of(suite.checks[name])
            if killed_by is not None:
                return Result(suite.kernel, mutant.name, mutant.kind, killed_by, name, time.perf_counter() - start)
    return Result(suite.kernel, mutant.name, mutant.kind, None, None, time.perf_counter() - start)


def require_sound_checks(suite: Suite, planted: Sequence[Mutant]) -> None:
    """The checks that the mutants use pass on the kernels as they are."""
    for name in sorted({name for mutant in planted for name in mutant.checks}):
        failure = failure_of(suite.checks[name])
        if failure is not None:
            raise RuntimeError(f"{suite.kernel}: the check {name} fails without a planted bug: {failure}")


def table_of(results: Sequence[Result]) -> str:
    """The results in Markdown."""
    killers = Counter(result.killed_by for result in results if result.killed_by is not None)
    lines = [
        "# Planted bugs",
        "",
        "Made by `make mutants`: each bug is planted in a copy of the kernels, which then run their own tests on the PTX",
        "interpreter; `killed by` is what the named test saw first. The bugs are in `tests/ptxsim/mutants/`.",
        "",
        f"{len(results)} bugs, {sum(result.killed_by is None for result in results)} survivors. Killed by "
        + ", ".join(f"{name}: {count}" for name, count in killers.most_common())
        + ".",
        "",
        "| kernel | planted bug | what it breaks | killed by | in the test |",
        "|---|---|---|---|---|",
    ]
    for result in results:
        killed_by, check = result.killed_by or "**survives**", result.check or ""
        lines.append(f"| {result.kernel} | {result.mutant} | {result.kind} | {killed_by} | {check} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    suites = all_suites()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", action="append", choices=[suite.kernel for suite in suites], help="only this one")
    parser.add_argument("--only", default="", metavar="TEXT", help="bugs with this text in their name")
    parser.add_argument("--json", type=Path, metavar="FILE", help="results as JSON")
    parser.add_argument("--table", type=Path, metavar="FILE", help="results as a Markdown table")
    options = parser.parse_args(arguments)
    if find_nvcc() is None:
        parser.error("expected nvcc on PATH or in CUDA_HOME, got none")
    results: list[Result] = []
    start = time.perf_counter()
    for suite in suites:
        if options.kernel and suite.kernel not in options.kernel:
            continue
        planted = [mutant for mutant in suite.mutants if options.only in mutant.name]
        require_sound_checks(suite, planted)
        for mutant in planted:
            result = run_mutant(suite, mutant)
            results.append(result)
            verdict = f"{result.killed_by} in {result.check}" if result.killed_by else "SURVIVES"
            print(f"{result.kernel:18} {result.mutant:52} {verdict} ({result.seconds:.1f} s)", flush=True)
    survivors = [result for result in results if result.killed_by is None]
    processor = sum(os.times()[:4])  # with the compilers'
    spent = time.perf_counter() - start
    print(f"{len(results)} planted bugs, {len(survivors)} survivors, {spent:.0f} s, {processor:.0f} s of processor")
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    if options.table:
        options.table.write_text(table_of(results))
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
