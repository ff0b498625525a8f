"""Types of the compiled host-side module."""

from typing import Any

def build_info() -> dict[str, Any]: ...
def block_attention_workspace_size(
    tokens: int,
    batch: int,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    max_context: int,
    num_splits: int,
    threads: int,
) -> int: ...
def fuse_features_workspace_size(rows: int, taps: int, tap_columns: int, columns: int) -> int: ...
def project_context_kv_workspace_size(rows: int, hidden_size: int, columns: int) -> int: ...
def lm_head_argmax_workspace_size(rows: int, hidden_size: int, vocab_size: int) -> int: ...
