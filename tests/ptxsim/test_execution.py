"""Memory, control flow, grids, and what is found wrong with single accesses."""

from typing import Any

import numpy as np
import pytest

from tests.ptxsim.simulator import DeviceMemory, Module
from tests.ptxsim.snippets import STORE_WORD, entry, header, launch, words


@pytest.mark.parametrize(
    ("kind", "vector"),
    [
        (kind, vector)
        for kind in ("u8", "s8", "b16", "f32", "u64")
        for vector in (1, 2, 4)
        if (kind, vector) != ("u64", 4)
    ],
)
def test_vector_loads_and_stores(kind: str, vector: int) -> None:
    size = {"u8": 1, "s8": 1, "b16": 2, "f32": 4, "u64": 8}[kind]
    source = np.random.default_rng(0).integers(0, 256, 32 * size * vector).astype(np.uint8)
    target = np.zeros_like(source)
    registers = {1: "%rs", 2: "%rs", 4: "%f", 8: "%rd1"}[size]
    names = [f"{registers}{i}" for i in range(vector)]
    group = "{" + ", ".join(names) + "}" if vector > 1 else names[0]
    dot = f".v{vector}" if vector > 1 else ""
    body = (
        f"mul.wide.u32 %rd30, %r0, {size * vector}; add.u64 %rd31, %rd0, %rd30; add.u64 %rd32, %rd1, %rd30;"
        f"ld.global{dot}.{kind} {group}, [%rd31]; st.global{dot}.{kind} [%rd32], {group};"
    )
    report = launch(body, [source, target]).check()
    np.testing.assert_array_equal(target, source)
    assert report.buffers["arg0"].load_bytes == source.nbytes
    assert report.total("sectors") == report.total("ideal_sectors") == 2 * source.nbytes // 32


def test_signed_bytes_fill_their_register() -> None:
    source = np.arange(-16, 16).astype(np.int8)
    out = np.zeros(32, np.uint32)
    body = "cvt.u64.u32 %rd31, %r0; add.u64 %rd31, %rd1, %rd31; ld.global.s8 %r10, [%rd31];"
    launch(body + STORE_WORD.format("%r10"), [out, source]).check()
    np.testing.assert_array_equal(out.view(np.int32), source)


def test_predicated_off_lanes_do_nothing() -> None:
    got = words("mov.u32 %r10, 7; setp.lt.u32 %p1, %r0, 5; @%p1 mov.u32 %r10, 9; @!%p1 add.u32 %r10, %r10, %r0;")
    lane = np.arange(32)
    np.testing.assert_array_equal(got, np.where(lane < 5, 9, 7 + lane))


def test_divergent_loops_reconverge() -> None:
    # Each lane multiplies as often as its number says; afterwards all lanes are together again.
    body = """
    mov.u32 %r10, 1; mov.u32 %r11, 0;
    LOOP: setp.ge.u32 %p1, %r11, %r0; @%p1 bra DONE;
    mul.lo.u32 %r10, %r10, 3; add.u32 %r11, %r11, 1; bra LOOP;
    DONE: activemask.b32 %r12; setp.ne.u32 %p2, %r12, 0xffffffff; @%p2 mov.u32 %r10, 0;
    """
    np.testing.assert_array_equal(words(body), [pow(3, n, 2**32) for n in range(32)])


def test_nested_branches() -> None:
    body = """
    and.b32 %r11, %r0, 1; and.b32 %r12, %r0, 2; setp.eq.u32 %p1, %r11, 0; setp.eq.u32 %p2, %r12, 0;
    @%p1 bra EVEN;
    @%p2 bra ODD_LOW; mov.u32 %r10, 3; bra END;
    ODD_LOW: mov.u32 %r10, 1; bra END;
    EVEN: @%p2 bra EVEN_LOW; mov.u32 %r10, 2; bra END;
    EVEN_LOW: mov.u32 %r10, 0;
    END:
    """
    np.testing.assert_array_equal(words(body), np.arange(32) % 4)


