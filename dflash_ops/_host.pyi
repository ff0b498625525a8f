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
