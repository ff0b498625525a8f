"""Stand-alone block diffusion: a language model that fills blocks of tokens over several denoising steps."""

from .config import BlockDiffusionConfig
from .decoder import BlockDiffusionDecoder, BlockGeneration
from .model import BlockDiffusionModel

__all__ = ["BlockDiffusionConfig", "BlockDiffusionDecoder", "BlockDiffusionModel", "BlockGeneration"]
