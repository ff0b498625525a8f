"""The engine loop's answers are the target's own, and its round could be a CUDA graph."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import dflash_ops
from examples.engine_loop import BLOCK, MASK_ID, STOP_ID, Engine, generate
from examples.toy_models import HIDDEN, Target
from examples.toy_transformer import BASE, EPS, HEAD_DIM, KV_HEADS, Q_HEADS
from tests.examples.graph_recorder import GraphRecorder

PROMPTS = [[1, 2, 3], [4, 5], list(range(20)), [6]]


def dense_logits(model: Target, tokens: list[int]) -> Tensor:
    """The target's logits after the last token: plain float64, no cache, no ops of the library."""
    hidden, length = model.embedding.double()[tokens], len(tokens)
    angles = torch.arange(length).double()[:, None] * BASE ** (-torch.arange(0, HEAD_DIM, 2).double() / HEAD_DIM)

    def heads(x: Tensor, count: int, norm: Tensor | None) -> Tensor:
        x = x.view(length, count, HEAD_DIM).transpose(0, 1)
        if norm is None:
            return x
        x = F.rms_norm(x, (HEAD_DIM,), norm.double(), EPS)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], dim=-1)

    for i in model.layers:
        rows = F.rms_norm(hidden, (HIDDEN,), eps=EPS) @ model.qkv[i].double().T
        q, k, v = rows.split([Q_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM], dim=1)
        attended = F.scaled_dot_product_attention(
            heads(q, Q_HEADS, model.q_norm[i]),
            heads(k, KV_HEADS, model.k_norm[i]),
            heads(v, KV_HEADS, None),
            is_causal=True,
            enable_gqa=True,
        )
        hidden = hidden + attended.transpose(0, 1).flatten(1) @ model.o[i].double().T
        gate, up = (F.rms_norm(hidden, (HIDDEN,), eps=EPS) @ model.gate_up[i].double().T).chunk(2, dim=1)
        hidden = hidden + (F.silu(gate) * up) @ model.down[i].double().T
    return F.rms_norm(hidden[-1], (HIDDEN,), eps=EPS) @ model.head.double().T


def expected_answer(engine: Engine, prompt: list[int], max_new_tokens: int) -> list[int]:
    tokens = list(prompt)
    while len(tokens) - len(prompt) < max_new_tokens:
        tokens.append(int(dense_logits(engine.target, tokens).argmax()))
        if tokens[-1] == STOP_ID:
            break
    return tokens[len(prompt) :]


def counting_rounds(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The tokens committed to each request, round by round; filled by `generate`."""
    committed: list[Tensor] = []

    def counted() -> None:
        engine.round()
        committed.append(engine.committed.clone())

    monkeypatch.setattr(engine, "capture", lambda: counted)
    return committed


def plant_drafts_of_six(engine: Engine) -> None:
    """Makes every mask row predict token 6, which this target likes to repeat; its own answers change as well."""
    engine.drafter.o.zero_()
    engine.drafter.down.zero_()
    engine.target.embedding[MASK_ID] = 100 * engine.target.head[6]


@pytest.mark.parametrize("planted", [False, True], ids=["random drafts", "drafts of 6"])
def test_answers_are_the_targets_own_greedy_ones(planted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(5, 64)  # one row stays empty
    if planted:
        plant_drafts_of_six(engine)
    committed = counting_rounds(engine, monkeypatch)
    answers = generate(engine, PROMPTS, 24)
    assert answers == [expected_answer(engine, prompt, 24) for prompt in PROMPTS]
    assert engine.output_lens[4] == 0
    if planted:
        assert set(torch.stack(committed).unique().tolist()) > {0, 1, BLOCK}


def test_good_drafts_save_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(1, 64)
    plant_drafts_of_six(engine)
    committed = counting_rounds(engine, monkeypatch)
    assert generate(engine, [[6]], 24) == [[6] * 24] == [expected_answer(engine, [6], 24)]
    assert [int(count) for count in committed] == [BLOCK, BLOCK, 23 - 2 * BLOCK]


def test_a_request_can_follow_another_in_its_row() -> None:
    engine = Engine(1, 64)
    for prompt in PROMPTS[:2]:
        assert generate(engine, [prompt], 9) == [expected_answer(engine, prompt, 9)]


def test_a_recorded_round_replays_as_every_later_one() -> None:
    """Fixed shapes, fixed addresses, no value of a tensor read on the host: what a CUDA graph asks for."""
    recorder = GraphRecorder()
    engine = Engine(4, 64)
    with recorder:
        engine.round()  # as `capture` does, before a request is there
    for row, prompt in enumerate(PROMPTS):
        engine.admit(row, prompt, 24)
    for _ in range(24):
        recorder.replay()
    assert bool(engine.finished.all())
    lengths = engine.output_lens.tolist()
    answers = [ids[:length] for ids, length in zip(engine.output_ids.tolist(), lengths, strict=True)]
    assert answers == [expected_answer(engine, prompt, 24) for prompt in PROMPTS]


def test_the_recorder_refuses_a_host_read() -> None:
    with GraphRecorder(), pytest.raises(AssertionError, match="reads a tensor on the host"):
        int(torch.ones(1))


def test_a_round_without_requests_changes_nothing() -> None:
    engine = Engine(2, 64)
    state = [engine.context_lens, engine.next_token, engine.output_ids, engine.output_lens, engine.finished]
    before = [tensor.clone() for tensor in state]
    engine.round()
    assert all(torch.equal(tensor, saved) for tensor, saved in zip(state, before, strict=True))
    assert engine.committed.eq(0).all()
    assert engine.context_slots.eq(-1).all()


def test_the_loop_calls_the_ops_of_a_round() -> None:
    recorder = GraphRecorder()
    engine = Engine(1, 32)
    with recorder:
        engine.round()
    called = {call[0].name().split("::")[1] for call in recorder.calls if call[0].name().startswith("dflash_ops::")}
    assert called == {
        "begin_block", "norm_rope_qkv", "block_attention", "lm_head_argmax", "write_context_kv", "verify_greedy",
        "commit_block", "fuse_features", "project_context_kv",
    }  # fmt: skip
    assert engine.ids.shape[1] == BLOCK
    assert called <= set(dflash_ops.__all__)
