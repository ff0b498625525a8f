"""Writes the pages that are made of the code: `python docs/generate.py`, or `--check` to see whether they are current.

- reference.md: every op's schema, signature and docstring; the workspace sizes and the functions about the installation.
- support.md: op x device x dtype x head_dim, from the docstrings, from which ops have a folder in csrc/cuda, and from what
  their bindings and launch plans refuse.
- quoted code: in any page, what stands between `<!-- quote FILE -->` or `<!-- quote FILE: NAME -->` (a function or class
  of that file) and `<!-- end of quote -->`.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import dflash_ops

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
MADE = "<!-- Written by docs/generate.py; edit the docstrings instead. -->\n"
FLOATS = ("float32", "float16", "bfloat16")
_SECTION = re.compile(r"^(Args|Returns|Raises):$")
_QUOTE = re.compile(r"(<!-- quote (\S+?)(?:: (\w+))? -->\n)(.*?)(<!-- end of quote -->)", re.DOTALL)


def op_names() -> list[str]:
    """The ops in the order of the schema table, which is the order data flows in; an op of several schemas once."""
    table = (ROOT / "csrc" / "bindings" / "schemas.cpp").read_text()
    names = re.findall(r'm\.def\(\s*"(\w+)\(', table)
    return [name for name in names if name in dflash_ops.__all__]


def schemas(op: str) -> list[str]:
    """Its registered schemas, one string each."""
    table = (ROOT / "csrc" / "bindings" / "schemas.cpp").read_text()
    found = []
    for definition in re.findall(r"m\.def\(\s*(.*?)\);\n", table, re.DOTALL):
        text = "".join(re.findall(r'"(.*?)"', definition))
        if re.match(rf"{op}(_forward|_backward)?\(", text):
            found.append(text)
    return found


def docstring(function: Callable[..., object]) -> str:
    """The docstring as Markdown: sections become lists, double backticks single ones."""
    text = inspect.getdoc(function)
    if not text:
        raise ValueError(f"{function.__name__}: expected a docstring, got none")
    lines: list[str] = []
    in_section = False
    for line in text.replace("``", "`").splitlines():
        if section := _SECTION.match(line):
            in_section = section[1] != "Returns"
            lines += [f"**{section[1]}**", ""]
        elif in_section and (item := re.match(r"    (\S.*?): (.*)", line)):
            names = ", ".join(f"`{name}`" for name in item[1].split(", "))
            lines.append(f"- {names}: {item[2]}")
        else:
            lines.append(line.strip() if not in_section else re.sub("^    (    )?", "  ", line))
    return "\n".join(lines)


def signature(function: Callable[..., object]) -> str:
    """`name(arguments) -> result` without the annotations that the docstring gives in more words."""
    source = inspect.signature(function)
    plain = source.replace(
        parameters=[parameter.replace(annotation=inspect.Parameter.empty) for parameter in source.parameters.values()],
        return_annotation=inspect.Signature.empty,
    )
    return f"{function.__name__}{plain}"


def reference_page() -> str:
    """reference.md."""
    parts = [
        MADE,
        "# Op reference",
        "Every op as `dflash_ops.<op>`, which allocates outputs and workspace that are not given, and as registered "
        "with torch (`torch.ops.dflash_ops.<op>`). Rules that hold for all of them: [ops-contract.md](ops-contract.md); "
        "how each is computed: its own page.",
    ]
    for op in op_names():
        parts += [
            f"## {op}",
            docstring(getattr(dflash_ops, op)),
            f"```python\n{signature(getattr(dflash_ops, op))}\n```",
            "```\n" + "\n".join(schemas(op)) + "\n```",
            f"More: [ops/{op}.md](ops/{op}.md)",
        ]
        if hasattr(dflash_ops, f"{op}_workspace_size"):
            size = getattr(dflash_ops, f"{op}_workspace_size")
            parts += [f"`{signature(size)}`: {docstring(size).splitlines()[0]}"]
    parts.append("## The installation")
    for name in ("build_info", "collect_env", "cpu_isa", "set_cpu_isa", "cuda_status"):
        function = getattr(dflash_ops, name)
        parts += [f"### {name}", f"`{signature(function)}`", docstring(function)]
    return "\n\n".join(parts) + "\n"


def support(op: str) -> tuple[str, str, str, str]:
    """CPU dtypes, CUDA dtypes, head_dim on CPU and on CUDA; "-" where the op has no such thing.

    What the CPU takes stands in the docstring; what CUDA refuses, in the messages of the op's binding and launch plan. An
    op whose docstring has arguments "as `other` has them" takes and refuses what the other does.
    """
    ops = [op]
    text = " ".join((inspect.getdoc(getattr(dflash_ops, op)) or "").replace("``", "`").split())
    if other := re.search(r"as `(\w+)` has them", text):
        ops.append(other[1])
        text += " ".join((inspect.getdoc(getattr(dflash_ops, other[1])) or "").replace("``", "`").split())
    cpu = ", ".join(FLOATS) if all(name in text for name in FLOATS) else "integers"
    dims = re.search(r"(?:head_dim|\bD) (a multiple of \d+,? (?:at most|up to) \d+)", text)
    any_dim = "any" if re.search(r"`\[(\w+, )*D\]`|\* D\]`", text) else "-"
    on_cpu = dims[1] if dims else any_dim
    if not (ROOT / "csrc" / "cuda" / op).is_dir():
        return cpu, "no kernel", on_cpu, "-"
    files = ("bindings/{}.cpp", "plan/cuda/{}.cpp", "plan/cuda/{}.h")
    sources = [ROOT / "csrc" / file.format(name) for file in files for name in ops]
    refusals = "".join(path.read_text() for path in sources if path.exists())
    for shared in re.findall(r'#include "plan/cuda/(\w+)\.h"', refusals):  # whose checks the op's plan calls
        if shared in op_names() and shared not in ops:
            refusals += (ROOT / "csrc" / "plan" / "cuda" / f"{shared}.cpp").read_text()
    half_only = re.search(r"half_on_cuda\(\)|expected float16 or bfloat16 on CUDA", refusals)
    cuda_dims = re.search(r"head_dim: expected ([\d, or]*\d) on CUDA", refusals)
    return cpu, ", ".join(FLOATS[1:]) if half_only else cpu, on_cpu, cuda_dims[1] if cuda_dims else on_cpu


def support_page() -> str:
    """support.md."""
    rows = "\n".join(f"| [`{op}`](reference.md#{op}) | " + " | ".join(support(op)) + " |" for op in op_names())
    return f"""{MADE}
