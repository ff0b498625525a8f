"""mbarrier: phases, states and parities, transaction bytes, the order it creates, and its misuse."""

from typing import Any

import numpy as np
import pytest

from tests.ptxsim.formats import Array
from tests.ptxsim.snippets import launch

SHARED = ".shared .align 16 .b64 bar[4]; .shared .align 16 .b8 cells[1024];"
OWN = "shl.b32 %r10, %r0, 2; mov.u32 %r11, cells; add.u32 %r10, %r10, %r11;"  # address of the thread's word
NEXT = "xor.b32 %r12, %r0, 32; shl.b32 %r12, %r12, 2; add.u32 %r12, %r12, %r11;"  # of the thread in the other warp
OUT = "mul.wide.u32 %rd10, %r0, 4; add.u64 %rd10, %rd0, %rd10;"
WAIT = "{name}: mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], {parity}; @!%p2 bra {name};"


def init(count: int) -> str:
    return f"setp.eq.u32 %p1, %r0, 0; @%p1 mbarrier.init.shared::cta.b64 [bar], {count}; bar.sync 0;"


def wait(parity: int | str, name: str = "W") -> str:
    return WAIT.format(name=name, parity=parity)


def run(body: str, block: int = 64, **options: Any) -> tuple[set[str], Array]:
    out = np.zeros(256, np.uint32)
    return launch(body, [out], block, extra=SHARED, **options).kinds(), out


def test_a_phase_completes_with_its_last_arrival() -> None:
    # Thread 0 looks before and after the last of three arrivals, by parity.
    body = f"""{init(3)} setp.ne.u32 %p1, %r0, 0; @%p1 bra END; mov.u32 %r20, 0;
    mbarrier.arrive.shared::cta.b64 %rd11, [bar]; mbarrier.arrive.shared::cta.b64 %rd12, [bar];
    mbarrier.test_wait.parity.shared::cta.b64 %p2, [bar], 0; selp.u32 %r21, 1, 0, %p2;
    mbarrier.test_wait.parity.shared::cta.b64 %p2, [bar], 1; selp.u32 %r22, 1, 0, %p2;
    mbarrier.arrive.shared::cta.b64 %rd13, [bar];
    mbarrier.test_wait.parity.shared::cta.b64 %p2, [bar], 0; selp.u32 %r23, 1, 0, %p2;
    mbarrier.test_wait.parity.shared::cta.b64 %p2, [bar], 1; selp.u32 %r24, 1, 0, %p2;
    mbarrier.test_wait.shared::cta.b64 %p2, [bar], %rd13; selp.u32 %r25, 1, 0, %p2;
    mbarrier.arrive.shared::cta.b64 %rd14, [bar];
    mbarrier.test_wait.shared::cta.b64 %p2, [bar], %rd14; selp.u32 %r26, 1, 0, %p2;
    mbarrier.pending_count.b64 %r27, %rd12; mbarrier.pending_count.b64 %r28, %rd14;
    st.global.v4.b32 [%rd0], {{%r21, %r22, %r23, %r24}}; st.global.v4.b32 [%rd0+16], {{%r25, %r26, %r27, %r28}}; END:"""
    kinds, out = run(body)
    assert kinds == set()
    # The phase before the first counts as complete: its parity is 1.
    np.testing.assert_array_equal(out[:8], [0, 1, 1, 0, 1, 0, 2, 3])


def test_counts_above_one_and_drops() -> None:
    body = f"""{init(5)} setp.ne.u32 %p1, %r0, 0; @%p1 bra END;
    mbarrier.arrive.shared::cta.b64 _, [bar], 4; mbarrier.arrive_drop.shared::cta.b64 %rd11, [bar]; {wait(0)}
    mbarrier.arrive.shared::cta.b64 %rd12, [bar], 4; {wait(1, "V")}
    mbarrier.pending_count.b64 %r21, %rd12; st.global.b32 [%rd0], %r21; END:"""
    kinds, out = run(body)
    assert (kinds, out[0]) == (set(), 4)


