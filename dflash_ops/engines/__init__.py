"""Adapters: other engines' caches, tables and slots as the arguments of the ops, without copying K or V.

`vllm_layout` and `sglang_layout` are functions of tensors and need neither engine; `vllm_plugin` and `vllm_backend` are
loaded by vLLM. `docs/engines.md` states what is covered and what is not.
"""

from dflash_ops.engines.batch import EngineBatch, attend

__all__ = ["EngineBatch", "attend"]
