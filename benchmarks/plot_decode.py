"""Plots of a result of `decode.py --json`, as PNGs: drafting time, acceptance by position, speedup by domain.

python benchmarks/plot_decode.py RESULT.json --output docs/images
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

PLAIN = "autoregressive"


def plot_draft_time(axes: Axes, result: dict[str, Any]) -> None:
    """T_draft against gamma: an autoregressive drafter takes a step per token, a block drafter one for all of them."""
    points: dict[str, list[tuple[int, float]]] = {}
    for row in result["block_sizes"]:
        points.setdefault(row["method"], []).append((row["gamma"], 1e3 * row["t_draft"]))
    for method, pairs in points.items():
        axes.plot(*zip(*sorted(pairs), strict=True), marker="o", label=method)
    axes.set(xlabel="gamma, tokens drafted per round", ylabel="T_draft, ms", title="Drafting time")
    axes.set_ylim(bottom=0)
    axes.legend()


def plot_acceptance(axes: Axes, result: dict[str, Any]) -> None:
    """Share of rounds whose first k drafts are all accepted."""
    for method, numbers in result["runs"][0]["methods"].items():
        if "prefix_acceptance" in numbers:
            shares = numbers["prefix_acceptance"]
            label = f"{method}, tau {numbers['tau']:.2f}"
            axes.plot(range(1, len(shares) + 1), shares, marker="o", label=label)
    axes.set(xlabel="k", ylabel="first k drafts all accepted", title="Acceptance by position")
    axes.set_ylim(0, 1)
    axes.legend()


def plot_speedup(axes: Axes, result: dict[str, Any]) -> None:
    """Tokens per second, prefill included, as a multiple of plain decoding's, by domain."""
    run = result["runs"][0]
    groups = {**run["domains"], "all": run["methods"]}
    methods = [method for method in run["methods"] if method != PLAIN]
    width = 0.8 / max(1, len(methods))
    for place, method in enumerate(methods):
        heights = [group[method]["tokens_per_s"] / group[PLAIN]["tokens_per_s"] for group in groups.values()]
        lefts = [index + (place - (len(methods) - 1) / 2) * width for index in range(len(groups))]
        axes.bar(lefts, heights, width, label=method)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set(ylabel="times plain decoding", title=f"Speedup by domain, batch {run['batch']}, {result['dtype']}")
    axes.legend()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path, help="file written by decode.py --json")
    parser.add_argument("--output", type=Path, default=Path("docs") / "images", help="folder (default docs/images)")
    options = parser.parse_args(arguments)
    result = json.loads(options.result.read_text(encoding="utf-8"))
    plots = {"acceptance": plot_acceptance, "speedup": plot_speedup}
    if result["block_sizes"]:
        plots["draft_time"] = plot_draft_time
    options.output.mkdir(parents=True, exist_ok=True)
    for name, plot in plots.items():
        figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
        plot(axes, result)
        path = options.output / f"decode_{name}.png"
        figure.savefig(path, dpi=110, metadata={"Software": None})
        plt.close(figure)
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