@pytest.mark.parametrize("mode", ["round_robin", "random", "greedy"])
def test_arrivals_order_what_came_before_with_what_follows_the_wait(mode: str) -> None:
    write, read = (
        f"{OWN}{NEXT}{OUT} st.shared.u32 [%r10], %r0;",
        "ld.shared.u32 %r13, [%r12]; st.global.u32 [%rd10], %r13;",
    )
    arrive = "mbarrier.arrive.shared::cta.b64 %rd11, [bar];"
    kinds, out = run(init(64) + write + arrive + wait(0) + read, schedule=mode)
    assert kinds == set()
    np.testing.assert_array_equal(out[:64], np.arange(64) ^ 32)
    assert "race" in run(init(64) + write + arrive + read, schedule=mode)[0]
    # The other warp's arrival is not needed for the phase: nothing orders its write.
    assert (
        "race" in run(init(32) + write + "@%p1 bra X; X: setp.lt.u32 %p3, %r0, 32; @%p3 " + arrive + wait(0) + read)[0]
    )
    # What is written behind the arrival is not covered.
    assert "race" in run(init(64) + f"{OWN}{NEXT}{OUT}" + arrive + "st.shared.u32 [%r10], %r0;" + wait(0) + read)[0]
    relaxed = arrive.replace("arrive.", "arrive.relaxed.cta.")
    assert "race" in run(init(64) + write + relaxed + wait(0) + read, schedule=mode)[0]


def test_two_warps_hand_a_buffer_back_and_forth() -> None:
    # Full and empty barriers of a one-stage pipeline, four rounds.
    body = f"""setp.eq.u32 %p1, %r0, 0; @%p1 mbarrier.init.shared::cta.b64 [bar], 32;
    @%p1 mbarrier.init.shared::cta.b64 [bar+8], 32; bar.sync 0; {OUT}
    mov.u32 %r20, 0; and.b32 %r30, %r0, 31; shl.b32 %r30, %r30, 2; mov.u32 %r31, cells; add.u32 %r30, %r30, %r31;
    mov.u32 %r21, 0; setp.ge.u32 %p3, %r0, 32; @%p3 bra CONSUMER;
    PRODUCER: and.b32 %r22, %r20, 1; xor.b32 %r22, %r22, 1;
    E: mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar+8], %r22; @!%p2 bra E;
    add.u32 %r23, %r20, %r0; st.shared.u32 [%r30], %r23; mbarrier.arrive.shared::cta.b64 _, [bar];
    add.u32 %r20, %r20, 1; setp.lt.u32 %p4, %r20, 4; @%p4 bra PRODUCER; bra END;
    CONSUMER: and.b32 %r22, %r20, 1;
    F: mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], %r22; @!%p2 bra F;
    ld.shared.u32 %r23, [%r30]; add.u32 %r21, %r21, %r23; mbarrier.arrive.shared::cta.b64 _, [bar+8];
    add.u32 %r20, %r20, 1; setp.lt.u32 %p4, %r20, 4; @%p4 bra CONSUMER; st.global.u32 [%rd10], %r21; END:"""
    for schedule in ("round_robin", "random", "greedy"):
        kinds, out = run(body, schedule=schedule)
        assert kinds == set()
        np.testing.assert_array_equal(out[32:64], 4 * np.arange(32) + 6)
    early = body.replace("E: mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar+8], %r22; @!%p2 bra E;", "")
    assert "race" in run(early)[0] or "mbarrier" in run(early)[0]


def test_transaction_bytes_hold_the_phase() -> None:
    body = f"""{init(1)} setp.ne.u32 %p1, %r0, 0; @%p1 bra END;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 48;
    mbarrier.complete_tx.shared::cta.b64 [bar], 32;
    mbarrier.test_wait.parity.shared::cta.b64 %p2, [bar], 0; selp.u32 %r21, 1, 0, %p2;
    mbarrier.complete_tx.shared::cta.b64 [bar], 16;
    mbarrier.test_wait.parity.shared::cta.b64 %p2, [bar], 0; selp.u32 %r22, 1, 0, %p2;
    mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 8; mbarrier.arrive.shared::cta.b64 _, [bar];
    mbarrier.test_wait.parity.shared::cta.b64 %p2, [bar], 1; selp.u32 %r23, 1, 0, %p2;
    st.global.v4.b32 [%rd0], {{%r21, %r22, %r23, %r23}}; END:"""
    kinds, out = run(body)
    assert kinds == set()
    np.testing.assert_array_equal(out[:3], [0, 1, 0])


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (init(2) + "mbarrier.arrive.shared::cta.b64 _, [bar], 3;", "mbarrier"),
        (init(2) + "@%p1 mbarrier.arrive.shared::cta.b64 _, [bar], 0;", "mbarrier"),
        (init(1) + "@%p1 mbarrier.expect_tx.shared::cta.b64 [bar], 1048576;", "mbarrier"),
        (init(0), "mbarrier"),
        (init(1) + init(1), "mbarrier"),
        ("mbarrier.arrive.shared::cta.b64 _, [bar];", "mbarrier"),
        (init(1) + "@%p1 mbarrier.inval.shared::cta.b64 [bar]; bar.sync 0;" + wait(0), "mbarrier"),
        (init(1) + "@%p1 st.shared.b32 [bar+4], 7; bar.sync 0;" + wait(0), "mbarrier"),
        (init(65) + "mbarrier.arrive.shared::cta.b64 _, [bar];" + wait(0), "deadlock"),
        (init(64) + "mbarrier.arrive.shared::cta.b64 _, [bar];" + wait(0) + wait(1, "V"), "deadlock"),
        (init(1) + "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 16;" + wait(0), "deadlock"),
        (init(64).replace("bar.sync 0;", "") + "mbarrier.arrive.shared::cta.b64 _, [bar];", "race"),
        (init(1) + "@%p1 mbarrier.inval.shared::cta.b64 [bar+4];", "misaligned"),
        (init(1) + "mbarrier.test_wait.parity.shared::cta.b64 %p2, [bar], 2;", "invalid_operand"),
    ],
)
def test_misuse_is_found(body: str, kind: str) -> None:
    assert kind in run(body)[0]


