"""Types of the compiled host-side module."""

from typing import Any

def build_info() -> dict[str, Any]: ...
def block_attention_workspace_size(
    tokens: int,
    batch: int,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    max_context: int,
    num_splits: int,
    threads: int,
) -> int: ...
def fuse_features_workspace_size(rows: int, taps: int, tap_columns: int, columns: int) -> int: ...
def project_context_kv_workspace_size(rows: int, hidden_size: int, columns: int) -> int: ...
def lm_head_argmax_workspace_size(rows: int, hidden_size: int, vocab_size: int) -> int: ...

class DType:
    float32: DType
    float16: DType
    bfloat16: DType

class DeviceProperties:
    """What a plan knows of a GPU; bytes, bytes per second, Hz."""

    name: str
    compute_capability: int
    multiprocessors: int
    shared_bytes_per_block: int
    shared_bytes_per_multiprocessor: int
    registers_per_multiprocessor: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    l2_bytes: int
    memory_bandwidth: float
    clock: float

def known_devices() -> list[DeviceProperties]: ...
def known_device(name: str) -> DeviceProperties: ...

class LaunchPlan:
    """One kernel launch; ``params`` are the bytes of the kernel's one parameter."""

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    params: bytes
    workspace_bytes: int

# Parameters of the ops (csrc/params/<op>.h): fields are set by name, absent ones are zero, pointers are integers.
class RowArgmaxParams:
    def __init__(self, **fields: Any) -> None: ...

class VerifyParams:
    def __init__(self, **fields: Any) -> None: ...

class BeginBlockParams:
    def __init__(self, **fields: Any) -> None: ...

class CommitBlockParams:
    def __init__(self, **fields: Any) -> None: ...

class SamplingParams:
    def __init__(self, **fields: Any) -> None: ...

class RemaskParams:
    def __init__(self, **fields: Any) -> None: ...

class RopeTable:
    def __init__(self, **fields: Any) -> None: ...

class NormRopeQkvParams:
    def __init__(self, **fields: Any) -> None: ...

class ContextCacheLayer:
    def __init__(self, **fields: Any) -> None: ...

class ContextCaches:
    def __init__(self, **fields: Any) -> None: ...

class WriteContextKvParams:
    def __init__(self, **fields: Any) -> None: ...

def row_argmax_workspace_size(rows: int) -> int: ...
def verify_greedy_workspace_size(batch: int, drafts: int) -> int: ...
def verify_sampled_workspace_size(batch: int, drafts: int, vocabulary: int) -> int: ...
def remask_workspace_size(batch: int, positions: int) -> int: ...
def plan_row_argmax(params: RowArgmaxParams, workspace: int, device: DeviceProperties) -> LaunchPlan: ...
def plan_verify_greedy(params: VerifyParams, workspace: int, device: DeviceProperties) -> LaunchPlan: ...
def plan_verify_sampled(
    params: VerifyParams, sampling: SamplingParams, workspace: int, device: DeviceProperties
) -> list[LaunchPlan]: ...
def plan_remask(params: RemaskParams, workspace: int, device: DeviceProperties) -> LaunchPlan: ...
def plan_norm_rope_qkv(params: NormRopeQkvParams, device: DeviceProperties) -> LaunchPlan: ...
def plan_write_context_kv(params: WriteContextKvParams, device: DeviceProperties) -> LaunchPlan: ...
def plan_begin_block(params: BeginBlockParams) -> LaunchPlan: ...
def plan_commit_block(params: CommitBlockParams) -> LaunchPlan: ...
