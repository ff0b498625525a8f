"""Hostile arguments for every op: `python -m tests.hostile.fuzz_ops --calls 100000`, or `--seed 123` for one call again.

Each call is a valid one with one to three arguments changed (`mutations`), made in a process of its own kind, so that a
crash is a finding with a seed. A call has to do one of two things:

- give what the same values give in fresh, contiguous tensors that share no memory, and leave all other memory alone;
- raise an exception that names an argument, with all tensors as they were.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from tests.hostile.mutations import mutate
from tests.hostile.op_calls import NAMES, Arguments, Call, copied, operator, tensors_of, valid_calls

REFUSALS = (TypeError, ValueError, RuntimeError, NotImplementedError, MemoryError)
# What torch and C++ say of outputs and workspaces that no memory holds.
TOO_LARGE = "can't allocate memory|bad_alloc|Storage size calculation overflowed|numel: integer multiplication overflow"
SECONDS_PER_CALL = 20
SPARE_MEMORY = 2 << 30
WORTH_COMPARING = 10**6  # elements of one argument


@dataclass(frozen=True)
class Finding:
    seed: int
    what: str


def hostile_call(seed: int) -> tuple[Call, list[str]]:
    """The call of a seed, and what was done to it."""
    random = Random(seed)
    calls = valid_calls(NAMES[seed % len(NAMES)], random.randrange(1000))
    call = random.choice(calls)
    return call, [mutate(random, call.arguments) for _ in range(random.choice([1, 1, 2, 3]))]


def check(call: Call) -> str | None:
    """What is wrong with what the call does, None if nothing is."""
    # Fills what is allocated: rows of a new output that the op leaves as they are then compare equal.
    torch.use_deterministic_algorithms(True)
    try:
        return _check(call)
    finally:
        torch.use_deterministic_algorithms(False)


def _check(call: Call) -> str | None:
    before = copied(call.arguments)
    tensors = [tensor for value in call.arguments.values() for tensor in tensors_of(value)]
    comparable = all(not tensor.is_meta and tensor.numel() <= WORTH_COMPARING for tensor in tensors)
    plain = Call(call.name, {name: _plain(value) for name, value in before.items()}, call.is_op) if comparable else None
    try:
        result = call()
    except Exception as error:
        return _check_refusal(call, before, error)
    if plain is not None:
        return _check_result(call, before, result, plain)
    if any(tensor.is_meta for tensor in tensors) and not all(tensor.is_meta for tensor in tensors):
        return "took tensors on meta and on the CPU together"
    return None


def _check_refusal(call: Call, before: Arguments, error: Exception) -> str | None:
    said = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if not isinstance(error, REFUSALS):
        return f"raised {said}"
    names = {*call.arguments, *(argument.name for argument in operator(call.name)._schema.arguments)}
    if not re.search(rf"\b({'|'.join(names)})\b|{TOO_LARGE}", str(error)):
        return f"named no argument: {said}"
    for name, value in call.arguments.items():
        if any(not _same_memory(*pair) for pair in zip(tensors_of(before[name]), tensors_of(value), strict=True)):
            return f"wrote to {name} and then raised {said}"
    return None


def _check_result(call: Call, before: Arguments, result: Any, plain: Call) -> str | None:
    try:
        expected = plain()
    except Exception as error:
        return f"took what it refuses in tensors of their own: {error}"
    written = [argument.name for argument in operator(call.name)._schema.arguments if _is_written(argument)]
    written = [name for name in written if name in before]
    for name in written:
        for old, new in zip(tensors_of(before[name]), tensors_of(call.arguments[name]), strict=True):
            _bytes(old).copy_(_bytes(new))  # a copy of flags would make bytes that count as true 1
    for name, value in call.arguments.items():
        if any(not _same_memory(*pair) for pair in zip(tensors_of(before[name]), tensors_of(value), strict=True)):
            return f"wrote to memory of {name} outside of what it writes"
    actual = {name: call.arguments[name] for name in written if name != "workspace"}
    pairs = [(name, value, plain.arguments[name]) for name, value in actual.items()]
    for name, value, other in [*pairs, ("result", _as_list(result), _as_list(expected))]:
        for left, right in zip(tensors_of(value), tensors_of(other), strict=True):
            if not torch.equal(left.nan_to_num(nan=7.0), right.nan_to_num(nan=7.0)):
                return f"gave another {name} than from tensors of their own"
    return None


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _as_list(result: Any) -> Any:
    return list(result) if isinstance(result, tuple) else result


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return value.contiguous().clone() if isinstance(value, Tensor) else value


def _bytes(tensor: Tensor) -> Tensor:
    """Flags as the bytes they are."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor


def _same_memory(left: Tensor, right: Tensor) -> bool:
    """Whether all bytes of their storages are equal."""
    if left.is_meta:
        return True
    left, right = (torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()) for tensor in (left, right))
    return torch.equal(left, right)


def _work(first: int, count: int) -> None:
    """Makes the calls of some seeds, saying which is next and what was found."""
    torch.set_num_threads(1)
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):  # whose shadow alone takes terabytes of addresses
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + SPARE_MEMORY, size + SPARE_MEMORY))
    for seed in range(first, first + count):
        print("call", seed, flush=True)
        signal.setitimer(
            signal.ITIMER_PROF, SECONDS_PER_CALL
        )  # ends the process: code in a loop listens to nothing else
        call, changes = hostile_call(seed)
        if wrong := check(call):
            kind = "torch.ops.dflash_ops." if call.is_op else "dflash_ops."
            print("found", seed, f"{kind}{call.name} {wrong}; {'; '.join(changes)}", flush=True)
    signal.setitimer(signal.ITIMER_PROF, 0)
    print("done", flush=True)


def findings(first: int, count: int) -> Iterator[Finding]:
    """What the calls of seeds [first, first + count) do wrong, crashes and endless loops among it."""
    end = first + count
    while first < end:
        command = [sys.executable, "-m", "tests.hostile.fuzz_ops", "--work", str(first), str(end - first)]
        last, said = first, ""
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            for line in process.stdout:
                said, _, rest = line.strip().partition(" ")
                if said == "call":
                    last = int(rest)
                elif said == "found":
                    seed, _, what = rest.partition(" ")
                    yield Finding(int(seed), what)
            errors = process.stderr.read()
        if process.returncode == 0 and said == "done":
            return
        yield Finding(last, f"ended the process with {process.returncode}: {errors.strip()[-2000:]}")
        first = last + 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=100_000, help="how many calls to make")
    parser.add_argument("--first", type=int, default=0, help="seed of the first one")
    parser.add_argument("--seed", type=int, help="make this one call, in this process")
    parser.add_argument("--work", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        _work(*options.work)
        return 0
    if options.seed is not None:
        call, changes = hostile_call(options.seed)
        print(call.name, "op" if call.is_op else "function", *changes, sep="\n", flush=True)
        print(check(call))
        return 0
    start, found = time.monotonic(), 0
    for finding in findings(options.first, options.calls):
        found += 1
        print(f"seed {finding.seed}: {finding.what}", flush=True)
    print(f"{options.calls} calls, {found} findings, {time.monotonic() - start:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
