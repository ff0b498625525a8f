"""The README's snippets, run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_build import ROOT

README = (ROOT / "README.md").read_text()


def snippets() -> list[tuple[str, str]]:
    """(language, code) of the section "Three snippets", in order."""
    section = README.partition("## Three snippets\n")[2].partition("\n## ")[0]
    return re.findall(r"^```(\w+)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def run_snippet(language: str, code: str, folder: Path) -> str:
    """Runs it in `folder`, which looks like a clone's with its build installed; returns what it printed."""
    (folder / "training_data").symlink_to(ROOT / "training_data")
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}:{ROOT / 'python'}",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = {"python": [sys.executable, "-c", code], "bash": ["bash", "-euo", "pipefail", "-c", code]}[language]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_there_are_three() -> None:
    assert [language for language, _ in snippets()] == ["python", "bash", "python"]


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (0, r"\w+ \w+[\s\S]*\ntokens a round: [1-8]\.\d+\n$"),
        (1, r"held-out chats: tau [1-8]\.\d+ over 12 blocks\n[\s\S]*drafter: toy_drafter/checkpoint\n[\s\S]*\w+ \w+"),
        (2, r"^tensor\(\[2\].*\) tensor\(\[\[11, 12, 99, -1\]\]\) tensor\(\[99\]\)\n$"),
    ],
    ids=["decode", "train", "op"],
)
def test_a_snippet_runs(index: int, expected: str, tmp_path: Path) -> None:
    printed = run_snippet(*snippets()[index], tmp_path)
    assert re.search(expected, printed), printed


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", README):
        assert (ROOT / link).exists(), link