def test_lanes_in_code_behind_a_barrier_still_arrive() -> None:
    # Compilers put unlikely code at the end: those lanes jump back to the barrier the others wait at.
    body = """
    mov.u32 %r10, 1; setp.lt.u32 %p1, %r0, 5; @%p1 bra UNLIKELY;
    JOIN: bar.sync 0; movmatrix.sync.aligned.m8n8.trans.b16 %r11, %r0; add.u32 %r10, %r10, 1; bra END;
    UNLIKELY: mov.u32 %r10, 7; bra JOIN;
    END:
    """
    np.testing.assert_array_equal(words(body, block=64), [8 if lane < 5 else 2 for lane in range(64)])
    tensor = body.replace("bar.sync 0;", "")
    np.testing.assert_array_equal(words(tensor), [8 if lane < 5 else 2 for lane in range(32)])


def test_branch_tables() -> None:
    body = """
    and.b32 %r11, %r0, 3; TABLE: .branchtargets A, B, C, D; brx.idx %r11, TABLE;
    A: mov.u32 %r10, 10; bra END; B: mov.u32 %r10, 11; bra END;
    C: mov.u32 %r10, 12; bra END; D: mov.u32 %r10, 13; END:
    """
    np.testing.assert_array_equal(words(body), 10 + np.arange(32) % 4)


def test_calls_and_local_memory() -> None:
    function = """
    .func (.param .b32 result) square_sum(.param .b32 x, .param .align 8 .b8 pair[8])
    { .reg .b32 %a, %b, %c; .reg .pred %p;
      ld.param.b32 %a, [x]; ld.param.b32 %b, [pair+4];
      setp.gt.u32 %p, %a, 20; @%p bra BIG;
      mul.lo.u32 %c, %a, %a; add.u32 %c, %c, %b; st.param.b32 [result], %c; ret;
      BIG: st.param.b32 [result], %b; ret; }
    """
    call = """
    {{ .param .b32 p0; .param .align 8 .b8 p1[8]; .param .b32 r0;
      st.param.b32 [p0], %r0; st.param.b32 [p1+4], {};
      call.uni (r0), square_sum, (p0, p1); ld.param.b32 {}, [r0]; }}
    """
    local = """
    .local .align 8 .b8 depot[16]; mov.u64 %rd10, depot; cvta.local.u64 %rd11, %rd10;
    st.local.u32 [%rd10+4], %r10; add.u32 %r11, %r11, %r10; st.u32 [%rd11+8], %r11; ld.local.u32 %r10, [%rd10+8];
    """
    body = call.format("100", "%r10") + "setp.lt.u32 %p1, %r0, 30;" + call.format("%r0", "%r11") + local
    lane = np.arange(32)
    first = np.where(lane > 20, 100, lane * lane + 100)
    second = np.where(lane > 20, lane, lane * lane + lane)
    np.testing.assert_array_equal(words(body, extra=function), first + second)


def test_module_variables_with_initialisers() -> None:
    variables = """
    .global .align 4 .u32 table[4] = {5, 6, 7, 8}; .const .align 4 .f32 scale = 0f40400000;
    .global .u64 pointer = generic(table); .shared .align 4 .b8 scratch[128]; .global .align 4 .u32 counter;
    """
    body = """
    mov.u64 %rd10, table; and.b32 %r11, %r0, 3; mul.wide.u32 %rd11, %r11, 4; add.u64 %rd10, %rd10, %rd11;
    ld.global.u32 %r10, [%rd10]; ld.const.f32 %f1, [scale]; cvt.rzi.u32.f32 %r12, %f1; mul.lo.u32 %r10, %r10, %r12;
    mov.u64 %rd12, pointer; ld.global.u64 %rd13, [%rd12]; ld.global.u32 %r13, [%rd13+12]; add.u32 %r10, %r10, %r13;
    mov.u32 %r14, scratch; shl.b32 %r15, %r0, 2; add.u32 %r14, %r14, %r15; st.shared.u32 [%r14], %r10;
    cvt.u64.u32 %rd14, %r14; cvta.shared.u64 %rd15, %rd14; ld.u32 %r10, [%rd15];
    mov.u64 %rd16, counter; atom.global.add.u32 %r16, [%rd16], 1;
    """
    text = header() + variables + entry("k", ".param .u64 p0", _registers() + body + STORE_WORD.format("%r10"))
    module = Module.from_ptx(text)
    out = np.zeros(32, np.uint32)
    module.launch("k", 1, 32, [out]).check()
    np.testing.assert_array_equal(out, np.array([5, 6, 7, 8] * 8) * 3 + 8)
    module.launch("k", 1, 32, [out]).check()
    assert int.from_bytes(module.read_variable("counter"), "little") == 64


