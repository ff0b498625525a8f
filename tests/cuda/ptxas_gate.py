"""What every kernel's machine code has to be: no spills, registers for the blocks its plan counts on, vector accesses
where they are promised. `violations` says in words what is not so."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dflash_ops import _host
from tests.cuda.machine_code import KernelCode, entry_names, machine_code
from tests.cuda.occupancy import occupancy

# One GPU of each architecture.
GPU_OF = {"80": "A100", "86": "RTX 3090", "89": "RTX 4090", "90a": "H100", "100a": "B200", "120a": "RTX 5090"}


@dataclass(frozen=True)
class Promise:
    """`blocks` of `threads` threads on a multiprocessor, each with up to `shared_bytes` of dynamic shared memory, is what
    the plan in csrc/plan/cuda counts on. Loads, stores and asynchronous copies so many bytes wide must occur;
    `in_flight`: bytes a lane requests before it needs the first; `tensor`: matrix instructions are used."""

    blocks: int
    threads: int
    shared_bytes: int = 0
    load: int = 1
    store: int = 1
    in_flight: int = 1
    copy: int = 0
    tensor: bool = False


def _streams_weights(static_bytes: int) -> Callable[[_host.DeviceProperties], Promise]:
    """Two blocks on a multiprocessor, or one on the smaller ones, whose rings fill its shared memory."""

    def promise(device: _host.DeviceProperties) -> Promise:
        blocks = 2 if device.shared_bytes_per_multiprocessor >= 128 * 1024 else 1
        ring = device.shared_bytes_per_multiprocessor // blocks - 1024 - static_bytes
        return Promise(blocks, 128, ring, load=16, store=16, copy=16, tensor=True)

    return promise


# ptxas may put the use of the first of four loads before the last.
_ARGMAX = Promise(blocks=4, threads=256, load=16, in_flight=48)
_CONTEXT_SHARED, _NORM_SHARED = 40 * 1024, 18 * 1024
# By the kernel's name, the first that matches all of it. A 16-bit tensor beside a 32-bit one is accessed 8 bytes a lane.
_PROMISES: dict[str, Promise | Callable[[_host.DeviceProperties], Promise]] = {
    r"begin_block|commit_block|verify_greedy_ids": Promise(blocks=8, threads=128),
    r"(row_argmax|verify_greedy|remask)_\w+": _ARGMAX,
    r"write_context_kv_(\w+)_\1": Promise(2, 384, _CONTEXT_SHARED, load=16, store=16, in_flight=32),
    r"write_context_kv_float32_\w+": Promise(2, 384, _CONTEXT_SHARED, load=16, store=8, in_flight=32),
    r"write_context_kv_\w+_float32": Promise(2, 384, _CONTEXT_SHARED, load=8, store=16, in_flight=16),
    r"write_context_kv_(?!unaligned)\w+": Promise(2, 384, _CONTEXT_SHARED, load=16, store=16, in_flight=32),
    r"write_context_kv_unaligned": Promise(2, 384, _CONTEXT_SHARED),
    r"write_products": Promise(2, 384, _CONTEXT_SHARED, load=16, store=16, in_flight=32),
    r"write_products_unaligned": Promise(2, 384, _CONTEXT_SHARED),
    r"update_page_bounds_unaligned": Promise(8, 128),
    r"update_page_bounds_\w+": Promise(8, 128, load=16, store=16, in_flight=48),
    r"norm_rope_qkv_unaligned": Promise(2, 512, _NORM_SHARED),
    r"norm_rope_qkv_\w+": Promise(2, 512, _NORM_SHARED, load=16, store=16, in_flight=32),
    r"sample_maxima_\w+": Promise(blocks=3, threads=256, load=16, in_flight=32),
    r"sample_masses_\w+": Promise(blocks=2, threads=256, load=16, in_flight=32),
    r"verify_sampled_\w+": Promise(blocks=1, threads=512, load=16),
    r"lm_head_argmax_\w+": _streams_weights(4 * 1024 + 16),
    r"fuse_features_\w+": _streams_weights(16),
    r"normalise_features_\w+": Promise(blocks=4, threads=256, load=16, store=16, in_flight=32),
    r"project_context_kv_\w+": _streams_weights(17664 + 16),
    r"masked_backward_terms_\w+": Promise(blocks=12, threads=128, load=16, store=8, in_flight=32),
    r"masked_backward_sum_sm90a_\w+": Promise(blocks=1, threads=256, load=16, store=16, in_flight=64),
    r"masked_backward_sum_\w+": Promise(blocks=2, threads=128, load=16, store=16, in_flight=64),
    r"masked_block_attention_(order|row_tiles|key_tiles|schedule)": Promise(blocks=8, threads=128),
}


def _attention(head_dim: int, rows: int, device: _host.DeviceProperties, width: int) -> Promise:
    """What the plan's table says for a GPU: the splits of one row tile over a long context fill it once. `width`:
    bytes of its results' stores, and of the loads that are not copies."""
    params = _host.BlockAttentionParams(
        dtype=_host.DType.bfloat16,
        batch=1,
        tokens=rows,
        q_heads=1,
        kv_heads=1,
        head_dim=head_dim,
        page_size=256,
        max_pages=1 << 16,
    )
    plan = _host.plan_block_attention(params, 0, device)
    return Promise(
        blocks=plan.grid[2] // device.multiprocessors,
        threads=plan.block[0],
        shared_bytes=plan.shared_bytes,
        load=width,
        store=width,
        copy=16,
        tensor=True,
    )


