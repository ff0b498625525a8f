"""select_pages and sparse_block_attention on the PTX interpreter: arguments as `dflash_ops.<op>` has them, plus the GPU
that runs the plan."""

from typing import Any

import torch
from torch import Tensor

import dflash_ops
from dflash_ops import _host
from tests.cuda.gpu import Arguments, Gpu
from tests.cuda.simulated_attention import AttentionCall
from tests.cuda.simulated_ops import DTYPES


class SelectPagesCall:
    """Tensors that one plan is made for; it may be launched again and again, as in a CUDA graph."""

    def __init__(
        self,
        gpu: Gpu,
        q: Tensor,
        k_bounds: Tensor,
        page_table: Tensor,
        context_lens: Tensor,
        cu_block_lens: Tensor | None = None,
        *,
        page_size: int,
        budget_tokens: int,
        sink_tokens: int = 64,
        local_tokens: int = 256,
        selected_pages: Tensor | None = None,
        selected_counts: Tensor | None = None,
        workspace: Tensor | None = None,
    ) -> None:
        batch, max_pages = page_table.shape
        kv_heads = k_bounds.shape[1]
        budgets = {"budget_tokens": budget_tokens, "sink_tokens": sink_tokens, "local_tokens": local_tokens}
        if selected_pages is None:
            width = dflash_ops.select_pages_width(max_pages, page_size, **budgets)
            selected_pages = torch.full((batch, kv_heads, width), -7, dtype=torch.int32)
        if selected_counts is None:
            selected_counts = torch.full((batch, kv_heads), -7, dtype=torch.int32)
        if workspace is None:
            size = _host.select_pages_cuda_workspace_size(batch, kv_heads, max_pages)
            workspace = torch.zeros(size, dtype=torch.uint8)
        self.gpu, self.selected, self.counts, self.workspace = gpu, selected_pages, selected_counts, workspace
        self.plan: _host.LaunchPlan | None = None
        self._fields: dict[str, Any] = {
            "q_token_stride": q.stride(0),
            "q_head_stride": q.stride(1),
            "bounds_page_stride": k_bounds.stride(0),
            "bounds_head_stride": k_bounds.stride(1),
            "bounds_part_stride": k_bounds.stride(2),
            "selected_batch_stride": selected_pages.stride(0),
            "selected_head_stride": selected_pages.stride(1),
            "counts_batch_stride": selected_counts.stride(0),
            "counts_head_stride": selected_counts.stride(1),
            "dtype": DTYPES[q.dtype],
            "batch": batch,
            "tokens": q.shape[0],
            "q_heads": q.shape[1],
            "kv_heads": kv_heads,
            "head_dim": q.shape[2],
            "max_pages": max_pages,
            "page_size": page_size,
            "width": selected_pages.shape[2],
            **budgets,
        }
        self._arguments = Arguments()
        self._arguments.read("q", q, strided=False)
        self._arguments.read("bounds", k_bounds, strided=False)
        for name, tensor in (
            ("page_table", page_table),
            ("context_lens", context_lens),
            ("cu_block_lens", cu_block_lens),
        ):
            self._arguments.read(name, tensor)
        self._arguments.write("selected", selected_pages, strided=False)
        self._arguments.write("counts", selected_counts, strided=False)
        self._arguments.update("workspace", workspace, field=False)

    def launch(self) -> tuple[Tensor, Tensor]:
        """Runs the plan, which is made by the first launch."""

        def plan(address: dict[str, int]) -> _host.LaunchPlan:
            if self.plan is None:
                params = _host.SelectPagesParams(**(self._fields | self._arguments.fields(address)))
                self.plan = _host.plan_select_pages(params, address["workspace"], self.gpu.device)
            return self.plan

        self.gpu.run("select_pages", self._arguments, plan)
        return self.selected, self.counts


def select_pages(gpu: Gpu, *tensors: Tensor | None, **options: Any) -> tuple[Tensor, Tensor]:
    return SelectPagesCall(gpu, *tensors, **options).launch()  # type: ignore[arg-type]


class SparseAttentionCall(AttentionCall):
    """As AttentionCall, with a selection."""

    op = "sparse_block_attention"

    def __init__(self, gpu: Gpu, *, selected_pages: Tensor, selected_counts: Tensor, **inputs: Any) -> None:
        super().__init__(gpu, **inputs)
        self._width = selected_pages.shape[2]
        self._strides = {
            "batch_stride": selected_pages.stride(0),
            "head_stride": selected_pages.stride(1),
            "counts_batch_stride": selected_counts.stride(0),
            "counts_head_stride": selected_counts.stride(1),
        }
        self._arguments.read("selected", selected_pages, field=False)
        self._arguments.read("counts", selected_counts, field=False)

    def make_plan(self, params: _host.BlockAttentionParams, address: dict[str, int]) -> _host.LaunchPlan:
        selection = _host.PageSelection(selected=address["selected"], counts=address["counts"], **self._strides)
        return _host.plan_sparse_block_attention(params, selection, self._width, address["workspace"], self.gpu.device)


def sparse_block_attention(gpu: Gpu, **options: Any) -> tuple[Tensor, Tensor | None]:
    """(out, lse); rows that the kernel did not write are NaN."""
    return SparseAttentionCall(gpu, **options).launch()
