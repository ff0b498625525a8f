"""The command line, end to end on a tiny target and drafter saved to folders."""

from __future__ import annotations

import io
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from dflash_decoding import cli, demo
from dflash_decoding.checkpoint import save_draft_checkpoint
from dflash_decoding.decoder import DFlashDecoder
from dflash_decoding.stats import DecodeStats
from dflash_decoding.training.data import load_chats

from tests.decoding.drafter_world import random_weights
from tests.decoding.tiny import BYTES, MASK, byte_tokenizer, tiny_drafter, tiny_target


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    config = tiny_target().config
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def drafter_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drafter")
    config = tiny_drafter(tiny_target()).config
    save_draft_checkpoint(folder, config, random_weights(config, torch.Generator().manual_seed(0)))
    return folder


@pytest.fixture(scope="module")
def models(target_folder: Path, drafter_folder: Path) -> list[str]:
    return ["--target", str(target_folder), "--drafter", str(drafter_folder)]


def expected_tokens(target_folder: Path, text: str, count: int) -> list[int]:
    """Greedy continuation by the Hugging Face model alone, one full forward per token."""
    model = transformers.LlamaForCausalLM.from_pretrained(target_folder).eval()
    tokens = list(text.encode())
    with torch.no_grad():
        for _ in range(count):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[-count:]


def test_generate_streams_the_targets_text(
    models: list[str], target_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["generate", *models, "--raw", "--prompt", "hello", "--max-new-tokens", "12"]) == 0
    output = capsys.readouterr()
    text = byte_tokenizer().decode(expected_tokens(target_folder, "hello", 12), skip_special_tokens=True)
    assert output.out == text + "\n"
    assert "12 tokens" in output.err
    assert "tau" in output.err


