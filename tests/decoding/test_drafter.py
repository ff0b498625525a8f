"""DFlashDrafter against the dense re-implementation in `dense_drafter`, round by round, for every variant."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from dflash_decoding.cache import PagePool
from dflash_decoding.checkpoint import save_draft_checkpoint
from dflash_decoding.drafter import DFlashDrafter
from safetensors.torch import save_file

from tests.decoding.drafter_world import BLOCK, HIDDEN, MASK, VARIANTS, VOCAB, Requests, World


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The matrices here are too small to share between threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", VARIANTS)
def test_matches_dense_drafter_over_rounds(name: str) -> None:
    requests = Requests(World(VARIANTS[name]), [1, 17, 40], page_size=4, capacity=80)
    for number in range(4):
        requests.round(BLOCK, number)


@pytest.mark.parametrize("name", ["full", "sliding_causal", "sliding_non_causal", "yarn"])
def test_prompt_of_more_than_4096_tokens(name: str) -> None:
    requests = Requests(World(VARIANTS[name]), [4123], page_size=16, capacity=4200)
    for number in range(2):
        requests.round(BLOCK, number)


def test_prefix_much_longer_than_window_at_every_page_size() -> None:
    for page_size in (1, 2, 64, 256):
        requests = Requests(World(VARIANTS["sliding_causal"]), [300, 5], page_size=page_size, capacity=330)
        requests.round(BLOCK, 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["sliding_causal", "speculators_anchor"])
def test_low_precision(name: str, dtype: torch.dtype) -> None:
    requests = Requests(World(VARIANTS[name], dtype=dtype), [3, 70], page_size=8, capacity=100)
    for number in range(2):
        requests.round(BLOCK, number)


def test_smaller_block_than_trained() -> None:
    requests = Requests(World(VARIANTS["sliding_causal"]), [9, 2], page_size=4, capacity=60)
    for number, block in enumerate((2, 4, BLOCK, 3)):
        requests.round(block, number)


def test_nothing_is_left_over_from_the_previous_request() -> None:
    requests = Requests(World(VARIANTS["full"]), [30, 12], page_size=4, capacity=60)
    requests.round(BLOCK, 1)
    for row in range(2):
        requests.pool.release(row)
    requests.start([5, 21])
    requests.round(BLOCK, 1)


def test_batch_of_none() -> None:
    world = World(VARIANTS["full"])
    requests = Requests(world, [3], page_size=4, capacity=20)
    empty = torch.empty(0, BLOCK, dtype=torch.int64)
    tokens = world.drafter.draft(
        empty, empty, requests.cache, requests.pool.page_table[:0], requests.pool.context_lens[:0]
    )
    assert tokens.shape == (0, BLOCK - 1)
    world.drafter.inject(world.taps(0), empty[:, 0], empty[:, 0], requests.cache)


def test_float16_survives_large_fc_and_residual() -> None:
    """fc outputs and a residual stream beyond the float16 range (65504) leave the normed results finite and right."""
    world = World(VARIANTS["full"], dtype=torch.float16)
    drafter_weights = dict(world.weights)
    drafter_weights["fc.weight"] = drafter_weights["fc.weight"] * 60000
    for layer in range(2):
        name = f"layers.{layer}.mlp.down_proj.weight"
        drafter_weights[name] = drafter_weights[name] * 20000
    world.weights.update(drafter_weights)
    world.drafter = DFlashDrafter.from_weights(world.config, world.weights, world.embedding, world.head)
    requests = Requests(world, [20], page_size=4, capacity=40)
    ids = torch.tensor([[5] + [MASK] * (BLOCK - 1)])
    positions = torch.arange(20, 20 + BLOCK)[None]
    hidden = world.drafter.hidden_states(
        ids, positions, requests.cache, requests.pool.page_table, requests.pool.context_lens
    )
    exact = world.exact.hidden(requests.history[0], ids[0])
    assert hidden.isfinite().all()
    torch.testing.assert_close(hidden[0].double(), exact[1:], rtol=0, atol=2e-2)


def test_target_tensors_are_held_by_reference_and_buffers_are_reused() -> None:
    world = World(VARIANTS["full"])
    assert world.drafter.embedding.data_ptr() == world.embedding.data_ptr()
    assert world.drafter.lm_head.data_ptr() == world.head.data_ptr()
    requests = Requests(world, [7, 3], page_size=4, capacity=40)
    ids = torch.full((2, BLOCK), 1)
    arguments = (ids, ids, requests.cache, requests.pool.page_table, requests.pool.context_lens)
    assert world.drafter.hidden_states(*arguments).data_ptr() == world.drafter.hidden_states(*arguments).data_ptr()
    first, second = world.drafter.draft(*arguments), world.drafter.draft(*arguments)
    assert first.data_ptr() != second.data_ptr()
    assert torch.equal(first, second)


def test_parameters_that_require_grad() -> None:
    world = World(VARIANTS["bias"])
    weights = {name: torch.nn.Parameter(weight) for name, weight in world.weights.items()}
    embedding, head = torch.nn.Parameter(world.embedding), torch.nn.Parameter(world.head)
    world.drafter = DFlashDrafter.from_weights(world.config, weights, embedding, head)
    Requests(world, [4], page_size=4, capacity=20).round(BLOCK, 0)


def test_head_in_another_dtype_than_the_drafter() -> None:
    world = World(VARIANTS["full"])
    drafter = DFlashDrafter.from_weights(
        world.config, world.weights, world.embedding.bfloat16(), world.head.bfloat16(), dtype=torch.float32
    )
    requests = Requests(world, [7], page_size=4, capacity=40)
    ids = torch.full((1, BLOCK), 1)
    positions = torch.arange(7, 7 + BLOCK)[None]
    tokens = drafter.draft(ids, positions, requests.cache, requests.pool.page_table, requests.pool.context_lens)
    assert drafter.dtype == torch.float32
    assert tokens.shape == (1, BLOCK - 1)


def test_own_embedding_replaces_the_targets() -> None:
    world = World(VARIANTS["speculators"])
    own = torch.randn(VOCAB, HIDDEN, generator=world.generator)
    drafter = DFlashDrafter.from_weights(
        world.config, {**world.weights, "embed_tokens.weight": own}, world.embedding, world.head
    )
    assert drafter.embedding.data_ptr() == own.data_ptr()
    world.drafter, world.exact.embedding, world.plain.embedding = drafter, own, own
    Requests(world, [4], page_size=4, capacity=20).round(BLOCK, 0)


@pytest.mark.parametrize("name", ["sliding_causal", "speculators"])
def test_from_pretrained(tmp_path: Path, name: str) -> None:
    world = World(VARIANTS[name])
    save_draft_checkpoint(tmp_path / "written", world.config, world.weights)
    (tmp_path / "given").mkdir()
    save_file(world.weights, tmp_path / "given" / "model.safetensors")
    (tmp_path / "given" / "config.json").write_text(json.dumps(VARIANTS[name].raw()))
    for folder in ("written", "given"):
        world.drafter = DFlashDrafter.from_pretrained(tmp_path / folder, world.embedding, world.head)
        assert world.drafter.num_draft_tokens == BLOCK - 1
        Requests(world, [9], page_size=4, capacity=30).round(BLOCK, 0)


def test_refusals() -> None:
    world = World(VARIANTS["full"])

    def build(**options: Any) -> DFlashDrafter:
        arguments = {"target_embedding": world.embedding, "target_lm_head": world.head, "weights": world.weights}
        return DFlashDrafter.from_weights(world.config, **{**arguments, **options})

    assert build(block_size=3).num_draft_tokens == 2
    for block in (1, BLOCK + 1):
        with pytest.raises(
            ValueError, match=rf"block_size: expected 2\.\.{BLOCK} \(the trained block size\), got {block}"
        ):
            build(block_size=block)
    with pytest.raises(ValueError, match=r"target_embedding: expected \[64, 48\] .* got \[64, 40\]"):
        build(target_embedding=world.embedding[:, :40])
    with pytest.raises(ValueError, match=r"target_lm_head: expected \[64, 48\] .* got \[60, 48\]"):
        build(target_lm_head=world.head[:60])
    with pytest.raises(ValueError, match=r"weights: expected norm\.weight"):
        build(weights={name: w for name, w in world.weights.items() if name != "norm.weight"})
    reduced = World(VARIANTS["speculators"])
    with pytest.raises(ValueError, match=r"expected lm_head\.weight"):
        DFlashDrafter.from_weights(reduced.config, world.weights, world.embedding, world.head)


def test_bad_calls() -> None:
    world = World(VARIANTS["full"])
    requests = Requests(world, [3], page_size=4, capacity=20)
    pool = requests.pool
    rows = torch.arange(2)
    with pytest.raises(ValueError, match=r"taps: expected 2 tensors of \[2, 48\]"):
        world.drafter.inject(world.taps(2)[:1], rows, rows, requests.cache)
    with pytest.raises(ValueError, match=r"taps: expected 2 tensors of \[2, 48\]"):
        world.drafter.inject(world.taps(3), rows, rows, requests.cache)
    for first in (8191, -1):
        with pytest.raises(RuntimeError, match=r"positions\[[01]\]: expected 0 to 8191"):
            world.drafter.inject(world.taps(2), rows + first, rows, requests.cache)
    ids = torch.zeros(1, BLOCK + 1, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"block_size: expected 2\.\.6"):
        world.drafter.draft(ids, ids, requests.cache, pool.page_table, pool.context_lens)
    with pytest.raises(ValueError, match="positions: expected"):
        world.drafter.draft(ids[:, :3], ids[:, :4], requests.cache, pool.page_table, pool.context_lens)
    with pytest.raises(RuntimeError, match=r"positions\[0\]: expected 0 to 8191"):
        world.drafter.draft(ids[:, :3], ids[:, :3] + 8192, requests.cache, pool.page_table, pool.context_lens)
    with pytest.raises((IndexError, RuntimeError)):  # a token id outside the embedding
        world.drafter.draft(ids[:, :3] + VOCAB, ids[:, :3], requests.cache, pool.page_table, pool.context_lens)


def test_positions_past_the_trained_length_are_refused_unless_asked_for() -> None:
    world = World(VARIANTS["full"])
    assert world.drafter.max_positions == 8192
    longer = DFlashDrafter.from_weights(world.config, world.weights, world.embedding, world.head, max_positions=9000)
    pool = PagePool(1, 4, 1, 1)
    last, slot = torch.tensor([8999]), torch.tensor([0])
    longer.inject(world.taps(1), last, slot, longer.new_cache(pool))
    with pytest.raises(RuntimeError, match="positions"):
        world.drafter.inject(world.taps(1), last, slot, world.drafter.new_cache(pool))
