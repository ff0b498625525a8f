"""The target: any Hugging Face causal language model, its attention on our paged cache.

Requests of different lengths are packed into one row of tokens with explicit positions, so the model sees a batch of
one and nothing is padded. Contexts live in a `PagedKVCache`; accepting fewer tokens than were verified sets a length.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from dflash_decoding.attention import ATTENTION_NAME, PagedBatch, UnsupportedTarget, paged_batch
from dflash_decoding.cache import PagedKVCache, PagePool
from dflash_decoding.few_rows import use_few_row_products
from dflash_decoding.models import ModelSource, resolve_target
from dflash_decoding.workspace import Workspace

# A tap of what goes into the first layer: the embedded tokens, Hugging Face's `hidden_states[0]`.
EMBEDDING_TAP = -1

# RoPE types whose angles depend on the longest request of a forward: cached keys would not match later queries, and one
# request's text would depend on the others in its batch.
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


@dataclass
class TargetOutput:
    """What `Target.forward` returns.

    Attributes:
        logits: `[rows, V]` of the rows asked for, in their order; None when none were asked for.
        taps: for each tapped layer, in the order asked for, its output `[tokens, H_t]`.
    """

    logits: Tensor | None
    taps: list[Tensor]


class Target:
    """A causal language model that runs on paged caches.

    Attributes:
        model: the Hugging Face model, in evaluation mode, without gradients; its attention is switched to our own.
        config: its text config.
        num_layers, hidden_size, vocab_size: sizes; `vocab_size` is the number of logits.
        layers: the decoder layers.
        embed_weight: `[V, H]` input embedding, `lm_head_weight`: `[V, H]` output projection; shared, not copied.
        eos_token_ids: ids that end a text, by the generation config, else the model config.

    Args:
        row_invariant: products of few rows on `FewRowLinear`, which rounds a row the same in plain decoding and in
            verification. None: in float32 on CPU, where that is also the faster way.

    Raises:
        UnsupportedTarget: the model has layers that are not plain causal attention, or is no decoder-only model.
    """

    def __init__(
        self, model: nn.Module, source: ModelSource | None = None, *, row_invariant: bool | None = None
    ) -> None:
        self.config: Any = model.config.get_text_config()
        self.num_layers: int = self.config.num_hidden_layers
        self.hidden_size: int = self.config.hidden_size
        self._windows = _layer_windows(self.config)
        _check_supported(model, self.config)
        self.layers: nn.ModuleList = _decoder_layers(model, self.num_layers)
        self._source = source
        model.set_attn_implementation(ATTENTION_NAME)
        self.model = model.eval().requires_grad_(False)
        self.embed_weight: Tensor = model.get_input_embeddings().weight
        self._workspace = Workspace(self.device)
        if row_invariant is None:
            row_invariant = self.dtype == torch.float32 and self.device.type == "cpu"
        if row_invariant:
            use_few_row_products(model)
        self.lm_head_weight: Tensor = model.get_output_embeddings().weight
        self.vocab_size: int = self.lm_head_weight.shape[0]
        self.eos_token_ids = _eos_token_ids(model)

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        *,
        row_invariant: bool | None = None,
    ) -> Target:
        """Loads a target by name: `smollm2`, a local folder or GGUF file, or a hub id. Never reads pickled weights.

        Raises:
            FileNotFoundError, ValueError: see `resolve_target`. ValueError also for a damaged GGUF file.
            OSError: a hub id that cannot be fetched or has no safetensors.
            UnsupportedTarget: see the class.
        """
        source = resolve_target(name_or_path)
        arguments: dict[str, Any] = {"gguf_file": source.gguf_file} if source.gguf_file else {"use_safetensors": True}
        try:
            model = AutoModelForCausalLM.from_pretrained(
                source.path, dtype=dtype, local_files_only=source.is_local, **arguments
            )
        except Exception as error:
            if not source.gguf_file or not source.is_local:
                raise
            # A damaged file fails anywhere in its parser, with whatever exception comes of it.
            path = Path(source.path) / source.gguf_file
            raise ValueError(f"target: {path}: expected a whole GGUF file of a known kind, got: {error!r}") from error
        return cls(model.to(device), source, row_invariant=row_invariant)

    @cached_property
    def tokenizer(self) -> Any:
        """The model's Hugging Face tokenizer, loaded at first use.

        Raises:
            ValueError: the target was made from a model object, which knows no tokenizer, or the files have none.
        """
        if self._source is None:
            raise ValueError("tokenizer: expected a target loaded by name, got one made from a model object")
        arguments: dict[str, Any] = {"gguf_file": self._source.gguf_file} if self._source.gguf_file else {}
        tokenizer = AutoTokenizer.from_pretrained(
            self._source.path, local_files_only=self._source.is_local, **arguments
        )
        if len(tokenizer) <= len(tokenizer.all_special_ids):  # what some classes make of a folder without their files
            raise ValueError(f"tokenizer: expected tokenizer files in {self._source.path}, got none")
        return tokenizer

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.embed_weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the weights, and so of caches, logits and taps."""
        return self.embed_weight.dtype

    def new_cache(self, pool: PagePool) -> PagedKVCache:
        """A K/V cache for all layers over the pages of `pool`, in the model's dtype."""
        shapes = [_kv_shape(_layer_config(self.config, layer)) for layer in range(self.num_layers)]
        return PagedKVCache(
            pool, self.num_layers, [heads for heads, _ in shapes], [head_dim for _, head_dim in shapes], self.dtype
        )

    @torch.no_grad()
    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        slot_mapping: Tensor,
        cache: PagedKVCache,
        page_table: Tensor,
        context_lens: Tensor,
        cu_block_lens: Tensor | None = None,
        *,
        tap_layers: Sequence[int] = (),
        logit_rows: Tensor | Literal["all"] | None = "all",
    ) -> TargetOutput:
        """Runs the model on the new tokens of b requests, packed one after the other.

        A token attends to its request's context (the first `context_lens` tokens in the cache) and to its request's new
        tokens up to itself. K and V of the new tokens go into the cache; lengths are left to the caller.

        Args:
            input_ids, positions, slot_mapping: int64 `[tokens]`; slot -1 keeps a token out of the cache.
            cache: from `new_cache`.
            page_table: int32 `[b, max_pages]`, context_lens: int32 `[b]`.
            cu_block_lens: int32 `[b + 1]`, where each request's tokens begin and end; None: tokens / b each.
            tap_layers: layers, counted from 0, whose output is returned: Hugging Face's `hidden_states[id + 1]`, but
                before the final norm for the last layer. `EMBEDDING_TAP` is what goes into layer 0.
            logit_rows: int64 `[rows]`, rows to return logits of, "all", or None for none.

        Raises:
            ValueError: a shape does not fit, or a tap is no layer.
            UnsupportedTarget: the model's layers turn out to need what our attention does not compute.
        """
        _check_batch(input_ids, positions, slot_mapping, page_table, context_lens, cu_block_lens)
        for layer in tap_layers:
            if not EMBEDDING_TAP <= layer < self.num_layers:
                raise ValueError(
                    f"tap_layers: expected layers in 0..{self.num_layers - 1} or {EMBEDDING_TAP} (embedding), got {layer}"
                )
        tokens = input_ids.shape[0]
        if tokens == 0:
            empty = self.embed_weight.new_empty
            logits = None if logit_rows is None else empty(0, self.vocab_size)
            return TargetOutput(logits, [empty(0, self.hidden_size) for _ in tap_layers])
        rows: Tensor | int = 0  # 0 is transformers' "all rows"
        if isinstance(logit_rows, Tensor):
            rows = logit_rows
        elif logit_rows is None:
            rows = input_ids.new_empty(0)
        batch = PagedBatch(cache, page_table, context_lens, cu_block_lens, slot_mapping, self._windows, self._workspace)
        with paged_batch(batch), self._tapped(tap_layers) as taps:
            output = self.model(
                input_ids=input_ids.unsqueeze(0),
                position_ids=positions.unsqueeze(0),
                use_cache=False,
                logits_to_keep=rows,
            )
        if len(batch.visited) != self.num_layers:
            missing = sorted(set(range(self.num_layers)) - batch.visited)
            raise UnsupportedTarget(
                f"{type(self.model).__name__}: expected every layer to call transformers' attention interface, "
                f"got none from layers {missing}"
            )
        return TargetOutput(None if logit_rows is None else output.logits[0], [taps[layer] for layer in tap_layers])

    @contextmanager
    def _tapped(self, tap_layers: Sequence[int]) -> Iterator[dict[int, Tensor]]:
        """Collects the outputs of the given layers, `[tokens, H_t]` each, while the `with` block runs."""
        taps: dict[int, Tensor] = {}

        def record(layer: int) -> Any:
            def hook(module: nn.Module, inputs: Any, output: Any) -> None:
                hidden_states = output if isinstance(output, Tensor) else output[0]
                taps[layer] = hidden_states[0]

            return hook

        def record_input(module: nn.Module, inputs: tuple[Tensor, ...], keywords: dict[str, Any]) -> None:
            taps[EMBEDDING_TAP] = (inputs[0] if inputs else keywords["hidden_states"])[0]

        layers = set(tap_layers)
        handles = [
            self.layers[layer].register_forward_hook(record(layer)) for layer in sorted(layers - {EMBEDDING_TAP})
        ]
        if EMBEDDING_TAP in layers:
            handles.append(self.layers[0].register_forward_pre_hook(record_input, with_kwargs=True))
        try:
            yield taps
        finally:
            for handle in handles:
                handle.remove()


