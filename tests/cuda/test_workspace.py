"""One workspace, zeroed once, serves CUDA ops of every kind and size one after another."""

import torch

from dflash_ops import _host, reference
from tests.cases import lm_head_argmax as lm_head_argmax_cases
from tests.cuda.gpu import COUNTER_BYTES, Gpu
from tests.cuda.simulated_context_ops import remask
from tests.cuda.simulated_ops import row_argmax, verify_greedy
from tests.cuda.simulated_stream_ops import lm_head_argmax

VOCABULARY, MASK = 6000, 5


def test_ops_of_growing_size_share_a_workspace() -> None:
    """What a small call leaves behind its counters must not be a larger call's counters."""
    generator = torch.Generator().manual_seed(0)
    workspace = torch.zeros(COUNTER_BYTES + (1 << 22), dtype=torch.uint8)
    for batch in (1, 2, 19):
        logits = torch.randn(batch, 2, VOCABULARY, generator=generator).bfloat16()
        ids, _ = row_argmax(Gpu(), logits[:, 0], workspace=workspace)
        assert torch.equal(ids, logits[:, 0].argmax(-1))

        drafts = logits[:, :1].argmax(-1)
        expected = reference.verify_greedy(drafts, target_logits=logits.double())
        actual = verify_greedy(Gpu(), drafts, target_logits=logits, workspace=workspace)
        assert all(torch.equal(left, right) for left, right in zip(actual, expected, strict=True))

        tokens = torch.full((batch, 2), MASK)
        keep = torch.ones(batch, dtype=torch.int32)
        wanted, _ = reference.remask(logits.double(), tokens, mask_token_id=MASK, keep=keep)
        kept, _ = remask(Gpu(), logits, tokens, mask_token_id=MASK, keep=keep, workspace=workspace)
        assert torch.equal(kept, wanted)

        hidden, weight = lm_head_argmax_cases.Case(batch, 520, 300).operands(torch.bfloat16)
        heads, _ = lm_head_argmax(Gpu(), hidden, weight, workspace=workspace)
        assert torch.equal(heads, (hidden.double() @ weight.double().T).argmax(-1))
        assert (workspace[:COUNTER_BYTES] == 0).all()
        assert (workspace[COUNTER_BYTES:] != 0).any()


def test_workspaces_begin_with_the_counters() -> None:
    sizes = (
        _host.row_argmax_workspace_size(1),
        _host.verify_greedy_workspace_size(1, 1),
        _host.verify_sampled_workspace_size(1, 1, 100),
        _host.remask_workspace_size(1, 1),
        _host.lm_head_argmax_cuda_workspace_size(1, 1, 1),
        _host.fuse_features_cuda_workspace_size(1, 1, 1, 1),
        _host.project_context_kv_cuda_workspace_size(1, 1, 1),
    )
    assert min(sizes) > COUNTER_BYTES
