"""The planted bugs themselves, and a few of them run; `make mutants` runs all."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.ptxsim import find_nvcc
from tests.ptxsim.compiler import ROOT
from tests.ptxsim.mutants import Mutant, Suite
from tests.ptxsim.mutate import all_suites, main, mutated, run_mutant

SUITES = {suite.kernel: suite for suite in all_suites()}
QUICK = [
    ("attention", "the tile in use is not waited for", "race"),
    ("attention", "tiles are not swizzled", "count"),
    ("begin_block", "one page too many", "out_of_bounds"),
    ("commit_block", "the length is replaced while lanes still read it", "warp_race"),
    ("row_argmax", "no barrier before the block learns that it is last", "uninitialised_read"),
    ("row_argmax", "logits are read twice", "count"),
    ("row_argmax", "minus zero is less than zero", "value"),
]
needs_nvcc = pytest.mark.skipif(find_nvcc() is None, reason="needs nvcc to make PTX")


def planted(suite: Suite, name: str) -> Mutant:
    return next(mutant for mutant in suite.mutants if mutant.name == name)


def test_there_is_enough_of_each_kind() -> None:
    kinds = Counter(mutant.kind for suite in SUITES.values() for mutant in suite.mutants)
    assert kinds.total() >= 40
    assert kinds["order"] >= 10
    assert kinds["count"] >= 5
    ops = {entries.parent.name for entries in (ROOT / "csrc" / "cuda").glob("*/entries.cu")}
    assert ops <= set(SUITES), "every kernel has planted bugs"


@pytest.mark.parametrize("suite", SUITES.values(), ids=lambda suite: suite.kernel)
def test_bugs_fit_the_sources(suite: Suite) -> None:
    """Every text that is to be replaced is there once, and checks exist."""
    names = [mutant.name for mutant in suite.mutants]
    assert len(set(names)) == len(names)
    for mutant in suite.mutants:
        assert set(mutant.checks) <= set(suite.checks)
        assert mutant.text(ROOT) != (ROOT / mutant.file).read_text()
    assert {name for mutant in suite.mutants for name in mutant.checks} == set(suite.checks), "no check is idle"


def test_a_stale_bug_is_an_error() -> None:
    stale = Mutant("stale", "value", "csrc/cuda/begin_block/kernel.cuh", (("no such text", ""),), ())
    with pytest.raises(ValueError, match=r"expected once in .+kernel\.cuh, got 0 times: no such text"), mutated(stale):
        pass


@needs_nvcc
@pytest.mark.parametrize(("kernel", "name", "killed_by"), QUICK, ids=lambda value: str(value))
def test_bugs_are_found(kernel: str, name: str, killed_by: str) -> None:
    assert run_mutant(SUITES[kernel], planted(SUITES[kernel], name)).killed_by == killed_by


@needs_nvcc
def test_a_survivor_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both results of a run: the harmless change survives, the harmful one does not."""
    kernel = "csrc/cuda/begin_block/kernel.cuh"
    suite = SUITES["begin_block"]
    harmless = Mutant("harmless", "value", kernel, (("page >= 0", "page > -1"),), tuple(suite.checks)[:1])
    changed = Suite("begin_block", suite.checks, (harmless, planted(suite, "one page too many")))
    monkeypatch.setattr("tests.ptxsim.mutate.all_suites", lambda: [changed])
    results, table = tmp_path / "results.json", tmp_path / "table.md"
    assert main(["--json", str(results), "--table", str(table)]) == 1
    assert [row["killed_by"] for row in json.loads(results.read_text())] == [None, "out_of_bounds"]
    assert "| begin_block | harmless | value | **survives** |  |" in table.read_text()
    assert main(["--only", "one page"]) == 0
