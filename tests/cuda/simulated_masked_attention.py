"""masked_block_attention on the PTX interpreter: arguments of `dflash_ops.masked_block_attention`, plus the GPU that runs
the plans."""

from typing import Any

import torch
from torch import Tensor

from dflash_ops import _host
from tests.cuda.gpu import Arguments, Gpu
from tests.cuda.simulated_ops import DTYPES

OP = "masked_block_attention"


def folder_of(entry: str) -> str:
    """Whose entries.cu has a kernel of the forward pass."""
    return f"{OP}_sm90a" if entry.startswith(f"{OP}_sm90a_") else OP


def mask_params(
    q: Tensor,
    k: Tensor,
    *,
    mode: str,
    block_size: int = 1,
    anchors: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    causal: bool = False,
    window: int = 0,
    scale: float | None = None,
) -> dict[str, Any]:
    """Fields of MaskedBlockAttentionParams that are no pointers."""
    queries, q_heads, head_dim = q.shape
    keys, kv_heads, _ = k.shape
    return {
        "dtype": DTYPES[q.dtype],
        "mode": getattr(_host.MaskMode, mode),
        "queries": queries,
        "keys": keys,
        "q_heads": q_heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "block_size": block_size,
        "causal": causal,
        "window": min(window, keys + block_size + 1),  # as the binding does
        "scale": head_dim**-0.5 if scale is None else scale,
        "documents": 0 if cu_seqlens is None else cu_seqlens.shape[0] - 1,
        "anchors_stride": 0 if anchors is None else anchors.stride(0),
        "cu_seqlens_stride": 0 if cu_seqlens is None else cu_seqlens.stride(0),
    }


class MaskedCall:
    """Tensors that one list of plans is made for. They may run any number of times, whatever anchors and documents then
    are, as in a CUDA graph."""

    def __init__(
        self,
        gpu: Gpu,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mode: str,
        *,
        block_size: int = 1,
        anchors: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        causal: bool = False,
        window: int = 0,
        scale: float | None = None,
        out: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> None:
        self.gpu = gpu
        self.out = torch.full_like(q, torch.nan) if out is None else out
        self.lse = torch.full(q.shape[:2], torch.nan) if lse is None else lse
        self._fields = mask_params(
            q,
            k,
            mode=mode,
            block_size=block_size,
            anchors=anchors,
            cu_seqlens=cu_seqlens,
            causal=causal,
            window=window,
            scale=scale,
        )
        self.arguments = Arguments()
        for name, tensor in (("q", q), ("k", k), ("v", v), ("out", self.out), ("lse", self.lse)):
            add = self.arguments.write if name in ("out", "lse") else self.arguments.read
            add(name, tensor, strided=False)
            self._fields |= {f"{name}_row_stride": tensor.stride(0), f"{name}_head_stride": tensor.stride(1)}
        self.arguments.read("anchors", anchors)
        self.arguments.read("cu_seqlens", cu_seqlens)
        # Indices far outside whatever the launches do not write before they read it.
        size = _host.masked_block_attention_forward_workspace_size(self.params({}))
        self.workspace = torch.full((size,), 0x7F, dtype=torch.uint8)
        self.arguments.update("workspace", self.workspace, field=False)
        self.plans: list[_host.LaunchPlan] = []

    def params(self, address: dict[str, int]) -> _host.MaskedBlockAttentionParams:
        return _host.MaskedBlockAttentionParams(**(self._fields | (self.arguments.fields(address) if address else {})))

    def launch(self) -> tuple[Tensor, Tensor]:
        """Runs the plans, which are made by the first launch."""

        def first_plan(address: dict[str, int]) -> _host.LaunchPlan:
            self.plans = self.plans or _host.plan_masked_block_attention_forward(
                self.params(address), address["workspace"], self.gpu.device
            )
            return self.plans[0]

        if self._fields["queries"] > 0:
            self.gpu.run(OP, self.arguments, first_plan)
            for plan in self.plans[1:]:
                self.gpu.run(folder_of(plan.entry), self.arguments, lambda _, plan=plan: plan)  # type: ignore[misc]
        return self.out, self.lse


def masked_block_attention(gpu: Gpu, *tensors: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """(out, lse); rows that the kernel did not write are NaN."""
    return MaskedCall(gpu, *tensors, **options).launch()
