"""Runs a few PTX instructions on vectors of operands: what the per-opcode tests are written with."""

from typing import Any

import numpy as np

from tests.ptxsim.formats import Array
from tests.ptxsim.simulator import Module, Report

# PTX type -> (register type, load/store type, bytes)
_TYPES = {
    "u8": ("b16", "u8"),
    "s8": ("b16", "s8"),
    "u16": ("b16", "u16"),
    "s16": ("b16", "s16"),
    "b16": ("b16", "b16"),
    "f16": ("b16", "b16"),
    "bf16": ("b16", "b16"),
    "u32": ("b32", "u32"),
    "s32": ("b32", "s32"),
    "b32": ("b32", "b32"),
    "f32": ("f32", "f32"),
    "f16x2": ("b32", "b32"),
    "bf16x2": ("b32", "b32"),
    "u64": ("b64", "u64"),
    "s64": ("b64", "s64"),
    "b64": ("b64", "b64"),
    "f64": ("f64", "f64"),
}


def header(target: str = "sm_90") -> str:
    """The first lines of every module."""
    return f".version 8.4\n.target {target}\n.address_size 64\n"


def entry(name: str, parameters: str, body: str) -> str:
    """A kernel with the given parameter list and body."""
    return f".visible .entry {name}({parameters})\n{{\n{body}\nret;\n}}\n"


def elementwise(body: str, inputs: list[tuple[str, Any]], result: str, dtype: Any, extra: str = "") -> Array:
    """Runs `body` once for each element: operands are %a, %b, %c, %e, the result is %d, %p and %q are predicates.

    `inputs` are (PTX type, array); arrays are broadcast against each other.
    """
    arrays = np.broadcast_arrays(*[np.atleast_1d(values) for _, values in inputs])
    count = arrays[0].size
    names = ["a", "b", "c", "e"][: len(inputs)]
    parameters = ", ".join([".param .u64 out", *(f".param .u64 in{i}" for i in range(len(inputs)))])
    lines = [
        ".reg .pred %p, %q, %guard;\n.reg .b32 %i, %n, %t, %block;\n.reg .b64 %offset, %pointer;",
        f".reg .{_TYPES[result][0]} %d;",
        "mov.u32 %t, %tid.x;\nmov.u32 %block, %ctaid.x;\nmov.u32 %n, %ntid.x;\nmad.lo.u32 %i, %block, %n, %t;",
        f"setp.ge.u32 %guard, %i, {count};\n@%guard ret;",
    ]
    for index, (name, (kind, _)) in enumerate(zip(names, inputs, strict=True)):
        register, access = _TYPES[kind]
        size = arrays[index].itemsize
        lines.append(f".reg .{register} %{name};")
        lines.append(f"ld.param.u64 %pointer, [in{index}];\nmul.wide.u32 %offset, %i, {size};")
        lines.append(f"add.u64 %pointer, %pointer, %offset;\nld.global.{access} %{name}, [%pointer];")
    size = np.dtype(dtype).itemsize
    lines.append(body)
    lines.append(f"ld.param.u64 %pointer, [out];\nmul.wide.u32 %offset, %i, {size};")
    lines.append(f"add.u64 %pointer, %pointer, %offset;\nst.global.{_TYPES[result][1]} [%pointer], %d;")
    module = Module.from_ptx(header() + extra + entry("snippet", parameters, "\n".join(lines)))
    output = np.zeros(count, dtype)
    module.launch("snippet", (count + 63) // 64, 64, [output, *(np.ascontiguousarray(a) for a in arrays)]).check()
    return output


def launch(body: str, arguments: list[Any], block: int = 32, grid: int = 1, extra: str = "", **options: Any) -> Report:
    """A kernel of parameters p0, p1, ... in %rd0, %rd1, ...: numbers, or addresses of arrays and of tensor maps.

    %tid is in %r0, %laneid in %r1. Free registers: %p0-9, %rs0-19, %r2-159, %f0-159, %rd10-39, %fd0-9.
    """
    kinds = [".align 64 .b8 p{}[128]" if isinstance(value, bytes) else ".u64 p{}" for value in arguments]
    parameters = ", ".join(f".param {kind.format(i)}" for i, kind in enumerate(kinds))
    loads = [
        f"mov.b64 %rd{i}, p{i};\ncvta.param.u64 %rd{i}, %rd{i};"
        if isinstance(value, bytes)
        else f"ld.param.u64 %rd{i}, [p{i}];"
        for i, value in enumerate(arguments)
    ]
    lines = [
        ".reg .pred %p<10>;\n.reg .b16 %rs<20>;\n.reg .b32 %r<160>;",
        ".reg .f32 %f<160>;\n.reg .b64 %rd<40>;\n.reg .f64 %fd<10>;",
        *loads,
        "mov.u32 %r0, %tid.x;\nmov.u32 %r1, %laneid;",
        body,
    ]
    module = Module.from_ptx(header() + extra + entry("snippet", parameters, "\n".join(lines)))
    return module.launch("snippet", grid, block, arguments, **options)


# Stores a register, whose name is to be filled in, to the thread's word of p0.
STORE_WORD = "mul.wide.u32 %rd30, %r0, 4;\nadd.u64 %rd30, %rd0, %rd30;\nst.global.u32 [%rd30], {};"


def words(body: str, value: str = "%r10", block: int = 32, **options: Any) -> Array:
    """Runs a body and returns what each thread left in `value`."""
    out = np.zeros(block, np.uint32)
    launch(body + "\n" + STORE_WORD.format(value), [out], block, **options).check()
    return out
