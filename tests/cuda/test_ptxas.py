"""What ptxas makes of the kernels: no spills, no stack, registers for the occupancy of the plan, wide accesses.

Two architectures here; `make kernel-sheet` applies the same gate to all six."""

import dataclasses

import pytest

from tests.cuda import ptxas_gate
from tests.cuda.machine_code import OPS, Instruction, KernelCode, architectures_of, parse
from tests.cuda.ptxas_gate import violations

LOG = """ptxas info    : (C7514) Potential Performance Loss: wgmma.mma_async instructions are serialized due to reads in \
the function 'row_argmax_float32'
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'row_argmax_float32' for 'sm_80'
ptxas info    : Function properties for row_argmax_float32
    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 72 bytes smem, 424 bytes cmem[0]
"""
LISTING = """
        Function : row_argmax_float32
        /*0000*/                   MOV R1, c[0x0][0x28] ;                   /* 0x00000a0000017a02 */
        /*0010*/              @!P0 LDG.E.NA.128.CONSTANT R4, [R2.64] ;      /* 0x0000000000007919 */
        /*0020*/             @!UP1 LDG.E.128 R8, desc[UR4][R12.64+0x10] ;   /* 0x0000000000007919 */
        /*0030*/                   LDG.E.U16 R20, [R2.64] ;                 /* 0x0000000000007919 */
        /*0040*/                   STL.64 [R1], R20 ;                       /* 0x0000000000007919 */
        /*0050*/                   HMMA.16816.F32 R4, R8, R12, R4 ;         /* 0x0000000000007919 */
        /*0060*/                   STG.E [R2.64], R4 ;                      /* 0x0000000000007919 */
"""


@pytest.mark.parametrize(
    ("op", "arch"), [(op, arch) for op in OPS for arch in ("80", "90a") if arch in architectures_of(op)]
)
def test_kernels_hold_what_their_plans_assume(op: str, arch: str) -> None:
    assert violations(op, arch) == []


def test_reports_and_listings_are_read() -> None:
    code = parse(LOG, LISTING, "80")["row_argmax_float32"]
    assert (code.registers, code.shared_bytes, code.stack_bytes, code.spill_bytes) == (40, 72, 16, 12)
    assert [one.opcode for one in code.instructions][:3] == ["MOV", "LDG.E.NA.128.CONSTANT", "LDG.E.128"]
    assert (code.local_accesses, code.tensor_instructions) == (1, 1)
    assert [code.global_accesses("LDG", size) for size in (1, 4, 16)] == [3, 2, 2]
    assert [code.global_accesses("STG", size) for size in (4, 8)] == [1, 0]
    assert code.load_bytes_in_flight == 16 + 16 + 2


def test_a_load_is_in_flight_until_its_registers_are_named() -> None:
    load = [Instruction("LDG.E.64", f" R{4 * i}, [R32.64]") for i in range(4)]
    use = Instruction("IADD3", " R40, R36, R20, RZ")
    code = parse(LOG, LISTING, "80")["row_argmax_float32"]

    def in_flight(*instructions: Instruction) -> int:
        return dataclasses.replace(code, instructions=instructions).load_bytes_in_flight

    assert in_flight(*load) == 32
    assert in_flight(*load[:2], use, *load[2:]) == 32
    use_of_second_half = Instruction("IADD3", " R40, R36, R5, RZ")
    assert in_flight(*load[:2], use_of_second_half, *load[2:]) == 24
    assert in_flight(load[0], load[0], load[0]) == 8


def test_the_gate_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = parse(LOG, LISTING, "80")
    monkeypatch.setattr(ptxas_gate, "machine_code", lambda op, arch: kernels)
    monkeypatch.setattr(ptxas_gate, "entry_names", lambda op: ["row_argmax_float32"])
    text = "\n".join(violations("row_argmax", "80"))
    assert "12 bytes of spills, 16 bytes of stack" in text
    assert "1 LDL or STL" in text
    assert "row_argmax_float32 (sm_80): wgmma.mma_async instructions are serialized due to reads" in text
    assert "expected 48 bytes a lane in flight, got 34" in text
    assert "blocks" not in text
    code = kernels["row_argmax_float32"]
    good: dict[str, KernelCode] = {code.name: dataclasses.replace(code, registers=80, instructions=())}
    monkeypatch.setattr(ptxas_gate, "machine_code", lambda op, arch: good)
    text = "\n".join(violations("row_argmax", "80"))
    assert "expected 4 blocks on a multiprocessor, got Occupancy(by_threads=8, by_registers=3" in text
    assert "no LDG of 16 bytes" in text
    assert "no STG of 1 bytes" in text
    monkeypatch.setattr(ptxas_gate, "entry_names", lambda op: ["row_argmax_float16", "row_argmax_float32"])
    assert "expected kernels" in violations("row_argmax", "80")[0]
