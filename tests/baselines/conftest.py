"""A tiny target on disk, and chats of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from dflash_decoding import DFlashDecoder, Target

from tests.decoding.tiny import byte_tokenizer, tiny_target


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(tiny_target().config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def chats(target_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target's own greedy answers, of which random weights make a few loops that can be learnt by heart."""
    target = Target.from_pretrained(target_folder)
    prompts = [[start, start + 1] for start in range(97, 105)]
    answers = DFlashDecoder(target).generate(prompts, max_new_tokens=24, stop_token_ids=())
    tokens = np.concatenate([[*prompt, *answer.token_ids] for prompt, answer in zip(prompts, answers, strict=True)])
    path = tmp_path_factory.mktemp("chats") / "chats.npz"
    np.savez(path, tokens=tokens.astype(np.uint16), lens=np.full(8, 26), prompt_len=np.full(8, 2))
    return path
