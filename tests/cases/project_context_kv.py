"""Cases of project_context_kv: those of write_context_kv, with the product in front."""

from dataclasses import dataclass
from typing import Any

import torch

from tests.cases import write_context_kv
from tests.cases.traffic import Traffic


@dataclass(frozen=True)
class Case:
    hidden_size: int
    write: write_context_kv.Case
    bias: bool = False
    weight_slack: int = 0  # extra NaN elements between rows and NaN rows between layers of the weight

    def arguments(
        self, dtype: torch.dtype, *, table_dtype: torch.dtype = torch.float32, seed: int = 0
    ) -> dict[str, Any]:
        """Everything but the caches."""
        generator = torch.Generator().manual_seed(seed + 1)
        arguments = self.write.arguments(dtype, table_dtype=table_dtype, seed=seed)
        kv = arguments.pop("kv")
        total, layers, columns = kv.shape[0], kv.shape[1], kv.shape[2:].numel()
        features = torch.randn(total, self.hidden_size, generator=generator).to(dtype)
        features[kv.flatten(1).isnan().any(1)] = torch.nan
        storage = torch.full(
            (layers, columns + self.weight_slack, self.hidden_size + self.weight_slack), torch.nan, dtype=dtype
        )
        weight = storage[:, :columns, : self.hidden_size]
        weight.copy_(torch.randn(weight.shape, generator=generator) * self.hidden_size**-0.5)
        bias = torch.randn(layers, columns, generator=generator).to(dtype) if self.bias else None
        return {"features": features, "kv_weight": weight, "kv_bias": bias} | arguments

    def least_traffic(self, dtype: torch.dtype, cache_dtype: torch.dtype | None = None) -> Traffic:
        """As write_context_kv's, with the weight, the bias and the features of the rows in the place of kv."""
        write = self.write.least_traffic(dtype, cache_dtype)
        columns = self.write.layers * 2 * self.write.kv_heads * self.write.head_dim
        written = write.stores // (cache_dtype or dtype).itemsize // columns
        elements = columns * (self.hidden_size + self.bias) + written * (self.hidden_size - columns)
        return Traffic(write.loads + elements * dtype.itemsize, write.stores)


CASES = [
    Case(32, write_context_kv.Case(0, 2, 2, 64)),
    Case(5, write_context_kv.Case(1, 1, 1, 8, page_size=1)),
    Case(576, write_context_kv.Case(7, 2, 3, 64, skip_every=3, slack_rows=2), weight_slack=3),
    Case(100, write_context_kv.Case(16, 5, 2, 128, slack_rows=1, cache_layout="halves"), bias=True),
    Case(
        40, write_context_kv.Case(3, 3, 5, 72, rotary_dim=24, interleaved=True, cache_layout="padded"), weight_slack=1
    ),
    Case(64, write_context_kv.Case(69, 2, 1, 32, norm=False, page_size=4, skip_every=5), bias=True),
    Case(64, write_context_kv.Case(130, 1, 1, 16, rotary_dim=0, slack_rows=70)),
]
