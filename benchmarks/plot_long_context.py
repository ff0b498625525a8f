"""Plots of a result of `long_context.py --json`: drafting time, acceptance and draft memory by length of the prompt.

python benchmarks/plot_long_context.py docs/long_context.json --output docs/images
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

# (number of a method, factor, label of the axis)
PANELS = (
    ("t_draft", 1e3, "T_draft, ms"),
    ("tau", 1.0, "tau, tokens per round"),
    ("draft_cache_bytes", 2.0**-20, "draft cache of a request, MiB"),
)


def plot(result: dict[str, Any], path: Path) -> None:
    """One panel per number, one line per method with a draft context of its own."""
    figure, panels = plt.subplots(1, len(PANELS), figsize=(13, 4.2), layout="constrained")
    runs = result["runs"]
    for axes, (name, factor, label) in zip(panels, PANELS, strict=True):
        for method in result["modes"]:
            lengths = [run["length"] for run in runs]
            axes.plot(lengths, [factor * run["methods"][method][name] for run in runs], marker="o", label=method)
        axes.set(xlabel="tokens of the prompt", ylabel=label)
        axes.set_xscale("log", base=2)
        axes.set_ylim(bottom=0)
    panels[0].legend(fontsize="small")
    figure.suptitle(f"Draft contexts, {result['target']}, {result['dtype']}, {result['threads']} thread(s)")
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path, help="file written by long_context.py --json")
    parser.add_argument("--output", type=Path, default=Path("docs") / "images", help="folder (default docs/images)")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "long_context.png"
    plot(json.loads(options.result.read_text(encoding="utf-8")), path)
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
