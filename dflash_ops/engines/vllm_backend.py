"""An attention backend of vLLM on `block_attention`. Only vLLM imports this module.

Cache shape, metadata and the cache write are those of vLLM's FlashAttention backend; only attention itself is ours.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend, FlashAttentionImpl

import dflash_ops
from dflash_ops.engines.batch import attend
from dflash_ops.engines.vllm_layout import cache_views, engine_batch, window_of

_WORKSPACES: dict[torch.device, list[Tensor]] = {}


class BlockAttentionBackend(FlashAttentionBackend):
    """Chosen with `--attention-backend CUSTOM`."""

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type["BlockAttentionImpl"]:
        return BlockAttentionImpl

    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "float16", "bfloat16"]

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int]:
        return [16, 32, 64, 128, 256]

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size in (64, 96, 128, 256)

    @classmethod
    def supports_attn_type(cls, attn_type: Any) -> bool:
        return _name(attn_type) == "decoder"

    @classmethod
    def supports_mm_prefix(cls) -> bool:
        return False

    @classmethod
    def supports_rswa(cls) -> bool:
        return False


def _name(attn_type: Any) -> str:
    """Of an attention type, which is a string or an enumeration of strings."""
    return str(getattr(attn_type, "value", attn_type))


class BlockAttentionImpl(FlashAttentionImpl):
    """One attention layer.

    Raises:
        NotImplementedError: the layer, or a batch, needs what `block_attention` does not compute.
    """

    supports_dcp = False
    can_return_lse_for_decode = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        refused = {
            "ALiBi": self.alibi_slopes is not None,
            "an encoder": _name(self.attn_type) != "decoder",
            "an FP8 cache": self.kv_cache_dtype.startswith("fp8"),
            "decode context parallelism": getattr(self, "dcp_world_size", 1) > 1,
        }
        for name, present in refused.items():
            if present:
                raise NotImplementedError(f"block_attention in vLLM: expected a decoder layer without {name}, got one")

    def forward(
        self,
        layer: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor | None = None,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """Writes attention of the new tokens into `output` ``[tokens, heads, head_dim]``, whose tail may be padding."""
        assert output is not None
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("block_attention in vLLM: expected an output without quantization, got one with")
        if attn_metadata is None:  # vLLM measures memory
            return output.fill_(0)
        tokens, causal = attn_metadata.num_actual_tokens, attn_metadata.causal
        refused = {
            "requests of which some are causal": isinstance(causal, Tensor),
            "a prefix seen both ways": getattr(attn_metadata, "mm_prefix_query_range_tensor", None) is not None,
            "a window behind a prefix": getattr(attn_metadata, "rswa_prefix_lens", None) is not None,
        }
        for name, present in refused.items():
            if present:
                raise NotImplementedError(f"block_attention in vLLM: expected a batch without {name}, got one")
        reach = self.sliding_window
        if not causal and reach[1] == 0:  # layers hold a causal reach; vLLM's own backend mirrors it as well
            reach = (reach[0], reach[0])
        k_cache, v_cache = cache_views(kv_cache, kv_dim=3 if kv_cache.ndim == 4 else 0)
        batch = engine_batch(
            attn_metadata.query_start_loc,
            attn_metadata.seq_lens,
            attn_metadata.block_table,
            attn_metadata.slot_mapping,
        )
        attend(
            query[:tokens],
            key[:tokens],
            value[:tokens],
            k_cache,
            v_cache,
            batch,
            scale=self.scale,
            causal=causal,
            window=window_of(reach, causal),
            softcap=self.logits_soft_cap or 0.0,
            sinks=None if self.sinks is None else self.sinks.float(),
            out=output[:tokens].view(query[:tokens].shape),
            workspace=_workspace_for(query, k_cache, batch.page_table),
        )
        return output


def _workspace_for(query: Tensor, k_cache: Tensor, page_table: Tensor) -> Tensor:
    """One workspace for all layers of a device, which run one after another; zero when it is new.

    A larger one is added, not swapped in: graphs captured before go on using the memory they were captured with.
    """
    size = dflash_ops.block_attention_workspace_size(
        query.shape[0],
        page_table.shape[0],
        query.shape[1],
        k_cache.shape[2],
        query.shape[2],
        page_table.shape[1] * k_cache.shape[1],
        device=query.device,
    )
    workspaces = _WORKSPACES.setdefault(query.device, [])
    if not workspaces or workspaces[-1].numel() < size:
        workspaces.append(torch.zeros(size, dtype=torch.uint8, device=query.device))
    return workspaces[-1]
