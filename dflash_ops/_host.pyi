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
def select_pages_workspace_size(batch: int, kv_heads: int, max_pages: int) -> int: ...
def sparse_block_attention_workspace_size(
    tokens: int,
    batch: int,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    max_pages: int,
    page_size: int,
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
    warpgroup_kernels: bool
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

class TensorMapPlan:
    """A tensor in global memory, innermost dimension first, and the box of it that a kernel fetches by TMA."""

    params_offset: int
    dtype: DType
    data: int
    sizes: list[int]
    strides: list[int]
    box: list[int]

def head_rows_tensor_map(
    data: int,
    row_stride: int,
    head_stride: int,
    dtype: DType,
    rows: int,
    heads: int,
    head_dim: int,
    box_rows: int,
    params_offset: int,
) -> TensorMapPlan | None: ...

class LaunchPlan:
    """One kernel launch; ``params`` are the bytes of the kernel's one parameter."""

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    params: bytes
    workspace_bytes: int
    bytes_in_flight: int
    overlaps: bool
    tensor_maps: list[TensorMapPlan]

class LibraryProduct:
    """``out[rows, columns] = activations[rows, inner] @ weight[columns, inner].T`` by torch's GEMM, ``out`` in float32."""

    activations: int
    weight: int
    out: int
    rows: int
    columns: int
    inner: int
    activations_stride: int
    weight_stride: int
    out_stride: int
    dtype: DType

class OpStep:
    """Products by torch's GEMM, then a launch."""

    products: list[LibraryProduct]
    launch: LaunchPlan

class _Params:
    """Parameters of an op (csrc/params/<op>.h): fields are set by name, absent ones are zero, pointers are integers."""

    def __init__(self, **fields: Any) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
    def __setattr__(self, name: str, value: Any) -> None: ...

class RowArgmaxParams(_Params): ...
class VerifyParams(_Params): ...
class BeginBlockParams(_Params): ...
class CommitBlockParams(_Params): ...

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

class BlockAttentionParams:
    def __init__(self, **fields: Any) -> None: ...

class MaskMode:
    """The modes of masked_block_attention by name."""

    anchor: MaskMode
    block_causal: MaskMode
    bidirectional: MaskMode
    causal: MaskMode

class MaskedBlockAttentionParams(_Params):
    """A tensor's fields are its address, ``<name>_row_stride`` and ``<name>_head_stride``."""

class GemmActivations:
    """``pieces``: addresses and row strides."""

    def __init__(self, **fields: Any) -> None: ...

class GemmWeight:
    def __init__(self, **fields: Any) -> None: ...

class SkinnyGemm:
    def __init__(self, **fields: Any) -> None: ...

class LmHeadArgmaxParams:
    def __init__(self, **fields: Any) -> None: ...

class FuseFeaturesParams:
    def __init__(self, **fields: Any) -> None: ...

class ProjectContextKvParams:
    def __init__(self, **fields: Any) -> None: ...

def fuse_features_cuda_workspace_size(rows: int, taps: int, tap_columns: int, columns: int) -> int: ...
def plan_fuse_features(params: FuseFeaturesParams, device: DeviceProperties) -> list[OpStep]: ...
def project_context_kv_cuda_workspace_size(rows: int, hidden_size: int, columns: int) -> int: ...
def plan_project_context_kv(params: ProjectContextKvParams, device: DeviceProperties) -> list[OpStep]: ...
def lm_head_argmax_cuda_workspace_size(rows: int, hidden_size: int, vocab_size: int) -> int: ...
def plan_lm_head_argmax(params: LmHeadArgmaxParams, device: DeviceProperties) -> LaunchPlan: ...

class PageBoundsLayer:
    def __init__(self, **fields: Any) -> None: ...

class UpdatePageBoundsParams:
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
def block_attention_cuda_workspace_size(
    tokens: int,
    batch: int,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    max_context: int,
    num_splits: int,
    multiprocessors: int,
) -> int: ...

class PageSelection:
    def __init__(self, **fields: Any) -> None: ...

class SelectPagesParams:
    def __init__(self, **fields: Any) -> None: ...

def sparse_block_attention_cuda_workspace_size(
    tokens: int,
    batch: int,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    max_pages: int,
    page_size: int,
    num_splits: int,
    multiprocessors: int,
) -> int: ...
def plan_sparse_block_attention(
    params: BlockAttentionParams, selection: PageSelection, width: int, workspace: int, device: DeviceProperties
) -> LaunchPlan: ...
def select_pages_cuda_workspace_size(batch: int, kv_heads: int, max_pages: int) -> int: ...
def plan_select_pages(params: SelectPagesParams, workspace: int, device: DeviceProperties) -> LaunchPlan: ...
def plan_block_attention(params: BlockAttentionParams, workspace: int, device: DeviceProperties) -> LaunchPlan: ...
def masked_block_attention_forward_workspace_size(params: MaskedBlockAttentionParams) -> int: ...
def plan_masked_block_attention_forward(
    params: MaskedBlockAttentionParams, workspace: int, device: DeviceProperties
) -> list[LaunchPlan]: ...
def masked_block_attention_backward_workspace_size(
    params: MaskedBlockAttentionParams, device: DeviceProperties
) -> int: ...
def plan_masked_block_attention_backward(
    params: MaskedBlockAttentionParams, workspace: int, device: DeviceProperties
) -> list[LaunchPlan]: ...
def mask_tiles_size(params: MaskedBlockAttentionParams, rows: int, keys: int, with_key_tiles: bool) -> int: ...
def plan_mask_tiles(
    params: MaskedBlockAttentionParams, rows: int, keys: int, with_key_tiles: bool, workspace: int
) -> tuple[list[LaunchPlan], dict[str, int]]:
    """The launches, and where their results will lie."""

def plan_update_page_bounds(params: UpdatePageBoundsParams, device: DeviceProperties) -> LaunchPlan: ...
def plan_begin_block(params: BeginBlockParams) -> LaunchPlan: ...
def plan_commit_block(params: CommitBlockParams) -> LaunchPlan: ...
