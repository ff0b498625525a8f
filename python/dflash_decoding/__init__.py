"""DFlash speculative decoding on `dflash_ops`: drafter, target, decoder."""

from .cache import OutOfPages, PagedKVCache, PagePool
from .config import DraftConfig
from .decoder import DFlashDecoder
from .drafter import DFlashDrafter
from .exactness import GreedyDifference, compare_greedy
from .request import Cancellation, FinishReason, Generation, Generations, StreamEvent
from .sampling import SamplingParams
from .session import Drafter
from .speedup import Speedup
from .stats import DecodeStats
from .target import Target, TargetOutput

__all__ = [
    "Cancellation",
    "DFlashDecoder",
    "DFlashDrafter",
    "DecodeStats",
    "DraftConfig",
    "Drafter",
    "FinishReason",
    "Generation",
    "Generations",
    "GreedyDifference",
    "OutOfPages",
    "PagePool",
    "PagedKVCache",
    "SamplingParams",
    "Speedup",
    "StreamEvent",
    "Target",
    "TargetOutput",
    "compare_greedy",
]
