"""The definition of every op in plain torch: runs in float64, allocates freely, and is the oracle of the tests."""

from dflash_ops.reference.begin_block import begin_block
from dflash_ops.reference.block_attention import block_attention
from dflash_ops.reference.commit_block import commit_block
from dflash_ops.reference.fuse_features import fuse_features
from dflash_ops.reference.lm_head_argmax import lm_head_argmax
from dflash_ops.reference.masked_block_attention import masked_block_attention
from dflash_ops.reference.norm_rope_qkv import norm_rope_qkv
from dflash_ops.reference.project_context_kv import project_context_kv
from dflash_ops.reference.remask import remask
from dflash_ops.reference.row_argmax import row_argmax
from dflash_ops.reference.select_pages import select_pages
from dflash_ops.reference.sparse_block_attention import sparse_block_attention
from dflash_ops.reference.update_page_bounds import update_page_bounds
from dflash_ops.reference.verify_greedy import verify_greedy
from dflash_ops.reference.verify_sampled import verify_sampled
from dflash_ops.reference.write_context_kv import write_context_kv

__all__ = [
    "begin_block",
    "block_attention",
    "commit_block",
    "fuse_features",
    "lm_head_argmax",
    "masked_block_attention",
    "norm_rope_qkv",
    "project_context_kv",
    "remask",
    "row_argmax",
    "select_pages",
    "sparse_block_attention",
    "update_page_bounds",
    "verify_greedy",
    "verify_sampled",
    "write_context_kv",
]
