"""A Hugging Face model with its attention on `block_attention` and a paged cache, a batch of texts of any lengths at once.

    python -m examples.transformers_attention              # a random tiny Llama
    python -m examples.transformers_attention FOLDER TEXT  # a model of yours

`Target` of `dflash_decoding` does this and more (taps, checks, row-invariant products); here is the bare mechanism.
"""

import sys
from itertools import chain
from typing import Any

import torch
from dflash_decoding.attention import ATTENTION_NAME, PagedBatch, paged_batch
from dflash_decoding.cache import PagedKVCache, PagePool
from dflash_decoding.workspace import Workspace
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

PAGE_SIZE = 16


class PagedModel:
    """A causal language model whose attention layers read and write pages instead of a `past_key_values` of their own."""

    def __init__(self, model: Any, batch: int, max_tokens: int) -> None:
        model.set_attn_implementation(ATTENTION_NAME)
        self.model, config = model.eval(), model.config
        pages = -(-max_tokens // PAGE_SIZE)
        self.pool = PagePool(batch * pages, PAGE_SIZE, batch, pages, model.device)
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.cache = PagedKVCache(
            self.pool, config.num_hidden_layers, config.num_key_value_heads, head_dim, dtype=model.dtype
        )
        self.windows = (0,) * config.num_hidden_layers  # full attention; a sliding layer has its width here
        self.workspace = Workspace(model.device)

    @torch.no_grad()
    def forward(self, new_tokens: list[list[int]]) -> Tensor:
        """Logits [b, V] after each request's new tokens, all requests packed in one row of tokens: no padding."""
        device, pool = self.model.device, self.pool
        starts = pool.context_lens.tolist()
        positions, slots = [], []
        for row, tokens in enumerate(new_tokens):
            start, stop = starts[row], starts[row] + len(tokens)
            pool.allocate(row, stop)
            positions.append(torch.arange(start, stop, device=device))
            slots.append(pool.slot_mapping(row, start, stop))
        lens = torch.tensor([len(tokens) for tokens in new_tokens], dtype=torch.int32, device=device)
        ends = lens.cumsum(0, dtype=torch.int32)
        batch = PagedBatch(
            self.cache,
            pool.page_table,
            pool.context_lens,
            cu_block_lens=torch.nn.functional.pad(ends, (1, 0)),
            slot_mapping=torch.cat(slots),
            windows=self.windows,
            workspace=self.workspace,
        )
        with paged_batch(batch):
            output = self.model(
                input_ids=torch.tensor([list(chain.from_iterable(new_tokens))], device=device),
                position_ids=torch.cat(positions)[None],
                use_cache=False,
                logits_to_keep=ends - 1,
            )
        pool.context_lens += lens
        return output.logits[0]

    def generate(self, prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
        """Greedy continuations, one token a forward."""
        answers: list[list[int]] = [[] for _ in prompts]
        tokens = prompts
        for _ in range(max_new_tokens):
            chosen = self.forward(tokens).argmax(dim=-1).tolist()
            for answer, token in zip(answers, chosen, strict=True):
                answer.append(token)
            tokens = [[token] for token in chosen]
        return answers


def tiny_model() -> LlamaForCausalLM:
    """A random Llama with grouped query heads."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
        prompts = [tokenizer(sys.argv[2])["input_ids"]]
        model = PagedModel(AutoModelForCausalLM.from_pretrained(sys.argv[1]), 1, len(prompts[0]) + 32)
        print(tokenizer.decode(model.generate(prompts, 32)[0]))
    else:
        for answer in PagedModel(tiny_model(), 2, 64).generate([[1, 2, 3], [4, 5, 6, 7, 8]], 16):
            print(answer)
