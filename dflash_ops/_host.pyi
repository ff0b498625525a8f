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

class _Params:
    """Parameters of an op (csrc/params/<op>.h): fields are set by name, absent ones are zero, pointers are integers."""

    def __init__(self, **fields: Any) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
    def __setattr__(self, name: str, value: Any) -> None: ...

class RowArgmaxParams(_Params): ...
class VerifyParams(_Params): ...
class BeginBlockParams(_Params): ...
class CommitBlockParams(_Params): ...

def row_argmax_workspace_size(rows: int) -> int: ...
def verify_greedy_workspace_size(batch: int, drafts: int) -> int: ...
def plan_row_argmax(params: RowArgmaxParams, workspace: int, device: DeviceProperties) -> LaunchPlan: ...
def plan_verify_greedy(params: VerifyParams, workspace: int, device: DeviceProperties) -> LaunchPlan: ...
def plan_begin_block(params: BeginBlockParams) -> LaunchPlan: ...
def plan_commit_block(params: CommitBlockParams) -> LaunchPlan: ...