def _masked_attention(kernel: str, head_dim: int, device: _host.DeviceProperties) -> Promise:
    """Two blocks on a multiprocessor, one where shared memory is small and heads are large, or of three warpgroups."""
    params = _host.MaskedBlockAttentionParams(
        dtype=_host.DType.bfloat16 if "_bfloat16" in kernel else _host.DType.float16,
        mode=_host.MaskMode.causal,
        queries=1,
        keys=1,
        q_heads=1,
        kv_heads=1,
        head_dim=head_dim,
    )
    by_warpgroups = "_sm90a_" in kernel
    # A build without sm_90a plans for a Hopper as for a GPU with as much shared memory that has no such kernels.
    planner = device if by_warpgroups or not device.warpgroup_kernels else _host.known_device("B200")
    plans = _host.plan_masked_block_attention_forward(params, 0, planner)
    plans += _host.plan_masked_block_attention_backward(params, 0, planner)
    (plan,) = (plan for plan in plans if plan.entry == kernel)
    small = head_dim == 128 and device.shared_bytes_per_multiprocessor < 164 * 1024
    blocks = 1 if small or by_warpgroups else 2
    return Promise(blocks, plan.block[0], plan.shared_bytes, load=4, store=16, copy=16, tensor=True)


def promise_of(kernel: str, device: _host.DeviceProperties) -> Promise:
    if match := re.fullmatch(r"(sparse_block_attention|block_attention|select_pages)_\w+?_(\d+)_(\d+)", kernel):
        return _attention(int(match[2]), int(match[3]), device, width=4 if match[1] == "select_pages" else 16)
    masked = r"masked_(?:block_attention|backward_keys|backward_queries)(?:_sm90a)?_b?float16_(\d+)"
    if match := re.fullmatch(masked, kernel):
        return _masked_attention(kernel, int(match[1]), device)
    for pattern, promise in _PROMISES.items():
        if re.fullmatch(pattern, kernel):
            return promise if isinstance(promise, Promise) else promise(device)
    raise ValueError(f"{kernel}: no promise in tests/cuda/ptxas_gate.py")


def violations(op: str, arch: str) -> list[str]:
    """Everything that an op's kernels do not hold on one architecture."""
    kernels = machine_code(op, arch)
    problems = []
    if sorted(kernels) != entry_names(op):
        problems.append(f"{op}: expected kernels {entry_names(op)}, got {sorted(kernels)}")
    device = _host.known_device(GPU_OF[arch])
    for code in kernels.values():
        problems += [f"{code.name} (sm_{arch}): {problem}" for problem in _problems(code, device)]
    return problems


def _problems(code: KernelCode, device: _host.DeviceProperties) -> Iterator[str]:
    promise = promise_of(code.name, device)
    if code.spill_bytes or code.stack_bytes:
        yield f"{code.spill_bytes} bytes of spills, {code.stack_bytes} bytes of stack"
    yield from code.losses
    if code.local_accesses:
        yield f"{code.local_accesses} LDL or STL"
    fit = occupancy(device, promise.threads, code.registers, code.shared_bytes + promise.shared_bytes)
    if fit.blocks < promise.blocks:
        yield f"expected {promise.blocks} blocks on a multiprocessor, got {fit} at {code.registers} registers"
    for opcode, width in (("LDG", promise.load), ("STG", promise.store)):
        if code.global_accesses(opcode, width) == 0:
            yield f"no {opcode} of {width} bytes"
    if promise.copy and code.global_accesses("LDGSTS", promise.copy) == 0:
        yield f"no LDGSTS of {promise.copy} bytes"
    if promise.tensor and code.tensor_instructions == 0:
        yield "no tensor-core instruction"
    if code.load_bytes_in_flight < promise.in_flight:
        yield f"expected {promise.in_flight} bytes a lane in flight, got {code.load_bytes_in_flight}"