def test_a_deadlock_says_what_the_barrier_waits_for() -> None:
    out = np.zeros(4, np.uint32)
    body = init(9) + "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 640;" + wait(0)
    (finding,) = launch(body, [out], 64, extra=SHARED).findings
    assert "8 arrivals and 640 bytes" in finding.message


@pytest.mark.parametrize("noinc", [False, True])
@pytest.mark.parametrize("completion", ["early", "late", "random"])
def test_copies_arrive_when_they_have_landed(noinc: bool, completion: str) -> None:
    source, out = np.arange(64, dtype=np.uint32) * 3, np.zeros(64, np.uint32)
    suffix = ".noinc" if noinc else ""
    # Without .noinc the arrival raises the count itself, so each thread arrives once more.
    own = "" if noinc else "mbarrier.arrive.shared::cta.b64 _, [bar];"
    body = f"""{init(64)} {OWN}{NEXT}{OUT} mul.wide.u32 %rd11, %r0, 4; add.u64 %rd11, %rd1, %rd11;
    cp.async.ca.shared.global [%r10], [%rd11], 4; cp.async.mbarrier.arrive{suffix}.shared::cta.b64 [bar]; {own}
    {wait(0)} ld.shared.u32 %r13, [%r12]; st.global.u32 [%rd10], %r13;"""
    report = launch(body, [out, source], 64, extra=SHARED, completion=completion).check()
    np.testing.assert_array_equal(out, source[np.arange(64) ^ 32])
    assert report.count("cp.async.mbarrier") == 2
    unwaited = body.replace(wait(0), "")
    assert "race" in launch(unwaited, [out, source], 64, extra=SHARED, completion=completion).kinds()


@pytest.mark.parametrize("waits_first", [True, False])
def test_lanes_of_one_warp_wait_for_each_other(waits_first: bool) -> None:
    # Lane 0 waits for the other lanes' arrivals, whichever side of the branch comes first in the code.
    sides = ["ARRIVE: mbarrier.arrive.shared::cta.b64 _, [bar]; bra JOIN;", f"WAIT: {wait(0)} bra JOIN;"]
    body = f"""{init(31)} setp.eq.u32 %p3, %r0, 0; @%p3 bra WAIT; bra ARRIVE;
    {" ".join(reversed(sides) if waits_first else sides)} JOIN: bar.warp.sync 0xffffffff; {OUT} st.global.u32 [%rd10], 1;"""
    kinds, out = run(body, 32)
    assert (kinds, out.sum()) == (set(), 32)
    assert run(body.replace("[bar], 31", "[bar], 32"), 32)[0] == {"deadlock"}


def test_elect_names_one_lane() -> None:
    out = np.zeros(32, np.uint32)
    body = f"elect.sync %r10|%p2, 0xffffffff; selp.u32 %r11, 1, 0, %p2; mad.lo.u32 %r11, %r10, 2, %r11; {OUT}"
    launch(body + "st.global.u32 [%rd10], %r11;", [out]).check()
    np.testing.assert_array_equal(out, [1] + [0] * 31)


def test_hints_are_parsed() -> None:
    body = "setmaxnreg.inc.sync.aligned.u32 240; setmaxnreg.dec.sync.aligned.u32 40;"
    launch(body + "griddepcontrol.wait; griddepcontrol.launch_dependents;", [np.zeros(1)], 128).check()
    with pytest.raises(ValueError, match="multiple of 8"):
        launch("setmaxnreg.inc.sync.aligned.u32 241;", [np.zeros(1)], 128)
