"""Kernels for DFlash block-diffusion speculative decoding.

Importing registers ``torch.ops.dflash_ops.*``. Each op also has a thin allocating function of the same name here;
`docs/ops-contract.md` gives their shapes and `dflash_ops.reference` their definitions.
"""

from dflash_ops._library import build_info, cpu_isa, cuda_status, set_cpu_isa
from dflash_ops.ops.block_attention import block_attention, block_attention_workspace_size
from dflash_ops.ops.masked_block_attention import masked_block_attention
from dflash_ops.ops.norm_rope_qkv import norm_rope_qkv
from dflash_ops.ops.row_argmax import row_argmax
from dflash_ops.ops.write_context_kv import write_context_kv

__all__ = [
    "block_attention",
    "block_attention_workspace_size",
    "build_info",
    "cpu_isa",
    "cuda_status",
    "masked_block_attention",
    "norm_rope_qkv",
    "row_argmax",
    "set_cpu_isa",
    "write_context_kv",
]
