"""The long-context benchmark on a tiny model: its prompts, its shared prefill, its numbers and tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import cast

import pytest
from dflash_decoding import DFlashDecoder, SparseContext, Target, WindowContext
from dflash_decoding.cli import encode_prompt

from benchmarks import long_context
from benchmarks.long_context import MODES, Mode, measure, memory
from benchmarks.long_context_report import PLAIN, tables, write_between_marks
from benchmarks.long_prompts import QUESTIONS, long_prompt, reference_text
from benchmarks.remembered_prefill import RememberedPrefill
from tests.decoding.drafters import one_thread
from tests.decoding.tiny import byte_tokenizer, tiny_drafter, tiny_target


@pytest.fixture(autouse=True, scope="module")
def single_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target()


@pytest.mark.parametrize("tokens", [100, 333])
def test_prompts_have_the_length_asked_for(target: Target, tokens: int) -> None:
    prompts = [long_prompt(target, tokens, index) for index in range(5)]
    assert {len(prompt.tokens) for prompt in prompts} == {tokens}
    assert len({prompt.tokens for prompt in prompts}) == 5
    for prompt, question in zip(prompts, (*QUESTIONS, QUESTIONS[0]), strict=True):
        text = byte_tokenizer().decode(list(prompt.tokens))
        assert text.endswith("\n\n" + question)
        assert "\x00" not in text
    first = next(reference_text(0))[:20]
    assert encode_prompt(target, first) == list(prompts[0].tokens[:20])
    assert long_prompt(target, tokens, 2) == prompts[2]
    with pytest.raises(ValueError, match="tokens: expected more than"):
        long_prompt(target, 10, 0)


def test_there_is_enough_text() -> None:
    assert sum(map(len, islice(reference_text(3), 79))) > 400_000


def test_remembered_prefill_leaves_what_a_prefill_leaves(target: Target) -> None:
    drafter = tiny_drafter(target)
    remembered = RememberedPrefill(target, tuple(drafter.tap_layers))
    computed: list[int] = []
    forward = target.forward

    def counted(input_ids, *arguments, **named):  # type: ignore[no-untyped-def]
        computed.append(len(input_ids))
        return forward(input_ids, *arguments, **named)

    prompts = [list(long_prompt(target, 100, index).tokens) for index in range(2)]
    expected = DFlashDecoder(target, drafter, prefill_chunk=30).generate(prompts, max_new_tokens=12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "forward", counted)
        for page_size in (4, 16):
            decoder = DFlashDecoder(cast(Target, remembered), drafter, prefill_chunk=30, page_size=page_size)
            got = decoder.generate(prompts, max_new_tokens=12)
            assert [answer.token_ids for answer in got] == [answer.token_ids for answer in expected]
            assert [answer.stats.acceptance for answer in got] == [answer.stats.acceptance for answer in expected]
        decoder.generate_autoregressive(prompts, max_new_tokens=12)
    # 30 + 30 + 30 + 10 rows of each prompt once; everything else is rounds.
    assert sorted(count for count in computed if count in (30, 10)) == [10] * 2 + [30] * 6


def test_numbers_and_tables(target: Target, tmp_path: Path) -> None:
    drafter = tiny_drafter(target)
    modes = {"sparse": Mode(SparseContext(64, 16, 16)), "window": Mode(WindowContext(32))}
    *_, results = measure(target, drafter, 200, 2, 10, lambda: 0.0, modes)
    assert list(results) == [PLAIN, "sparse", "window"]
    for result in results.values():
        assert (result.answers, result.identical) == (2, 2)
    numbers = {name: result.to_dict() for name, result in results.items()}
    computed = memory(drafter, modes, (208, 4096), 16)
    # 200 of the prompt, 10 new ones and what the last block may reach beyond: 14 pages of 16.
    assert numbers["window"]["draft_cache_bytes"] == computed["window"]["4096"]
    assert numbers["sparse"]["draft_cache_bytes"] * 13 == computed["sparse"]["208"] * 14
    for of_method in numbers.values():
        of_method["tokens_per_s"] = 2.0
    text = tables(
        {
            "max_new_tokens": 10,
            "dtype": "float32",
            "threads": 1,
            "cpu_isa": "avx2",
            "clock": "wall",
            "runs": [{"length": 200, "methods": numbers}],
            "computed_bytes": computed,
        }
    )
    assert len([line for line in text.splitlines() if line.startswith("| 200 |")]) == 3
    document = tmp_path / "document.md"
    document.write_text(
        f"before\n{'<!-- tables: benchmarks/long_context.py -->'}\nold\n<!-- end of tables -->\nafter\n"
    )
    write_between_marks(document, text)
    written = document.read_text()
    assert written.startswith("before\n")
    assert written.endswith("after\n")
    assert text in written
    assert "old" not in written
    document.write_text("nothing")
    with pytest.raises(ValueError, match="expected the marks"):
        write_between_marks(document, text)


def test_modes_cover_every_context() -> None:
    assert {mode.context.name for mode in MODES.values()} == {"full", "sparse", "window", "cache_free"}


def test_committed_result() -> None:
    """What docs/long_context.md reports."""
    numbers = json.loads((Path(long_context.__file__).parents[1] / "docs" / "long_context.json").read_text())
    assert {run["length"] for run in numbers["runs"]} == set(long_context.LENGTHS)
    for run in numbers["runs"]:
        for result in run["methods"].values():
            assert result["identical"] == result["answers"] or result["largest_gap"] < 1e-3
