"""Tables of a result of `long_context.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PLAIN = "autoregressive"
_END = "<!-- end of tables -->"


def tables(numbers: dict[str, Any]) -> str:
    """Markdown: what was measured by length and method, and the memory of a request."""
    lines = [
        f"{numbers['max_new_tokens']} new tokens per prompt, {numbers['dtype']}, "
        f"{numbers['threads']} thread(s), {numbers['cpu_isa']}, {numbers['clock']} seconds.",
        "",
        "| prompt | method | tau | of full's | T_draft, ms | T_verify, ms | tokens/s | x plain | draft cache, MiB | "
        "answers as plain decoding's |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for run in numbers["runs"]:
        plain, full = run["methods"][PLAIN], run["methods"].get("full")
        for name, result in run["methods"].items():
            share = f"{result['tau'] / full['tau']:.2f}" if full and name != PLAIN else ""
            exact = f"{result['identical']} of {result['answers']}"
            if result["largest_gap"]:
                exact += f", logit gap {result['largest_gap']:.1e}"
            lines.append(
                f"| {run['length']:,} | {name} | {result['tau']:.2f} | {share} | {1e3 * result['t_draft']:.1f} | "
                f"{1e3 * result['t_verify']:.1f} | {result['tokens_per_s']:.1f} | "
                f"{result['tokens_per_s'] / plain['tokens_per_s']:.2f} | {_mib(result['draft_cache_bytes'])} | {exact} |"
            )
    lengths = list(next(iter(numbers["computed_bytes"].values())))
    lines += [
        "",
        "Draft cache of one request, computed:",
        "",
        "| method | " + " | ".join(f"{int(length):,} tokens, MiB" for length in lengths) + " |",
        "|---|" + "---|" * len(lengths),
    ]
    for name, sizes in numbers["computed_bytes"].items():
        lines.append(f"| {name} | " + " | ".join(_mib(sizes[length]) for length in lengths) + " |")
    return "\n".join(lines)


def write_between_marks(document: Path, text: str, writer: str = "benchmarks/long_context.py") -> None:
    """Replaces what stands between the two marks of a document, the first of which names the writer.

    Raises:
        ValueError: it has no marks.
    """
    begin = f"<!-- tables: {writer} -->"
    whole = document.read_text(encoding="utf-8")
    before, found, rest = whole.partition(begin)
    _, ended, after = rest.partition(_END)
    if not found or not ended:
        raise ValueError(f"{document}: expected the marks {begin} and {_END}, got none")
    document.write_text(f"{before}{begin}\n{text}\n{_END}{after}", encoding="utf-8")


def _mib(size: int) -> str:
    return f"{size / 2**20:.2f}" if size else ""
