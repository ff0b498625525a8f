"""Agreement of results, rows, budget, report and plots of `make bench`, on cases whose numbers are known."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import measure_ops, run_all
from benchmarks.agreement import AGREES, check
from benchmarks.compare import Comparison, Maker
from benchmarks.cpu_ops import bench_ops
from benchmarks.measure_ops import Row, Settings, in_turns, measure_row
from benchmarks.report import disagreements, report

CPU = torch.device("cpu")
VALUES = torch.tensor([1.0, 2.0, 3.0])


def comparison(plain: dict[str, Callable[[], object]], **options: Any) -> Comparison:
    out = torch.empty(3)
    return Comparison("row_argmax", "[3]", "float32", lambda: out.copy_(VALUES), plain, bytes=6e6, **options)


def settings(**options: Any) -> Settings:
    away = {"triton": "has no CPU kernels"}
    return Settings(CPU, bandwidth=12e9, away=away, clock=lambda run: (run(), 1e-3)[1], max_rounds=3, **options)


def test_results_are_compared() -> None:
    def raises() -> Tensor:
        raise ValueError("no kernel\nfor this")

    verdicts, failed = check(
        comparison(
            {
                "same": VALUES.clone,
                "rounded": lambda: VALUES * 1.0001,
                "other": lambda: VALUES + 1,
                "shape": lambda: VALUES[:2],
                "nan": lambda: VALUES * torch.nan,
                "nothing": lambda: None,
                "by_design": lambda: VALUES + 1,
                "raises": raises,
            },
            other_results={"by_design": "draws"},
        )
    )
    assert failed == {"raises": "ValueError: no kernel"}
    assert verdicts.pop("same") == verdicts.pop("rounded") == AGREES
    assert verdicts["other"].startswith("relative error")
    assert verdicts["shape"] == "shape [2], ours [3]"
    assert verdicts["nothing"] == "returned no tensor"
    assert set(verdicts) == {"other", "shape", "nan", "nothing"}
    assert AGREES not in verdicts.values()


def test_a_composition_that_writes_nothing_does_not_pass_for_ours() -> None:
    """Both write into one cache, where ours' result would still lie."""
    cache = torch.full((3,), torch.nan)

    def lazy() -> Tensor:
        return cache

    def busy() -> Tensor:
        return cache.index_copy_(0, torch.tensor([0, 1]), VALUES[:2])

    both = Comparison("op", "", "", lambda: cache.copy_(VALUES), {"busy": busy, "lazy": lazy})
    assert check(both)[0] == {"busy": AGREES, "lazy": "wrote nothing"}


def test_ties_may_go_either_way_but_not_all_of_them() -> None:
    ids = torch.arange(10)
    nearly, wrong = ids.clone(), ids.clone()
    nearly[0], wrong[:5] = 7, 0
    verdicts, _ = check(Comparison("op", "", "", ids.clone, {"nearly": lambda: nearly, "wrong": lambda: wrong}))
    assert verdicts == {"nearly": AGREES, "wrong": "40% of the integers differ"}


def test_row_numbers() -> None:
    row = measure_row(lambda: comparison({"copy": VALUES.clone}), settings())
    assert (row.milliseconds, row.ratios) == (1.0, {"copy": 1.0})
    assert row.gbytes_per_s == pytest.approx(6.0)  # 6 MB in a millisecond
    assert row.copy_share == pytest.approx(0.5)
    assert row.graph_milliseconds == {}


def test_row_with_graphs_and_without_what_compiles() -> None:
    def capture(candidates: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        return {"ours": candidates["ours"]}, {"copy": "waits"}

    made = comparison({"copy": VALUES.clone, "flex": VALUES.clone}, compiled=frozenset({"flex"}))
    row = measure_row(lambda: made, settings(capture=capture, compile_baselines=False))
    assert row.graph_milliseconds == {"ours": 1.0}
    assert row.skipped == {"flex": "compiles for too long", "copy as a graph": "waits"}


def test_the_first_case_of_every_op_comes_first() -> None:
    ops = bench_ops()
    turns = list(in_turns(ops))
    assert [op for op, _, _ in turns[: len(ops)]] == ops
    assert {number for _, number, _ in turns[: len(ops)]} == {0}
    assert len({(op, number) for op, number, _ in turns}) == len(turns)


def cases() -> Iterator[tuple[str, int, Maker]]:
    for number in range(3):
        yield "row_argmax", number, lambda: comparison({"copy": VALUES.clone})
    yield "select_pages", 0, lambda: comparison({})


def test_no_case_begins_after_the_budget() -> None:
    times = iter([0.0, 1.0, 11.0, 12.0, 13.0])
    rows, skipped = measure_ops.measure_ops(cases(), settings(), budget_seconds=10, now=lambda: next(times))
    assert len(rows) == 1
    assert skipped == {
        "row_argmax, 2 of its cases": "the time budget was spent",
        "select_pages, 1 of its cases": "the time budget was spent",
    }


def test_ops_without_a_kernel_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_ops.device, "op_runs_on", lambda op, _: op == "row_argmax")
    rows, skipped = measure_ops.measure_ops(cases(), settings(), budget_seconds=10)
    assert [row.op for row in rows] == 3 * ["row_argmax"]
    assert skipped == {"select_pages": "has no cpu kernel in this build"}


