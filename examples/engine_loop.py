"""A complete engine loop in plain torch.ops.dflash_ops calls: admit, then draft, verify, commit, inject until done.

    python -m examples.engine_loop

Every tensor has a fixed shape and address, and a round reads nothing back to the host: on a GPU `capture` records it
once as a CUDA graph and replays it. The host looks at `finished` between rounds, as seldom as it likes.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import dflash_ops
from examples.toy_transformer import EPS, Transformer, ops

PAGE_SIZE = 16
BLOCK = 8
HIDDEN = 128
VOCAB = 24
MASK_ID, STOP_ID = VOCAB - 1, VOCAB - 2
TAPS = (0, 2)  # the target's layers whose outputs condition the drafter


class Engine:
    """Decodes up to `batch` requests at once; row i of every state tensor belongs to request i."""

    def __init__(self, batch: int, max_context: int, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        pages = -(-max_context // PAGE_SIZE)
        self.like = torch.empty(0, device=device, dtype=dtype)
        cache, positions = (batch * pages, PAGE_SIZE), pages * PAGE_SIZE + BLOCK
        self.target = Transformer(3, HIDDEN, cache, positions, self.like, seed=1)
        self.drafter = Transformer(2, HIDDEN, cache, positions, self.like, seed=2)
        generator = torch.Generator().manual_seed(3)
        self.embedding, self.head = torch.randn(2, VOCAB, HIDDEN, generator=generator).to(self.like)
        self.fuse_weight = (torch.eye(HIDDEN).repeat(1, len(TAPS)) / len(TAPS)).to(self.like)
        self.kv_weight = self.drafter.qkv[:, -self.drafter.kv_rows :]  # the rows that project the context, too

        def state(*shape: int, of: torch.dtype) -> Tensor:
            return torch.zeros(batch, *shape, dtype=of, device=device)

        # The page allocator of this example: request i owns pages i * pages .. (i + 1) * pages - 1 for good.
        self.page_table = torch.arange(batch * pages, dtype=torch.int32, device=device).view(batch, pages)
        self.context_lens = state(of=torch.int32)
        self.next_token = state(of=torch.int64)
        self.output_ids, self.output_lens = state(max_context, of=torch.int64), state(of=torch.int32)
        self.max_output_lens = state(of=torch.int32)
        self.finished = ~state(of=torch.bool)  # a row without a request is one that has finished
        self.stop_ids = torch.tensor([STOP_ID], device=device)
        # Buffers of a round.
        self.ids, self.positions, self.slots, self.tokens, self.context_slots = (
            state(BLOCK, of=torch.int64) for _ in range(5)
        )
        self.accepted, self.committed, self.bonus = (state(of=of) for of in (torch.int32, torch.int32, torch.int64))
        self.draft_ids = torch.zeros(batch * (BLOCK - 1), dtype=torch.int64, device=device)
        self.workspace = torch.zeros(self._workspace_size(batch, max_context), dtype=torch.uint8, device=device)

    def _workspace_size(self, batch: int, max_context: int) -> int:
        """One zeroed workspace serves all ops, which run one after another: the largest need of any."""
        rows, device = max(batch * BLOCK, max_context), self.like.device
        return max(
            self.target.workspace_size(rows, batch, self.page_table.shape[1] * PAGE_SIZE, device),
            dflash_ops.lm_head_argmax_workspace_size(rows, HIDDEN, VOCAB, device),
            dflash_ops.fuse_features_workspace_size(rows, len(TAPS), HIDDEN, HIDDEN, device),
            dflash_ops.project_context_kv_workspace_size(rows, HIDDEN, self.kv_weight.shape[:2].numel(), device),
            dflash_ops.verify_greedy_workspace_size(batch, BLOCK - 1),
            dflash_ops.row_argmax_workspace_size(1),
        )

    def admit(self, row: int, prompt: list[int], max_new_tokens: int) -> None:
        """Prefills one request into a free row; its first token comes from the target, like all others."""
        one, length = slice(row, row + 1), len(prompt)
        positions = torch.arange(length, device=self.like.device)
        slots = self.page_table[row, positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE
        self.context_lens[row] = 0
        hidden = F.embedding(torch.tensor(prompt, device=self.like.device), self.embedding)
        logits, taps = self._target(hidden, positions, slots, one)
        self._inject(taps, positions, slots)
        ops.row_argmax(logits[-1:], self.next_token[one], None, self.workspace)
        self.output_ids[one, 0], self.output_lens[row] = self.next_token[one], 1
        self.context_lens[row], self.max_output_lens[row] = length, max_new_tokens
        self.finished[one] = (self.next_token[one] == STOP_ID) | (self.max_output_lens[one] <= 1)

    def round(self) -> None:
        """Drafts BLOCK - 1 tokens for every request, keeps those the target agrees with, and one of its own."""
        positions, slots, drafts = self.positions.view(-1), self.slots.view(-1), self.ids[:, 1:]
        ops.begin_block(
            self.next_token, self.context_lens, self.page_table, PAGE_SIZE, MASK_ID, self.finished,
            self.ids, self.positions, self.slots,
        )  # fmt: skip
        # Draft: one non-causal forward of the block; row i predicts the token at position i.
        hidden = F.embedding(self.ids.view(-1), self.embedding)
        where = self.page_table, self.context_lens, self.workspace
        hidden, _ = self.drafter.forward(hidden, positions, *where, causal=False)
        predicting = hidden.view(-1, BLOCK, HIDDEN)[:, 1:].reshape(-1, HIDDEN)
        ops.lm_head_argmax(predicting, self.head, 0, 0.0, self.draft_ids, None, self.workspace)
        drafts.copy_(self.draft_ids.view(-1, BLOCK - 1))
        # Verify: one causal forward of the target over the newest token and the drafts.
        logits, taps = self._target(F.embedding(self.ids.view(-1), self.embedding), positions, slots, slice(None))
        logits = logits.view(-1, BLOCK, VOCAB)
        ops.verify_greedy(drafts, None, logits, None, self.accepted, self.tokens, self.bonus, self.workspace)
        # Commit: lengths, outputs, stops. What was rejected is past the new length and gets overwritten.
        ops.commit_block(
            self.tokens, self.accepted, self.slots, self.stop_ids, self.max_output_lens, self.context_lens,
            self.next_token, self.output_ids, self.output_lens, self.finished, self.committed, self.context_slots,
        )  # fmt: skip
        self._inject(taps, positions, self.context_slots.view(-1))

    def _target(self, hidden: Tensor, positions: Tensor, slots: Tensor, rows: slice) -> tuple[Tensor, list[Tensor]]:
        where = self.page_table[rows], self.context_lens[rows], self.workspace
        hidden, taps = self.target.forward(hidden, positions, *where, causal=True, slots=slots)
        return hidden @ self.head.T, [taps[layer] for layer in TAPS]

    def _inject(self, taps: list[Tensor], positions: Tensor, slots: Tensor) -> None:
        """The taps of committed tokens become context keys and values of every draft layer; slot -1: rejected."""
        features = torch.empty_like(taps[0])
        ops.fuse_features(taps, self.fuse_weight, None, EPS, None, features, self.workspace)
        ops.project_context_kv(
            features, self.kv_weight, None, self.drafter.k_norm, self.drafter.cos_sin, positions, slots, None,
            EPS, False, self.drafter.k_caches, self.drafter.v_caches, [], self.workspace,
        )  # fmt: skip

    def capture(self) -> Callable[[], None]:
        """A callable that runs one round: a CUDA graph's replay on a GPU. To be called before any request is admitted."""
        if self.like.device.type != "cuda":
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
