"""What the lanes of a warp, or the warps of a block, compute together."""

import numpy as np
import pytest

from tests.ptxsim.snippets import words


@pytest.mark.parametrize(
    ("mode", "b", "c", "expected"),
    [
        ("bfly", 5, 0x1F, [i ^ 5 for i in range(32)]),
        ("up", 3, 0, [i - 3 if i >= 3 else i for i in range(32)]),
        ("down", 9, 0x1F, [i + 9 if i < 23 else i for i in range(32)]),
        ("idx", 7, 0x1F, [7] * 32),
        ("idx", 2, 0x181F, [i // 8 * 8 + 2 for i in range(32)]),  # width 8
        ("down", 2, 0x181F, [i + 2 if i % 8 < 6 else i for i in range(32)]),
        ("up", 2, 0x1800, [i - 2 if i % 8 >= 2 else i for i in range(32)]),
    ],
)
def test_shuffles(mode: str, b: int, c: int, expected: list[int]) -> None:
    got = words(f"mul.lo.u32 %r11, %r0, 10; shfl.sync.{mode}.b32 %r10|%p1, %r11, {b}, {c}, 0xffffffff;")
    np.testing.assert_array_equal(got, 10 * np.array(expected))


def test_shuffles_of_half_warps_that_diverged() -> None:
    # Both halves reach the same instruction with their own member masks; lanes of one half come in two parts.
    body = """
    setp.lt.u32 %p1, %r0, 16; selp.u32 %r11, 0xffff, 0xffff0000, %p1; mov.u32 %r12, %r0;
    setp.lt.u32 %p2, %r0, 3; @%p2 bra HERE; add.u32 %r12, %r12, 100;
    HERE: shfl.sync.bfly.b32 %r10, %r12, 1, 0x1f, %r11;
    """
    lane = np.arange(32)
    value = np.where(lane < 3, lane, lane + 100)
    np.testing.assert_array_equal(words(body), value[lane ^ 1])


def test_votes() -> None:
    body = """
    and.b32 %r11, %r0, 3; setp.eq.u32 %p1, %r11, 1; vote.sync.ballot.b32 %r10, %p1, 0xffffffff;
    vote.sync.any.pred %p2, %p1, 0xffffffff; vote.sync.all.pred %p3, %p1, 0xffffffff;
    vote.sync.uni.pred %p4, %p3, 0xffffffff;
    @!%p2 mov.u32 %r10, 0; @%p3 mov.u32 %r10, 1; @!%p4 mov.u32 %r10, 2;
    """
    np.testing.assert_array_equal(words(body), np.full(32, 0x22222222))


def test_votes_of_part_of_a_warp() -> None:
    body = """
    mov.u32 %r10, 0; setp.ge.u32 %p1, %r0, 8; @%p1 bra SKIP;
    setp.gt.u32 %p2, %r0, 2; vote.sync.ballot.b32 %r10, %p2, 0xff;
    SKIP: bar.warp.sync 0xffffffff;
    """
    np.testing.assert_array_equal(words(body), [0xF8] * 8 + [0] * 24)


def test_match_and_redux_and_elect() -> None:
    got = words("and.b32 %r11, %r0, 7; match.any.sync.b32 %r10, %r11, 0xffffffff;")
    np.testing.assert_array_equal(got, [0x01010101 << (i % 8) for i in range(32)])
    got = words("shr.u32 %r11, %r0, 5; match.all.sync.b32 %r10|%p1, %r11, 0xffffffff; @!%p1 mov.u32 %r10, 3;")
    np.testing.assert_array_equal(got, np.full(32, 0xFFFFFFFF))
    for operation, expected in {"add": 496, "min": 0, "max": 31, "or": 31, "and": 0, "xor": 0}.items():
        kind = "u32" if operation in ("add", "min", "max") else "b32"
        np.testing.assert_array_equal(words(f"redux.sync.{operation}.{kind} %r10, %r0, 0xffffffff;"), [expected] * 32)
    got = words("sub.s32 %r11, %r0, 5; redux.sync.min.s32 %r10, %r11, 0xffffffff;")
    np.testing.assert_array_equal(got.view(np.int32), [-5] * 32)
    got = words("mov.u32 %r10, 0; elect.sync %r11|%p1, 0xffffffff; @%p1 mov.u32 %r10, 1;")
    np.testing.assert_array_equal(got, [1] + [0] * 31)


def test_barrier_reductions() -> None:
    body = """
    setp.lt.u32 %p1, %r0, 70; bar.red.popc.u32 %r10, 0, %p1; bar.red.or.pred %p2, 1, %p1; bar.red.and.pred %p3, 1, %p1;
    @!%p2 mov.u32 %r10, 1; @%p3 mov.u32 %r10, 2;
    """
    np.testing.assert_array_equal(words(body, block=128), np.full(128, 70))
