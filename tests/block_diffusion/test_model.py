"""The model's two forwards, against each other, a dense float64 definition, and transformers' Llama."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from dflash_decoding.block_diffusion import BlockDiffusionConfig, BlockDiffusionModel
from dflash_decoding.block_diffusion.model import decoding_attention, training_attention
from dflash_decoding.cache import PagePool
from torch import Tensor

from tests.block_diffusion.dense import END, MASK, VOCAB, block_hidden, dense_hidden, tiny_config, tiny_model
from tests.decoding.tiny import tiny_target


def _case(size: int, blocks_per_text: list[int]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Clean texts of so many blocks and noisy copies: ids, positions, cu_seqlens, anchors, sees, texts of the rows."""
    generator = torch.Generator().manual_seed(size)
    lengths = torch.tensor(blocks_per_text) * size
    bounds = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    clean = torch.randint(0, 50, (int(bounds[-1]),), generator=generator)
    text_of_clean = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    place_of_clean = torch.arange(len(clean)) - bounds[text_of_clean]
    # Every block once, in a mixed order, and one twice.
    anchors = torch.arange(0, len(clean), size)
    anchors = torch.cat([anchors, anchors[-1:]])[torch.randperm(len(anchors) + 1, generator=generator)]
    noisy_rows = (anchors[:, None] + torch.arange(size)).flatten()
    noisy = clean[noisy_rows].masked_fill(torch.rand(len(noisy_rows), generator=generator) < 0.6, MASK)
    texts = torch.cat([text_of_clean, text_of_clean[noisy_rows]])
    places = torch.cat([place_of_clean, place_of_clean[noisy_rows]])
    blocks = places // size
    is_clean = torch.arange(len(places)) < len(clean)
    copy = torch.cat([torch.full((len(clean),), -1), torch.repeat_interleave(torch.arange(len(anchors)), size)])
    same_text = texts[:, None] == texts[None, :]
    clean_sees = is_clean[:, None] & is_clean[None, :] & (blocks[:, None] >= blocks[None, :])
    noisy_sees = ~is_clean[:, None] & is_clean[None, :] & (blocks[:, None] > blocks[None, :])
    own = ~is_clean[:, None] & (copy[:, None] == copy[None, :])
    sees = own | (same_text & (clean_sees | noisy_sees))
    return torch.cat([clean, noisy]), places, bounds.int(), anchors.int(), sees, texts


@pytest.mark.parametrize(("size", "blocks"), [(5, [3, 1, 4]), (3, [7]), (8, [2, 2]), (1, [6, 3])])
def test_training_forward_and_gradients_match_dense_definition(size: int, blocks: list[int]) -> None:
    model = tiny_model(tiny_config(block_size=size))
    ids, places, cu_seqlens, anchors, sees, _ = _case(size, blocks)
    hidden = model(ids, places, training_attention(model.config, anchors, cu_seqlens))
    weights = {name: w.detach().double().requires_grad_() for name, w in model.state_dict(keep_vars=True).items()}
    expected = dense_hidden(model.config, weights, model.embedding, ids, places, sees)
    torch.testing.assert_close(hidden.double(), expected, atol=2e-5, rtol=2e-5)

    direction = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1))
    (hidden * direction).sum().backward()
    (expected * direction).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        reference = weights[name].grad
        assert reference is not None
        torch.testing.assert_close(parameter.grad.double(), reference, atol=1e-3, rtol=1e-3, msg=name)


@pytest.mark.parametrize(("size", "blocks"), [(5, [3, 1, 4]), (3, [7, 2]), (8, [2, 3, 1])])
@pytest.mark.parametrize("page_size", [1, 4, 16])
@torch.no_grad()
def test_cached_forward_equals_training_forward(size: int, blocks: list[int], page_size: int) -> None:
    """Every block of a ragged batch of texts, its context cached a block at a time."""
    model = tiny_model(tiny_config(block_size=size))
    ids, places, cu_seqlens, anchors, _, texts = _case(size, blocks)
    hidden = model(ids, places, training_attention(model.config, anchors, cu_seqlens))
    clean = int(cu_seqlens[-1])
    pages = -(-max(blocks) * size // page_size)
    pool = PagePool(len(blocks) * pages, page_size, len(blocks), pages)
    cache = model.new_cache(pool)
    for tensor in (*cache.k, *cache.v):
        tensor.fill_(torch.nan)
    for text, count in enumerate(blocks):
        pool.allocate(text, count * size)
    step = torch.arange(size)
    for block in range(max(blocks)):
        rows = [text for text, count in enumerate(blocks) if block < count]
        of_clean = torch.cat([cu_seqlens[text] + block * size + step for text in rows])
        which = [n for n in range(len(anchors)) if int(places[clean + n * size]) == block * size]
        of_noisy = torch.cat([clean + n * size + step for n in which])
        tables = pool.page_table[rows + [int(texts[clean + n * size]) for n in which]]
        context = torch.full((len(tables),), block * size, dtype=torch.int32)
        slots = torch.cat([pool.slot_mapping(text, block * size, (block + 1) * size) for text in rows])
        slots = torch.cat([slots, torch.full_like(of_noisy, -1)])
        both = torch.cat([of_clean, of_noisy])
        found = model(ids[both], places[both], decoding_attention(cache, tables, context, slots))
        torch.testing.assert_close(found, hidden[both], atol=2e-5, rtol=2e-5)


@torch.no_grad()
def test_whole_text_in_one_cached_forward() -> None:
    """Several clean blocks of one text in a single pass: later ones must see what earlier ones write in it."""
    model = tiny_model()
    text = torch.randint(0, 50, (20,), generator=torch.Generator().manual_seed(3))
    pool = PagePool(10, 4, 1, 10)
    pool.allocate(0, 20)
    cache = model.new_cache(pool)
    attend = decoding_attention(
        cache, pool.page_table.repeat(4, 1), torch.arange(0, 20, 5, dtype=torch.int32), pool.slot_mapping(0, 0, 20)
    )
    found = model(text, torch.arange(20), attend)
    expected = torch.cat([block_hidden(model, text[:at].tolist(), text[at : at + 5].tolist()) for at in (0, 5, 10, 15)])
    torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=2e-5)


