"""The definition of every op in plain torch: runs in float64, allocates freely, and is the oracle of the tests."""

from dflash_ops.reference.block_attention import block_attention
from dflash_ops.reference.masked_block_attention import masked_block_attention
from dflash_ops.reference.norm_rope_qkv import norm_rope_qkv
from dflash_ops.reference.row_argmax import row_argmax
from dflash_ops.reference.write_context_kv import write_context_kv

__all__ = ["block_attention", "masked_block_attention", "norm_rope_qkv", "row_argmax", "write_context_kv"]
