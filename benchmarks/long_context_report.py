"""Tables of a result of `long_context.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PLAIN = "autoregressive"
_BEGIN, _END = "<!-- tables: benchmarks/long_context.py -->", "<!-- end of tables -->"


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


def write_between_marks(document: Path, text: str) -> None:
    """Replaces what stands between the two marks of a document.

    Raises:
        ValueError: it has no marks.
    """
    whole = document.read_text(encoding="utf-8")
    if _BEGIN not in whole or _END not in whole:
        raise ValueError(f"{document}: expected the marks {_BEGIN} and {_END}, got none")
    before, after = whole.split(_BEGIN)[0], whole.split(_END)[1]
    document.write_text(f"{before}{_BEGIN}\n{text}\n{_END}{after}", encoding="utf-8")


def _mib(size: int) -> str:
    return f"{size / 2**20:.2f}" if size else ""
