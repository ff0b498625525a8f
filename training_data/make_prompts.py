"""Writes prompts.jsonl for `python -m dflash_decoding make-data`: code to complete and questions of many kinds.

    python training_data/make_prompts.py prompts.jsonl --seed 0

Three sources, none of which is a benchmark's text: functions of Python's standard library (signature and docstring),
small list, text and number exercises with worked examples, and questions put together from templates and topics. The
same Python version and seed give the same file.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import random
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CODE_REQUEST = "Complete this Python function:\n\n"
DOCSTRING_CHARACTERS = range(40, 500)
LIBRARY_SUBFOLDERS_LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__"}

# What to do with a list of integers: name, sentence, the function.
Exercise = tuple[str, str, Callable[[Any], Any]]
LIST_EXERCISES: tuple[Exercise, ...] = (
    ("sum_of_evens", "Return the sum of all even numbers in the list.", lambda v: sum(x for x in v if x % 2 == 0)),
    ("count_positive", "Count how many numbers are greater than zero.", lambda v: sum(x > 0 for x in v)),
    (
        "second_largest",
        "Return the second largest distinct number, or None.",
        lambda v: (sorted(set(v)) or [0])[-2:][0],
    ),
    ("running_total", "Return the list of running totals.", lambda v: [sum(v[: i + 1]) for i in range(len(v))]),
    (
        "differences",
        "Return the differences of neighbouring numbers.",
        lambda v: [b - a for a, b in itertools.pairwise(v)],
    ),
    ("without_duplicates", "Remove duplicates and keep the first occurrences.", lambda v: list(dict.fromkeys(v))),
    ("rotate_left", "Move the first element to the end of the list.", lambda v: v[1:] + v[:1]),
    ("every_other", "Return every second element, starting with the first.", lambda v: v[::2]),
    ("clip_negative", "Replace negative numbers by zero.", lambda v: [max(x, 0) for x in v]),
    ("is_increasing", "Check whether each number is greater than the one before.", lambda v: v == sorted(set(v))),
    (
        "largest_gap",
        "Return the largest difference of two neighbours.",
        lambda v: max(abs(a - b) for a, b in itertools.pairwise(v)),
    ),
    ("product", "Return the product of all numbers.", lambda v: __import__("math").prod(v)),
    ("squares_of_odds", "Return the squares of the odd numbers.", lambda v: [x * x for x in v if x % 2]),
    ("index_of_minimum", "Return the index of the smallest number.", lambda v: v.index(min(v))),
    ("mean_of_list", "Return the mean of the numbers.", lambda v: round(sum(v) / len(v), 2)),
    (
        "count_of_each",
        "Return a dictionary from each number to how often it occurs.",
        lambda v: {x: v.count(x) for x in v},
    ),
    (
        "split_by_sign",
        "Return the negative numbers and the others as two lists.",
        lambda v: ([x for x in v if x < 0], [x for x in v if x >= 0]),
    ),
    ("top_three", "Return the three largest numbers in descending order.", lambda v: sorted(v, reverse=True)[:3]),
    ("pairs", "Group the list into pairs of neighbours.", lambda v: [v[i : i + 2] for i in range(0, len(v), 2)]),
    ("alternating_sum", "Add and subtract the numbers in turn.", lambda v: sum(v[::2]) - sum(v[1::2])),
)
TEXT_EXERCISES: tuple[Exercise, ...] = (
    ("reverse_words", "Reverse the order of the words.", lambda s: " ".join(s.split()[::-1])),
    ("capitalize_words", "Make the first letter of each word upper case.", lambda s: s.title()),
    ("letter_count", "Count the letters, without spaces.", lambda s: len(s.replace(" ", ""))),
    ("longest_word", "Return the longest word; the first of several.", lambda s: max(s.split(), key=len)),
    ("vowels_removed", "Remove all vowels from the text.", lambda s: "".join(c for c in s if c not in "aeiou")),
    (
        "acronym",
        "Return the first letters of all words in upper case.",
        lambda s: "".join(w[0] for w in s.split()).upper(),
    ),
    ("word_lengths", "Return the list of the lengths of the words.", lambda s: [len(w) for w in s.split()]),
    ("is_palindrome_text", "Check whether the text reads the same backwards.", lambda s: s == s[::-1]),
    ("swap_case", "Swap upper and lower case letters.", lambda s: s.swapcase()),
    ("count_letter_e", "Count how often the letter e occurs.", lambda s: s.count("e")),
    ("dashes", "Replace spaces by dashes.", lambda s: s.replace(" ", "-")),
    ("unique_letters", "Return the sorted list of distinct letters.", lambda s: sorted(set(s) - {" "})),
    ("every_word_reversed", "Reverse each word and keep their order.", lambda s: " ".join(w[::-1] for w in s.split())),
    (
        "starts_with_vowel",
        "Return the words that start with a vowel.",
        lambda s: [w for w in s.split() if w[0] in "aeiou"],
    ),
)
NUMBER_EXERCISES: tuple[Exercise, ...] = (
    ("digit_sum", "Return the sum of the digits of n.", lambda n: sum(int(d) for d in str(n))),
    ("divisors", "Return all divisors of n in ascending order.", lambda n: [d for d in range(1, n + 1) if n % d == 0]),
    ("is_square", "Check whether n is the square of an integer.", lambda n: int(n**0.5 + 0.5) ** 2 == n),
    ("to_binary", "Return the binary digits of n as text.", lambda n: bin(n)[2:]),
    ("count_down", "Return the list of numbers from n down to one.", lambda n: list(range(n, 0, -1))),
    ("triangular", "Return the n-th triangular number.", lambda n: n * (n + 1) // 2),
    ("collatz_steps", "Count the steps of the Collatz sequence from n to one.", lambda n: _collatz(n)),
    ("is_prime_number", "Check whether n is a prime number.", lambda n: n > 1 and all(n % d for d in range(2, n))),
    ("reverse_digits", "Return the number whose digits are those of n in reverse.", lambda n: int(str(n)[::-1])),
    ("multiples", "Return the first five multiples of n.", lambda n: [n * i for i in range(1, 6)]),
)
# Topics, words and templates of the questions.
PARTS: dict[str, list[str]] = json.loads(Path(__file__).with_name("prompt_parts.json").read_text(encoding="utf-8"))


def _collatz(n: int) -> int:
    steps = 0
    while n > 1:
        n, steps = (3 * n + 1 if n % 2 else n // 2), steps + 1
    return steps


def library_functions() -> Iterator[str]:
    """Signature and docstring of every documented function of the standard library, in the order of the files."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for file in sorted(root.rglob("*.py")):
        if LIBRARY_SUBFOLDERS_LEFT_OUT & set(file.relative_to(root).parts):
            continue
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                docstring = ast.get_docstring(node)
                if docstring and len(docstring) in DOCSTRING_CHARACTERS:
                    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
                    text = docstring.replace("\n", "\n    ")
                    yield f'def {node.name}({ast.unparse(node.args)}){returns}:\n    """{text}\n    """\n'