def _check_batch(
    input_ids: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    page_table: Tensor,
    context_lens: Tensor,
    cu_block_lens: Tensor | None,
) -> None:
    if input_ids.ndim != 1:
        raise ValueError(f"input_ids: expected [tokens], got {tuple(input_ids.shape)}")
    for name, tensor in {"positions": positions, "slot_mapping": slot_mapping}.items():
        if tensor.shape != input_ids.shape:
            raise ValueError(f"{name}: expected {tuple(input_ids.shape)} like input_ids, got {tuple(tensor.shape)}")
    if context_lens.ndim != 1:
        raise ValueError(f"context_lens: expected [b], got {tuple(context_lens.shape)}")
    batch = context_lens.shape[0]
    if page_table.ndim != 2 or page_table.shape[0] != batch:
        raise ValueError(f"page_table: expected [{batch}, max_pages], got {tuple(page_table.shape)}")
    if cu_block_lens is not None and cu_block_lens.shape != (batch + 1,):
        raise ValueError(f"cu_block_lens: expected [{batch + 1}], got {tuple(cu_block_lens.shape)}")
    if cu_block_lens is None and input_ids.shape[0] % max(batch, 1):
        raise ValueError(f"input_ids: expected a multiple of {batch} tokens, got {input_ids.shape[0]}")


