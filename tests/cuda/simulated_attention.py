"""block_attention on the PTX interpreter: arguments of `dflash_ops.block_attention`, plus the GPU that runs the plan."""

from typing import Any

import torch
from torch import Tensor

from dflash_ops import _host
from tests.cuda.gpu import Arguments, Gpu
from tests.cuda.simulated_ops import DTYPES


class AttentionCall:
    """Tensors that one plan is made for. The plan may run any number of times, whatever the tensors then hold, as in a
    CUDA graph; a storage is named after the first of its tensors in the interpreter's counts."""

    op = "block_attention"

    def __init__(
        self,
        gpu: Gpu,
        q: Tensor,
        k_block: Tensor,
        v_block: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        page_table: Tensor,
        context_lens: Tensor,
        cu_block_lens: Tensor | None = None,
        *,
        scale: float | None = None,
        causal: bool = False,
        window: int = 0,
        softcap: float = 0.0,
        sinks: Tensor | None = None,
        num_splits: int = 0,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        workspace: Tensor | None = None,
        needs_lse: bool = True,
    ) -> None:
        tokens, q_heads, head_dim = q.shape
        self.gpu = gpu
        self.out = torch.full_like(q, torch.nan) if out is None else out
        self.lse = torch.full((tokens, q_heads), torch.nan) if lse is None and needs_lse else lse
        self.plan: _host.LaunchPlan | None = None
        self._address: dict[str, int] = {}
        self._fields: dict[str, Any] = {
            "dtype": DTYPES[q.dtype],
            "batch": context_lens.shape[0],
            "tokens": tokens,
            "q_heads": q_heads,
            "kv_heads": k_block.shape[1],
            "head_dim": head_dim,
            "page_size": k_cache.shape[1],
            "max_pages": page_table.shape[1],
            "scale": head_dim**-0.5 if scale is None else scale,
            "causal": causal,
            "window": window,
            "softcap": softcap,
            "num_splits": num_splits,
        }
        self.workspace = torch.zeros(self.workspace_size(), dtype=torch.uint8) if workspace is None else workspace
        self._arguments = Arguments()
        for name, tensor, strides in (
            ("q", q, ("q_token_stride", "q_head_stride")),
            ("k_block", k_block, ("k_block_token_stride", "k_block_head_stride")),
            ("v_block", v_block, ("v_block_token_stride", "v_block_head_stride")),
            ("k_cache", k_cache, ("k_page_stride", "k_slot_stride", "k_head_stride")),
            ("v_cache", v_cache, ("v_page_stride", "v_slot_stride", "v_head_stride")),
        ):
            self._arguments.read(name, tensor, strided=False)
            self._add_strides(tensor, strides)
        for name, optional in (
            ("page_table", page_table),
            ("context_lens", context_lens),
            ("cu_block_lens", cu_block_lens),
            ("sinks", sinks),
        ):
            self._arguments.read(name, optional)
        for name, output in (("out", self.out), ("lse", self.lse)):
            self._arguments.write(name, output, strided=False)
            if output is not None:
                self._add_strides(output, (f"{name}_token_stride", f"{name}_head_stride"))
        self._arguments.update("workspace", self.workspace, field=False)

    def _add_strides(self, tensor: Tensor, names: tuple[str, ...]) -> None:
        self._fields |= dict(zip(names, tensor.stride(), strict=False))

    def workspace_size(self) -> int:
        """What a caller is told to allocate."""
        sizes = ("tokens", "batch", "q_heads", "kv_heads", "head_dim")
        return _host.block_attention_cuda_workspace_size(
            **{name: self._fields[name] for name in sizes},
            max_context=self._fields["max_pages"] * self._fields["page_size"],
            num_splits=self._fields["num_splits"],
            multiprocessors=self.gpu.device.multiprocessors,
        )

    def make_plan(self, params: _host.BlockAttentionParams, address: dict[str, int]) -> _host.LaunchPlan:
        return _host.plan_block_attention(params, address["workspace"], self.gpu.device)

    def launch(self) -> tuple[Tensor, Tensor | None]:
        """Runs the plan, which is made by the first launch."""

        def plan(address: dict[str, int]) -> _host.LaunchPlan:
            if self.plan is None:
                params = _host.BlockAttentionParams(**(self._fields | self._arguments.fields(address)))
                self.plan = self.make_plan(params, address)
                self._address = address
            assert address == self._address, "a captured launch finds its tensors where they were"
            return self.plan

        self.gpu.run(self.op, self._arguments, plan)
        return self.out, self.lse


def block_attention(gpu: Gpu, *tensors: Tensor | None, **options: Any) -> tuple[Tensor, Tensor | None]:
    """(out, lse); rows that the kernel did not write are NaN."""
    return AttentionCall(gpu, *tensors, **options).launch()  # type: ignore[arg-type]