def exercise(random_source: random.Random) -> str:
    """One exercise: typed signature, what to do, and one to three examples with their results."""
    kind = random_source.choice(("list", "text", "number"))
    exercises = {"list": LIST_EXERCISES, "text": TEXT_EXERCISES, "number": NUMBER_EXERCISES}[kind]
    name, sentence, function = random_source.choice(exercises)
    annotation, argument = {
        "list": ("List[int]", random_source.choice(("numbers", "values", "items", "lst", "arr"))),
        "text": ("str", random_source.choice(("text", "s", "sentence", "string"))),
        "number": ("int", "n"),
    }[kind]
    examples = []
    for _ in range(random_source.randint(1, 3)):
        value: Any
        if kind == "list":
            value = [random_source.randint(-9, 20) for _ in range(random_source.randint(3, 6))]
        elif kind == "text":
            value = " ".join(random_source.sample(PARTS["words"], random_source.randint(1, 4)))
        else:
            value = random_source.randint(2, 120)
        examples.append(f"    >>> {name}({value!r})\n    {function(value)!r}\n")
    imports = "from typing import List\n\n\n" if kind == "list" else ""
    returns = random_source.choice(("", f" -> {type(function(value)).__name__}"))
    return f'{imports}def {name}({argument}: {annotation}){returns}:\n    """ {sentence}\n{"".join(examples)}    """\n'


def question(random_source: random.Random) -> str:
    """One question of a template."""
    topic, other = random_source.sample(PARTS["topics"], 2)
    word, word2 = random_source.sample(PARTS["words"], 2)
    name, name2, name3 = random_source.sample(PARTS["names"], 3)
    return random_source.choice(PARTS["questions"]).format(
        topic=topic, other=other, word=word, word2=word2, name=name, name2=name2, name3=name3,
        person=random_source.choice(PARTS["people"]), place=random_source.choice(PARTS["places"]),
        number=random_source.randint(2, 12), other_number=random_source.randint(13, 30),
        price=random_source.randint(31, 400), percent=random_source.randint(1, 9) * 5,
    )  # fmt: skip


def distinct(make: Callable[[random.Random], str], count: int, random_source: random.Random) -> list[str]:
    """`count` different results of `make`."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[make(random_source)] = None
    return list(found)


def main() -> int:
    """Writes the file and says how many prompts it has of each source."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--library", type=int, default=900, metavar="N", help="functions of the standard library")
    parser.add_argument("--exercises", type=int, default=700, metavar="N")
    parser.add_argument("--questions", type=int, default=1400, metavar="N")
    options = parser.parse_args()
    random_source = random.Random(options.seed)
    functions = sorted(set(library_functions()))
    library = random_source.sample(functions, min(options.library, len(functions)))
    code = [CODE_REQUEST + text for text in library + distinct(exercise, options.exercises, random_source)]
    prompts = code + distinct(question, options.questions, random_source)
    random_source.shuffle(prompts)
    options.output.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts), encoding="utf-8")
    print(
        f"{len(prompts)} prompts: {len(code)} to complete code, {len(prompts) - len(code)} questions: {options.output}"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