def _check_supported(model: nn.Module, config: Any) -> None:
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedTarget(f"{name}: expected a decoder-only model, got an encoder-decoder")
    if not getattr(model, "_supports_attention_backend", False):
        raise UnsupportedTarget(f"{name}: expected a model on transformers' attention interface, got one with its own")
    if "logits_to_keep" not in inspect.signature(model.forward).parameters:
        raise UnsupportedTarget(f"{name}: expected a forward with the argument logits_to_keep, got one without")
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in [rope, *rope.values()]:  # nested by layer type in models that have several
        rope_type = parameters.get("rope_type") if isinstance(parameters, dict) else None
        if rope_type in _LENGTH_DEPENDENT_ROPE:
            raise UnsupportedTarget(f"{name}: rope_type: expected angles fixed per position, got {rope_type}")


def _layer_windows(config: Any) -> tuple[int, ...]:
    """Sliding window of each layer, 0 for none.

    Raises:
        UnsupportedTarget: a layer is neither full nor sliding attention.
    """
    window = getattr(config, "sliding_window", None) or 0
    if getattr(config, "use_sliding_window", True) is False:
        window = 0
    layer_types = getattr(config, "layer_types", None)
    if layer_types is None:
        return (window,) * config.num_hidden_layers
    windows = {"full_attention": 0, "sliding_attention": window}
    for layer, layer_type in enumerate(layer_types):
        if layer_type not in windows:
            raise UnsupportedTarget(
                f"{config.model_type}: layer {layer}: expected full or sliding attention, got {layer_type}"
            )
    return tuple(windows[layer_type] for layer_type in layer_types)


def _layer_config(config: Any, layer: int) -> Any:
    """The config of one layer: models may give each layer its own head count and head size."""
    return config.per_layer_config[layer] if getattr(config, "is_heterogeneous", False) else config


def _kv_shape(config: Any) -> tuple[int, int]:
    """K/V heads and head size."""
    num_heads = config.num_attention_heads
    num_kv_heads = getattr(config, "num_key_value_heads", None) or num_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    return num_kv_heads, head_dim


def _decoder_layers(model: nn.Module, num_layers: int) -> nn.ModuleList:
    """The list of decoder layers, whatever the model calls it."""
    decoder = model.get_decoder()
    for module in decoder.children():
        if isinstance(module, nn.ModuleList) and len(module) == num_layers:
            return module
    raise UnsupportedTarget(f"{type(model).__name__}: expected a list of {num_layers} decoder layers, got none")


def _eos_token_ids(model: nn.Module) -> tuple[int, ...]:
    for config in (getattr(model, "generation_config", None), model.config, model.config.get_text_config()):
        ids = getattr(config, "eos_token_id", None)
        if ids is not None:
            return tuple(ids) if isinstance(ids, (list, tuple)) else (ids,)
    return ()