# Support matrix

CPU kernels run on every x86-64 machine (portable, AVX2, AVX-512, AVX-512-BF16, chosen at run time) and, portable,
elsewhere. CUDA kernels are built for compute capability 8.0, 8.6, 8.9, 9.0a, 10.0a and 12.0a; they are checked on a PTX
interpreter ([cuda.md](cuda.md)) and have not run on a GPU unless [measurements.md](measurements.md) says so.
`dflash_ops.build_info()["cuda_ops"]` says what an installation holds.

| op | dtypes on CPU | dtypes on CUDA | head_dim on CPU | head_dim on CUDA |
|---|---|---|---|---|
{rows}

"integers" are ids, lengths and flags (int64, int32, bool). Shapes, strides and what is refused:
[reference.md](reference.md).
"""


def quoted(file: str, name: str | None) -> str:
    """A file, or one function or class of it, as a code block."""
    text = (ROOT / file).read_text()
    if name is not None:
        nodes = [node for node in ast.walk(ast.parse(text)) if getattr(node, "name", None) == name]
        if len(nodes) != 1:
            raise ValueError(f"{file}: expected one {name}, got {len(nodes)}")
        text = ast.get_source_segment(text, nodes[0], padded=True) or ""
        text = inspect.cleandoc("\n" + text)
    return f"```python\n{text.rstrip()}\n```\n"


def pages() -> Iterator[tuple[Path, str]]:
    """Every page that is made, wholly or in part, and what it should hold."""
    yield DOCS / "reference.md", reference_page()
    yield DOCS / "support.md", support_page()
    for path in sorted(DOCS.glob("**/*.md")):
        text = path.read_text()
        if _QUOTE.search(text):
            yield path, _QUOTE.sub(lambda match: match[1] + quoted(match[2], match[3]) + match[5], text)


def main(check: bool) -> int:
    """Writes the pages, or with `check` names those that are not current; returns the exit code."""
    stale = [(path, text) for path, text in pages() if not path.exists() or path.read_text() != text]
    for path, text in stale:
        if check:
            print(f"{path.relative_to(ROOT)}: not current; run python docs/generate.py", file=sys.stderr)
        else:
            path.write_text(text)
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
