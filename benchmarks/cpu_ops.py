"""Every op against its plain-torch compositions, side by side in one run.

    python benchmarks/cpu_ops.py [--json FILE] [--table FILE] [--op NAME ...] [--quick]

Each `benchmarks/bench_<op>.py` yields makers of its comparisons; the candidates take turns on the same inputs. Ratios are
time of the composition over ours; run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

# As a script, this file sees its own folder only; what it shares with the tests lies in the checkout's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dflash_ops
from benchmarks.compare import Maker, Result, measure

FOLDER = Path(__file__).resolve().parent


def bench_ops() -> list[str]:
    """The ops that have a benchmark."""
    return sorted(path.stem.removeprefix("bench_") for path in FOLDER.glob("bench_*.py"))


def makers(op: str) -> list[Maker]:
    """What `benchmarks/bench_<op>.py` compares. Each is made when it is measured: many have large inputs."""
    return list(importlib.import_module(f"benchmarks.bench_{op}").comparisons())


def cpu_model() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def environment() -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "cpu": cpu_model(),
        "isa": dflash_ops.cpu_isa(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "dflash_ops": dflash_ops.build_info()["version"],
    }


def reached(result: Result, composition: str) -> bool | None:
    """Whether our speed over a composition reaches the target; None where there is none."""
    target = result.targets.get(composition)
    return None if target is None else result.speedup[composition] >= target


def record(result: Result) -> dict[str, Any]:
    """A result as JSON holds it."""
    return asdict(result) | {"reached": {name: reached(result, name) for name in result.targets}}


def lines(result: Result) -> Iterator[str]:
    """The table's lines of one result, one a composition."""
    ours = f"{result.ours_ms:.3f}"
    for name, plain in result.plain_ms.items():
        verdict = {None: "", True: "yes", False: "NO"}[reached(result, name)]
        target = f"{result.targets[name]:.1f}" if name in result.targets else ""
        yield (
            f"{result.op:<22} {result.dtype:<9} {ours:>10} {name:<22} {plain:>10.3f} "
            f"{result.speedup[name]:>7.2f} {target:>7} {verdict:<7}  {result.shape}"
        )


def markdown(facts: dict[str, Any], results: Sequence[dict[str, Any]]) -> str:
    """The results as a page for docs."""
    text = [
        "# CPU ops against plain torch",
        "",
        "Made by `python benchmarks/cpu_ops.py --table FILE`; ratios are time of the composition over ours, side by side.",
        "",
        ", ".join(f"{name} {value}" for name, value in facts.items()),
        "",
        "| op | dtype | shape | ours ms | composition | plain ms | ratio | target |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        for name, plain in result["plain_ms"].items():
            target = ""
            if name in result["targets"]:
                target = f"{result['targets'][name]:.1f} {'reached' if result['reached'][name] else '**missed**'}"
            text.append(
                f"| `{result['op']}` | {result['dtype']} | {result['shape']} | {result['ours_ms']:.3f} | {name} | "
                f"{plain:.3f} | {result['speedup'][name]:.2f} | {target} |"
            )
    return "\n".join(text) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmarks; returns the exit status."""
    parser = argparse.ArgumentParser(description="Every op against its plain-torch compositions.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write environment and results there")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the table there, as Markdown")
    parser.add_argument("--op", action="append", choices=bench_ops(), help="only this op (may be repeated)")
    parser.add_argument("--quick", action="store_true", help="few repetitions: a smoke run, not a measurement")
    parser.add_argument("--threads", type=int, default=2, help="torch's threads (2)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    facts = environment()
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    print(
        f"{'op':<22} {'dtype':<9} {'ours ms':>10} {'composition':<22} {'plain ms':>10} "
        f"{'ratio':>7} {'target':>7} {'reached':<7}  shape"
    )
    results: list[dict[str, Any]] = []
    for op in options.op or bench_ops():
        for make in makers(op):
            result = measure(make(), seconds=0.1 if options.quick else 1.0, max_rounds=3 if options.quick else 50)
            results.append(record(result))
            for line in lines(result):
                print(line, flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps({"environment": facts, "results": results}, indent=1) + "\n")
        print(f"wrote {options.json}")
    if options.table is not None:
        options.table.write_text(markdown(facts, results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
