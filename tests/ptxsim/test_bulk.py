"""cp.async.bulk and cp.async.bulk.tensor against numpy: layouts, edges, swizzles, reductions, order and misuse."""

from typing import Any

import numpy as np
import pytest

from tests.ptxsim import DeviceMemory, TensorMap
from tests.ptxsim.formats import Array, bf16, bf16_to_float
from tests.ptxsim.snippets import launch

SHARED = ".shared .align 1024 .b8 tile[16384]; .shared .align 8 .b64 bar[2];"
INIT = "setp.eq.u32 %p1, %r0, 0; @%p1 mbarrier.init.shared::cta.b64 [bar], 1; bar.sync 0;"
WAIT = "W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], 0; @!%p2 bra W;"
COMPLETIONS = ["early", "late", "random"]
completions = pytest.mark.parametrize("completion", COMPLETIONS)


def expect(size: int) -> str:
    return f"@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], {size};"


def dump(size: int) -> str:
    """Copies `size` bytes of the tile to the buffer in %rd0, 64 threads."""
    return f"""mov.u32 %r20, %r0; mov.u32 %r21, tile; D: setp.ge.u32 %p3, %r20, {size // 4}; @%p3 bra DONE;
    shl.b32 %r22, %r20, 2; add.u32 %r23, %r21, %r22; ld.shared.u32 %r24, [%r23];
    mul.wide.u32 %rd20, %r20, 4; add.u64 %rd20, %rd0, %rd20; st.global.u32 [%rd20], %r24;
    add.u32 %r20, %r20, 64; bra D; DONE:"""


def fill(size: int) -> str:
    """Copies `size` bytes from the buffer in %rd0 to the tile."""
    return f"""mov.u32 %r20, %r0; mov.u32 %r21, tile; F: setp.ge.u32 %p3, %r20, {size // 4}; @%p3 bra FILLED;
    shl.b32 %r22, %r20, 2; add.u32 %r23, %r21, %r22; mul.wide.u32 %rd20, %r20, 4; add.u64 %rd20, %rd0, %rd20;
    ld.global.u32 %r24, [%rd20]; st.shared.u32 [%r23], %r24; add.u32 %r20, %r20, 64; bra F; FILLED:"""


FENCE = "fence.proxy.async.shared::cta; bar.sync 0;"
COMMIT = "@%p1 cp.async.bulk.commit_group;"
DRAIN = "@%p1 cp.async.bulk.wait_group 0;"
LOAD = "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%rd1], 256, [bar];"
STORE = "@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [tile], 256;"
LEADER = "setp.eq.u32 %p1, %r0, 0;"


@completions
def test_plain_load_and_store(completion: str) -> None:
    source, out = np.arange(64, dtype=np.uint32) * 7, np.zeros(64, np.uint32)
    report = launch(
        INIT + expect(256) + LOAD + WAIT + dump(256), [out, source], 64, extra=SHARED, completion=completion
    )
    np.testing.assert_array_equal(out, source)
    assert report.check().buffers["arg1"].load_bytes == 256
    assert report.buffers["arg1"].load_sectors == 8
    target = np.zeros(64, np.uint32)
    report = launch(LEADER + fill(256) + FENCE + STORE + COMMIT + DRAIN, [source, target], 64, extra=SHARED)
    np.testing.assert_array_equal(target, source)
    assert report.check().buffers["arg1"].store_bytes == 256