def _registers() -> str:
    return (
        ".reg .pred %p<10>; .reg .b32 %r<60>; .reg .f32 %f<40>; .reg .b64 %rd<40>;"
        "ld.param.u64 %rd0, [p0]; mov.u32 %r0, %tid.x;"
    )


def test_parameters_of_every_size() -> None:
    parameters = ".param .u64 p0, .param .u8 b, .param .u32 w, .param .align 8 .b8 s[16], .param .f64 d"
    body = """
    ld.param.u8 %r10, [b]; ld.param.u32 %r11, [w]; add.u32 %r10, %r10, %r11; ld.param.u32 %r11, [s+12];
    add.u32 %r10, %r10, %r11; .reg .f64 %fd; ld.param.f64 %fd, [d]; cvt.rzi.u32.f64 %r11, %fd; add.u32 %r10, %r10, %r11;
    mov.b64 %rd20, s; cvta.param.u64 %rd21, %rd20; ld.u32 %r11, [%rd21+8]; add.u32 %r10, %r10, %r11;
    """
    module = Module.from_ptx(header() + entry("k", parameters, _registers() + body + STORE_WORD.format("%r10")))
    out = np.zeros(32, np.uint32)
    struct = np.array([0, 0, 3000, 4000], np.uint32).tobytes()
    module.launch("k", 1, 32, [out, 1, 20, struct, np.float64(50000)]).check()
    np.testing.assert_array_equal(out, np.full(32, 57021))
    with pytest.raises(ValueError, match="expected 16 bytes"):
        module.launch("k", 1, 32, [out, 1, 20, struct[:8], np.float64(1)])


def test_special_registers_of_a_grid() -> None:
    body = """
    mov.u32 %r10, %ctaid.x; mov.u32 %r11, %nctaid.x; mov.u32 %r12, %ctaid.y; mad.lo.u32 %r10, %r12, %r11, %r10;
    mov.u32 %r13, %ntid.x; mov.u32 %r14, %ntid.y; mul.lo.u32 %r15, %r13, %r14; mov.u32 %r16, %tid.y;
    mad.lo.u32 %r17, %r16, %r13, %r0; mad.lo.u32 %r18, %r10, %r15, %r17; mul.wide.u32 %rd10, %r18, 4;
    add.u64 %rd10, %rd0, %rd10; shl.b32 %r19, %r12, 16; or.b32 %r19, %r19, %r16; st.global.u32 [%rd10], %r19;
    """
    out = np.zeros((2, 3, 4, 12), np.uint32)  # grid y, grid x, block y, block x
    launch(body, [out], block=(12, 4), grid=(3, 2)).check()  # type: ignore[arg-type]
    expected = (np.arange(2) << 16)[:, None, None, None] | np.arange(4)[None, None, :, None]
    np.testing.assert_array_equal(out, np.broadcast_to(expected, out.shape))