def results(**row: Any) -> dict[str, Any]:
    made = Row(
        "row_argmax", "[3]", "float32", 0.5, {"sdpa": 1.0}, {"sdpa": 2.0}, 1e6, 2.0, 0.25, {"sdpa": AGREES}, {}, {}
    )
    return {
        "machine": {"date": "2026-11-30", "cpu": "one", "isa": "avx2", "threads": 2, "torch": "2.13"},
        "mode": "quick",
        "copy_gbytes_per_s": 8.0,
        "rows": [made.to_dict() | row],
        "parts": {"decode": {"command": "python benchmarks/decode.py", "seconds": 3.4}},
        "skipped": {"flashinfer": "is not installed"},
    }


def test_report_has_every_number() -> None:
    text = report(results())
    assert "date 2026-11-30, cpu one, isa avx2, threads 2, torch 2.13." in text
    assert "quick run, copy bandwidth 8.0 GB/s" in text
    assert "| `row_argmax` | float32 | [3] | 0.5000 | 2.0 | 25% | sdpa 2.00x |" in text
    assert "- flashinfer: is not installed" in text
    assert "- decode: `python benchmarks/decode.py`, 3 s" in text
    assert "](bench_ratios.png)" in text
    assert "](images/bench_ratios.png)" in report(results(), images="images/")


def test_report_with_graph_times_has_columns_that_fit() -> None:
    text = report(results(graph_milliseconds={"ours": 0.25}))
    head, line, row = (part for part in text.splitlines() if part.startswith("|"))
    assert head.count("|") == line.count("|") == row.count("|")
    assert "| 0.5000 | 0.2500 | 2.0 |" in row


def test_wrong_results_are_reported() -> None:
    wrong = results(verdicts={"sdpa": "relative error 1.0e+00"}, other_results={"topk": "no order"})
    assert disagreements(wrong["rows"]) == ["row_argmax, [3], float32: sdpa: relative error 1.0e+00"]
    assert disagreements(results()["rows"]) == []
    assert "**wrong**: row_argmax" in report(wrong)
    assert "- `row_argmax`, topk: no order" in report(wrong)


def test_files_are_written_and_published_only_when_asked(tmp_path: Path) -> None:
    output, docs = tmp_path / "bench", tmp_path / "docs"
    (docs / "images").mkdir(parents=True)
    page = docs / "benchmarks.md"
    page.write_text(f"before\n<!-- tables: {run_all.WRITER} -->\nold\n<!-- end of tables -->\nafter\n")
    run_all.write(results(), output)
    assert sorted(path.name for path in output.iterdir()) == [
        "bench_copy_share.png",
        "bench_ratios.png",
        "report.md",
        "results.json",
    ]
    assert "old" in page.read_text()
    run_all.publish(output, docs)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "](images/bench_ratios.png)" in text
    assert json.loads((docs / "benchmarks.json").read_text()) == results()
    assert (docs / "images" / "bench_ratios.png").is_file()


@pytest.mark.parametrize("part", run_all.PARTS)
def test_parts_start_as_scripts(part: str) -> None:
    script = run_all.PARTS[part].command[0]
    subprocess.run([sys.executable, script, "--help"], cwd=run_all.ROOT, capture_output=True, check=True)


def test_parts_that_fail_or_take_too_long_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {
        "good": run_all.Part(("-c", "import pathlib; pathlib.Path('{}/done').touch()")),
        "bad": run_all.Part(("-c", "raise SystemExit('no model')")),
    }
    monkeypatch.setattr(run_all, "PARTS", parts)
    done, skipped = run_all.run_parts(list(parts), tmp_path, 60)
    assert list(done) == ["good"]
    assert (tmp_path / "done").exists()
    assert skipped == {"bad": "no model"}
    slow = run_all.Part(("-c", "import time; time.sleep(60)"))
    assert run_all.run_part(slow, tmp_path, 0.2) == run_all.run_part(slow, tmp_path, 0) == "the time budget was spent"


def test_command_line(tmp_path: Path) -> None:
    assert run_all.main(["--quick", "--op", "begin_block", "--output", str(tmp_path)]) == 0
    written = json.loads((tmp_path / "results.json").read_text())
    assert [row["op"] for row in written["rows"]] == ["begin_block"]
    assert written["machine"]["device"] in ("cpu", "cuda")
    assert "`begin_block`" in (tmp_path / "report.md").read_text()
