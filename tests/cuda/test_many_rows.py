"""fuse_features and project_context_kv past the rows of one pass: the streaming kernel in passes, then torch's GEMM (by
torch on the CPU here) and the kernels that follow it."""

import pytest
import torch

from dflash_ops import _host, reference
from tests.cases import write_context_kv
from tests.cases.fuse_features import Case as FuseCase
from tests.cases.project_context_kv import Case
from tests.cuda import test_fuse_features as fuse
from tests.cuda import test_project_context_kv as project
from tests.cuda.gpu import GPUS, Gpu
from tests.cuda.simulated_page_bounds import update_page_bounds
from tests.cuda.simulated_stream_ops import fuse_features, project_context_kv
from tests.ops.harness import DTYPES, assert_as_accurate
from tests.ptxsim import assert_count

LIBRARY_ROWS = 257  # the first that go to torch's GEMM


def entries(steps: list[_host.OpStep]) -> list[str]:
    """Launches in order, each after as many "gemm" as it has products."""
    return [name for step in steps for name in (*["gemm"] * len(step.products), step.launch.entry)]


@pytest.mark.parametrize("rows", [129, 256, 257, 300, 600])
@pytest.mark.parametrize("norm", [True, False])
def test_features_of_many_rows(rows: int, norm: bool) -> None:
    fuse.check(FuseCase(rows, 3, 72, 136, norm=norm, tap_slack=8), torch.float16, Gpu("H200", arch="sm_90a"))


@pytest.mark.parametrize("taps", [1, 2, 3, 4, 5, 6])
def test_the_norm_adds_up_the_taps(taps: int) -> None:
    """Each tap's product is a slice of its own; columns of no whole vector, rows that overhang."""
    fuse.check(FuseCase(LIBRARY_ROWS, taps, 20, 37, row_slack=3, weight_slack=1), torch.bfloat16, GPUS[taps % 3])


@pytest.mark.parametrize("dtype", DTYPES)
def test_features_of_any_dtype(dtype: torch.dtype) -> None:
    """float32 goes to torch's GEMM at any number of rows, and rows past row_count stay as they are."""
    fuse.check(FuseCase(260, 2, 40, 264), dtype, Gpu())
    fuse.check(FuseCase(5, 2, 40, 37, slack_rows=3), torch.float32, Gpu())


def test_large_float16_features_of_many_rows() -> None:
    """Sums near 12,800 and past float16's range."""
    for weight in (10.0, 60.0):
        arguments = FuseCase(LIBRARY_ROWS, 2, 16, 40).arguments(torch.float16)
        arguments["hidden_states"] = [torch.full((LIBRARY_ROWS, 16), 40.0).half() for _ in range(2)]
        arguments["weight"] = torch.full((40, 32), weight).half()
        expected = fuse.definition(arguments, torch.float64)
        plain = arguments["norm_weight"].expand(LIBRARY_ROWS, 40)
        assert_as_accurate(fuse.run(Gpu(), arguments), expected, plain)


@pytest.mark.parametrize("rows", [129, 256, 257, 300])
@pytest.mark.parametrize("gpu", GPUS, ids=str)
def test_keys_and_values_of_many_rows(rows: int, gpu: Gpu) -> None:
    """T != L is no concern here; layers with a bias, and holes between the rows that are written."""
    check = write_context_kv.Case(rows, 2, 3, 40, skip_every=4, interleaved=rows % 2 == 0)
    project.check(Case(72, check, bias=True), torch.bfloat16, gpu)


def test_keys_and_values_chunk_by_chunk() -> None:
    write = write_context_kv.Case(600, 2, 1, 32, page_size=4, cache_layout="halves")
    project.check(Case(24, write, bias=True), torch.float16, Gpu())


