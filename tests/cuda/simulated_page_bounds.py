"""update_page_bounds on the PTX interpreter, with the arguments of `dflash_ops.update_page_bounds`."""

from collections.abc import Sequence

from torch import Tensor

from dflash_ops import _host
from tests.cuda.gpu import Arguments, Gpu
from tests.cuda.simulated_ops import DTYPES


def update_page_bounds(
    gpu: Gpu,
    k_caches: Sequence[Tensor],
    *,
    slot_mapping: Tensor,
    k_bounds: Sequence[Tensor],
    row_count: Tensor | None = None,
) -> _host.LaunchPlan:
    """Returns the plan it ran."""
    arguments = Arguments()
    arguments.read("slot_mapping", slot_mapping)
    arguments.read("row_count", row_count)
    for layer, (k, bounds) in enumerate(zip(k_caches, k_bounds, strict=True)):
        arguments.read(f"k{layer}", k)
        arguments.update(f"bounds{layer}", bounds)
    plans = []

    def plan(address: dict[str, int]) -> _host.LaunchPlan:
        layers = [
            _host.PageBoundsLayer(
                k=address[f"k{layer}"],
                k_page_stride=k.stride(0),
                k_slot_stride=k.stride(1),
                k_head_stride=k.stride(2),
                bounds=address[f"bounds{layer}"],
                bounds_page_stride=bounds.stride(0),
                bounds_head_stride=bounds.stride(1),
                bounds_part_stride=bounds.stride(2),
            )
            for layer, (k, bounds) in enumerate(zip(k_caches, k_bounds, strict=True))
        ]
        pages, page_size, kv_heads, head_dim = k_caches[0].shape
        params = _host.UpdatePageBoundsParams(
            dtype=DTYPES[k_caches[0].dtype],
            pages=pages,
            page_size=page_size,
            kv_heads=kv_heads,
            head_dim=head_dim,
            slot_mapping=address["slot_mapping"],
            slot_mapping_stride=slot_mapping.stride(0),
            rows=slot_mapping.shape[0],
            row_count=address["row_count"],
            layers=layers,
        )
        plans.append(_host.plan_update_page_bounds(params, gpu.device))
        return plans[0]

    gpu.run("update_page_bounds", arguments, plan)
    return plans[0]
