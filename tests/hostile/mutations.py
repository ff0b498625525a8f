"""Changes that make a valid argument of an op a hostile one, or a valid one of another layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

from tests.hostile.op_calls import Arguments, tensors_of

Mutation = Callable[[Random, Tensor, Arguments], tuple[Tensor, str]]

INTEGERS = [
    *(-(2**63), -(2**31) - 1, -(2**31), -7, -2, -1, 0, 1, 2, 3, 5, 8, 16, 255, 256, 257),
    *(2**31 - 1, 2**31, 2**32 + 1, 2**40, 2**62, 2**63 - 1, 2**63),
]
FLOATS = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, -1.0, 1e-320, 1e38, -1e38, 1e300]
DTYPES = [
    *(torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.float8_e4m3fn),
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool),
]
LARGE = 10**6  # elements; what has more is an expanded one that must not be copied
HUGE = [2**31 - 1, 2**31, 2**32, 2**40, 2**55, 2**60]
OTHER_OBJECTS: list[Any] = [None, 3, -1, 0.5, True, "causal", "", "\0", [], [1, 2], object()]
MODES = ["anchor", "block_causal", "bidirectional", "causal", "Causal", ""]


def mutate(random: Random, arguments: Arguments) -> str:
    """Changes one argument in place; says how."""
    name = random.choice([name for name, value in arguments.items() for _ in range(2 if _is_integral(value) else 1)])
    value = arguments[name]
    if random.random() < 0.04:
        arguments[name] = random.choice(OTHER_OBJECTS)
        return f"{name} = {arguments[name]!r}"
    if isinstance(value, Tensor):
        # 2^31 slots, documents or words are legal where no output bounds them, and take their time.
        unbounded = name in ("slot_mapping", "cu_seqlens", "weight")
        kinds = [kind for kind in KINDS if kind is not _huge] if unbounded else KINDS
        arguments[name], what = _mutated_tensor(random, value, arguments, kinds)
    elif (
        isinstance(value, list)
        and value
        and all(isinstance(entry, Tensor) for entry in value)
        and random.random() < 0.8
    ):
        index = random.randrange(len(value))
        changed, what = _mutated_tensor(random, value[index], arguments, KINDS)
        arguments[name] = [*value[:index], changed, *value[index + 1 :]]
        what = f"[{index}] {what}"
    elif isinstance(value, list):
        arguments[name] = random.choice([[], value[:-1], value * 2, value[::-1], [*value, None], value * 130])
        what = f"list of {len(arguments[name])} instead of {len(value)}"
    elif isinstance(value, bool):
        arguments[name], what = not value, f"{not value}"
    elif isinstance(value, int | float):
        arguments[name] = random.choice(INTEGERS if isinstance(value, int) else FLOATS)
        what = repr(arguments[name])
    elif isinstance(value, str):
        arguments[name] = random.choice(MODES)
        what = repr(arguments[name])
    else:
        others = [tensor for other in arguments.values() for tensor in tensors_of(other)]
        arguments[name] = random.choice([*others, 1, 0.0]) if others else 1
        what = "something instead of None"
    return f"{name}: {what}"


def _mutated_tensor(
    random: Random, tensor: Tensor, arguments: Arguments, kinds: Sequence[Mutation]
) -> tuple[Tensor, str]:
    if tensor.is_meta or tensor.numel() > LARGE:
        return tensor, "as it was"
    if _is_integral(tensor) and random.random() < 0.5:  # ids and lengths, where reading and writing go wrong
        kinds = [_values]
    try:
        return random.choice(kinds)(random, tensor, arguments)
    except RuntimeError as error:  # empty, but of sizes that leave no room for a further change
        return tensor, f"as it was: {error}"


def _is_integral(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.is_floating_point() and not value.is_complex()


def _values(random: Random, tensor: Tensor, arguments: Arguments) -> tuple[Tensor, str]:
    """Special values, written to a few elements or to all."""
    special: list[Any]
    if tensor.is_floating_point():
        largest = torch.finfo(tensor.dtype).max
        special = [value for value in FLOATS if not math.isfinite(value) or abs(value) <= largest]
    elif tensor.dtype == torch.bool:
        special = [False, True]
    elif tensor.is_complex():
        special = [complex(math.nan, 1)]
    else:
        limits = torch.iinfo(tensor.dtype)
        # Most of them near the values that are there and the sizes that they index, where a check that is off by one
        # would let them pass.
        near = [int(tensor.max()) + step for step in (-1, 1, 2)] if tensor.numel() else []
        special = [*INTEGERS, *near * 5] if random.random() < 0.5 else [*_indexed(arguments), -1]
        special = [value for value in special if limits.min <= value <= limits.max]
    new = tensor.clone()
    if new.numel() == 0:
        return new, "no values"
    places = [tuple(random.randrange(size) for size in tensor.shape) for _ in range(random.choice([1, 1, 3]))]
    chosen = [random.choice(special) for _ in places]
    for place, value in zip(places, chosen, strict=True):
        new[place] = value
    if random.random() < 0.1:
        new.fill_(chosen[0])
        return new, f"all {chosen[0]}"
    return new, f"values {dict(zip(places, chosen, strict=True))}"


def _indexed(arguments: Arguments) -> list[int]:
    """What ids, slots, positions and lengths among the arguments may have for a bound: rows, pages, slots of pages."""
    tensors = [tensor for value in arguments.values() for tensor in tensors_of(value)]
    return sorted({math.prod(tensor.shape[:axes]) for tensor in tensors for axes in (1, 2) if tensor.dim() >= axes})


def _layout(random: Random, tensor: Tensor, _: Arguments) -> tuple[Tensor, str]:
    """The same shape laid out otherwise, between elements of garbage."""
    if tensor.dim() == 0:
        return tensor.clone(), "a clone"
    order = list(range(tensor.dim()))
    kind = random.choice(["padded", "offset", "permuted", "strided last", "expanded", "overlapping"])
    if kind == "expanded":
        axis = random.choice(order)
        return tensor.narrow(axis, 0, min(1, tensor.shape[axis])).clone().expand_as(tensor), f"expanded along {axis}"
    if kind == "overlapping":
        strides = [random.choice([0, 1, 1, stride, stride // 2]) for stride in tensor.stride()]
        span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
        storage = _garbage(random, (max(span, 1),), tensor.dtype)
        return storage.as_strided(tensor.shape, strides), f"strides {strides}"
    if kind == "permuted":
        random.shuffle(order)
    inverse = [order.index(axis) for axis in range(tensor.dim())]
    pads = [random.choice([0, 0, 1, 3]) if kind != "offset" else 0 for _ in order]
    source = tensor.permute(order)
    step = 2 if kind == "strided last" else 1
    sizes = [size + pad for size, pad in zip(source.shape, pads, strict=True)]
    sizes[-1] *= step
    count = 1
    for size in sizes:
        count *= size
    offset = random.choice([0, 1, 3]) if kind == "offset" else 0
    storage = _garbage(random, (count + offset,), tensor.dtype)[offset:].view(sizes)[..., ::step]
    for axis, size in enumerate(source.shape):
        storage = storage.narrow(axis, random.randint(0, storage.shape[axis] - size), size)
    storage.copy_(source)
    new = storage.permute(inverse)
    return new, f"{kind}, strides {list(new.stride())} of {list(new.shape)}"


def _shape(random: Random, tensor: Tensor, _: Arguments) -> tuple[Tensor, str]:
    axis = random.randrange(tensor.dim()) if tensor.dim() else 0
    kinds = ["one more", "unsqueezed", "flat", "scalar", "row of one"]
    if tensor.dim() and tensor.shape[axis]:
        kinds += ["one less", "empty", "selected", "halved"]
    kind = random.choice(kinds)
    shape = list(tensor.shape)
    if tensor.dim():
        shape[axis] = 1
    if kind == "one more" and tensor.dim() and math.prod(shape) <= LARGE:
        new = torch.cat([tensor, torch.zeros(shape, dtype=tensor.dtype)], axis)
    elif kind == "one less":
        new = tensor.narrow(axis, 0, tensor.shape[axis] - 1)
    elif kind == "halved":
        new = tensor.narrow(axis, 0, tensor.shape[axis] // 2)
    elif kind == "empty":
        new = tensor.narrow(axis, 0, 0)
    elif kind == "selected":
        new = tensor.select(axis, 0)
    elif kind == "flat":
        new = tensor.flatten()
    elif kind == "unsqueezed":
        new = tensor.unsqueeze(random.choice([0, -1]))
    else:
        new = torch.zeros((1,) if kind == "row of one" else (), dtype=tensor.dtype)
    return new, f"{kind} along {axis}: {list(new.shape)} instead of {list(tensor.shape)}"


def _dtype(random: Random, tensor: Tensor, _: Arguments) -> tuple[Tensor, str]:
    dtype = random.choice(DTYPES)
    source = tensor.float().nan_to_num() if tensor.is_floating_point() else tensor
    return torch.zeros(tensor.shape, dtype=dtype).copy_(source), str(dtype)


def _device(random: Random, tensor: Tensor, _: Arguments) -> tuple[Tensor, str]:
    return tensor.to("meta"), "on meta"


def _alias(random: Random, tensor: Tensor, arguments: Arguments) -> tuple[Tensor, str]:
    """Memory of another argument, the same or shifted by some elements."""
    others = {
        f"{name}[{index}]": other
        for name, value in arguments.items()
        for index, other in enumerate(tensors_of(value))
        if other is not tensor and not other.is_meta and 0 < other.numel() <= LARGE
    }
    if not others or not tensor.numel():
        return tensor.clone(), "a clone"
    name = random.choice(list(others))
    shift = random.choice([0, 0, 1, tensor.numel() - 1])
    storage = others[name].untyped_storage()
    start = others[name].storage_offset() * others[name].element_size() // tensor.element_size() + shift
    if (start + tensor.numel()) * tensor.element_size() > storage.nbytes():
        return tensor.clone(), "a clone"
    new = torch.empty(0, dtype=tensor.dtype).set_(storage, start, tensor.shape)  # type: ignore[call-overload]
    return new, f"memory of {name} from element {shift}"


def _huge(random: Random, tensor: Tensor, _: Arguments) -> tuple[Tensor, str]:
    """Sizes or strides past 32 bits, in little memory."""
    if tensor.dim() == 0:
        return tensor.clone(), "a clone"
    axis = random.randrange(tensor.dim())
    if random.random() < 0.3:
        dense = tensor.contiguous()
        shape, strides = list(dense.shape), list(dense.stride())
        shape[axis], strides[axis] = 1, random.choice(HUGE)
        return dense.as_strided(shape, strides) if dense.numel() else dense, f"strides {strides}"
    shape = list(tensor.shape)
    size = shape[axis] = random.choice(HUGE)
    others = 1
    for other in shape:
        others *= max(other, 1)
    if others >= 2**63:
        shape = [1] * axis + [size] + [1] * (tensor.dim() - axis - 1)
    start = torch.zeros([1] * tensor.dim(), dtype=tensor.dtype)
    return start.expand(shape), f"shape {shape}"


def _garbage(random: Random, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.full(shape, torch.nan, dtype=dtype)
    if dtype == torch.bool:
        return torch.ones(shape, dtype=dtype)
    return torch.full(shape, random.choice([0, 1, torch.iinfo(dtype).max - 5]), dtype=dtype)


KINDS: Sequence[Mutation] = (_values, _values, _layout, _layout, _shape, _dtype, _alias, _huge, _device)