@torch.no_grad()
def test_blocks_of_one_token_are_the_llama_the_weights_come_from() -> None:
    target = tiny_target()
    config = tiny_config(
        block_size=1,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=260,
        rope_theta=target.config.rope_parameters["rope_theta"],
        rms_norm_eps=target.config.rms_norm_eps,
    )
    model = BlockDiffusionModel(config, target.embed_weight, target.lm_head_weight)
    model.copy_target_layers(target.layers, target.model.model.norm.weight, [0, 1, 2, 3])
    ids = torch.randint(0, 250, (17,), generator=torch.Generator().manual_seed(0))
    pool = PagePool(2, 16, 1, 2)
    pool.allocate(0, 17)
    output = target.forward(
        ids, torch.arange(17), pool.slot_mapping(0, 0, 17), target.new_cache(pool), pool.page_table, pool.context_lens
    )
    bounds = torch.tensor([0, 17], dtype=torch.int32)
    hidden = model(ids, torch.arange(17), training_attention(config, torch.empty(0, dtype=torch.int32), bounds))
    assert output.logits is not None
    torch.testing.assert_close(hidden @ target.lm_head_weight.t(), output.logits, atol=1e-4, rtol=1e-4)


def test_copying_refuses_layers_that_do_not_fit() -> None:
    target = tiny_target(attention_bias=True)
    config = tiny_config(hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2)
    model = tiny_model(config)
    norm = target.model.model.norm.weight
    with pytest.raises(ValueError, match="plain Llama layer"):
        model.copy_target_layers(target.layers, norm, [0, 1])
    with pytest.raises(ValueError, match="expected 2 target layers"):
        model.copy_target_layers(target.layers, norm, [0])
    with pytest.raises(ValueError, match=r"layers in 0\.\.3"):
        model.copy_target_layers(tiny_target().layers, norm, [0, 4])


def test_checkpoint_comes_back(tmp_path: Path) -> None:
    model = tiny_model()
    model.save(tmp_path, torch.float32)
    again = BlockDiffusionModel.from_folder(tmp_path, model.embedding, model.lm_head)
    assert again.config == model.config
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
    half = BlockDiffusionModel.from_folder(tmp_path, model.embedding, model.lm_head, dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16
    with pytest.raises(ValueError, match="embedding: expected"):
        BlockDiffusionModel.from_folder(tmp_path, model.embedding[:, :8], model.lm_head)
    (tmp_path / "config.json").write_text(
        (tmp_path / "config.json").read_text().replace('"hidden_size": 28', '"hidden_size": 27')
    )
    with pytest.raises(ValueError, match=r"norm\.weight: expected \[27\]"):
        BlockDiffusionModel.from_folder(tmp_path, model.embedding, model.lm_head)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": 0}, "block_size"),
        ({"mask_token_id": VOCAB}, "mask_token_id"),
        ({"mask_token_id": END}, "mask_token_id"),
        ({"num_key_value_heads": 2}, "num_attention_heads"),
        ({"rope_theta": 0.0}, "rope_theta"),
    ],
)
def test_config_refuses(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny_config(**changes)


def test_config_round_trip_and_foreign_files() -> None:
    config = tiny_config()
    assert BlockDiffusionConfig.from_dict(config.to_dict()) == config
    for broken in (
        {**config.to_dict(), "model_type": "llama"},
        {**config.to_dict(), "window": 3},
        {key: value for key, value in config.to_dict().items() if key != "head_dim"},
        {**config.to_dict(), "rope_theta": "much"},
    ):
        with pytest.raises(ValueError, match="block diffusion config"):
            BlockDiffusionConfig.from_dict(broken)
