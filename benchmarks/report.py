"""The Markdown of a result of `run_all.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.agreement import AGREES

PLOTS = {"bench_copy_share": "Share of the measured copy bandwidth", "bench_ratios": "Time of each baseline over ours"}


def report(results: Mapping[str, Any], *, images: str = "") -> str:
    """The whole page but its title. `images`: where plots lie, seen from the page, with a slash behind it."""
    graphs = any(row["graph_milliseconds"] for row in results["rows"])
    parts = [
        ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in results["machine"].items()) + ".",
        f"{results['mode']} run, copy bandwidth {results['copy_gbytes_per_s']:.1f} GB/s (read and written). "
        + ("Times are CUDA events with a cold L2 cache." if graphs else "CPU times are warm."),
        *(f"![{title}]({images}{name}.png)" for name, title in PLOTS.items()),
        "\n".join(_table(results["rows"], graphs)),
        "\n".join(_list("Results that are not ours", _other_results(results["rows"]))),
        "\n".join(_list("Skipped", _skipped(results))),
        "\n".join(_other_parts(results["parts"])),
    ]
    return "\n\n".join(part for part in parts if part)


def disagreements(rows: list[dict[str, Any]]) -> list[str]:
    """Compositions that mean to compute the same and do not."""
    return [
        f"{row['op']}, {row['shape']}, {row['dtype']}: {name}: {verdict}"
        for row in rows
        for name, verdict in row["verdicts"].items()
        if verdict != AGREES
    ]


def _table(rows: list[dict[str, Any]], graphs: bool) -> Iterator[str]:
    graph_head = " graph ms |" if graphs else ""
    yield f"| op | dtype | shape | ms |{graph_head} GB/s | of copy | baseline: time over ours |"
    yield "|---|---|---|---|---|---|---|" + ("---|" if graphs else "")
    for row in rows:
        graph = row["graph_milliseconds"]
        graph_cell = f" {graph['ours']:.4f} |" if "ours" in graph else " |"
        ratios = ", ".join(f"{name} {ratio:.2f}x" for name, ratio in row["ratios"].items())
        yield (
            f"| `{row['op']}` | {row['dtype']} | {row['shape']} | {row['milliseconds']:.4f} |"
            f"{graph_cell if graphs else ''} {row['gbytes_per_s']:.1f} | {row['copy_share']:.0%} | {ratios} |"
        )


def _list(title: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield f"{title}:\n"
        yield from (f"- {line}" for line in lines)


def _other_results(rows: list[dict[str, Any]]) -> list[str]:
    found = {f"`{row['op']}`, {name}: {why}" for row in rows for name, why in row["other_results"].items()}
    return sorted(found) + [f"**wrong**: {line}" for line in disagreements(rows)]


def _skipped(results: Mapping[str, Any]) -> list[str]:
    lines = {f"{name}: {why}" for name, why in results["skipped"].items()}
    for row in results["rows"]:
        lines |= {f"`{row['op']}`, {name}: {why}" for name, why in row["skipped"].items()}
    return sorted(lines)


def _other_parts(parts: Mapping[str, Any]) -> Iterator[str]:
    if parts:
        yield "Other parts:\n"
    for name, part in parts.items():
        yield f"- {name}: `{part['command']}`, {part['seconds']:.0f} s"
