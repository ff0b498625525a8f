"""Reading chats, drawing anchors and laying blocks."""

from pathlib import Path

import numpy as np
import pytest
import torch
from dflash_decoding.training.data import (
    BatchPlan,
    BlockShape,
    Chats,
    join_chats,
    load_chats,
    make_batch,
    make_chats,
    possible_anchors,
    split_chats,
)

from tests.training.tiny import MASK, VOCAB, tiny_chats

TRAINING_DATA = Path(__file__).parents[2] / "training_data"


def write(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def good_arrays() -> dict[str, np.ndarray]:
    return {
        "tokens": np.array([5, 6, 7, 8, 9], dtype=np.uint16),
        "lens": np.array([3, 2], dtype=np.int32),
        "prompt_len": np.array([1, 1], dtype=np.int32),
    }


def test_reads_what_was_written(tmp_path: Path) -> None:
    chats = load_chats(write(tmp_path / "chats.npz", **good_arrays()), VOCAB)
    assert len(chats) == 2
    assert chats.chat(0).tolist() == [5, 6, 7]
    assert chats.chat(1).tolist() == [8, 9]
    assert chats.chat(1).dtype == np.int64
    assert chats.answer_counts([0], VOCAB).nonzero()[0].tolist() == [6, 7]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lens": np.array([3, 3])}, r"tokens: expected 6 ids \(sum of lens\), got 5"),
        ({"prompt_len": np.array([1])}, "prompt_len: expected one per chat"),
        ({"prompt_len": np.array([1, 2])}, "chat 1: expected a prompt and an answer"),
        ({"prompt_len": np.array([0, 1])}, "chat 0: expected a prompt and an answer"),
        ({"tokens": np.array([5, 6, 7, 8, 64])}, r"expected ids in 0\.\.63, got 5\.\.64"),
        ({"tokens": np.array([5, 6, 7, 8, -1])}, r"expected ids in 0\.\.63, got -1\.\.8"),
        ({"tokens": np.array([5.0, 6, 7, 8, 9])}, "tokens: expected integers"),
        ({"lens": np.array([[3, 2]])}, "lens: expected integers"),
        ({"lens": np.array([], dtype=int), "prompt_len": np.array([], dtype=int)}, "at least one chat"),
    ],
)
def test_refuses_contradictions(tmp_path: Path, change: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_chats(write(tmp_path / "chats.npz", **{**good_arrays(), **change}), VOCAB)


def test_refuses_missing_files_arrays_and_pickles(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        load_chats(tmp_path / "none.npz", VOCAB)
    arrays = good_arrays()
    del arrays["lens"]
    with pytest.raises(ValueError, match="expected the arrays tokens, lens, prompt_len, got tokens, prompt_len"):
        load_chats(write(tmp_path / "part.npz", **arrays), VOCAB)
    pickled = {**good_arrays(), "tokens": np.array([{}, 1], dtype=object)}
    with pytest.raises(ValueError, match="plain arrays"):
        load_chats(write(tmp_path / "pickle.npz", **pickled), VOCAB)
    (tmp_path / "text.npz").write_text("not an archive")
    with pytest.raises(ValueError, match=r"expected an \.npz file"):
        load_chats(tmp_path / "text.npz", VOCAB)


@pytest.mark.parametrize(
    ("name", "count", "tokens", "answers"),
    [("smollm2_chats", 5303, 1269577, 950749), ("smollm2_code_and_questions", 2978, 573441, 350528)],
)
def test_bundled_chats_are_whole(name: str, count: int, tokens: int, answers: int) -> None:
    chats = load_chats(TRAINING_DATA / f"{name}.npz", 49152)
    assert (len(chats), len(chats.tokens)) == (count, tokens)
    assert sum(int(chats.length(i) - chats.prompt_lens[i]) for i in range(len(chats))) == answers


def test_split_is_a_partition() -> None:
    chats = tiny_chats()
    training, held_out = split_chats(chats, 4, seed=1)
    assert len(held_out) == 4
    assert sorted(training + held_out) == list(range(len(chats)))
    assert split_chats(chats, 4, seed=1) == (training, held_out)
    assert split_chats(chats, 4, seed=2) != (training, held_out)
    with pytest.raises(ValueError, match=r"held_out: expected 0\.\.11"):
        split_chats(chats, 12, seed=1)


def test_joined_chats_stay_what_they_were() -> None:
    first = make_chats(np.arange(1, 6), np.array([3, 2]), np.array([1, 1]), VOCAB)
    second = tiny_chats()
    joined = join_chats([first, second, first])
    assert len(joined) == 2 * len(first) + len(second)
    for start, part in ((0, first), (2, second), (2 + len(second), first)):
        for index in range(len(part)):
            assert joined.chat(start + index).tolist() == part.chat(index).tolist()
            assert joined.prompt_lens[start + index] == part.prompt_lens[index]
            assert joined.chat_fingerprint(start + index) == part.chat_fingerprint(index)
    assert len({joined.chat_fingerprint(index) for index in range(2 + len(second))}) == 2 + len(second)
    assert join_chats([first]).fingerprint() == first.fingerprint()


@pytest.mark.parametrize("first_row", [0, 1])
def test_blocks_say_what_the_chat_says(first_row: int) -> None:
    """Rebuilds every field from the chats alone, by plain indexing."""
    chats = tiny_chats()
    shape = BlockShape(4, MASK, first_row)
    indices = [4, 0, 7]
    anchors = [possible_anchors(chats, index)[::2] for index in indices]
    batch = make_batch(chats, indices, anchors, shape)
    starts = np.cumsum([0] + [chats.length(index) for index in indices])
    assert batch.cu_seqlens.tolist() == starts.tolist()
    assert batch.anchors.dtype == torch.int32
    row = 0
    for index, start, wanted in zip(indices, starts, anchors, strict=False):
        tokens = chats.chat(index)
        assert batch.positions[start : start + len(tokens)].tolist() == list(range(len(tokens)))
        for anchor in wanted:
            assert batch.anchors[row] == start + anchor
            assert batch.input_ids[row].tolist() == [tokens[anchor], MASK, MASK, MASK]
            assert batch.block_positions[row].tolist() == list(range(anchor, anchor + 4))
            ahead = tokens[anchor + 1 : anchor + 1 + shape.predictions].tolist()
            assert batch.valid[row].tolist() == [j < len(ahead) for j in range(shape.predictions)]
            assert batch.targets[row][batch.valid[row]].tolist() == ahead
            row += 1
    assert row == len(batch.anchors)


def plan(chats: Chats, **changes: int) -> BatchPlan:
    values = {"chats_per_batch": 3, "anchors_per_chat": 5, "seed": 0, **changes}
    return BatchPlan(chats, range(10), BlockShape(4, MASK), **values)


def test_plan_visits_every_chat_once_per_epoch_with_new_anchors() -> None:
    chats = tiny_chats()
    batches = plan(chats, chats_per_batch=2)
    assert batches.steps_per_epoch == 5
    epochs = [[batches.batches(step)[0][0] for step in range(5 * epoch, 5 * epoch + 5)] for epoch in range(2)]
    for epoch in epochs:
        assert sorted(index for batch in epoch for index in batch.chats) == list(range(10))
    assert [batch.chats for batch in epochs[0]] != [batch.chats for batch in epochs[1]]
    drawn = []
    for epoch in epochs:
        place = next(batch for batch in epoch if 3 in batch.chats)
        which = place.chats.index(3)
        start, end = place.cu_seqlens[which], place.cu_seqlens[which + 1]
        drawn.append([int(a - start) for a in place.anchors if start <= a < end])
        assert len(set(drawn[-1])) == len(drawn[-1]) == 5
        assert set(drawn[-1]) <= set(possible_anchors(chats, 3).tolist())
    assert drawn[0] != drawn[1]


def test_plan_is_a_function_of_the_step() -> None:
    chats = tiny_chats()
    first, second = plan(chats).batches(7)[0][0], plan(chats).batches(7)[0][0]
    assert first.chats == second.chats
    assert torch.equal(first.anchors, second.anchors)
    assert not torch.equal(plan(chats, seed=1).batches(7)[0][0].anchors, first.anchors)


def test_a_step_is_the_same_however_it_is_cut_up() -> None:
    chats = tiny_chats()
    whole = plan(chats, chats_per_batch=6).batches(4)[0][0]
    for accumulate, shares in ((1, 2), (2, 1), (3, 2), (2, 3)):
        cut = plan(chats, chats_per_batch=6 // accumulate, accumulate=accumulate).batches(4, shares)
        assert [len(batch) for batch in cut] == [shares] * accumulate
        parts = [part for batch in cut for part in batch]
        assert tuple(index for part in parts for index in part.chats) == whole.chats
        assert torch.equal(torch.cat([part.targets for part in parts]), whole.targets)
        assert torch.equal(torch.cat([part.block_positions for part in parts]), whole.block_positions)
    assert plan(chats, chats_per_batch=2, accumulate=2).steps_per_epoch == 2
    with pytest.raises(ValueError, match=r"chats_per_batch: expected 1\.\.5 .*got 6"):
        plan(chats, chats_per_batch=6, accumulate=2)
    with pytest.raises(ValueError, match="accumulate: expected at least 1, got 0"):
        plan(chats, accumulate=0)


def test_targets_are_predicted_from_the_token_before() -> None:
    chats = tiny_chats()
    indices = [4, 0]
    batch = make_batch(chats, indices, [possible_anchors(chats, index) for index in indices], BlockShape(4, MASK))
    packed = torch.from_numpy(np.concatenate([chats.chat(index) for index in indices]))
    places = batch.predicted_from()
    assert places.max() == len(packed) - 1
    assert torch.equal(packed[places[batch.valid] + 1], batch.targets[batch.valid])


def test_few_possible_anchors_are_all_taken() -> None:
    chats = make_chats(np.arange(7), np.array([4, 3]), np.array([1, 2]), VOCAB)
    batch = BatchPlan(chats, [0, 1], BlockShape(4, MASK), 2, 50, 0).batches(0)[0][0]
    # Chat 0 (prompt 1 of 4) has anchors 1 and 2; chat 1 (prompt 2 of 3) has none, as nothing follows its answer token.
    assert len(batch.anchors) == 2
    with pytest.raises(ValueError, match=r"chats_per_batch: expected 1\.\.2"):
        BatchPlan(chats, [0, 1], BlockShape(4, MASK), 3, 50, 0)
    with pytest.raises(ValueError, match="anchors_per_chat"):
        BatchPlan(chats, [0, 1], BlockShape(4, MASK), 1, 0, 0)
