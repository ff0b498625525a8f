"""wgmma against numpy: each type and shape, each layout of A and B in shared memory, and the rules for its registers."""

from typing import Any

import numpy as np
import pytest

from tests.ptxsim.formats import Array, bf16
from tests.ptxsim.snippets import launch

THREAD = np.arange(128)
SIZE = 1 << 16
SHARED = f".shared .align 1024 .b8 tile[{SIZE}];"  # the only variable, so at address 0
B_AT = SIZE // 2
# kind -> numpy type of an element
ELEMENTS: dict[str, Any] = {"f16": np.float16, "bf16": np.uint16, "tf32": np.float32, "s8": np.int8, "u8": np.uint8}
SWIZZLE_BITS = {0: 0, 128: 1, 64: 2, 32: 3}


def matrix(kind: str, shape: tuple[int, int], seed: int) -> tuple[Array, Array]:
    """Small integers, so that sums are exact: the elements and their values."""
    values = np.random.default_rng(seed).integers(0 if kind == "u8" else -8, 8, shape)
    return (bf16(values) if kind == "bf16" else values.astype(ELEMENTS[kind])), values


def descriptor(start: int, leading: int, stride: int, swizzle: int) -> int:
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | SWIZZLE_BITS[swizzle] << 62


def permuted(offset: Array, swizzle: int) -> Array:
    """The swizzle in words of the manual: chunk c of 16 bytes goes to c XOR line, lines being 128 bytes."""
    if not swizzle:
        return offset
    chunk, line = offset // 16 % (swizzle // 16), offset // 128 % (swizzle // 16)
    return offset + ((chunk ^ line) - chunk) * 16


