"""DFlash speculative decoding on `dflash_ops`: drafter, target, decoder."""

from .adaptive import AdaptiveOptions
from .cache import OutOfPages, PagedKVCache, PagePool
from .config import DraftConfig
from .decoder import DFlashDecoder
from .draft_context import CacheFreeContext, DraftContext, FullContext, SparseContext, WindowContext
from .drafter import DFlashDrafter
from .drafter_protocol import Drafter
from .exactness import GreedyDifference, compare_greedy
from .request import Cancellation, FinishReason, Generation, Generations, StreamEvent
from .sampling import SamplingParams
from .speedup import Speedup
from .stats import DecodeStats
from .target import Target, TargetOutput

__all__ = [
    "AdaptiveOptions",
    "CacheFreeContext",
    "Cancellation",
    "DFlashDecoder",
    "DFlashDrafter",
    "DecodeStats",
    "DraftConfig",
    "DraftContext",
    "Drafter",
    "FinishReason",
    "FullContext",
    "Generation",
    "Generations",
    "GreedyDifference",
    "OutOfPages",
    "PagePool",
    "PagedKVCache",
    "SamplingParams",
    "SparseContext",
    "Speedup",
    "StreamEvent",
    "Target",
    "TargetOutput",
    "WindowContext",
    "compare_greedy",
]
