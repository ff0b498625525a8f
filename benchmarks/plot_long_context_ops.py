"""Plot of a result of `long_context_ops.py --json` as a PNG: cost of a round against the context's length.

python benchmarks/plot_long_context_ops.py docs/long_context_ops.json --output docs/images
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

LABELS = {
    "dense": "block_attention over all",
    "one_level": "select_pages + sparse_block_attention",
    "two_levels": "the same, with group bounds",
    "kept_4_rounds": "a selection kept for 4 rounds",
    "kept_8_rounds": "a selection kept for 8 rounds",
    "two_levels_kept_4_rounds": "group bounds, kept for 4 rounds",
}


def plot_keys(axes: Axes, result: dict[str, Any], keys: str) -> None:
    rows = [row for row in result["rows"] if row["keys"] == keys]
    contexts = [row["context"] for row in rows]
    for name, label in LABELS.items():
        axes.plot(contexts, [row["milliseconds"][name] for row in rows], marker="o", label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(contexts, [f"{context // 1024}k" for context in contexts])
    axes.set_yticks([1, 2, 4, 8, 16, 32, 64, 128, 256], ["1", "2", "4", "8", "16", "32", "64", "128", "256"])
    axes.set(xlabel="context, tokens", ylabel="ms a round and layer", title=f"{keys} keys, {result['dtype']}")
    axes.legend(fontsize="small")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path, help="file written by long_context_ops.py --json")
    parser.add_argument("--output", type=Path, default=Path("docs") / "images", help="folder (default docs/images)")
    options = parser.parse_args(arguments)
    result = json.loads(options.result.read_text(encoding="utf-8"))
    options.output.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained", sharey=True)
    for one, keys in zip(axes, ("uniform", "clustered"), strict=True):
        plot_keys(one, result, keys)
    path = options.output / "long_context_ops.png"
    figure.savefig(path, dpi=110, metadata={"Software": None})
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