class Layout:
    """An operand [rows, depth] in shared memory at `base`: its image and the descriptor of each step along K."""

    def __init__(self, elements: Array, base: int, swizzle: int, mn_major: bool) -> None:
        rows, depth = elements.shape
        size = elements.itemsize
        row, column = np.meshgrid(np.arange(rows), np.arange(depth), indexing="ij")
        self.image = np.zeros(SIZE, np.uint8)
        width = swizzle or 16
        outer, inner = (column, row * size) if mn_major else (row, column * size)
        groups = -(-(depth if mn_major else rows) // 8)
        # Groups of 8 lines of `width` bytes; further along the line, the next such column of groups.
        column_bytes = groups * 8 * width
        offset = outer // 8 * 8 * width + outer % 8 * width + inner // width * column_bytes + inner % width
        places = base + permuted(offset, swizzle)
        raw = np.ascontiguousarray(elements).view(np.uint8).reshape(rows, depth, size)
        for byte in range(size):
            self.image[places + byte] = raw[..., byte]
        if mn_major:
            steps = [base + step * 2 * 8 * width for step in range(depth // 16)]
            # Without a swizzle the strides change their roles.
            leading, stride = (column_bytes, 8 * width) if swizzle else (8 * width, column_bytes)
        else:
            chunks = [step * 32 for step in range(depth * size // 32)]
            steps = [base + chunk // width * column_bytes + chunk % width for chunk in chunks]
            leading, stride = column_bytes, 8 * width
        self.descriptors = [descriptor(start, leading, stride, swizzle) for start in steps]


FILL = f"""mov.u32 %r10, tile; mov.u32 %r10, %r0; FILL: setp.ge.u32 %p3, %r10, {SIZE // 16}; @%p3 bra FILLED;
shl.b32 %r11, %r10, 4; cvt.u64.u32 %rd20, %r11; add.u64 %rd20, %rd1, %rd20;
ld.global.v4.b32 {{%r12, %r13, %r14, %r15}}, [%rd20]; st.shared.v4.b32 [%r11], {{%r12, %r13, %r14, %r15}};
add.u32 %r10, %r10, 128; bra FILL; FILLED:"""
PROXY = "fence.proxy.async.shared::cta;"
FENCE = "wgmma.fence.sync.aligned;"
COMMIT = "wgmma.commit_group.sync.aligned;"
WAIT = "wgmma.wait_group.sync.aligned 0;"


def registers(types: str, n: int) -> list[str]:
    count = n // 4 if types.startswith("f16") else n // 2
    return [f"%f{i}" if types.startswith("f32") else f"%r{30 + i}" for i in range(count)]


def accumulators(d: list[str]) -> str:
    """Every thread's registers from its part of the buffer in %rd0, where the results go too."""
    move = "f32" if d[0].startswith("%f") else "b32"
    lines = [f"mul.wide.u32 %rd21, %r0, {4 * len(d)}; add.u64 %rd21, %rd0, %rd21;"]
    return "\n".join([*lines, *(f"ld.global.{move} {r}, [%rd21+{4 * i}];" for i, r in enumerate(d))])


def results(d: list[str]) -> str:
    move = "f32" if d[0].startswith("%f") else "b32"
    return "\n".join(f"st.global.{move} [%rd21+{4 * i}], {r};" for i, r in enumerate(d))


def wgmma(shape: str, types: str, d: list[str], a: str, b: str, tail: str, scale: str = "1") -> str:
    return f"wgmma.mma_async.sync.aligned.{shape}.{types} {{{', '.join(d)}}}, {a}, {b}, {scale}{tail};"


def places(n: int) -> tuple[Array, Array]:
    """Row and column [128, n / 2] of each thread's accumulators."""
    r, lane = np.arange(n // 2)[None, :], THREAD[:, None] % 32
    return 16 * (THREAD[:, None] // 32) + lane // 4 + r // 2 % 2 * 8, r // 4 * 8 + lane % 4 * 2 + r % 2


def product(
    kind: str,
    result: str,
    n: int,
    steps: int,
    swizzles: tuple[int, int],
    majors: tuple[bool, bool],
    mode: str,
    **change: Any,
) -> None:
    """Checks D = A B + C over `steps` instructions. `change` may negate factors or drop C."""
    size = np.dtype(ELEMENTS[kind]).itemsize
    depth = steps * 32 // size
    (a, x), (b, y) = matrix(kind, (64, depth), 1), matrix(kind, (n, depth), 2)
    left, right = Layout(a, 0, swizzles[0], majors[0]), Layout(b, B_AT, swizzles[1], majors[1])
    image = left.image | right.image
    dtype = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[result]
    c = np.random.default_rng(3).integers(-20, 20, (64, n)).astype(dtype)
    rows, columns = places(n)
    out = np.ascontiguousarray(c[rows, columns])
    types = f"{result}.{kind}.{kind}"
    d = registers(types, n)
    sign = change.get("sign", 1)
    tail = "" if result == "s32" else f", {sign}, 1" + (f", {majors[0]:d}, {majors[1]:d}" if size == 2 else "")
    if change.get("saturate"):
        types += ".satfinite"
    lines = [FILL, PROXY, "bar.sync 0;", accumulators(d), FENCE]
    for step, (p, q) in enumerate(zip(left.descriptors, right.descriptors, strict=True)):
        scale = "0" if change.get("drop") and step == 0 else "1"
        lines.append(f"mov.b64 %rd22, {p}; mov.b64 %rd23, {q};")
        lines.append(wgmma(f"m64n{n}k{32 // size}", types, d, "%rd22", "%rd23", tail, scale))
    body = "\n".join([*lines, COMMIT, WAIT, results(d)])
    report = launch(body, [out, image], 128, extra=SHARED, completion=mode).check()
    expected = sign * (x @ y.T) + (0 if change.get("drop") else c.astype(np.int64))
    np.testing.assert_array_equal(out.view(dtype), expected[rows, columns])
    assert report.count("wgmma.mma_async") == 4 * steps


modes = pytest.mark.parametrize("mode", ["early", "late", "random"])


@modes
@pytest.mark.parametrize(
    ("kind", "result"), [("f16", "f32"), ("f16", "f16"), ("bf16", "f32"), ("tf32", "f32"), ("s8", "s32"), ("u8", "s32")]
)
@pytest.mark.parametrize("n", [8, 96])
def test_types(kind: str, result: str, n: int, mode: str) -> None:
    product(kind, result, n, 4, (128, 128), (False, False), mode)


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("mn_major", [False, True])
@pytest.mark.parametrize("operand", ["a", "b"])
def test_layouts(swizzle: int, mn_major: bool, operand: str) -> None:
    swizzles = (swizzle, 128) if operand == "a" else (128, swizzle)
    majors = (mn_major, False) if operand == "a" else (False, mn_major)
    product("bf16", "f32", 128, 4, swizzles, majors, "late")


def test_scales_and_the_widest_shape() -> None:
    product("f16", "f32", 256, 1, (32, 32), (False, True), "late", sign=-1)
    product("bf16", "f32", 64, 2, (64, 64), (True, True), "late", drop=True)
    product("s8", "s32", 32, 2, (64, 64), (False, False), "early", saturate=True)


@modes
@pytest.mark.parametrize("kind", ["bf16", "tf32", "s8"])
def test_a_from_registers(kind: str, mode: str) -> None:
    size = np.dtype(ELEMENTS[kind]).itemsize
    depth, per_register = 32 // size, 4 // size
    (a, x), (b, y) = matrix(kind, (64, depth), 1), matrix(kind, (32, depth), 2)
    right = Layout(b, B_AT, 32, False)
    r, lane = np.arange(4)[None, :], THREAD[:, None] % 32
    row = 16 * (THREAD[:, None] // 32) + lane // 4 + r % 2 * 8
    column = (lane % 4 + 4 * (r // 2)) * per_register
    columns = column[..., None] + np.arange(per_register)
    fragments = np.ascontiguousarray(a[row[..., None], columns]).view(np.uint32).reshape(128, 4)
    rows, places_n = places(32)
    result = "s32" if kind == "s8" else "f32"
    dtype = np.int32 if kind == "s8" else np.float32
    out = np.zeros((128, 16), dtype)
    types = f"{result}.{kind}.{kind}"
    d = registers(types, 32)
    load = "mul.wide.u32 %rd24, %r0, 16; add.u64 %rd24, %rd2, %rd24;"
    load += "ld.global.v4.b32 {%r20, %r21, %r22, %r23}, [%rd24];"
    tail = {"bf16": ", 1, 1, 0", "tf32": ", 1, 1", "s8": ""}[kind]
    fragment = "{%r20, %r21, %r22, %r23}"
    body = [FILL, PROXY, "bar.sync 0;", accumulators(d), load, f"mov.b64 %rd23, {right.descriptors[0]};", FENCE]
    body += [wgmma(f"m64n32k{depth}", types, d, fragment, "%rd23", tail, "0"), COMMIT, WAIT, results(d)]
    options: dict[str, Any] = {"extra": SHARED, "completion": mode}
    launch("\n".join(body), [out, right.image, fragments], 128, **options).check()
    np.testing.assert_array_equal(out, (x @ y.T)[rows, places_n])
    # The fragment may not change before the wait, nor behind the fence.
    touched = "\n".join(body).replace(COMMIT, "mov.b32 %r21, 0;" + COMMIT)
    assert launch(touched, [out, right.image, fragments], 128, **options).kinds() == {"wgmma_registers"}
    unfenced = "\n".join(body).replace(FENCE, FENCE + "mov.b32 %r21, 0;")
    assert launch(unfenced, [out, right.image, fragments], 128, **options).kinds() == {"wgmma_registers"}


D = registers("f32.f16.f16", 8)
ONE = f"mov.b64 %rd22, {descriptor(0, 0, 1024, 128)}; mov.b64 %rd23, {descriptor(B_AT, 0, 1024, 128)};"
ONE += wgmma("m64n8k16", "f32.f16.f16", D, "%rd22", "%rd23", ", 1, 1, 0, 0")
SHIFTED = ONE.replace("wgmma", "add.u64 %rd23, %rd23, %rd24; wgmma", 1)
START = f"{FILL} {PROXY} bar.sync 0; {accumulators(D)}"
GOOD = START + FENCE + ONE + COMMIT + WAIT + results(D)


def kinds(body: str, mode: str, block: int = 128) -> set[str]:
    buffers = [np.zeros((128, 4), np.float32), np.zeros(SIZE, np.uint8)]
    return launch(body, buffers, block, extra=SHARED, completion=mode).kinds()


@modes
@pytest.mark.parametrize(
    ("good", "bad", "kind"),
    [
        (WAIT, "", "wgmma_registers"),
        (WAIT, WAIT.replace(" 0;", " 1;"), "wgmma_registers"),
        (COMMIT, "", "wgmma_registers"),
        (FENCE, "", "wgmma_registers"),
        (COMMIT, COMMIT + "add.f32 %f9, %f1, %f1;", "wgmma_registers"),
        (COMMIT, COMMIT + "mov.f32 %f1, 0f00000000;", "wgmma_registers"),
        (PROXY, "", "missing_proxy_fence"),
        (PROXY + " bar.sync 0;", PROXY, "race"),
        (COMMIT, COMMIT + "bar.sync 0; st.shared.b32 [8], %r0;", "race"),
        (FILL, "mov.u32 %r10, tile;", "uninitialised_read"),
        (f"{descriptor(B_AT, 0, 1024, 128)};", f"{descriptor(SIZE - 16, 0, 1024, 128)};", "out_of_bounds"),
        (ONE, f"cvt.u64.u32 %rd24, %r1; {SHIFTED}", "invalid_operand"),
        (ONE, f"shr.u32 %r20, %r0, 5; cvt.u64.u32 %rd24, %r20; {SHIFTED}", "divergent_collective"),
        (ONE, f"setp.lt.u32 %p4, %r0, 64; @%p4 bra SKIP; {ONE} SKIP:", "divergent_collective"),
        (ONE, f"setp.lt.u32 %p4, %r1, 4; @%p4 bra SKIP; {ONE} SKIP:", "divergent_collective"),
        (WAIT + results(D), "", "async"),
    ],
)
def test_misuse_is_found(good: str, bad: str, kind: str, mode: str) -> None:
    assert kinds(GOOD, mode) == set()
    assert good in GOOD
    assert kind in kinds(GOOD.replace(good, bad, 1), mode)


@modes
def test_what_suffices(mode: str) -> None:
    # Two groups on the same accumulators, the older one awaited; registers not in flight may change.
    chain = START + FENCE + ONE + COMMIT + ONE + COMMIT + "wgmma.wait_group.sync.aligned 1; add.f32 %f9, %f9, %f9;"
    assert kinds(chain + WAIT + results(D), mode) == set()
    # Shared memory may be overwritten once the wait is over.
    assert kinds(GOOD + "bar.sync 0; st.shared.b32 [8], 1;", mode) == set()


def test_a_part_of_a_warpgroup_is_no_warpgroup() -> None:
    assert kinds(GOOD, "late", 64) == {"invalid_operand"}
