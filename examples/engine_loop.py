"""A complete engine loop in plain torch.ops.dflash_ops calls: admit, then draft, verify, commit, inject until done.

    python -m examples.engine_loop

Every tensor has a fixed shape and address, and a round reads nothing back to the host: on a GPU `capture` records it
once as a CUDA graph and replays it. The host looks at `finished` between rounds, as seldom as it likes.
"""

from collections.abc import Callable

import torch
from torch import Tensor

import dflash_ops
from examples.toy_models import VOCAB, Drafter, Target
from examples.toy_transformer import ops

PAGE_SIZE = 16
BLOCK = 8
MASK_ID, STOP_ID = VOCAB - 1, VOCAB - 2


class Engine:
    """Decodes up to `batch` requests at once; row i of every state tensor belongs to request i."""

    def __init__(self, batch: int, max_context: int, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        def state(*shape: int, of: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(batch, *shape, dtype=of, device=device)

        # The page allocator of this example: request i owns pages i * pages .. (i + 1) * pages - 1 for good.
        pages = -(-max_context // PAGE_SIZE)
        self.page_table = torch.arange(batch * pages, dtype=torch.int32, device=device).view(batch, pages)
        models = (batch * pages, PAGE_SIZE), pages * PAGE_SIZE + BLOCK, torch.empty(0, device=device, dtype=dtype)
        self.target = Target(*models)
        self.drafter = Drafter(self.target, *models)
        self.context_lens, self.output_lens, self.max_output_lens = state(), state(), state()
        self.next_token, self.output_ids = state(of=torch.int64), state(max_context, of=torch.int64)
        self.finished = ~state(of=torch.bool)  # a row without a request is one that has finished
        self.stop_ids = torch.tensor([STOP_ID], device=device)
        # Buffers of a round.
        self.ids, self.positions, self.slots, self.tokens, self.context_slots = (
            state(BLOCK, of=torch.int64) for _ in range(5)
        )
        self.accepted, self.committed, self.bonus = state(), state(), state(of=torch.int64)
        # One zeroed workspace serves all ops, which run one after another: the largest need of any.
        sizes = max(batch * BLOCK, max_context), batch, pages * PAGE_SIZE, self.page_table.device
        size = max(
            self.target.workspace_size(*sizes),
            self.drafter.workspace_size(*sizes),
            dflash_ops.verify_greedy_workspace_size(batch, BLOCK - 1),
            dflash_ops.row_argmax_workspace_size(1),
        )
        self.workspace = torch.zeros(size, dtype=torch.uint8, device=device)

    def admit(self, row: int, prompt: list[int], max_new_tokens: int) -> None:
        """Prefills one request into a free row; its first token comes from the target, like all others."""
        one, ids = slice(row, row + 1), torch.tensor(prompt, device=self.page_table.device)
        positions = torch.arange(len(prompt), device=ids.device)
        slots = self.page_table[row, positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE
        self.context_lens[row] = 0
        where = self.page_table[one], self.context_lens[one], self.workspace
        logits, taps = self.target.logits(ids, positions, slots, *where)
        self.drafter.inject(taps, positions, slots, self.workspace)
        ops.row_argmax(logits[-1:], self.next_token[one], None, self.workspace)
        self.output_ids[one, 0], self.output_lens[row] = self.next_token[one], 1
        self.context_lens[row], self.max_output_lens[row] = len(prompt), max_new_tokens
        self.finished[one] = (self.next_token[one] == STOP_ID) | (self.max_output_lens[one] <= 1)

    def round(self) -> None:
        """Drafts BLOCK - 1 tokens for every request, keeps those the target agrees with, and one of its own."""
        ids, positions, slots = self.ids.view(-1), self.positions.view(-1), self.slots.view(-1)
        where = self.page_table, self.context_lens, self.workspace
        ops.begin_block(
            self.next_token, self.context_lens, self.page_table, PAGE_SIZE, MASK_ID, self.finished,
            self.ids, self.positions, self.slots,
        )  # fmt: skip
        # Draft: one forward of the block, whose masks become tokens.
        self.drafter.draft(self.ids, positions, *where)
        # Verify: one causal forward of the target over the newest token and the drafts.
        logits, taps = self.target.logits(ids, positions, slots, *where)
        ops.verify_greedy(
            self.ids[:, 1:], None, logits.view(-1, BLOCK, VOCAB), None,
            self.accepted, self.tokens, self.bonus, self.workspace,
        )  # fmt: skip
        # Commit: lengths, outputs, stops. What was rejected is past the new length and gets overwritten.
        ops.commit_block(
            self.tokens, self.accepted, self.slots, self.stop_ids, self.max_output_lens, self.context_lens,
            self.next_token, self.output_ids, self.output_lens, self.finished, self.committed, self.context_slots,
        )  # fmt: skip
        # Inject: what the target computed for the accepted tokens is the drafter's context; rejected rows have slot -1.
        self.drafter.inject(taps, positions, self.context_slots.view(-1), self.workspace)

    def capture(self) -> Callable[[], None]:
        """A callable that runs one round: a CUDA graph's replay on a GPU. To be called before any request is admitted."""
        if self.page_table.device.type != "cuda":
            return self.round
        self.round()  # loads the kernels; changes nothing, as every row has finished
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.round()
        return graph.replay


def generate(engine: Engine, prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
    """Greedy answers of the target to up to `batch` prompts."""
    run_round = engine.capture()
    for row, prompt in enumerate(prompts):
        engine.admit(row, prompt, max_new_tokens)
    while not bool(engine.finished.all()):  # the one host read; engines read it a round late instead of waiting
        run_round()
    lengths = engine.output_lens.tolist()
    return [ids[:length] for ids, length in zip(engine.output_ids.tolist(), lengths, strict=True)][: len(prompts)]


if __name__ == "__main__":
    on_gpu = torch.cuda.is_available() and "block_attention" in dflash_ops.build_info()["cuda_ops"]
    engine = Engine(4, 128, *(("cuda", torch.bfloat16) if on_gpu else ("cpu", torch.float32)))
    for answer in generate(engine, [[1, 2, 3], [4, 5], [6, 7, 8, 9]], max_new_tokens=24):
        print(answer)
