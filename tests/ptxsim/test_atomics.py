"""Atomics and reductions in memory, of every kind and from many lanes at once."""

from typing import Any

import numpy as np
import pytest

from tests.ptxsim.snippets import STORE_WORD, launch


@pytest.mark.parametrize("space", ["global", "shared"])
def test_atomics(space: str) -> None:
    shared = ".shared .align 8 .b8 cell[8];"
    setup = "mov.u32 %r20, cell; mov.u64 %rd20, %rd1;"
    address = "%rd20" if space == "global" else "%r20"
    lane = np.arange(32, dtype=np.uint32)
    cases = {
        "add.u32": (5, 5 + lane.sum()),
        "min.u32": (5, 0),
        "max.s32": (5, 31),
        "and.b32": (0xFF, 0),
        "or.b32": (0x100, 0x11F),
        "xor.b32": (1, 1),
        "exch.b32": (9, 31),
        "inc.u32": (3, None),
        "dec.u32": (3, None),
    }
    for operation, (start, expected) in cases.items():
        cell = np.array([start, 0], np.uint32)
        first = "" if space == "global" else f"setp.eq.u32 %p9, %r0, 0; @%p9 st.shared.u32 [%r20], {start}; bar.sync 0;"
        last = "" if space == "global" else "bar.sync 0; ld.shared.u32 %r21, [%r20]; @%p9 st.global.u32 [%rd20], %r21;"
        out = np.zeros(32, np.uint32)
        body = f"{setup}{first} atom.{space}.{operation} %r10, [{address}], %r0; {last}" + STORE_WORD.format("%r10")
        launch(body, [out, cell], extra=shared).check()
        if expected is None:
            value = start
            for operand in range(32):
                if operation.startswith("inc"):
                    value = 0 if value >= operand else value + 1
                else:
                    value = operand if value == 0 or value > operand else value - 1
            expected = value
        assert cell[0] == expected, operation
        assert out[0] == start


@pytest.mark.parametrize(("kind", "dtype"), [("f32", np.float32), ("f64", np.float64)])
def test_float_atomics(kind: str, dtype: Any) -> None:
    cell = np.array([0.5], dtype)
    register, digits = ("%f1", "0f3F800000") if kind == "f32" else ("%fd1", "0d3FF0000000000000")
    launch(f"red.global.add.{kind} [%rd0], {digits}; mov.{kind} {register}, {digits};", [cell], block=64).check()
    assert cell[0] == 64.5


def test_packed_half_and_wide_atomics() -> None:
    halves = np.array([1.0, 2.0], np.float16)
    launch("mov.u32 %r10, 0x40003c00; red.global.add.noftz.f16x2 [%rd0], %r10;", [halves]).check()
    np.testing.assert_array_equal(halves, [33, 66])
    bf = np.array([0x3F80, 0x4000], np.uint16)
    launch("mov.u32 %r10, 0x3f803f80; red.global.add.noftz.bf16x2 [%rd0], %r10;", [bf]).check()
    np.testing.assert_array_equal(bf, [0x4204, 0x4208])
    wide = np.array([2**40], np.uint64)
    launch(
        "cvt.u64.u32 %rd10, %r0; atom.global.max.u64 %rd11, [%rd0], %rd10; red.global.add.u64 [%rd0], 1;", [wide]
    ).check()
    assert wide[0] == 2**40 + 32


def test_compare_and_swap_loop() -> None:
    # Every lane adds its number by cas: only one succeeds at a time, the others retry.
    body = """
    RETRY: ld.relaxed.gpu.global.u32 %r10, [%rd0]; add.u32 %r11, %r10, %r0;
    atom.relaxed.gpu.global.cas.b32 %r12, [%rd0], %r10, %r11; setp.ne.u32 %p1, %r12, %r10; @%p1 bra RETRY;
    """
    cell = np.zeros(1, np.uint32)
    launch(body, [cell], block=64, schedule="random", seed=1).check()
    assert cell[0] == 64 * 63 // 2


def test_blocks_on_several_threads_count_the_same() -> None:
    body = "mov.u32 %r10, %ctaid.x; red.global.add.u32 [%rd0], %r10; red.global.add.u32 [%rd0+4], 1;"
    cell = np.zeros(2, np.uint32)
    report = launch(body, [cell], block=64, grid=50, threads=2).check()
    assert cell.tolist() == [64 * 50 * 49 // 2, 64 * 50]
    assert report.count("red") == 2 * 50 * 2
