"""The definition of every op in plain torch: runs in float64, allocates freely, and is the oracle of the tests."""

from dflash_ops.reference.block_attention import block_attention
from dflash_ops.reference.fuse_features import fuse_features
from dflash_ops.reference.lm_head_argmax import lm_head_argmax
from dflash_ops.reference.norm_rope_qkv import norm_rope_qkv
from dflash_ops.reference.project_context_kv import project_context_kv
from dflash_ops.reference.row_argmax import row_argmax
from dflash_ops.reference.write_context_kv import write_context_kv

__all__ = [
    "block_attention",
    "fuse_features",
    "lm_head_argmax",
    "norm_rope_qkv",
    "project_context_kv",
    "row_argmax",
    "write_context_kv",
]
