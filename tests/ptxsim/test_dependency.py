"""Launches that may start before those before them have ended: what they may touch until griddepcontrol.wait."""

import numpy as np
import pytest

from tests.ptxsim.formats import Array
from tests.ptxsim.simulator import DeviceMemory, Module, Report
from tests.ptxsim.snippets import entry, header

REGISTERS = ".reg .b64 %a, %b; .reg .b32 %x, %lane; .reg .pred %p; ld.param.u64 %a, [a]; ld.param.u64 %b, [b];"
WAIT = "griddepcontrol.wait;"
LOAD, STORE, ADD = "ld.global.u32 %x, [%a];", "st.global.u32 [%b], 7;", "atom.global.add.u32 %x, [%b], 1;"


def run(body: str, *, dependent: bool = True, settled: bool = False, block: int = 1) -> tuple[Report, Array]:
    memory = DeviceMemory()
    out = np.zeros(1, np.uint32)
    source = memory.add("source", np.ones(1, np.uint32), read_only=True, settled=settled)
    target = memory.add("target", out)
    module = Module.from_ptx(header() + entry("kernel", ".param .u64 a, .param .u64 b", REGISTERS + body))
    return module.launch("kernel", 1, block, [source, target], memory=memory, dependent=dependent), out


@pytest.mark.parametrize("access", [LOAD, STORE, ADD])
def test_nothing_is_touched_before_the_wait(access: str) -> None:
    assert run(access + WAIT)[0].kinds() == {"dependency"}
    assert not run(WAIT + access)[0].findings
    assert not run(access, dependent=False)[0].findings


def test_settled_buffers_may_be_read_at_once() -> None:
    assert not run(LOAD + WAIT, settled=True)[0].findings
    assert run(STORE + WAIT, settled=True)[0].kinds() == {"dependency"}


def test_every_thread_waits() -> None:
    """One that ends without it, or reads while its neighbour waits, is found."""
    assert run("")[0].kinds() == {"dependency"}
    some = "mov.u32 %lane, %tid.x; setp.lt.u32 %p, %lane, 5; "
    report, _ = run(some + "@%p griddepcontrol.wait;" + LOAD, settled=True, block=32)
    assert report.kinds() == {"dependency"}
    assert "5" in report.findings[0].message  # the first thread that did not


def test_letting_the_next_launch_start_is_no_wait() -> None:
    assert run("griddepcontrol.launch_dependents;" + STORE + WAIT)[0].kinds() == {"dependency"}
    report, out = run("griddepcontrol.launch_dependents;" + WAIT + STORE)
    assert not report.findings
    assert out[0] == 7
    with pytest.raises(ValueError, match=r"`.wait` or `.launch_dependents` is missing"):
        run("griddepcontrol.start;")
