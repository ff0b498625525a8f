"""vLLM's way in: the entry point `dflash_ops` in the group `vllm.general_plugins`."""

BACKEND_CLASS = "dflash_ops.engines.vllm_backend.BlockAttentionBackend"


def register() -> None:
    """Makes `--attention-backend CUSTOM` mean `block_attention`; vLLM calls this in each of its processes.

    vLLM has one such name: of several plugins that register it, the last one wins (`VLLM_PLUGINS=dflash_ops` loads this
    one alone).
    """
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CUSTOM, BACKEND_CLASS)