@pytest.mark.parametrize("layout", ["interleaved heads first", "padded"])
@pytest.mark.parametrize("norm", [True, False])
def test_layers_that_lie_apart(layout: str, norm: bool) -> None:
    """A product for each layer where their weights do not follow one another; layers without a norm, without rotation."""
    write = write_context_kv.Case(
        LIBRARY_ROWS, 3, 2, 24, page_size=4, norm=norm, rotary_dim=None if norm else 0, cache_layout=layout
    )
    case = Case(20, write, bias=True, weight_slack=4)
    project.check(case, torch.float16, Gpu("H200", arch="sm_90a"))


@pytest.mark.parametrize("cache_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_and_values_of_any_dtype(dtype: torch.dtype, cache_dtype: torch.dtype) -> None:
    case = Case(40, write_context_kv.Case(9 if dtype == torch.float32 else LIBRARY_ROWS, 2, 1, 16), bias=True)
    project.check(case, dtype, Gpu(), cache_dtype=cache_dtype)


@pytest.mark.parametrize(("rows", "slack_rows"), [(20, 7), (530, 60), (500, 90)])
def test_float32_rows_past_the_count_are_not_written(rows: int, slack_rows: int) -> None:
    """Nor in a later chunk than the first."""
    write = write_context_kv.Case(rows, 2, 1, 32, slack_rows=slack_rows)
    project.check(Case(24, write, bias=True), torch.float32, Gpu())
    fuse.check(FuseCase(rows, 2, 40, 37, slack_rows=slack_rows), torch.float32, Gpu())


def test_large_float16_keys_of_many_rows() -> None:
    """Keys near 80,000, where float16 ends at 65,504."""
    case = Case(128, write_context_kv.Case(LIBRARY_ROWS, 1, 1, 16))
    arguments = case.arguments(torch.float16)
    arguments["features"] = torch.full((LIBRARY_ROWS, 128), 62.0).half()
    arguments["kv_weight"][:, :16], arguments["kv_weight"][:, 16:] = 10.0, 0.125
    exact = project.definition(case, arguments, torch.float64, torch.float64)
    for ours, wanted in zip(project.run(case, arguments, Gpu(), torch.float16), exact, strict=True):
        assert_as_accurate(ours, wanted, wanted.half())


WIDE = [(1, 256, 256), (2, 192, 64), (3, 130, 60), (1, 129, 0)]  # heads, channels, rotated channels


@pytest.mark.parametrize("rows", [0, 1, 7, 16, 17, 64, 128, 129, 300])
def test_heads_wider_than_a_tile(rows: int) -> None:
    kv_heads, head_dim, rotary_dim = WIDE[rows % 4]
    write = write_context_kv.Case(rows, 2, kv_heads, head_dim, rotary_dim=rotary_dim, interleaved=rows % 2 == 0)
    project.check(Case(72, write, bias=rows % 3 == 0), torch.bfloat16, GPUS[rows % 3])


@pytest.mark.parametrize(("kv_heads", "head_dim", "rotary_dim"), WIDE)
@pytest.mark.parametrize("interleaved", [False, True])
def test_wide_heads_of_every_kind(kv_heads: int, head_dim: int, rotary_dim: int, interleaved: bool) -> None:
    """A tile of several shares, and sections of no whole vector."""
    write = write_context_kv.Case(
        19, 2, kv_heads, head_dim, rotary_dim=rotary_dim, interleaved=interleaved, skip_every=5, slack_rows=2
    )
    project.check(Case(584, write, bias=True), torch.float16, Gpu("H200", arch="sm_90a"))


def test_a_row_with_wide_heads_is_the_same_bits_whatever_comes_with_it() -> None:
    case = Case(584, write_context_kv.Case(128, 1, 1, 192))
    arguments = case.arguments(torch.bfloat16)
    whole = [cache.flatten(0, 1) for cache in project.run(case, arguments, Gpu(), torch.bfloat16)]
    slots = arguments["slot_mapping"]
    for chosen in (slice(0, 1), slice(111, 128)):
        some = arguments | {name: arguments[name][chosen] for name in ("features", "positions", "slot_mapping")}
        for part, all_rows in zip(project.run(case, some, Gpu(), torch.bfloat16), whole, strict=True):
            assert torch.equal(part.flatten(0, 1)[slots[chosen]], all_rows[slots[chosen]])


@pytest.mark.parametrize(("rows", "share"), [(16, 0.2), (64, 0.6)])
def test_products_of_wide_heads_move_once(rows: int, share: float) -> None:
    """Weights and products, in whole sectors, and shared memory without conflicts."""
    case = Case(512, write_context_kv.Case(rows, 2, 2, 256))
    arguments = case.arguments(torch.bfloat16)
    k_caches, v_caches = case.write.caches(torch.bfloat16)
    gpu = Gpu()
    project_context_kv(gpu, **arguments, k_caches=k_caches, v_caches=v_caches)
    products = 4 * rows * 2 * 2 * 2 * 256
    gpu.assert_loads("workspace", products)
    for layer in range(2):
        gpu.assert_stores(f"k{layer}", rows * 2 * 256 * 2)
        gpu.assert_stores(f"v{layer}", rows * 2 * 256 * 2)
    assert_count("wavefronts", gpu.report.total("wavefronts"), gpu.report.total("ideal_wavefronts"), 1.05)
    gpu.reports.pop()
    gpu.assert_loads("kv_weight", arguments["kv_weight"].nbytes, slack=1.0)
    features = arguments["features"].nbytes
    assert_count("activations read", gpu.traffic("features").load_bytes, features, share * 2048 / rows)
    assert_count("wavefronts", gpu.report.total("wavefronts"), gpu.report.total("ideal_wavefronts"), 1.05)
    kept = gpu.traffic("workspace")
    assert_count("sectors of products stored, in bytes", 32 * kept.store_sectors, kept.store_bytes, 1.05)


@pytest.mark.parametrize("rows", [20, LIBRARY_ROWS])
def test_bounds_take_one_launch_more(rows: int) -> None:
    """As the binding makes it: after all rows are there, because a page's rows are written by several blocks."""
    case = Case(40, write_context_kv.Case(rows, 2, 2, 16, page_size=4))
    arguments = case.arguments(torch.bfloat16)
    # Pages fill from their first slot on, as engines fill them: bounds count all rows up to the highest slot.
    arguments["slot_mapping"] = torch.arange(rows) + 4
    k_caches, v_caches = case.write.caches(torch.bfloat16)
    bounds, wanted = case.write.bounds(torch.bfloat16), case.write.bounds(torch.bfloat16)
    gpu = Gpu("H200", arch="sm_90a")
    steps = project_context_kv(gpu, **arguments, k_caches=k_caches, v_caches=v_caches)
    plan = update_page_bounds(gpu, k_caches, slot_mapping=arguments["slot_mapping"], k_bounds=bounds)
    reference.update_page_bounds(k_caches, arguments["slot_mapping"], None, wanted)
    assert [*entries(steps), plan.entry][-1] == "update_page_bounds_bfloat16"
    assert len(gpu.reports) == 2
    for ours, theirs in zip(bounds, wanted, strict=True):
        assert torch.equal(ours, theirs)
        assert (ours[1 : 1 + rows // 4] != 7).all()


def fuse_steps(rows: int, dtype: _host.DType, counted: bool, norm: bool = True) -> list[str]:
    taps, hidden = 5, 4096
    activations = _host.GemmActivations(pieces=[(0, hidden)] * taps, piece_columns=hidden, rows=rows)
    weight = _host.GemmWeight(row_stride=taps * hidden, layer_columns=hidden, columns=hidden)
    params = _host.FuseFeaturesParams(
        gemm=_host.SkinnyGemm(activations=activations, weight=weight, dtype=dtype),
        row_count=256 if counted else 0,
        norm_weight=256 if norm else 0,
        out_row_stride=hidden,
    )
    return entries(_host.plan_fuse_features(params, _host.known_device("H200")))


def project_steps(rows: int, dtype: _host.DType, counted: bool, head_dim: int = 128, apart: bool = False) -> list[str]:
    layers, columns, hidden = 5, 2 * 8 * head_dim, 4096
    activations = _host.GemmActivations(pieces=[(0, hidden)], piece_columns=hidden, rows=rows)
    weight = _host.GemmWeight(
        layer_stride=(columns + apart) * hidden, row_stride=hidden, layer_columns=columns, columns=layers * columns
    )
    caches = _host.ContextCaches(
        kv_heads=8, head_dim=head_dim, page_size=16, pages=1, layers=[_host.ContextCacheLayer() for _ in range(layers)]
    )
    write = _host.WriteContextKvParams(rows=rows, row_count=256 if counted else 0, caches=caches)
    gemm = _host.SkinnyGemm(activations=activations, weight=weight, dtype=dtype)
    params = _host.ProjectContextKvParams(gemm=gemm, write=write)
    return entries(_host.plan_project_context_kv(params, _host.known_device("H200")))


@pytest.mark.parametrize("rows", [1, 16, 128, 129, 256])
@pytest.mark.parametrize("counted", [False, True])
def test_a_context_update_of_a_round_is_three_launches(rows: int, counted: bool) -> None:
    half = _host.DType.bfloat16
    launches = fuse_steps(rows, half, counted) + project_steps(rows, half, counted)
    assert launches == ["fuse_features_bfloat16", "normalise_features_bfloat16", "project_context_kv_bfloat16"]
    assert fuse_steps(rows, half, counted, norm=False) == ["fuse_features_bfloat16"]
    assert project_steps(rows, half, counted, 256) == ["fuse_features_bfloat16", "write_products"]


def test_the_choice_by_rows() -> None:
    """Past 256 rows torch's GEMM, 512 rows at a time, unless the number of rows is only known on the device."""
    half, single = _host.DType.float16, _host.DType.float32
    fused = [*["gemm"] * 5, "normalise_features_float16"]
    assert fuse_steps(257, half, False) == fuse_steps(512, half, False, norm=False) == fused
    assert fuse_steps(1025, half, False) == 3 * fused
    assert fuse_steps(1025, half, True) == ["fuse_features_float16", "normalise_features_float16"]
    assert fuse_steps(1, single, True) == [*["gemm"] * 5, "normalise_features_float32"]
    written = ["gemm", "write_products"]
    assert project_steps(257, half, False) == project_steps(512, half, True, 256) == written
    assert project_steps(513, half, False) == 2 * written
    assert project_steps(513, half, True) == ["project_context_kv_float16"]
    assert project_steps(257, half, False, apart=True) == [*["gemm"] * 5, "write_products"]
    assert project_steps(1, single, True) == written


def test_what_streams_or_follows_may_overlap() -> None:
    """All launches of a context update, of three taps and two layers; the interpreter checks that none touches anything but
    weights before it has waited (tests/ptxsim/test_dependency.py)."""
    gpu = Gpu("H200", arch="sm_90a")
    arguments = FuseCase(3, 3, 72, 136).arguments(torch.bfloat16)
    features = torch.zeros(3, 136, dtype=torch.bfloat16)
    steps = fuse_features(gpu, **arguments, out=features)
    case = Case(136, write_context_kv.Case(3, 2, 1, 192))
    k_caches, v_caches = case.write.caches(torch.bfloat16)
    steps += project_context_kv(
        gpu, **case.arguments(torch.bfloat16) | {"features": features}, k_caches=k_caches, v_caches=v_caches
    )
    assert len(steps) == 4
    assert all(step.launch.overlaps for step in steps)
    # Of the products of wide heads, one before the last: the first weights were asked for before the wait.
    assert gpu.reports[1].count("prefetch.global.L2") > 0


def test_many_rows_agree_with_few() -> None:
    """To rounding, whichever way they go."""
    arguments = FuseCase(300, 2, 136, 40, tap_slack=8).arguments(torch.bfloat16)
    whole = fuse.run(Gpu(), arguments)
    for rows in (100, 200):
        some = fuse.run(Gpu(), arguments | {"hidden_states": [states[:rows] for states in arguments["hidden_states"]]})
        torch.testing.assert_close(some, whole[:rows], rtol=1e-2, atol=1e-2)
