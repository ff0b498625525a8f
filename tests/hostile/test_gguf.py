"""GGUF files that are cut, lie about themselves, or are none: refused by name, without large allocations."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from dflash_decoding.target import Target
from gguf import GGUFWriter


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small Llama without its layers: its header is sound, and cuts and lies come to light before they are missed."""
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(32)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list([f"<{i}>" for i in range(8)])
    writer.add_tensor("token_embd.weight", np.zeros((8, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"target: .*damaged\.gguf: expected a whole GGUF file"):
        Target.from_pretrained(path)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.6, 0.95])
def test_cut_files_are_refused(whole: bytes, share: float, tmp_path: Path) -> None:
    refused(tmp_path, whole[: int(len(whole) * share)])


@pytest.mark.parametrize(("offset", "value"), [(0, 7), (4, 99), (8, 2**62), (16, 2**62), (24, 2**62)])
def test_lying_headers_are_refused(whole: bytes, offset: int, value: int, tmp_path: Path) -> None:
    """Magic, version, and 2^62 tensors, fields, or characters of the first name."""
    packed = struct.pack("<I" if offset < 8 else "<Q", value)
    refused(tmp_path, whole[:offset] + packed + whole[offset + len(packed) :])
