"""Few-row products: torch's values, the same bits for a row whatever its company, torch's own layer elsewhere."""

import pytest
import torch
import torch.nn.functional as F
import transformers
from dflash_decoding.few_rows import MAX_ROWS, FewRowLinear, use_few_row_products
from dflash_decoding.target import Target
from torch import nn


def layer(dtype: torch.dtype, bias: bool, inputs: int = 83, outputs: int = 129) -> tuple[FewRowLinear, nn.Linear]:
    torch.manual_seed(5)
    linear = nn.Linear(inputs, outputs, bias=bias).to(dtype).requires_grad_(False)
    return FewRowLinear(linear), linear


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1,), (1, 7), (2, 3, 5), (MAX_ROWS,), (MAX_ROWS + 1,), (0,), (2, 0)])
def test_values(dtype: torch.dtype, bias: bool, shape: tuple[int, ...]) -> None:
    few, linear = layer(dtype, bias)
    x = torch.randn(*shape, 83).to(dtype)
    got = few(x)
    exact = F.linear(x.double(), linear.weight.double(), None if linear.bias is None else linear.bias.double())
    assert got.shape == exact.shape
    assert got.dtype == dtype
    error, own = ((y.double() - exact).abs().amax() if y.numel() else torch.zeros(()) for y in (got, linear(x)))
    assert error <= 2 * own + torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_is_the_same_bits_in_any_company(dtype: torch.dtype) -> None:
    few, _ = layer(dtype, True, 577, 300)
    x = torch.randn(MAX_ROWS, 577).to(dtype)
    alone = torch.cat([few(row[None]) for row in x])
    for rows in (2, 3, 8, 16, 17, MAX_ROWS):
        assert torch.equal(few(x[:rows]), alone[:rows])


def test_strided_rows_and_gradients() -> None:
    few, linear = layer(torch.float32, True)
    wide = torch.randn(6, 2 * 83)
    torch.testing.assert_close(few(wide[:, 83:]), linear(wide[:, 83:]))
    x = torch.randn(3, 83, requires_grad=True)
    few(x).sum().backward()
    torch.testing.assert_close(x.grad, linear.weight.sum(0).expand(3, 83))


def test_replaces_linear_layers_only_and_keeps_ties() -> None:
    class Special(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(Special(4, 4), nn.Linear(4, 4)), nn.ReLU())
    nested = model[1]
    assert isinstance(nested, nn.Sequential)
    nested[1].weight = model[0].weight
    use_few_row_products(model)
    assert [type(model[0]), type(nested[0]), type(nested[1])] == [FewRowLinear, Special, FewRowLinear]
    assert model[0].weight is nested[1].weight


@pytest.mark.parametrize(
    ("dtype", "asked", "expected"),
    [
        (torch.float32, None, FewRowLinear),
        (torch.float32, False, nn.Linear),
        (torch.bfloat16, None, nn.Linear),
        (torch.bfloat16, True, FewRowLinear),
    ],
)
def test_the_target_s_choice(dtype: torch.dtype, asked: bool | None, expected: type) -> None:
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    target = Target(transformers.LlamaForCausalLM(config).to(dtype), row_invariant=asked)
    assert {type(module) for module in target.model.modules()} & {nn.Linear, FewRowLinear} == {expected}
    assert target.lm_head_weight is target.model.get_output_embeddings().weight  # type: ignore[operator]
