"""The trainable drafter: its masks, its parameters, and that it computes what the decoder's drafter computes."""

from typing import Any

import numpy as np
import pytest
import torch
from dflash_decoding.cache import PagePool
from dflash_decoding.checkpoint import draft_tensor_specs
from dflash_decoding.config import DraftConfig
from dflash_decoding.drafter import DFlashDrafter
from dflash_decoding.training.data import Batch, Chats, make_batch, possible_anchors
from dflash_decoding.training.model import TrainableDrafter, block_shape, rotate
from dflash_decoding.training.warm_start import TargetParts, copy_target_layers
from torch import Tensor

from tests.training.tiny import fake_taps, tiny_chats, tiny_config, tiny_weights

VARIANTS: dict[str, dict[str, Any]] = {
    "sliding and full": {},
    "all causal": {"is_causal": True},
    "none causal": {"is_causal": False, "sliding_window": 3},
    "interleaved": {"interleaved": True},
    "partial rotary": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
    },
    "bias, gelu, scale": {"attention_bias": True, "hidden_act": "gelu_pytorch_tanh", "input_embedding_scale": 3.0},
    "predicts from the anchor": {"sample_from_anchor": True},
    "group of one": {"num_key_value_heads": 3},
}


def make_model(config: DraftConfig, seed: int = 0) -> TrainableDrafter:
    """Random weights, norms and biases included, large enough that masks and positions matter."""
    embedding, _ = tiny_weights()
    model = TrainableDrafter(config, embedding, max_positions=64)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * 0.4 if parameter.ndim == 2 else 1.0 + 0.3 * noise)
    return model


def all_anchors(config: DraftConfig, chats: Chats, indices: list[int]) -> Batch:
    return make_batch(chats, indices, [possible_anchors(chats, index) for index in indices], block_shape(config))


def taps_of(config: DraftConfig, chats: Chats, indices: list[int]) -> Tensor:
    return torch.cat(fake_taps(config)([chats.chat(index) for index in indices]))


def decoder_drafts(
    config: DraftConfig, model: TrainableDrafter, chats: Chats, index: int, anchors: np.ndarray
) -> Tensor:
    """Drafts of the decoder's drafter at each anchor of one chat, its paged cache filled up to the anchor."""
    embedding, lm_head = tiny_weights()
    drafter = DFlashDrafter.from_weights(config, model.checkpoint_weights(torch.float32), embedding, lm_head)
    taps = taps_of(config, chats, [index])
    drafts = []
    for anchor in anchors.tolist():
        pool = PagePool(16, 4, 1, 16)
        pool.allocate(0, anchor + config.block_size)
        cache = drafter.new_cache(pool)
        for tensor in (*cache.k, *cache.v):
            tensor.fill_(float("nan"))
        drafter.inject(list(taps[:anchor].unbind(1)), torch.arange(anchor), pool.slot_mapping(0, 0, anchor), cache)
        pool.context_lens[0] = anchor
        input_ids = torch.full((1, config.block_size), config.mask_token_id)
        input_ids[0, 0] = int(chats.chat(index)[anchor])
        positions = torch.arange(anchor, anchor + config.block_size)[None]
        drafts.append(drafter.draft(input_ids, positions, cache, pool.page_table, pool.context_lens)[0].clone())
    return torch.stack(drafts)


@pytest.mark.parametrize("variant", VARIANTS)
def test_trains_what_the_decoder_runs(variant: str) -> None:
    """Same weights, same context: the packed training forward drafts what the paged, stepwise drafter drafts."""
    config = tiny_config(**VARIANTS[variant])
    chats = tiny_chats()
    model = make_model(config)
    _, lm_head = tiny_weights()
    indices = [2, 0, 5]
    batch = all_anchors(config, chats, indices)
    hidden = model(taps_of(config, chats, indices), batch).detach()
    rows = hidden[:, -config.num_draft_tokens :]
    logits = rows @ lm_head.t()
    top = logits.topk(2, dim=-1).values
    assert (top[..., 0] - top[..., 1]).min() > 1e-4, "the inputs leave a tie; choose another seed"
    trained = logits.argmax(dim=-1)
    decoded = torch.cat(
        [decoder_drafts(config, model, chats, index, possible_anchors(chats, index)) for index in indices]
    )
    assert torch.equal(trained, decoded)
    assert len(torch.unique(trained)) > 10


@pytest.mark.parametrize("variant", ["sliding and full", "none causal"])
def test_packed_chats_and_blocks_do_not_see_each_other(variant: str) -> None:
    config = tiny_config(**VARIANTS[variant])
    chats = tiny_chats()
    model = make_model(config)
    indices = [1, 6, 3]
    together = model(taps_of(config, chats, indices), all_anchors(config, chats, indices))
    alone = [model(taps_of(config, chats, [index]), all_anchors(config, chats, [index])) for index in indices]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-5)
    one_block = make_batch(chats, [6], [possible_anchors(chats, 6)[3:4]], block_shape(config))
    torch.testing.assert_close(model(taps_of(config, chats, [6]), one_block)[0], alone[1][3], rtol=1e-4, atol=1e-5)


def test_gradients_of_one_chat_come_from_that_chat_alone() -> None:
    config, chats = tiny_config(), tiny_chats()
    model = make_model(config)
    indices = [1, 6]
    batch = all_anchors(config, chats, indices)
    taps = taps_of(config, chats, indices).requires_grad_()
    first_chat = batch.anchors < int(batch.cu_seqlens[1])
    model(taps, batch)[first_chat].square().sum().backward()
    assert taps.grad is not None
    boundary, last_anchor = int(batch.cu_seqlens[1]), int(batch.anchors[first_chat][-1])
    assert taps.grad[:last_anchor].abs().amax(dim=(1, 2)).min() > 0
    # Nothing reads the taps from the last anchor on: context ends before its block.
    assert taps.grad[last_anchor:].abs().max() == 0
    assert boundary > last_anchor


