"""Cases of commit_block."""

from typing import Any

import torch
from torch import Tensor

from tests.cases.traffic import Traffic

SHAPES = [(0, 4, 9), (1, 1, 5), (9, 8, 20), (17, 16, 16), (2, 70, 90)]  # batch, block, capacity


def round_state(
    batch: int, block: int, capacity: int, seed: int, *, stops: list[int] | None, bounded: bool
) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """A random round: (tokens, accepted, slot_mapping), and the request state by name."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    accepted = draw(0, block, batch).int()
    tokens = draw(0, 9, batch, block)
    tokens[torch.arange(block) > accepted[:, None]] = -1
    tokens[draw(0, 5, batch) == 0] = -1  # some requests sat the round out
    lens = draw(0, capacity + 1, batch).int()
    state = {
        "context_lens": lens + 3,
        "next_token": draw(0, 9, batch),
        "output_ids": torch.full((batch, capacity), -7),
        "output_lens": lens,
        "finished": draw(0, 4, batch) == 0,
        "stop_token_ids": None if stops is None else torch.tensor(stops, dtype=torch.int64),
        "max_output_lens": torch.minimum(lens + draw(0, block + 2, batch).int(), torch.tensor(capacity)).int()
        if bounded
        else None,
    }
    return (tokens, accepted, draw(0, 1000, batch, block)), state


def least_traffic(block: int, committed: list[int]) -> Traffic:
    """Without stop tokens and bounds, of requests that all take part in the round and go on after it; committed tokens
    of each. The state's lengths are read and written, flags and accepted counts read."""
    batch, tokens = len(committed), sum(committed)
    return Traffic(batch * (1 + 4 + 4 + 4) + 2 * 8 * tokens, batch * (4 + 4 + 8 + 4) + 8 * tokens + 8 * batch * block)
