"""What every engine's metadata is turned into, and the one call of attention that uses it."""

from typing import NamedTuple

from torch import Tensor

import dflash_ops


class EngineBatch(NamedTuple):
    """The ops' view of one forward of b requests.

    Attributes:
        page_table: int32 [b, max_pages].
        context_lens: int32 [b], tokens in the cache before this forward's.
        cu_block_lens: int32 [b + 1], where each request's new tokens begin and end; None: equally many each.
        slot_mapping: int64 [tokens], where the new tokens' K and V go; -1 nowhere.
    """

    page_table: Tensor
    context_lens: Tensor
    cu_block_lens: Tensor | None
    slot_mapping: Tensor


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: EngineBatch,
    *,
    scale: float | None = None,
    causal: bool = True,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    out: Tensor | None = None,
    workspace: Tensor | None = None,
) -> Tensor:
    """`block_attention` over an engine's cache; whether it holds the new tokens already does not matter.

    Args:
        q: [tokens, q_heads, head_dim]; k, v: [tokens, kv_heads, head_dim], the new tokens' own.
        k_cache, v_cache: [pages, page_size, kv_heads, head_dim] views of the engine's storage.
        The others as `dflash_ops.block_attention` has them. A CUDA graph needs `out` and `workspace`.

    Returns:
        [tokens, q_heads, head_dim].

    Raises:
        RuntimeError: from the op.
    """
    result, _ = dflash_ops.block_attention(
        q,
        k,
        v,
        k_cache,
        v_cache,
        batch.page_table,
        batch.context_lens,
        batch.cu_block_lens,
        scale=scale,
        causal=causal,
        window=window,
        softcap=softcap,
        sinks=sinks,
        out=out,
        workspace=workspace,
    )
    return result