# ---- Findings of single accesses


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("st.global.u32 [%rd0+128], 1;", "out_of_bounds"),
        ("ld.global.u32 %r10, [%rd0+-4];", "out_of_bounds"),
        ("mov.u64 %rd10, 0; ld.global.u32 %r10, [%rd10];", "out_of_bounds"),
        ("ld.global.v2.u32 {%r10, %r11}, [%rd0+4];", "misaligned"),
        ("ld.shared.u32 %r10, [cell];", "uninitialised_read"),
        ("st.shared.u32 [cell+16], 1;", "out_of_bounds"),
        ("ld.local.u32 %r10, [%rd0];", "out_of_bounds"),
        ("trap;", "trap"),
        ("LOOP: bra LOOP;", "instruction_limit"),
        ("setp.lt.u32 %p1, %r0, 5; @%p1 bar.sync 0;", "divergent_barrier"),
        ("setp.lt.u32 %p1, %r0, 5; @%p1 bra A; bar.sync 0; A:", "divergent_barrier"),
        ("setp.lt.u32 %p1, %r0, 5; @%p1 bra A; bar.warp.sync 0xffffffff; A: ret;", "divergent_collective"),
        ("setp.lt.u32 %p1, %r0, 5; @%p1 shfl.sync.idx.b32 %r10, %r0, 0, 31, 0xffffffff;", "divergent_collective"),
        ("shfl.sync.idx.b32 %r10, %r0, 0, 31, 0xff;", "invalid_operand"),
        ("bar.sync 1, 64;", "invalid_operand"),
        ("mapa.shared::cluster.u32 %r10, %r0, 1;", "invalid_operand"),
    ],
)
def test_broken_kernels_are_found(body: str, kind: str) -> None:
    report = launch(body, [np.zeros(32, np.uint32)], extra=".shared .align 8 .b8 cell[16];", instruction_limit=10_000)
    assert report.kinds() == {kind}
    assert str(report.findings[0].place.ptx_line) != "0"


def test_deadlock_and_early_exit_at_barriers() -> None:
    cell = np.zeros(1, np.uint32)
    body = "setp.lt.u32 %p1, %r0, 32; @%p1 bra A; bar.sync 1, 64; A: bar.sync 2, 64;"
    assert launch(body, [cell], block=64).kinds() == {"deadlock"}
    for count in (32, 5):
        body = f"setp.lt.u32 %p1, %r0, {count}; @%p1 ret; bar.sync 0;"
        assert launch(body, [cell], block=64).kinds() == {"exited_barrier"}


def test_read_only_undefined_and_misaligned_buffers() -> None:
    memory = DeviceMemory()
    out = memory.add("out", np.zeros(32, np.uint32), undefined=True)
    source = memory.add("source", np.zeros(32, np.uint32), read_only=True)
    body = "ld.global.u32 %r10, [%rd0]; st.global.u32 [%rd1], %r10;"
    report = launch(body, [out, source], block=1, memory=memory)
    assert report.kinds() == {"uninitialised_read", "read_only_write"}
    memory = DeviceMemory()
    odd = memory.add("odd", np.zeros(64, np.uint8), misalign=4)
    launch("st.global.u32 [%rd0+8], 1;", [odd], block=1, memory=memory).check()
    assert launch("st.global.v2.u32 [%rd0+8], {%r0, %r0};", [odd], block=1, memory=memory).kinds() == {"misaligned"}


def test_a_block_is_a_cluster_of_its_own() -> None:
    got = words("mul.lo.u32 %r10, %r0, 4; mov.u32 %r11, %cluster_ctarank; mapa.shared::cluster.u32 %r10, %r10, %r11;")
    np.testing.assert_array_equal(got, 4 * np.arange(32))


def test_blocks_start_in_the_order_of_the_schedule() -> None:
    ticket = "mov.u32 %r10, %ctaid.x; atom.global.add.u32 %r11, [%rd1], 1; mul.wide.u32 %rd10, %r11, 4;"
    ticket += "add.u64 %rd10, %rd0, %rd10; st.global.u32 [%rd10], %r10;"

    def order(**options: Any) -> list[int]:
        out = np.zeros(12, np.uint32)
        launch(ticket, [out, np.zeros(1, np.uint32)], 1, grid=12, **options).check()
        return [int(block) for block in out]

    ascending = list(range(12))
    assert order() == ascending
    assert order(schedule="greedy") == ascending[::-1]
    drawn = [order(schedule="random", seed=seed) for seed in range(8)]
    assert all(sorted(blocks) == ascending for blocks in drawn)
    assert len({tuple(blocks) for blocks in drawn}) > 4
