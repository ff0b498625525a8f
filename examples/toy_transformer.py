"""A small Llama-like transformer on the ops, with random weights: what `toy_models.py` makes a target and a drafter of.

An engine has its own layers; what matters here is which op stands where attention, RoPE and the cache write were.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

import dflash_ops  # registers the ops

ops = torch.ops.dflash_ops
HEAD_DIM = 64
Q_HEADS, KV_HEADS = 4, 2
EPS = 1e-6
BASE = 10000.0


def cos_sin_table(positions: int, device: torch.device) -> Tensor:
    """RoPE table float32 [positions, HEAD_DIM]: cosines, then sines."""
    frequencies = BASE ** (-torch.arange(0, HEAD_DIM, 2, device=device) / HEAD_DIM)
    angles = torch.arange(positions, device=device)[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=1)


class Transformer:
    """Weights and paged caches of a few layers; every tensor a forward reads or writes has a fixed address.

    Attributes:
        qkv [L, (Hq + 2 Hkv) D, H], o [L, H, Hq D], gate_up [L, 4 H, H], down [L, H, 2 H], k_norm, q_norm [L, D].
        k_caches, v_caches: L tensors [pages, page_size, Hkv, D].
    """

    def __init__(self, layers: int, hidden: int, cache: tuple[int, int], positions: int, like: Tensor, seed: int):
        generator = torch.Generator(like.device).manual_seed(seed)

        def random(*shape: int, scale: float) -> Tensor:
            weight = torch.randn(shape, generator=generator, device=like.device)
            return (weight * scale).to(like.dtype)

        self.layers = range(layers)
        self.kv_rows = 2 * KV_HEADS * HEAD_DIM
        self.qkv = random(layers, Q_HEADS * HEAD_DIM + self.kv_rows, hidden, scale=hidden**-0.5)
        self.o = random(layers, hidden, Q_HEADS * HEAD_DIM, scale=(Q_HEADS * HEAD_DIM) ** -0.5)
        self.gate_up = random(layers, 4 * hidden, hidden, scale=hidden**-0.5)
        self.down = random(layers, hidden, 2 * hidden, scale=(2 * hidden) ** -0.5)
        self.q_norm = 1 + random(layers, HEAD_DIM, scale=0.1)
        self.k_norm = 1 + random(layers, HEAD_DIM, scale=0.1)
        self.cos_sin = cos_sin_table(positions, like.device)
        self.k_caches = [like.new_empty(*cache, KV_HEADS, HEAD_DIM) for _ in self.layers]
        self.v_caches = [like.new_empty(*cache, KV_HEADS, HEAD_DIM) for _ in self.layers]

    def workspace_size(self, rows: int, batch: int, max_context: int, device: torch.device) -> int:
        """Bytes that attention over `rows` rows of `batch` requests needs."""
        return dflash_ops.block_attention_workspace_size(
            rows, batch, Q_HEADS, KV_HEADS, HEAD_DIM, max_context, device=device
        )

    def forward(
        self,
        hidden: Tensor,
        positions: Tensor,
        page_table: Tensor,
        context_lens: Tensor,
        workspace: Tensor,
        causal: bool,
        slots: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Runs embedded rows [n, H] of b requests, n / b each, over their context and themselves.

        Args:
            slots: int64 [n], where keys and values go; None leaves the cache as it is (a drafter's block).

        Returns:
            normed hidden states [n, H], and every layer's output.
        """
        rows, width = hidden.shape
        taps = []
        for i in self.layers:
            qkv = F.rms_norm(hidden, (width,), eps=EPS) @ self.qkv[i].T
            q = hidden.new_empty(rows, Q_HEADS, HEAD_DIM)
            kv = hidden.new_empty(rows, 1, 2, KV_HEADS, HEAD_DIM)
            k, v = kv[:, 0, 0], kv[:, 0, 1]
            attended = torch.empty_like(q)
            ops.norm_rope_qkv(qkv, self.q_norm[i], self.k_norm[i], self.cos_sin, positions, EPS, False, q, k, v)
            ops.block_attention(
                q, k, v, self.k_caches[i], self.v_caches[i], page_table, context_lens, None,
                HEAD_DIM**-0.5, causal, 0, 0.0, None, 0, attended, None, workspace,
            )  # fmt: skip
            if slots is not None:  # keys are normed and rotated already
                caches = [self.k_caches[i]], [self.v_caches[i]]
                ops.write_context_kv(kv, None, None, None, slots, None, EPS, False, *caches, [])
            hidden = hidden + attended.flatten(1) @ self.o[i].T
            gate, up = (F.rms_norm(hidden, (width,), eps=EPS) @ self.gate_up[i].T).chunk(2, dim=1)
            hidden = hidden + (F.silu(gate) * up) @ self.down[i].T
            taps.append(hidden)
        return F.rms_norm(hidden, (width,), eps=EPS), taps