def test_parameters_are_the_checkpoints() -> None:
    config = tiny_config(attention_bias=True)
    model = TrainableDrafter(config, tiny_weights()[0], max_positions=64)
    required = {name: spec.shape for name, spec in draft_tensor_specs(config).items() if spec.required}
    assert {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()} == required
    assert all(parameter.requires_grad for parameter in model.parameters())
    exported = model.checkpoint_weights()
    assert {tensor.dtype for tensor in exported.values()} == {torch.bfloat16}


def test_initial_weights_depend_on_the_seed_alone() -> None:
    embedding, lm_head = tiny_weights()
    models = [TrainableDrafter(tiny_config(), embedding, max_positions=64) for _ in range(3)]
    for model, seed in zip(models, (4, 4, 5), strict=True):
        torch.manual_seed(id(model) % 1000)
        model.initialize(lm_head, seed)
    states = [torch.cat([p.flatten() for p in model.parameters()]) for model in models]
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary", [16, 8])
def test_rotation_turns_pairs(interleaved: bool, rotary: int) -> None:
    """Against complex multiplication in float64."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 3, 16, generator=generator, dtype=torch.float64)
    angles = torch.randn(5, 1, rotary // 2, generator=generator, dtype=torch.float64)
    actual = rotate(x, angles.cos(), angles.sin(), interleaved)
    turned = x[..., :rotary]
    half = rotary // 2
    first, second = (turned[..., 0::2], turned[..., 1::2]) if interleaved else (turned[..., :half], turned[..., half:])
    wanted = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
    got = actual[..., :rotary]
    got_first, got_second = (got[..., 0::2], got[..., 1::2]) if interleaved else (got[..., :half], got[..., half:])
    torch.testing.assert_close(torch.complex(got_first, got_second), wanted)
    assert torch.equal(actual[..., rotary:], x[..., rotary:])


def test_refuses_what_does_not_fit() -> None:
    embedding, _ = tiny_weights()
    with pytest.raises(ValueError, match=r"embedding: expected \[64, 48\], got \[63, 48\]"):
        TrainableDrafter(tiny_config(), embedding[:63], max_positions=64)
    with pytest.raises(ValueError, match="draft_vocab_size: expected the target's 64, got 32"):
        TrainableDrafter(tiny_config(draft_vocab_size=32), embedding, max_positions=64)


class TargetLayer(torch.nn.Module):
    """Names and shapes of a decoder layer without q and k norms."""

    def __init__(self, intermediate_size: int = 64) -> None:
        super().__init__()
        draft = TrainableDrafter(tiny_config(intermediate_size=intermediate_size), tiny_weights()[0], max_positions=8)
        layer = draft.layers[0]
        del layer.self_attn.q_norm, layer.self_attn.k_norm
        self.input_layernorm, self.post_attention_layernorm = layer.input_layernorm, layer.post_attention_layernorm
        self.self_attn, self.mlp = layer.self_attn, layer.mlp
        for parameter in self.parameters():
            torch.nn.init.normal_(parameter)


def test_warm_start_copies_layers_and_passes_the_tap_through() -> None:
    torch.manual_seed(0)
    embedding, lm_head = tiny_weights()
    layers = [TargetLayer() for _ in range(4)]
    target = TargetParts(layers, torch.randn(48))
    model = TrainableDrafter(tiny_config(), embedding, max_positions=64)
    model.initialize(lm_head, seed=0)
    before = model.checkpoint_weights(torch.float32)
    copy_target_layers(model, target, [3, 1])  # the config taps layer 2, the one below layer 3, as tap number 1
    after = model.state_dict()
    for draft, index in ((0, 3), (1, 1)):
        for name, tensor in layers[index].named_parameters():
            assert torch.equal(after[f"layers.{draft}.{name}"], tensor)
        for name in ("q_norm", "k_norm"):
            assert torch.equal(after[f"layers.{draft}.self_attn.{name}.weight"], torch.ones(16))
    assert torch.equal(after["norm.weight"], target.final_norm)
    assert torch.equal(after["hidden_norm.weight"], layers[3].input_layernorm.weight)
    change = after["fc.weight"] - before["fc.weight"]
    torch.testing.assert_close(change[:, 48:96], torch.eye(48))
    assert change[:, :48].abs().max() == change[:, 96:].abs().max() == 0

    model.initialize(lm_head, seed=0)
    copy_target_layers(model, target, [0, 1])  # nothing below layer 0 to tap
    assert torch.equal(model.state_dict()["fc.weight"], before["fc.weight"])


def test_warm_start_refuses_what_does_not_fit() -> None:
    model = TrainableDrafter(tiny_config(), tiny_weights()[0], max_positions=64)
    target = TargetParts([TargetLayer(), TargetLayer(intermediate_size=32)], torch.ones(48))
    with pytest.raises(ValueError, match=r"expected 2 target layers \(draft layers\), got 1"):
        copy_target_layers(model, target, [0])
    with pytest.raises(ValueError, match=r"expected layers in 0\.\.1, got 2"):
        copy_target_layers(model, target, [0, 2])
    with pytest.raises(
        ValueError, match=r"mlp.gate_proj.weight: expected \[64, 48\] .* got \[32, 48\] in target layer 1"
    ):
        copy_target_layers(model, target, [0, 1])
