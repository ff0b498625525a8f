"""The race detector on small kernels: what it must report and what it must not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ptxsim import Module, find_nvcc
from tests.ptxsim.snippets import launch

SHARED = ".shared .align 16 .b8 cells[1024];"
OWN = "shl.b32 %r10, %r0, 2; mov.u32 %r11, cells; add.u32 %r10, %r10, %r11;"  # address of the thread's word
NEXT = "xor.b32 %r12, %r0, 32; shl.b32 %r12, %r12, 2; add.u32 %r12, %r12, %r11;"  # of the thread in the other warp


def kinds(body: str, block: int = 64, **options: Any) -> set[str]:
    """Kinds of findings of a kernel with a buffer of 1024 words."""
    return launch(body, [np.zeros(1024, np.uint32)], block, extra=SHARED, **options).kinds()


def test_reading_another_warps_word_needs_a_barrier() -> None:
    write, read = f"{OWN}{NEXT} st.shared.u32 [%r10], %r0;", "ld.shared.u32 %r13, [%r12];"
    assert kinds(write + "bar.sync 0;" + read) == set()
    assert kinds(write + read) >= {"race"}
    # A barrier before is not enough, nor is one that only the reader's warp knows of.
    assert "race" in kinds("bar.sync 0;" + write + read)
    assert kinds(write + "membar.cta;" + read) >= {"race"}


def test_overwriting_what_another_warp_reads_needs_a_barrier() -> None:
    start = f"{OWN}{NEXT} st.shared.u32 [%r10], %r0; bar.sync 0; ld.shared.u32 %r13, [%r12];"
    assert kinds(start + "st.shared.u32 [%r10], 5;") == {"race"}
    assert kinds(start + "bar.sync 0; st.shared.u32 [%r10], 5;") == set()


def test_named_barriers_order_only_their_warps() -> None:
    write = f"{OWN} st.shared.u32 [%r10], %r0; shr.u32 %r20, %r0, 5; shr.u32 %r21, %r20, 1; add.u32 %r21, %r21, 1;"
    partner = "bar.sync %r21, 64; xor.b32 %r12, %r0, {}; shl.b32 %r12, %r12, 2; add.u32 %r12, %r12, %r11;"
    partner += "ld.shared.u32 %r13, [%r12];"
    assert kinds(write + partner.format(32), 128) == set()
    assert kinds(write + partner.format(64), 128) >= {"race"}


def test_arriving_releases_and_waiting_acquires() -> None:
    producer = f"{OWN}{NEXT} setp.lt.u32 %p1, %r0, 32; @!%p1 bra CONSUMER;"
    producer += "st.shared.u32 [%r10], %r0; bar.arrive 1, 64; bra END;"
    consumer = "CONSUMER: bar.sync 1, 64; ld.shared.u32 %r13, [%r12]; END:"
    assert kinds(producer + consumer) == set()
    assert kinds(producer.replace("bar.arrive 1, 64;", "") + consumer.replace("bar.sync 1, 64;", "")) >= {"race"}


def test_neighbouring_bytes_do_not_race() -> None:
    # Thread i of one warp writes the low half of word i, its partner in the other warp the high half.
    body = """
    and.b32 %r13, %r0, 31; shl.b32 %r13, %r13, 2; shr.u32 %r14, %r0, 5; shl.b32 %r14, %r14, 1; add.u32 %r13, %r13, %r14;
    mov.u32 %r11, cells; add.u32 %r13, %r13, %r11; cvt.u16.u32 %rs1, %r0; st.shared.u16 [%r13], %rs1;
    """
    assert kinds(body) == set()
    overlap = body.replace("shl.b32 %r14, %r14, 1;", "").replace("st.shared.u16", "st.shared.u8")
    assert kinds(overlap) == set()
    assert kinds(body + "ld.shared.u16 %rs2, [%r13];") == set()
    word = "and.b32 %r13, %r0, 31; shl.b32 %r13, %r13, 2; add.u32 %r13, %r13, %r11; ld.shared.u32 %r15, [%r13];"
    assert kinds(body + word) >= {"race"}
    assert kinds(body + "bar.sync 0;" + word) == set()


def test_same_value_writes_do_not_race() -> None:
    assert kinds("st.shared.u32 [cells], 1;") == set()
    assert "race" in kinds("shr.u32 %r10, %r0, 5; st.shared.u32 [cells], %r10;")
    assert kinds("st.global.u32 [%rd0], 1;", grid=4) == set()


def test_lanes_of_a_warp_need_bar_warp_sync() -> None:
    write, read = f"{OWN} st.shared.u32 [%r10], %r0;", "xor.b32 %r12, %r10, 4; ld.shared.u32 %r13, [%r12];"
    assert kinds(write + read, 32) == {"warp_race"}
    assert kinds(write + read, 32, warp_races=False) == set()
    assert kinds(write + "bar.warp.sync 0xffffffff;" + read, 32) == set()
    assert kinds("st.shared.u32 [cells], %r0;", 32) == {"warp_race"}
    assert kinds(write + "bar.warp.sync 0xffffffff;" + read + "st.shared.u32 [%r10], 3;", 32) == {"warp_race"}


def test_atomics_do_not_race_with_each_other_but_with_plain_accesses() -> None:
    assert kinds("atom.shared.add.u32 %r10, [cells], 1;") == {"uninitialised_read"}
    assert kinds("red.global.add.u32 [%rd0], 1;", grid=3) == set()
    assert kinds("red.global.add.u32 [%rd0], 1; ld.global.u32 %r10, [%rd0];", grid=3) == {"race", "warp_race"}
    assert kinds("red.global.add.u32 [%rd0], 1; ld.relaxed.gpu.global.u32 %r10, [%rd0];", grid=3) == set()


@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_are_not_ordered(threads: int) -> None:
    assert kinds("mov.u32 %r10, %ctaid.x; st.global.u32 [%rd0], %r10;", 1, grid=2, threads=threads) == {"race"}
    read_next = """
    mov.u32 %r10, %ctaid.x; mul.wide.u32 %rd10, %r10, 4; add.u64 %rd10, %rd0, %rd10; st.global.u32 [%rd10], %r10;
    xor.b32 %r11, %r10, 1; mul.wide.u32 %rd11, %r11, 4; add.u64 %rd11, %rd0, %rd11; ld.global.u32 %r12, [%rd11];
    """
    assert kinds(read_next, 1, grid=2, threads=threads) == {"race"}


# A block publishes data behind a flag; the other block spins on the flag.
FLAG = """
mov.u32 %r10, %ctaid.x; setp.eq.u32 %p1, %r10, {writer}; @!%p1 bra READER;
st.global.u32 [%rd0], 7; {release} st.relaxed.gpu.global.u32 [%rd0+4], 1; bra END;
READER: ld.relaxed.gpu.global.u32 %r11, [%rd0+4]; setp.eq.u32 %p2, %r11, 0; @%p2 bra READER;
{acquire} ld.global.u32 %r12, [%rd0]; END:
"""


@pytest.mark.parametrize("writer", [0, 1])
@pytest.mark.parametrize(
    ("release", "acquire", "expected"),
    [
        ("membar.gl;", "membar.gl;", set()),
        ("fence.acq_rel.gpu;", "fence.acq_rel.gpu;", set()),
        ("", "membar.gl;", {"race"}),
        ("membar.gl;", "", {"race"}),
        ("membar.cta;", "membar.gl;", {"race"}),
    ],
)
def test_flags_between_blocks_need_both_fences(writer: int, release: str, acquire: str, expected: set[str]) -> None:
    # With the writer second, the spinning block must make room for it.
    body = FLAG.format(writer=writer, release=release, acquire=acquire)
    assert kinds(body, 1, grid=2, threads=2) == expected


@pytest.mark.parametrize(("scope", "expected"), [("gpu", set()), ("sys", set()), ("cta", {"race"})])
def test_order_within_a_block_is_none_between_blocks(scope: str, expected: set[str]) -> None:
    """The block that counts last reads what the other one stored."""
    body = f"""
    mov.u32 %r10, %ctaid.x; mul.wide.u32 %rd10, %r10, 4; add.u64 %rd10, %rd0, %rd10; st.global.u32 [%rd10], 7;
    atom.acq_rel.{scope}.global.add.u32 %r11, [%rd0+64], 1; setp.eq.u32 %p1, %r11, 1; @!%p1 bra END;
    xor.b32 %r12, %r10, 1; mul.wide.u32 %rd11, %r12, 4; add.u64 %rd11, %rd0, %rd11; ld.global.u32 %r13, [%rd11]; END:
    """
    assert kinds(body, 1, grid=2) == expected


@pytest.mark.parametrize("completion", ["early", "late", "random"])
def test_cp_async_needs_its_wait_and_for_other_warps_a_barrier(completion: str) -> None:
    copy = f"""{OWN}{NEXT} mul.wide.u32 %rd10, %r0, 4; add.u64 %rd10, %rd0, %rd10;
    cp.async.ca.shared.global [%r10], [%rd10], 4; cp.async.commit_group;"""
    own, other = "ld.shared.u32 %r13, [%r10];", "ld.shared.u32 %r13, [%r12];"
    wait = "cp.async.wait_group 0;"
    assert kinds(copy + wait + own, completion=completion) == set()
    assert kinds(copy + own, completion=completion) == {"race"}
    assert kinds(copy + "cp.async.wait_group 1;" + own, completion=completion) == {"race"}
    assert kinds(copy + wait + other, completion=completion) >= {"race"}
    assert kinds(copy + wait + "bar.sync 0;" + other, completion=completion) == set()
    assert kinds(copy + "bar.sync 0;" + wait + other, completion=completion) >= {"race"}
    assert (
        kinds(copy.replace("cp.async.commit_group;", "") + "cp.async.wait_all;" + own, completion=completion) == set()
    )
    assert kinds(copy.replace("cp.async.commit_group;", "") + wait + own, completion=completion) == {"race"}
    assert kinds(copy + "st.shared.u32 [%r10], 1;", completion=completion) == {"race"}
    assert kinds(copy + "st.global.u32 [%rd10], 1;", completion=completion) == {"race"}


def test_cp_async_zero_fills() -> None:
    source, out = np.arange(1, 129, dtype=np.uint32), np.zeros(128, np.uint32)
    body = """
    shl.b32 %r10, %r0, 4; mov.u32 %r11, cells; add.u32 %r11, %r11, %r10; mul.wide.u32 %rd10, %r0, 16;
    add.u64 %rd11, %rd1, %rd10; and.b32 %r12, %r0, 3; mul.lo.u32 %r12, %r12, 5;
    min.u32 %r12, %r12, 16; cp.async.cg.shared.global [%r11], [%rd11], 16, %r12; cp.async.wait_all;
    ld.shared.v4.u32 {%r20, %r21, %r22, %r23}, [%r11]; add.u64 %rd12, %rd0, %rd10;
    st.global.v4.u32 [%rd12], {%r20, %r21, %r22, %r23};
    """
    report = launch(body, [out, source], extra=SHARED).check()
    expected = source.view(np.uint8).reshape(32, 16).copy()
    for lane in range(32):
        expected[lane, min(lane % 4 * 5, 16) :] = 0
    np.testing.assert_array_equal(out.view(np.uint8).reshape(32, 16), expected)
    assert report.count("cp.async.cg") == 1


def test_late_copies_read_their_source_at_the_wait() -> None:
    source, out = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    body = f"""{OWN} mul.wide.u32 %rd10, %r0, 4; add.u64 %rd11, %rd1, %rd10; add.u64 %rd12, %rd0, %rd10;
    cp.async.ca.shared.global [%r10], [%rd11], 4; cp.async.commit_group; ld.shared.u32 %r20, [%r10];
    cp.async.wait_group 0; st.global.u32 [%rd12], %r20;"""
    launch(body, [out, source], extra=SHARED, completion="late")
    np.testing.assert_array_equal(out, np.full(32, 0xFFFFFFFF, np.uint32))
    launch(body, [out, source], extra=SHARED, completion="early")
    np.testing.assert_array_equal(out, source)


@pytest.mark.skipif(find_nvcc() is None, reason="needs nvcc to make PTX")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("bug", [None, "BUG_NO_BARRIER", "BUG_NO_RELEASE", "BUG_NO_ACQUIRE", "BUG_NOT_ATOMIC"])
def test_last_block_done(bug: str | None, threads: int) -> None:
    values = np.random.default_rng(0).integers(0, 10, 5000).astype(np.float32)
    parts, finished, total = np.zeros(16, np.float32), np.zeros(1, np.uint32), np.zeros(1, np.float32)
    source = Path(__file__).parent / "kernels" / "last_block.cu"
    module = Module.compile(source, defines={bug: None} if bug else None)
    report = module.launch("last_block_sum", 16, 128, [values, 5000, parts, finished, total], threads=threads)
    if bug is None:
        report.check()
        assert total[0] == values.sum()
        assert finished[0] == 0
    else:
        assert "race" in report.kinds()
