"""Runs what this machine can within a budget and writes results.json, report.md and plots: `make bench`.

    python benchmarks/run_all.py [--quick] [--budget SECONDS] [--op NAME ...] [--part NAME ...] [--publish]

Everything goes into build/bench. --publish then copies the report into docs/benchmarks.md, the plots into docs/images
and the numbers into docs/benchmarks.json. The exit status is 1 if a composition's result is not ours.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

# As a script, this file sees its own folder only; what it shares with the tests lies in the checkout's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import plot_ops
from benchmarks.cpu_ops import bench_ops
from benchmarks.device import machine
from benchmarks.long_context_report import write_between_marks
from benchmarks.measure_ops import Row, Settings, in_turns, measure_ops
from benchmarks.report import PLOTS, disagreements, report

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "build" / "bench"
WRITER = "benchmarks/run_all.py"
QUICK_SECONDS, FULL_SECONDS = 90.0, 1200.0
OPS_SHARE = 0.7  # of the budget, where other parts follow


@dataclass(frozen=True)
class Part:
    """Another benchmark of this folder, in a process of its own that ends with the budget, on the CPU. `{}` is the
    output folder."""

    command: tuple[str, ...]
    plot: tuple[str, ...] = ()


PARTS = {
    "decode": Part(
        ("benchmarks/decode.py", "--json", "{}/decode.json", "--prompts", "2", "--max-new-tokens", "32"),
        plot=("benchmarks/plot_decode.py", "{}/decode.json", "--output", "{}"),
    ),
    "long_context_ops": Part(
        ("benchmarks/long_context_ops.py", "--json", "{}/long_context_ops.json", "--seconds", "10"),
        plot=("benchmarks/plot_long_context_ops.py", "{}/long_context_ops.json", "--output", "{}"),
    ),
    "long_context": Part(
        ("benchmarks/long_context.py", "--json", "{}/long_context.json", "--lengths", "1024", "--prompts", "1"),
        plot=("benchmarks/plot_long_context.py", "{}/long_context.json", "--output", "{}"),
    ),
}
FULL_PARTS = ("decode", "long_context_ops")


def run_part(part: Part, output: Path, seconds: float) -> str | None:
    """Why it has no result, or None."""
    begin = time.monotonic()
    for command in (part.command, part.plot):
        left = seconds - (time.monotonic() - begin)
        if not command:
            continue
        if left <= 0:
            return "the time budget was spent"
        try:
            arguments = [argument.format(output) for argument in command]
            done = subprocess.run(
                [sys.executable, *arguments], cwd=ROOT, timeout=left, capture_output=True, text=True, check=False
            )
        except subprocess.TimeoutExpired:
            return "the time budget was spent"
        if done.returncode:
            return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return None


def run_parts(names: Sequence[str], output: Path, seconds: float) -> tuple[dict[str, Any], dict[str, str]]:
    """(parts that ran, why the others did not)."""
    end = time.monotonic() + seconds
    done: dict[str, Any] = {}
    skipped: dict[str, str] = {}
    for name in names:
        part = PARTS[name]
        begin = time.monotonic()
        if why := run_part(part, output, end - begin):
            skipped[name] = why
        else:
            command = " ".join(argument.format("build/bench") for argument in part.command)
            done[name] = {"command": f"python {command}", "seconds": time.monotonic() - begin}
    return done, skipped


def show(row: Row) -> None:
    """A line on the way."""
    ratios = ", ".join(f"{name} {ratio:.2f}x" for name, ratio in row.ratios.items())
    print(
        f"{row.op:<23} {row.dtype:<9} {row.milliseconds:>9.3f} ms {row.copy_share:>5.0%}  {ratios}  {row.shape}",
        flush=True,
    )


def write(results: Mapping[str, Any], output: Path) -> None:
    """results.json, report.md and the plots."""
    output.mkdir(parents=True, exist_ok=True)
    (output / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (output / "report.md").write_text(f"# Benchmarks\n\n{report(results)}\n", encoding="utf-8")
    plot_ops.draw(results, output)


def publish(output: Path, docs: Path = ROOT / "docs") -> None:
    """Copies what `write` wrote to where the documentation has it."""
    results = json.loads((output / "results.json").read_text(encoding="utf-8"))
    shutil.copyfile(output / "results.json", docs / "benchmarks.json")
    for name in PLOTS:
        shutil.copyfile(output / f"{name}.png", docs / "images" / f"{name}.png")
    write_between_marks(docs / "benchmarks.md", "\n" + report(results, images="images/") + "\n", WRITER)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions, ops alone: a smoke run, no measurement")
    parser.add_argument(
        "--budget", type=float, metavar="SECONDS", help=f"default {FULL_SECONDS:.0f}, quick {QUICK_SECONDS:.0f}"
    )
    parser.add_argument("--op", action="append", choices=bench_ops(), help="only this op (may be repeated)")
    parser.add_argument("--part", action="append", choices=PARTS, help=f"other parts (default {', '.join(FULL_PARTS)})")
    parser.add_argument("--threads", type=int, help="torch's threads (default: its own)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder (default build/bench)")
    parser.add_argument("--publish", action="store_true", help="copy the result into docs")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmarks; returns the exit status."""
    options = _parser().parse_args(arguments)
    begin = time.monotonic()
    budget = options.budget or (QUICK_SECONDS if options.quick else FULL_SECONDS)
    if options.threads:
        torch.set_num_threads(options.threads)
    parts = options.part or ([] if options.quick or options.op else list(FULL_PARTS))
    settings = Settings.here(quick=options.quick)
    rows, skipped = measure_ops(
        in_turns(options.op or bench_ops()), settings, budget_seconds=budget * (OPS_SHARE if parts else 1), show=show
    )
    options.output.mkdir(parents=True, exist_ok=True)
    done, missing = run_parts(parts, options.output, budget - (time.monotonic() - begin))
    results: dict[str, Any] = {
        "machine": machine(settings.device),
        "mode": "quick" if options.quick else "full",
        "copy_gbytes_per_s": settings.bandwidth / 1e9,
        "rows": [row.to_dict() for row in rows],
        "parts": done,
        "skipped": {**settings.away, **skipped, **missing},
    }
    write(results, options.output)
    print(f"wrote {options.output / 'report.md'}")
    if options.publish:
        publish(options.output)
    wrong = disagreements(results["rows"])
    print(*wrong, sep="\n", file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
