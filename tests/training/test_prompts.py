"""training_data/make_prompts.py: what it writes is what it says, and the same for the same seed."""

import doctest
import random
import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "training_data" / "make_prompts.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_exercises_are_python_with_examples(script: dict[str, Any]) -> None:
    texts = script["distinct"](script["exercise"], 120, random.Random(0))
    assert len(set(texts)) == 120
    for text in texts:
        compile(text, "exercise", "exec")
        docstring = text.split('"""')[1]
        assert 1 <= len(doctest.DocTestParser().get_examples(docstring)) <= 3


def test_questions_fill_their_templates(script: dict[str, Any]) -> None:
    texts = script["distinct"](script["question"], 300, random.Random(1))
    assert not any("{" in text or "}" in text for text in texts)
    assert texts == script["distinct"](script["question"], 300, random.Random(1))


def test_library_functions_are_documented_python(script: dict[str, Any]) -> None:
    for _, text in zip(range(40), script["library_functions"](), strict=False):
        compile(text, "function", "exec")
        assert text.startswith("def ")
