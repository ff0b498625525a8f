"""The definition of every op in plain torch: runs in float64, allocates freely, and is the oracle of the tests."""

from dflash_ops.reference.begin_block import begin_block
from dflash_ops.reference.block_attention import block_attention
from dflash_ops.reference.commit_block import commit_block
from dflash_ops.reference.norm_rope_qkv import norm_rope_qkv
from dflash_ops.reference.remask import remask
from dflash_ops.reference.row_argmax import row_argmax
from dflash_ops.reference.verify_greedy import verify_greedy
from dflash_ops.reference.verify_sampled import verify_sampled
from dflash_ops.reference.write_context_kv import write_context_kv

__all__ = [
    "begin_block",
    "block_attention",
    "commit_block",
    "norm_rope_qkv",
    "remask",
    "row_argmax",
    "verify_greedy",
    "verify_sampled",
    "write_context_kv",
]
