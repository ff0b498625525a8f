"""Kernels for DFlash block-diffusion speculative decoding.

Importing registers ``torch.ops.dflash_ops.*``. Each op also has a thin allocating function of the same name here;
`docs/ops-contract.md` gives their shapes and `dflash_ops.reference` their definitions.
"""

from dflash_ops._environment import collect_env
from dflash_ops._library import __version__, build_info, cpu_isa, cuda_status, set_cpu_isa
from dflash_ops.ops.begin_block import begin_block
from dflash_ops.ops.block_attention import block_attention, block_attention_workspace_size
from dflash_ops.ops.commit_block import commit_block
from dflash_ops.ops.fuse_features import fuse_features, fuse_features_workspace_size
from dflash_ops.ops.lm_head_argmax import lm_head_argmax, lm_head_argmax_workspace_size
from dflash_ops.ops.masked_block_attention import masked_block_attention
from dflash_ops.ops.norm_rope_qkv import norm_rope_qkv
from dflash_ops.ops.project_context_kv import project_context_kv, project_context_kv_workspace_size
from dflash_ops.ops.remask import remask, remask_workspace_size
from dflash_ops.ops.row_argmax import row_argmax, row_argmax_workspace_size
from dflash_ops.ops.select_pages import select_pages, select_pages_width, select_pages_workspace_size
from dflash_ops.ops.sparse_block_attention import sparse_block_attention, sparse_block_attention_workspace_size
from dflash_ops.ops.update_page_bounds import update_page_bounds
from dflash_ops.ops.verify_greedy import verify_greedy, verify_greedy_workspace_size
from dflash_ops.ops.verify_sampled import verify_sampled, verify_sampled_workspace_size
from dflash_ops.ops.write_context_kv import write_context_kv

__all__ = [
    "__version__",
    "begin_block",
    "block_attention",
    "block_attention_workspace_size",
    "build_info",
    "collect_env",
    "commit_block",
    "cpu_isa",
    "cuda_status",
    "fuse_features",
    "fuse_features_workspace_size",
    "lm_head_argmax",
    "lm_head_argmax_workspace_size",
    "masked_block_attention",
    "norm_rope_qkv",
    "project_context_kv",
    "project_context_kv_workspace_size",
    "remask",
    "remask_workspace_size",
    "row_argmax",
    "row_argmax_workspace_size",
    "select_pages",
    "select_pages_width",
    "select_pages_workspace_size",
    "set_cpu_isa",
    "sparse_block_attention",
    "sparse_block_attention_workspace_size",
    "update_page_bounds",
    "verify_greedy",
    "verify_greedy_workspace_size",
    "verify_sampled",
    "verify_sampled_workspace_size",
    "write_context_kv",
]
