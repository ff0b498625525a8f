"""A target small enough for the decoder's tests, with a real byte-level tokenizer."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from dflash_decoding import DraftConfig
from dflash_decoding.drafter import DFlashDrafter
from dflash_decoding.target import Target
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.decoding.drafter_world import random_weights

BYTES = 256
EOS = 257
MASK = 258
VOCAB = 260
LAYERS = 4
MAX_POSITIONS = 512


def byte_tokenizer() -> Any:
    """One token per byte (the id is the byte), then the special tokens."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    # The printable stand-in of each byte, in byte order: the alphabet maps printable bytes to themselves and the others
    # to what follows U+0100.
    kept = {ord(char) for char in alphabet if ord(char) < BYTES}
    others = iter(range(BYTES, BYTES + len(alphabet) - len(kept)))
    vocab = {chr(byte if byte in kept else next(others)): byte for byte in range(BYTES)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<bos>", "<eos>", "<mask>", "<spare>"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>")


def letter_tokenizer() -> Any:
    """Two or three letters per token, no two alike, so that every text is readable; EOS is a special token."""
    pieces = {chr(97 + i % 26) + chr(97 + i // 26) + "x" * (i % 2): i for i in range(VOCAB) if i != EOS}
    tokenizer = Tokenizer(models.WordLevel(vocab={**pieces, "<eos>": EOS}, unk_token="<eos>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


def tiny_target(seed: int = 0, **changes: Any) -> Target:
    """A random Llama. Its tokens are spread widely enough that no two logits tie."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": MAX_POSITIONS,
        "bos_token_id": 256,
        "eos_token_id": EOS,
        "initializer_range": 0.3,
    }
    target = Target(transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**sizes, **changes})))
    target.tokenizer = byte_tokenizer()
    return target


def tiny_drafter(target: Target, seed: int = 0, **changes: Any) -> DFlashDrafter:
    """A DFlash drafter with random weights, block 8."""
    fields: dict[str, Any] = {
        "block_size": 8,
        "mask_token_id": MASK,
        "hidden_size": target.hidden_size,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": target.vocab_size,
        "target_layer_ids": (0, 2, 3),
        "layer_types": ("sliding_attention", "full_attention"),
        "sliding_window": 24,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "max_position_embeddings": MAX_POSITIONS,
    }
    config = DraftConfig(**{**fields, **changes})
    weights = random_weights(config, torch.Generator().manual_seed(seed))
    return DFlashDrafter.from_weights(config, weights, target.embed_weight, target.lm_head_weight)
