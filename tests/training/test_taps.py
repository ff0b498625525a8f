"""Taps of a real, tiny target: each layer's output and what its head reads."""

import pytest
import torch
import transformers
from dflash_decoding.target import Target
from dflash_decoding.training.taps import target_taps

from tests.decoding.tiny import tiny_target


@pytest.mark.parametrize("final", [False, True])
def test_taps_are_the_models_hidden_states(final: bool) -> None:
    """Against the Hugging Face model alone, one chat at a time."""
    chats = [[5, 9, 2, 200], [17], [40, 41, 42, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]]
    arrays = [torch.tensor(chat).numpy() for chat in chats]
    taps = target_taps(tiny_target(), (0, 2), final=final)(arrays)
    model = tiny_target().model
    model.set_attn_implementation("eager")  # type: ignore[operator]
    for chat, actual in zip(chats, taps, strict=True):
        with torch.no_grad():
            output = model(torch.tensor([chat]), output_hidden_states=True)
        # hidden_states[i + 1] is the output of layer i, the last one after the final norm.
        wanted = [output.hidden_states[place][0] for place in ((1, 3, -1) if final else (1, 3))]
        torch.testing.assert_close(actual, torch.stack(wanted, dim=1), rtol=1e-4, atol=1e-4)
        if final:
            logits = actual[:, -1] @ tiny_target().lm_head_weight.t()
            torch.testing.assert_close(logits, output.logits[0], rtol=1e-4, atol=1e-4)


def test_refuses_logits_that_are_more_than_the_head() -> None:
    """A target that caps its logits has another distribution than its head alone."""
    torch.manual_seed(0)
    config = transformers.GraniteConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, logits_scaling=8.0,
    )  # fmt: skip
    target = Target(transformers.GraniteForCausalLM(config))
    tokens = [torch.arange(6).numpy()]
    target_taps(target, (0,))(tokens)
    with pytest.raises(ValueError, match="expected logits that are its head times its final hidden state"):
        target_taps(target, (0,), final=True)(tokens)
