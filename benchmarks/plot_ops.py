"""Plots of a result of `run_all.py`: share of the copy bandwidth of every op, and each baseline's time over ours.

python benchmarks/plot_ops.py build/bench/results.json --output docs/images
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes


def plot_copy_share(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """Every case of an op is a point on the op's line."""
    _points(axes, rows, {row_id: {"ours": row["copy_share"]} for row_id, row in enumerate(rows)})
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set(xlabel="least bytes over time, of the copy bandwidth", title="Share of the measured copy bandwidth")


def plot_ratios(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """Every baseline of the same result is a point on the op's line; right of 1 ours is faster."""
    ratios = {row_id: {name: row["ratios"][name] for name in row["verdicts"]} for row_id, row in enumerate(rows)}
    _points(axes, rows, ratios)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set(xlabel="time of the baseline over ours", title="Baselines")


def _points(axes: Axes, rows: Sequence[Mapping[str, Any]], values: Mapping[int, Mapping[str, float]]) -> None:
    ops = sorted({row["op"] for row in rows}, reverse=True)
    dtypes = sorted({row["dtype"] for row in rows})
    for dtype in dtypes:
        points = [
            (value, ops.index(row["op"]))
            for row_id, row in enumerate(rows)
            if row["dtype"] == dtype
            for value in values[row_id].values()
        ]
        shares, places = [value for value, _ in points], [place for _, place in points]
        axes.scatter(shares, places, s=16, alpha=0.7, label=dtype)
    axes.set_xscale("log")
    axes.set_yticks(range(len(ops)), ops)
    axes.grid(axis="y", linewidth=0.4)
    if dtypes:
        axes.legend(fontsize="small")


def draw(results: Mapping[str, Any], folder: Path) -> list[Path]:
    """Writes the plots; their files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, plot in {"bench_copy_share": plot_copy_share, "bench_ratios": plot_ratios}.items():
        figure, axes = plt.subplots(figsize=(8, 4.8), layout="constrained")
        plot(axes, results["rows"])
        paths.append(folder / f"{name}.png")
        figure.savefig(paths[-1], dpi=110, metadata={"Software": None})
        plt.close(figure)
    return paths


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path, help="file written by run_all.py")
    parser.add_argument("--output", type=Path, default=Path("docs") / "images", help="folder (default docs/images)")
    options = parser.parse_args(arguments)
    for path in draw(json.loads(options.result.read_text(encoding="utf-8")), options.output):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
