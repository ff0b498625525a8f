"""What the parser refuses, and that its messages say where."""

import numpy as np
import pytest

from tests.ptxsim.simulator import Module
from tests.ptxsim.snippets import entry, header

TENSOR = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("frobnicate.u32 %r1, %r2;", "unknown opcode"),
        ("add.strange.u32 %r1, %r2, %r3;", "unknown modifier `.strange`"),
        ("add.u32 %r1, %r2;", "expected 3 operands, got 2"),
        ("add.u32 %r1, %r2, %r99;", "unknown register"),
        ("fma.f32 %f1, %f2, %f3, %f4;", "a rounding"),
        ("mul.u32 %r1, %r2, %r3;", "needs `.lo`, `.hi` or `.wide`"),
        ("cvt.u32.f32 %r1, %f1;", "needs .rni"),
        ("add.u32 %r1, %p1, %r2;", "do not mix"),
        ("bra NOWHERE;", "unknown label"),
        ("getctarank.u32 %r1, %r2;", "stage 3"),
        ("mapa.u64 %rd1, %rd2, %r1;", "`.shared::cluster` is missing"),
        ("barrier.cluster.arrive;", "stage 3"),
        ("ld.shared::cluster.u32 %r1, [%r2];", "stage 3"),
        ("call (%r1), %rd1, (%r2);", "indirect calls"),
        ("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%r1}, {%r1}, {%r1}, {%r1};", "not supported"),
        ("ld.global.v4.u32 {%r1, %r2}, [%rd1];", "does not fit the vector"),
        ("cp.async.cg.shared.global [%r1], [%rd1], 8;", "cp-size"),
        (".strange;", "unknown directive"),
        (f"{TENSOR}.multicast::cluster [%r1], [%rd1, {{%r2, %r3}}], [%r4], %r5;", "stage 3"),
        (f"{TENSOR}.im2col [%r1], [%rd1, {{%r2, %r3}}], [%r4];", "unknown modifier `.im2col`"),
        (f"{TENSOR} [%r1], [%rd1, {{%r2}}], [%r4];", "number of coordinates"),
        ("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r1], [%r2], 16, [%r3];", "stage 3"),
        ("tensormap.replace.tile.rank.global.b1024.b32 [%rd1], 3;", "stage 3"),
        ("mbarrier.wait.shared.b64 [%r1];", "unknown mbarrier operation"),
        ("wgmma.mma_async.sync.aligned.m64n12k16.f32.f16.f16 {%f1}, %rd1, %rd2, 1, 1, 1, 0, 0;", "does not exist"),
        (
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1}, %rd1, %rd2, 1, 1, 1, 0, 0;",
            "accumulator registers",
        ),
        ("wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%f1}, %rd1, %rd2, 1, 1, 1;", "a type is missing"),
    ],
)
def test_errors_name_the_line(line: str, message: str) -> None:
    registers = ".reg .pred %p<9>; .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b64 %rd<9>;\n"
    with pytest.raises(ValueError, match="line 7: ") as error:
        Module.from_ptx(header() + entry("k", "", registers + line))
    assert message in str(error.value)


def test_scopes_hide_registers_and_labels() -> None:
    # Inline assembly repeats the same names in braces; each block has its own.
    block = (
        "{ .reg.pred P; .reg .b32 T; mov.u32 T, 1; setp.eq.u32 P, T, 1; @P bra L; mov.u32 %r1, 9; "
        "L: add.u32 %r1, %r1, T; }"
    )
    body = f".reg .b32 %r<4>; .reg .b64 %rd; mov.u32 %r1, 0; {block} {block}"
    body += "ld.param.u64 %rd, [p]; st.global.u32 [%rd], %r1;"
    out = np.zeros(1, np.uint32)
    Module.from_ptx(header() + entry("k", ".param .u64 p", body)).launch("k", 1, 1, [out]).check()
    assert out[0] == 2


def test_launch_arguments_are_checked() -> None:
    text = header() + ".visible .entry k(.param .u64 p) .maxntid 64, 1, 1 { ret; }"
    module = Module.from_ptx(text)
    out = np.zeros(1, np.uint32)
    with pytest.raises(ValueError, match="at most 64 threads"):
        module.launch("k", 1, 96, [out])
    with pytest.raises(ValueError, match="expected 1, got 2"):
        module.launch("k", 1, 32, [out, out])
    with pytest.raises(ValueError, match="expected one of k, got other"):
        module.launch("other", 1, 32, [out])
    with pytest.raises(ValueError, match="C-contiguous"):
        module.launch("k", 1, 32, [np.zeros((4, 4))[:, 1:]])