@pytest.mark.parametrize(
    ("op", "kind", "dtype"),
    [
        ("add", "u32", np.uint32),
        ("min", "s32", np.int32),
        ("max", "s64", np.int64),
        ("and", "b32", np.uint32),
        ("or", "b64", np.uint64),
        ("xor", "b32", np.uint32),
        ("inc", "u32", np.uint32),
        ("add", "f16", np.float16),
        ("add", "bf16", np.uint16),
        ("add", "f32", np.float32),
        ("add", "f64", np.float64),
    ],
)
def test_plain_reduction(op: str, kind: str, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    count = 256 // np.dtype(dtype).itemsize
    x, y = rng.integers(0, 9, (2, count))
    a, b = (bf16(v) if kind == "bf16" else v.astype(dtype) for v in (x, y))
    suffix = f"{op}.noftz.{kind}" if kind in ("f16", "bf16") else f"{op}.{kind}"
    body = STORE.replace("cp.async", "cp.reduce.async").replace("bulk_group", f"bulk_group.{suffix}")
    launch(LEADER + fill(256) + FENCE + body + COMMIT + DRAIN, [a, b], 64, extra=SHARED).check()
    functions: dict[str, Any] = {"min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or}
    functions |= {"add": np.add, "xor": np.bitwise_xor, "inc": lambda v, old: np.where(old >= v, 0, old + 1)}
    np.testing.assert_array_equal(bf16_to_float(b) if kind == "bf16" else b, functions[op](x, y))


def box_of(array: Array, corner: tuple[int, ...], box: tuple[int, ...], outside: Any = 0) -> Array:
    """The box of `array` (numpy axis order, innermost last) at `corner`, which may stick out."""
    result = np.full(box, outside, array.dtype)
    for index in np.ndindex(*box):
        at = tuple(c + i for c, i in zip(corner, index, strict=True))
        if all(0 <= a < n for a, n in zip(at, array.shape, strict=True)):
            result[index] = array[at]
    return result


def tensor_load(array: Array, dtype: str, corner: tuple[int, ...], box: tuple[int, ...], **options: Any) -> Array:
    """Shared memory, as bytes, after a load of one box."""
    completion = options.pop("completion", "late")
    memory = DeviceMemory()
    size = int(np.prod(box)) * array.itemsize
    out = np.zeros(size, np.uint8)
    made = TensorMap(dtype, memory.add("tensor", array), array.shape[::-1], box[::-1], **options)
    coordinates = ", ".join(str(c) for c in corner[::-1])
    copy = f"""@%p1 cp.async.bulk.tensor.{array.ndim}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
    [tile], [%rd1, {{{coordinates}}}], [bar];"""
    arguments = [memory.add("out", out), bytes(made)]
    body = INIT + expect(size) + copy + WAIT + dump(size)
    launch(body, arguments, 64, extra=SHARED, memory=memory, completion=completion).check()
    return out


@completions
@pytest.mark.parametrize(
    ("shape", "corner", "box"),
    [
        ((64,), (8,), (16,)),
        ((64,), (56,), (16,)),
        ((20, 32), (3, 8), (8, 16)),
        ((20, 32), (-3, -4), (8, 16)),
        ((20, 32), (15, 24), (8, 16)),
        ((5, 20, 32), (3, 18, 0), (3, 4, 8)),
        ((3, 4, 5, 16), (1, -1, 2, 8), (2, 3, 4, 8)),
        ((2, 3, 4, 5, 16), (1, 2, -2, 1, -8), (2, 2, 3, 2, 16)),
    ],
)
def test_tensor_load_of_every_rank(shape: tuple[int, ...], corner: Any, box: Any, completion: str) -> None:
    array = np.random.default_rng(0).integers(1, 2**16, shape).astype(np.uint16)
    got = tensor_load(array, "u16", corner, box, completion=completion)
    np.testing.assert_array_equal(got.view(np.uint16).reshape(box), box_of(array, corner, box))


def test_nan_fill_strides_and_element_strides() -> None:
    array = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    got = tensor_load(array, "f32", (6, 12), (4, 8), fill="nan").view(np.float32).reshape(4, 8)
    np.testing.assert_array_equal(got, box_of(array, (6, 12), (4, 8), np.nan))
    # Rows of a wider tensor, and every second element of every third row.
    part = tensor_load(array, "f32", (0, 0), (4, 8), strides=[128]).view(np.float32).reshape(4, 8)
    np.testing.assert_array_equal(part, array.reshape(4, 32)[:, :8])
    memory = DeviceMemory()
    out = np.zeros(8 * 4, np.float32)
    made = TensorMap("f32", memory.add("tensor", array), (16, 8), (16, 6), element_strides=(2, 3))
    copy = """@%p1 cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [tile], [%rd1, {0, 1}],
    [bar];"""
    body = INIT + expect(64) + copy + WAIT + dump(64)
    launch(body, [memory.add("out", out), bytes(made)], 64, extra=SHARED, memory=memory).check()
    np.testing.assert_array_equal(out[:16].reshape(2, 8), array[1:7:3, ::2])


@pytest.mark.parametrize("swizzle", [32, 64, 128])
@completions
def test_swizzles(swizzle: int, completion: str) -> None:
    rows, columns = 24, swizzle // 2
    array = np.random.default_rng(0).integers(1, 2**16, (32, 80)).astype(np.uint16)
    got = tensor_load(array, "u16", (10, 8), (rows, columns), swizzle=swizzle, completion=completion)
    # Row r of `swizzle` bytes: chunk c of 16 bytes lies at c XOR the number of the 128-byte line, modulo the row's chunks.
    expected = box_of(array, (10, 8), (rows, columns)).view(np.uint8).reshape(rows, swizzle // 16, 16)
    chunk = np.arange(swizzle // 16)[None, :] ^ ((np.arange(rows)[:, None] * swizzle // 128) % (swizzle // 16))
    placed = np.zeros_like(expected)
    placed[np.arange(rows)[:, None], chunk] = expected
    np.testing.assert_array_equal(got.reshape(placed.shape), placed)


@pytest.mark.parametrize("op", [None, "add", "min", "max"])
@pytest.mark.parametrize("swizzle", [0, 64])
@completions
def test_tensor_store_and_reduction(op: str | None, swizzle: int, completion: str) -> None:
    rng = np.random.default_rng(0)
    tensor, tile = rng.integers(0, 100, (20, 40)).astype(np.int32), rng.integers(0, 100, (8, 16)).astype(np.int32)
    before = tensor.copy()
    memory = DeviceMemory()
    source = tile.copy()
    if swizzle:
        chunk = np.arange(4)[None, :] ^ ((np.arange(8)[:, None] // 2) % 4)
        source.reshape(8, 4, 4)[np.arange(8)[:, None], chunk] = tile.reshape(8, 4, 4)
    arguments = [memory.add("source", source)]
    made = TensorMap("s32", memory.add("tensor", tensor), (40, 20), (16, 8), swizzle=swizzle)
    name = (
        f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{op}"
        if op
        else "cp.async.bulk.tensor.2d.global.shared::cta"
    )
    body = f"{LEADER} {fill(512)} {FENCE} @%p1 {name}.tile.bulk_group [%rd1, {{32, -2}}], [tile]; {COMMIT} {DRAIN}"
    launch(body, [*arguments, bytes(made)], 64, extra=SHARED, memory=memory, completion=completion).check()
    inside = tile[2:, :8]
    functions: dict[str, Any] = {"add": np.add, "min": np.minimum, "max": np.maximum}
    before[:6, 32:] = functions[op](before[:6, 32:], inside) if op else inside
    np.testing.assert_array_equal(tensor, before)


def kinds(body: str, completion: str, **options: Any) -> set[str]:
    buffers = [np.arange(64, dtype=np.uint32), np.arange(64, dtype=np.uint32)]
    return launch(body, buffers, 64, extra=SHARED, completion=completion, **options).kinds()


READY = LEADER + fill(256) + FENCE


@completions
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (INIT + expect(256) + LOAD + dump(256), "race"),
        (INIT + expect(128) + LOAD + WAIT + dump(256), None),
        (INIT + LOAD + "@%p1 mbarrier.arrive.shared::cta.b64 _, [bar];" + WAIT + dump(256), None),
        (INIT + expect(512) + LOAD + WAIT, "deadlock"),
        (INIT + expect(512) + LOAD + LOAD + WAIT, "race"),
        (READY.replace("fence.proxy.async.shared::cta;", "") + STORE + COMMIT + DRAIN, "missing_proxy_fence"),
        (READY.replace("bar.sync 0;", "") + STORE + COMMIT + DRAIN, "race"),
        (READY + STORE + COMMIT, "async"),
        (READY + STORE + DRAIN, "async"),
        (READY + STORE + COMMIT + "bar.sync 0; st.shared.u32 [tile], 1;" + DRAIN, "race"),
        (READY + STORE + COMMIT + "@%p1 ld.global.u32 %r30, [%rd1];" + DRAIN, "race"),
        (READY + STORE + COMMIT + "@%p1 cp.async.bulk.wait_group.read 0; @%p1 ld.global.u32 %r30, [%rd1];", "race"),
        (READY + STORE.replace("256", "24"), "invalid_operand"),
        (READY + STORE.replace("256", "272") + COMMIT + DRAIN, "out_of_bounds"),
        (READY + STORE.replace("[tile]", "[tile+8]") + COMMIT + DRAIN, "misaligned"),
        (LEADER + FENCE + STORE + COMMIT + DRAIN, "uninitialised_read"),
        (LEADER + LOAD, "mbarrier"),
        (INIT + expect(256) + LOAD, "unawaited"),
    ],
)
def test_misuse_is_found(body: str, kind: str | None, completion: str) -> None:
    # The cases without a kind end in a race or are caught when the phase completes, by when the copy lands.
    found = kinds(body, completion)
    if kind == "unawaited":
        # A load nobody waits for is only seen while it is under way.
        assert completion != "late" or found == {"async"}
        return
    assert found & {"race", "async", "deadlock", "mbarrier"} if kind is None else kind in found


@completions
def test_what_suffices(completion: str) -> None:
    read = "@%p1 cp.async.bulk.wait_group.read 0;"
    assert kinds(READY + STORE + COMMIT + read + "bar.sync 0; st.shared.u32 [tile], 1;", completion) == set()
    assert kinds(READY + STORE + COMMIT + DRAIN + "@%p1 ld.global.u32 %r30, [%rd1];", completion) == set()
    # The fence may also stand on the issuing thread's side of the barrier.
    late = READY.replace("fence.proxy.async.shared::cta; bar.sync 0;", "bar.sync 0; fence.proxy.async;")
    assert kinds(late + STORE + COMMIT + DRAIN, completion) == set()
    # Of two groups the older one may be awaited alone.
    second = STORE.replace("[tile]", "[tile+256]").replace("[%rd1]", "[%rd0]")
    two = LEADER + fill(256) + "st.shared.u64 [tile+256], 0;" + FENCE + STORE + COMMIT + second.replace("256;", "16;")
    first_only = two + COMMIT + "@%p1 cp.async.bulk.wait_group.read 1; bar.sync 0; st.shared.u32 [tile], 1;"
    found = kinds(first_only + DRAIN, completion)
    assert "race" not in found
    assert "race" in kinds(first_only.replace("[tile], 1", "[tile+256], 1") + DRAIN, completion)


@completions
def test_a_proxy_fence_counts_across_an_mbarrier(completion: str) -> None:
    # All threads write, fence and arrive; the issuing thread waits, without a barrier of the block.
    start = "setp.eq.u32 %p1, %r0, 0; @%p1 mbarrier.init.shared::cta.b64 [bar], 64; bar.sync 0;"
    write = fill(256) + "fence.proxy.async.shared::cta;"
    arrive = "mbarrier.arrive.shared::cta.b64 _, [bar]; @!%p1 bra END;"
    rest = WAIT + STORE + COMMIT + DRAIN + "END:"
    assert kinds(start + write + arrive + rest, completion) == set()
    assert kinds(start + fill(256) + arrive + rest, completion) == {"missing_proxy_fence"}
    # A fence of one thread does not cover what another has written and not handed over.
    assert "missing_proxy_fence" in kinds(start + fill(256) + "@%p1 fence.proxy.async;" + arrive + rest, completion)


def test_late_copies_land_although_another_warp_spins() -> None:
    body = f"""{INIT} setp.lt.u32 %p4, %r0, 32; @!%p4 bra SPIN; {expect(256)} {LOAD} {WAIT}
    @%p1 atom.global.exch.b32 %r30, [%rd0], 99; bra END;
    SPIN: ld.relaxed.gpu.global.u32 %r31, [%rd0]; setp.ne.u32 %p5, %r31, 99; @%p5 bra SPIN; END:"""
    assert kinds(body, "late") == set()


def test_tensor_maps_are_checked() -> None:
    good: dict[str, Any] = {"dtype": "f16", "address": 1 << 40, "sizes": (64, 8), "box": (64, 8), "swizzle": 128}
    assert len(bytes(TensorMap(**good))) == 128
    for change in (
        {"address": (1 << 40) + 8},
        {"box": (32, 8)},
        {"box": (64, 257)},
        {"strides": [24]},
        {"sizes": (64, 0)},
        {"sizes": (64,)},
        {"dtype": "u8", "fill": "nan", "box": (128, 8)},
    ):
        with pytest.raises(ValueError, match="tensor map: expected"):
            bytes(TensorMap(**(good | change)))
    body = (
        INIT
        + """@%p1 cp.async.bulk.tensor.3d.shared::cta.global.mbarrier::complete_tx::bytes [tile],
    [%rd1, {0, 0, 0}], [bar];"""
    )
    for made in (bytes(TensorMap(**good)), bytes(128)):
        assert launch(body, [np.zeros(4), made], 64, extra=SHARED).kinds() == {"invalid_operand"}
