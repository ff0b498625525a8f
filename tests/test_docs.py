"""The pages made of the code are current, and the generator sees what it should."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import PurePath

import pytest

import dflash_ops
from docs import generate
from tests.test_build import OPS, ROOT, SCHEMAS


def test_the_pages_made_of_the_code_are_current() -> None:
    assert generate.main(check=True) == 0


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the list of tracked files")
def test_the_map_names_every_folder_and_no_other() -> None:
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    folders = {str(folder) for name in listing.splitlines() for folder in PurePath(name).parents} - {"."}
    page = (ROOT / "docs" / "layout.md").read_text().partition("```\n")[2].partition("```")[0]
    named: set[str] = set()
    above: list[str] = []
    for indent, name in re.findall(r"^((?:  ){0,3})([\w.<>]+)/(?= |$)", page, re.MULTILINE):
        above = [*above[: len(indent) // 2], name]
        named.add("/".join(above))
    assert named == {re.sub(r"^csrc/cuda/(?!common)\w+$", "csrc/cuda/<op>", folder) for folder in folders}


def test_every_op_and_every_schema_is_in_the_reference() -> None:
    page = generate.reference_page()
    assert sorted(re.findall(r"^## (\w+)$", page, re.MULTILINE)) == OPS
    assert (
        sorted(name for op in OPS for schema in generate.schemas(op) for name in [schema.partition("(")[0]]) == SCHEMAS
    )
    for name in dflash_ops.__all__:
        assert f"`{name}" in page or f"\n{name}(" in page or name == "__version__", name


def test_arguments_become_lists_and_notes_stay_text() -> None:
    def example(first: int, second: int) -> int:
        """Says what it does.

        Args:
            first, second: ``[n]`` things,
                in two lines.

        Returns:
            their sum: a number.

        Raises:
            ValueError: never.
        """
        return first + second

    assert generate.docstring(example).splitlines() == [
        "Says what it does.", "",
        "**Args**", "",
        "- `first`, `second`: `[n]` things,", "  in two lines.", "",
        "**Returns**", "",
        "their sum: a number.", "",
        "**Raises**", "",
        "- `ValueError`: never.",
    ]  # fmt: skip
    assert generate.signature(example) == "example(first, second)"


def test_support_is_what_docstrings_and_refusals_say() -> None:
    floats = "float32, float16, bfloat16"
    assert generate.support("block_attention") == (
        floats, "float16, bfloat16", "a multiple of 8, at most 256", "64, 96, 128 or 256",
    )  # fmt: skip
    assert generate.support("lm_head_argmax") == (floats, "float16, bfloat16", "-", "-")
    assert generate.support("row_argmax") == (floats, floats, "-", "-")
    assert generate.support("commit_block")[:2] == ("integers", "integers")
    for op in OPS:
        has_kernel = (ROOT / "csrc" / "cuda" / op / "entries.cu").is_file()
        assert (generate.support(op)[1] != "no kernel") == has_kernel


def test_quotes_are_whole_definitions() -> None:
    assert generate.quoted("examples/engine_loop.py", "capture").startswith("```python\ndef capture(self)")
    with pytest.raises(ValueError, match="expected one nothing_of_it, got 0"):
        generate.quoted("examples/engine_loop.py", "nothing_of_it")


def test_a_stale_page_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(generate, "pages", lambda: iter([(generate.DOCS / "support.md", "other text")]))
    assert generate.main(check=True) == 1
    assert "docs/support.md: not current" in capsys.readouterr().err


def test_the_generator_runs_as_a_command() -> None:
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    result = subprocess.run(
        command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
