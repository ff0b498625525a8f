"""Two and three gloo processes draft what one drafts, and agree whatever happens to their hidden states."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from dflash_decoding.drafter import DFlashDrafter
from dflash_decoding.tensor_parallel import shard_config, shard_weights, share

import dflash_ops
from tests.decoding.tensor_parallel_process import IDS, RANKS, VALUES, VARIANTS, answers, variant
from tests.test_build import ROOT


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """By number of ranks, what each of them found."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "python")])}
    command = [sys.executable, "-m", "tests.decoding.tensor_parallel_process", str(folder)]
    started = [
        subprocess.Popen(
            [*command, str(rank)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        for process in started:
            output, _ = process.communicate(timeout=400)
            assert process.returncode == 0, output
    finally:
        for process in started:
            process.kill()
    ranks = [torch.load(folder / f"rank{rank}.pt") for rank in range(RANKS)]
    return {2: [rank[2] for rank in ranks[:2]], 3: [rank[3] for rank in ranks]}


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", VARIANTS)
def test_ranks_draft_what_one_process_drafts(found: dict[int, list[dict[str, Any]]], ranks: int, name: str) -> None:
    config, weights, target = variant(name)
    alone = answers(DFlashDrafter(config, weights, target.embed_weight, target.lm_head_weight), target)
    assert len(alone[1]) > 20
    for rank in found[ranks]:
        assert rank[f"TensorParallelDrafter {name}"] == alone


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", VARIANTS)
def test_ranks_agree_even_where_their_hidden_states_differ(
    found: dict[int, list[dict[str, Any]]], ranks: int, name: str
) -> None:
    drafts = [rank[f"DisagreeingDrafter {name}"] for rank in found[ranks]]
    assert all(other == drafts[0] for other in drafts)
    assert drafts[0][1] != found[ranks][0][f"TensorParallelDrafter {name}"][1]  # the noise does reach the choice


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_sharded_head_finds_what_the_whole_one_finds(found: dict[int, list[dict[str, Any]]], ranks: int) -> None:
    generator = torch.Generator().manual_seed(9)
    head = torch.randn(101, 32, generator=generator)
    head[60:64] = head[3:7]
    hidden = torch.cat([torch.randn(20, 32, generator=generator), 10 * head[60:64]]).bfloat16()
    whole, _ = dflash_ops.lm_head_argmax(hidden, head.bfloat16())
    assert whole[-4:].tolist() == [3, 4, 5, 6]  # of equal logits on two ranks the lower id
    assert all(rank["head"] == whole.tolist() for rank in found[ranks])


@pytest.mark.parametrize("ranks", [2, 3])
def test_ties_and_nan_between_ranks(found: dict[int, list[dict[str, Any]]], ranks: int) -> None:
    winners = [int(max(range(ranks), key=lambda r: (VALUES[r, n].isnan(), VALUES[r, n], -r))) for n in range(5)]
    assert winners[0] == 0
    assert all(rank["largest"] == [int(IDS[winner, n]) for n, winner in enumerate(winners)] for rank in found[ranks])
    assert all(f"expected at least {ranks} rows" in rank["refused"] for rank in found[ranks])


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_shares_are_a_partition(ranks: int) -> None:
    config, weights, _ = variant("bias")
    parts = [shard_weights(config, weights, rank, ranks) for rank in range(ranks)]
    for name, tensor in weights.items():
        pieces = [part[name] for part in parts]
        if any(kind in name for kind in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")):
            assert torch.equal(torch.cat(pieces), tensor), name
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            assert torch.equal(torch.cat(pieces, dim=1), tensor), name
        elif name.endswith("o_proj.bias"):
            assert torch.equal(torch.stack(pieces).sum(0), tensor), name
        else:
            assert all(torch.equal(piece, tensor) for piece in pieces), name
    configs = [shard_config(config, rank, ranks, 10) for rank in range(ranks)]
    assert sum(part.num_key_value_heads for part in configs) == config.num_key_value_heads
    assert sum(part.num_attention_heads for part in configs) == config.num_attention_heads


def test_more_ranks_than_heads_are_refused() -> None:
    config, _, _ = variant("plain")
    with pytest.raises(ValueError, match=r"num_key_value_heads: expected at least 4 \(one a rank\), got 3"):
        shard_config(config, 0, 4, 10)


@pytest.mark.parametrize(("count", "ranks"), [(7, 3), (3, 3), (101, 2), (5, 1)])
def test_parts_differ_by_one_at_most(count: int, ranks: int) -> None:
    parts = [range(count)[share(count, rank, ranks)] for rank in range(ranks)]
    assert [i for part in parts for i in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
