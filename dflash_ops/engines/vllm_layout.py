"""vLLM's paged cache and attention metadata (its V1 engine) as the ops' arguments.

A layer's cache is one tensor. In vLLM 0.33 its shape is ``[num_blocks, kv_heads, block_size, 2 * head_dim]``
(FlashAttention and Triton backends), K before V in every row; before, ``[2, num_blocks, block_size, kv_heads,
head_dim]``, and ``[num_blocks, 2, block_size, kv_heads, head_dim]`` with FlashInfer. Which dimension is innermost in
memory, NHD or HND, shows in its strides only, and those are free here. A slot is ``block * block_size + offset``, and
-1 where a token is padding: as the ops have it.
"""

from torch import Tensor

from dflash_ops.engines.batch import EngineBatch


def cache_views(kv_cache: Tensor, kv_dim: int) -> tuple[Tensor, Tensor]:
    """K and V ``[num_blocks, block_size, kv_heads, head_dim]`` of a layer, views of its cache.

    Args:
        kv_dim: the dimension that tells K from V: 0 or 1, of size 2, in a cache of five dimensions; 3, which has both, in
            one of four. Not guessed: a cache may have two blocks.

    Raises:
        ValueError: not such a cache.
    """
    if kv_dim not in (0, 1, 3):
        raise ValueError(f"kv_dim: expected 0, 1 or 3, got {kv_dim}")
    if kv_dim == 3:
        if kv_cache.ndim != 4 or kv_cache.shape[3] % 2:
            raise ValueError(f"kv_cache: expected 4 dimensions, the last one even, got {list(kv_cache.shape)}")
        k, v = kv_cache.transpose(1, 2).chunk(2, dim=3)
        return k, v
    if kv_cache.ndim != 5 or kv_cache.shape[kv_dim] != 2:
        raise ValueError(f"kv_cache: expected 5 dimensions, dimension {kv_dim} of size 2, got {list(kv_cache.shape)}")
    k, v = kv_cache.unbind(kv_dim)
    return k, v


def engine_batch(query_start_loc: Tensor, seq_lens: Tensor, block_table: Tensor, slot_mapping: Tensor) -> EngineBatch:
    """The ops' view of vLLM's attention metadata; its requests of length 0 (padding of a CUDA graph) see nothing.

    Args:
        query_start_loc: int32 ``[b + 1]``, where each request's new tokens begin.
        seq_lens: int32 ``[b]``, tokens of each request, the new ones included.
        block_table: int32 ``[b, max_blocks]``.
        slot_mapping: int64 ``[tokens]``.
    """
    query_lens = query_start_loc[1:] - query_start_loc[:-1]
    return EngineBatch(block_table, seq_lens - query_lens, query_start_loc, slot_mapping)


def window_of(sliding_window: tuple[int, int] | None, causal: bool) -> int:
    """The ops' window of FlashAttention's (left, right) reach, as vLLM's layers hold it; 0: none.

    Raises:
        ValueError: a reach that no window of the ops has.
    """
    if sliding_window is None or tuple(sliding_window) == (-1, -1):
        return 0
    left, right = sliding_window
    if left < 0 or right != (0 if causal else left):
        raise ValueError(f"sliding_window: expected (w, {0 if causal else 'w'}), got {tuple(sliding_window)}")
    return left + 1