def test_generate_json(models: list[str], target_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["generate", *models, "--raw", "--prompt", "hello", "--max-new-tokens", "12", "--json"]
    assert cli.main(arguments) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["token_ids"] == expected_tokens(target_folder, "hello", 12)
    assert answer["text"] == byte_tokenizer().decode(answer["token_ids"], skip_special_tokens=True)
    assert answer["finish_reason"] == "length"
    assert answer["same_as_autoregressive"] is True
    assert len(answer["acceptance"]) == 8
    assert sum(answer["acceptance"]) == answer["rounds"]
    for name in ("tau", "t_draft", "t_verify", "t_prefill", "tokens_per_s", "eta", "eta_predicted"):
        assert isinstance(answer[name], float)
        assert answer[name] > 0
    assert answer["autoregressive"]["tau"] == 1.0


def test_generate_without_drafter_sampled_with_a_stop(
    models: list[str], target_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sampled = [
        "--temperature",
        "0.7",
        "--top-k",
        "5",
        "--top-p",
        "0.9",
        "--seed",
        "3",
        "--max-new-tokens",
        "20",
        "--json",
    ]
    assert cli.main(["generate", *models, "--raw", "--prompt", "ab", "--block-size", "3", *sampled]) == 0
    by_dflash = json.loads(capsys.readouterr().out)
    plain_models = ["--target", str(target_folder), "--drafter", "none"]
    assert cli.main(["generate", *plain_models, "--raw", "--prompt", "ab", *sampled]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert by_dflash["token_ids"] == plain["token_ids"]
    assert by_dflash["seed"] == 3
    assert (by_dflash["block_size"], plain["block_size"]) == (3, 1)
    letters = [token for token in plain["token_ids"] if 97 <= token < 123]
    if letters:
        assert cli.main(["generate", *models, "--raw", "--prompt", "ab", "--stop", chr(letters[0]), *sampled]) == 0
        stopped = json.loads(capsys.readouterr().out)
        assert stopped["finish_reason"] == "stop_string"
        assert chr(letters[0]) not in stopped["text"]


@pytest.mark.parametrize(
    "options",
    [
        "--draft-context sparse --draft-budget 32 --draft-sink-tokens 4 --draft-local-tokens 8 --draft-round-interval 2 "
        "--draft-layer-interval 2",
        "--draft-context window --draft-budget 8 --adaptive",
        "--draft-context cache_free --draft-budget 8",
    ],
)
def test_generate_with_a_draft_context(
    models: list[str], target_folder: Path, capsys: pytest.CaptureFixture[str], options: str
) -> None:
    prompt = "a prompt longer than a budget of thirty-two tokens, so that something is left out of it"
    arguments = ["generate", *models, "--raw", "--prompt", prompt, "--max-new-tokens", "12", *options.split(), "--json"]
    assert cli.main(arguments) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["token_ids"] == expected_tokens(target_folder, prompt, 12)
    plans = [f"8 rows, budget {32 if 'sparse' in options else 8}"]
    assert list(answer["plans"])[:1] == plans


def test_prompt_from_file_and_standard_input(
    models: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = []
    (tmp_path / "prompt.txt").write_text("hello", encoding="utf-8")
    common = ["generate", *models, "--raw", "--max-new-tokens", "4"]
    for source in (["--prompt", "hello"], ["--prompt-file", str(tmp_path / "prompt.txt")], []):
        monkeypatch.setattr("sys.stdin", io.StringIO("hello"))
        assert cli.main([*common, *source]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] == texts[2]


def test_chat_template_is_used(target_folder: Path) -> None:
    target = cli.Target.from_pretrained(target_folder)
    assert cli.encode_prompt(target, "hi") == [104, 105]
    target.tokenizer.chat_template = "{% for m in messages %}[{{ m.content }}]{% endfor %}>"
    assert bytes(cli.encode_prompt(target, "hi")) == b"[hi]>"
    assert cli.encode_prompt(target, "hi", raw=True) == [104, 105]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--target": "/no/such/folder"}, "target: expected"),
        ({"--drafter": "/no/such/folder"}, "drafter: expected"),
        ({"--drafter": None}, "--drafter: expected a drafter for this target"),
        ({"--prompt": "  "}, "prompt: expected some text, got none"),
        ({"--block-size": "9"}, "block_size: expected"),
        ({"--draft-context": "window", "--draft-budget": "7"}, "budget_tokens: expected at least"),
        ({"--draft-budget": "7"}, "draft_context full: expected no budget_tokens"),
        ({"--drafter": "none", "--draft-context": "sparse"}, "expected a drafter beside them"),
        ({"--temperature": "-1"}, "temperature: expected"),
        ({"--max-new-tokens": "-1"}, "max_new_tokens: expected"),
        ({"--max-new-tokens": "100000"}, "expected at most 512 tokens"),
    ],
)
def test_unusable_arguments_exit_2(
    models: list[str], change: dict[str, str | None], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, str | None] = {
        "--prompt": "hello",
        **dict(zip(models[::2], models[1::2], strict=True)),
        **change,
    }
    arguments = [word for name, value in options.items() if value is not None for word in (name, value)]
    assert cli.main(["generate", *arguments]) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert "Traceback" not in output.err
    assert output.out == ""


@pytest.mark.parametrize(
    "arguments", [[], ["unknown"], ["generate", "--threads", "0"], ["train", "--steps", "x"], ["info", "--extra"]]
)
def test_usage_errors_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_info(models: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", *models, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["target"]["layers"] == 4
    assert facts["target"]["heads"] == "4/2"
    assert facts["drafter"]["block_size"] == 8
    assert facts["drafter"]["target_layer_ids"] == [0, 2, 3]
    assert facts["build"]["torch"] == torch.__version__
    assert cli.main(["info", *models[:2], "--drafter", "none"]) == 0
    output = capsys.readouterr().out
    assert "build" in output
    assert "drafter" not in output


def test_bench_hands_its_options_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Any] = []

    def main(options: list[str]) -> int:
        seen.append(options)
        return 0

    monkeypatch.setitem(sys.modules, "benchmarks.decode", types.SimpleNamespace(main=main))
    monkeypatch.setattr("benchmarks.decode", types.SimpleNamespace(main=main), raising=False)
    assert cli.main(["bench", "--json", "out.json", "--help"]) == 0
    assert seen == [["--json", "out.json", "--help"]]
    monkeypatch.setitem(sys.modules, "benchmarks", None)
    assert cli.main(["bench"]) == 2
    assert "source checkout" in capsys.readouterr().err


def write_chats(path: Path, mask: bool = False) -> None:
    """Chats over bytes: answers repeat the prompt's letter."""
    letters = np.arange(8) + 97
    tokens = np.concatenate([np.full(20, letter) for letter in letters])
    if mask:
        tokens[5] = MASK
    np.savez(path, tokens=tokens.astype(np.uint16), lens=np.full(8, 20), prompt_len=np.full(8, 3))


def test_trains_a_drafter_that_decodes(target_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole way on real taps: train, stop, resume, generate with the checkpoint."""
    write_chats(tmp_path / "chats.npz")
    options = ["train", "--output", str(tmp_path / "run"), "--target", str(target_folder), "--block-size", "4"]
    options += ["--chats", str(tmp_path / "chats.npz"), "--held-out", "2", "--tap-cache", str(tmp_path / "cache")]
    options += ["--mask-token-id", str(MASK), "--tap-layers", "0,2,3", "--intermediate-size", "48"]
    options += ["--chats-per-batch", "2", "--anchors-per-chat", "4", "--sliding-window", "6", "--learning-rate", "3e-3"]
    assert cli.main([*options, "--steps", "60"]) == 0
    output = capsys.readouterr().out
    assert "held-out chats: tau" in output
    assert len(list((tmp_path / "cache").glob("taps-*/*.safetensors"))) == 8
    assert cli.main([*options, "--steps", "60"]) == 2
    assert "resume it or choose another" in capsys.readouterr().err
    assert cli.main([*options, "--steps", "61", "--resume"]) == 2
    assert "steps: expected 60, got 61" in capsys.readouterr().err
    assert cli.main([*options, "--steps", "60", "--resume"]) == 0
    assert "resuming at step 60 of 60" in capsys.readouterr().out
    drafter = str(tmp_path / "run" / "checkpoint")
    # Goes on from it in smaller blocks, on one chat more and none held out; the taps of all others are there.
    np.savez(tmp_path / "more.npz", tokens=[104, 105, 99, 99, 99, 99], lens=[6], prompt_len=[2])
    options[options.index(str(tmp_path / "run"))] = str(tmp_path / "further")
    options += ["--init-drafter", drafter, "--block-size", "3", "--more-chats", str(tmp_path / "more.npz")]
    assert cli.main([*options, "--held-out", "0", "--steps", "9"]) == 0
    assert "tau 1.000 over 0 blocks" in capsys.readouterr().out
    assert len(list((tmp_path / "cache").glob("taps-*/*.safetensors"))) == 9
    arguments = ["--target", str(target_folder), "--drafter", drafter, "--raw", "--prompt", "ccc"]
    assert cli.main(["generate", *arguments, "--max-new-tokens", "6", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["token_ids"] == expected_tokens(target_folder, "ccc", 6)


def test_makes_chats_to_train_on(target_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("hello\nccc\n" + "long" * 20 + "\n")
    options = ["make-data", "--target", str(target_folder), "--prompts", str(prompts), "--max-new-tokens", "6"]
    options += ["--output", str(tmp_path / "chats.npz"), "--batch", "2", "--max-prompt-tokens", "50"]
    assert cli.main(options) == 0
    assert "left out 1 prompts of more than 50 tokens" in capsys.readouterr().out
    chats = load_chats(tmp_path / "chats.npz", 260)
    for index, text in enumerate(("hello", "ccc")):
        assert chats.chat(index).tolist() == [*text.encode(), *expected_tokens(target_folder, text, 6)]
    assert cli.main(options) == 2
    assert "expected no such file yet (or --overwrite)" in capsys.readouterr().err
    assert cli.main([*options, "--overwrite"]) == 0
    assert cli.main([*options, "--output", str(tmp_path / "chats.txt")]) == 2
    assert "expected a name that ends in .npz" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--mask-token-id", "300"], "mask_token_id: expected an id below vocab_size 260"),
        (["--mask-token-id", str(MASK)], f"--mask-token-id: expected an id the chats never use, got {MASK} (1 uses)"),
        (["--mask-token-id", str(BYTES), "--tap-layers", "9"], "target_layer_ids: expected"),
        (["--mask-token-id", str(BYTES), "--chats-per-batch", "99"], "chats_per_batch: expected"),
        (["--mask-token-id", str(BYTES), "--init-layers", "1"], "init_layers: expected 2 target layers"),
        (["--mask-token-id", str(BYTES), "--init-layers", "1,7"], "init_layers: expected layers in 0..3, got 7"),
        (["--mask-token-id", str(BYTES), "--init-layers", "1,2", "--intermediate-size", "8"], "expected [8, 32]"),
        ([], "--mask-token-id: expected an id for this target, got none"),
    ],
)
def test_train_refuses(
    target_folder: Path, tmp_path: Path, change: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_chats(tmp_path / "chats.npz", mask=True)
    options = ["train", "--output", str(tmp_path / "run"), "--target", str(target_folder), "--steps", "3"]
    options += ["--chats", str(tmp_path / "chats.npz"), "--held-out", "2", "--tap-cache", "none"]
    options += ["--tap-layers", "0,2,3"]
    assert cli.main([*options, *change]) == 2
    assert message in capsys.readouterr().err


def test_demo_table_and_verdict(target_folder: Path) -> None:
    target = cli.Target.from_pretrained(target_folder)
    drafter = tiny_drafter(tiny_target())
    decoder = DFlashDecoder(target, drafter)
    prompt = [104, 105]
    plain = decoder.generate_autoregressive([prompt], max_new_tokens=10)[0]
    drafted = decoder.generate([prompt], max_new_tokens=10)[0]
    table = demo.comparison_table(plain.stats, drafted.stats)
    assert "autoregressive" in table
    assert f"{drafted.stats.tau:.2f}" in table
    assert demo.verdict(target, plain, drafted) == "Both texts are identical, all 10 tokens."
    shorter = decoder.generate([prompt], max_new_tokens=9)[0]
    other = type(plain)(prompt=plain.prompt, token_ids=(*plain.token_ids[:4], 5, 6), text="", finish_reason="length",
                        stats=DecodeStats(block_size=1))  # fmt: skip
    assert demo.verdict(target, plain, other).startswith("The texts part at token 4 (plain ")
    assert "token 9 (plain" in demo.verdict(target, plain, shorter)
