"""Generated kernels compile for sm_90a without a GPU: every kind of node, schedule and operand layout at least once."""

from __future__ import annotations

from pathlib import Path

import pytest

import coda_lang as coda
from coda_lang.backend_cutlass.build import Cubin, compile_kernel
from coda_lang.backend_cutlass.cache import Cache
from coda_lang.backend_cutlass.config import Config
from coda_lang.backend_cutlass.elf import instructions
from coda_lang.backend_cutlass.emit import emit
from coda_lang.backend_cutlass.program import GpuProgram
from coda_lang.backend_cutlass.report import A_FEW, Report
from coda_lang.call import Caller
from coda_lang.ir.passes import specialise
from coda_lang.ir.program import Kernel
from coda_lang.ir.types import DTYPES
from coda_lang.measure.described import described_call

PROGRAMS = Path(__file__).parents[2] / "programs"


pytestmark = pytest.mark.usefixtures("tools")


def build(kernel: Kernel, tmp_path: Path, config: str | None = None, dtype: str = "bf16", **choices: object) -> Cubin:
    wanted = DTYPES[dtype]
    types = {p.name: wanted if wanted in p.choices else p.choices[0] for p in kernel.dtypes}
    whole = specialise(kernel, frozenset(p.name for p in kernel.params), frozenset(o.name for o in kernel.outputs))
    emitted = emit(whole, types, Config.parse(config) if config else None, **choices)  # type: ignore[arg-type]
    return compile_kernel(emitted, cache=Cache(tmp_path))


def program(file: str, name: str | None = None) -> Kernel:
    return coda.load(PROGRAMS / f"{file}.coda")[name or file].ir


# A loop over the parts of a tile leaves registers that straight-line code of a long epilogue lacks.
ROLLED = "128x128,cluster=2x1,pingpong,stages=4,epilogue=32,rolled=1"

# Forward programs keep everything in registers: no spills, no local memory, and wgmma is not serialised.
FORWARD = sorted(
    (path.stem, name)
    for path in PROGRAMS.glob("*.coda")
    for name, found in coda.load(path).items()
    if isinstance(found.ir, Kernel) and found.ir.product is not None and found.ir.span.source.path == str(path)
    if not name.endswith("_bwd") and not name.startswith(("linear_dw", "linear_dx"))
)
SCHEDULES = [
    ("linear", None, "128x128,cluster=2x1,pingpong,stages=4", "f16"),
    ("rmsnorm_swiglu", None, "128x256,cluster=2x1,cooperative,stages=3", "bf16"),
    ("cross_entropy", None, None, "bf16"),
    ("rope", "rope_position", ROLLED, "bf16"),
    ("quantize", None, "128x256,cluster=1x2,cooperative,stages=3,raster=m", "bf16"),
    ("residual_layernorm", None, "256x128,cluster=1x1,cooperative,stages=2,epilogue=32", "bf16"),
    ("qk_norm", None, "64x256,cluster=1x1,pingpong,stages=3", "bf16"),
]


def stays_in_registers(report: Report) -> None:
    assert report.tensor_core_instructions > 0
    assert report.stack_bytes == 0
    assert report.spill_store_bytes == report.spill_load_bytes == 0
    assert not report.warnings


@pytest.mark.parametrize(("file", "name"), FORWARD)
def test_a_forward_program_stays_in_registers(file: str, name: str, tmp_path: Path) -> None:
    """With the schedule and the inputs and outputs that a call gets which names none: but for a few."""
    gpu = GpuProgram(Caller(program(file, name)))
    report = compile_kernel(gpu.emitted()[0], cache=Cache(tmp_path)).report
    assert report.tensor_core_instructions > 0
    assert max(report.spill_store_bytes, report.spill_load_bytes) <= A_FEW
    assert not report.warnings


@pytest.mark.parametrize(("file", "name"), [("rope", "rope_position"), ("rmsnorm_rope", "rmsnorm_rope_position")])
def test_so_it_does_where_heads_are_cut(file: str, name: str, tmp_path: Path) -> None:
    call = described_call(program(file, name), sizes={"M": 8192, "H": 48, "D": 96, "K": 4096})
    gpu = GpuProgram(Caller(call.kernel))
    emitted = gpu.emit(call, gpu.untuned(call))
    assert emitted.cut
    stays_in_registers(compile_kernel(emitted, cache=Cache(tmp_path)).report)


@pytest.mark.parametrize(("file", "name", "config", "dtype"), SCHEDULES)
def test_so_it_does_with_other_schedules_and_all_options(
    file: str, name: str | None, config: str | None, dtype: str, tmp_path: Path
) -> None:
    stays_in_registers(build(program(file, name), tmp_path, config, dtype).report)


@pytest.mark.parametrize("name", ["linear_dw_accumulate", "swiglu_bwd", "residual_rms_bwd"])
def test_a_backward_program_does_not_spill(name: str, tmp_path: Path) -> None:
    file = "linear_dw" if name.startswith("linear_dw") else name
    report = build(program(file, name), tmp_path, ROLLED).report
    assert report.tensor_core_instructions > 0
    assert report.spill_store_bytes == report.spill_load_bytes == 0
    assert not report.warnings


@pytest.mark.parametrize(("file", "name"), [("qk_norm", "qk_norm_rope_map"), ("reduces", "loss_from_lse")])
def test_what_has_no_product_compiles_too(file: str, name: str, tmp_path: Path) -> None:
    report = build(program(file, name), tmp_path).report
    assert report.tensor_core_instructions == 0
    assert report.spill_store_bytes == 0


HALVES = """
kernel halves<M, N, K>(a: bf16[M, K], b: bf16[N, K], c: bf16[M, N]) -> (
    d: bf16[M, N], l: bf16[M, N/2], s: f32[tiles(M), N], t: f32[tiles(M), N/2], u: f32[tiles(M), N/2]
) {
    d = a @ b.T + c
    left, right = pairs(d)
    d <- d
    l <- left
    s <- tile_sum(d, over=M)
    t <- tile_sum(left, over=M)
    u <- tile_absmax(right, over=M)
}
"""


@pytest.mark.parametrize("tile", ["64x32", "64x64", "64x96", "64x192"])
def test_sums_that_fill_no_line_leave_the_next_aligned(tile: str, tmp_path: Path) -> None:
    """What a kernel asks of shared memory is asserted where it is compiled."""
    kernel = coda.loads(HALVES)["halves"].ir
    schedule = f"{tile},cluster=1x1,pingpong,stages=2,epilogue=32,stores=1,loads=1"
    assert build(kernel, tmp_path, schedule).report.tensor_core_instructions


# Instructions by the low 12 bits of their code. PTX's griddepcontrol.wait, and what moves data from and to memory: LD,
# LDG, ST, STG, UTMALDG, UTMASTG, and the atomics ATOM, ATOMG, RED.
ACQBULK, MEMORY = 0x82E, {0x980, 0x981, 0x985, 0x986, 0x5B4, 0x3B5, 0x98A, 0x9A8, 0x98E}


@pytest.mark.parametrize(
    ("file", "name", "config"),
    [
        ("residual_rms", None, "128x256,cluster=2x1,cooperative,stages=3,stores=1"),
        ("cross_entropy", None, "128x128,cluster=1x1,pingpong,stages=6"),
        ("rope", "rope_position", None),
        ("qk_norm", "qk_norm_rope_map", None),
        ("reduces", "rstd_from_squares", None),
    ],
)
def test_no_memory_is_touched_before_earlier_grids_have_ended(
    file: str, name: str | None, config: str | None, tmp_path: Path
) -> None:
    """Such kernels are started before that (`Emitted.early`)."""
    cubin = build(program(file, name), tmp_path, config)
    codes = list(instructions(cubin.data, cubin.entry))
    touches = [i for i, code in enumerate(codes) if code in MEMORY]
    assert touches
    assert codes.index(ACQBULK) < touches[0]


def test_tensors_beyond_tma_and_the_tap(tmp_path: Path) -> None:
    direct = frozenset({"z", "y", "dz"})
    report = build(program("swiglu_bwd"), tmp_path, direct=direct, tap=True).report
    assert report.tensor_core_instructions > 0


EVERYTHING = """
kernel everything<M, N = H * D, K>(
    a: bf16[K, M], b: bf16[K, N], f: f32[M, N], e: f8e4m3[M, N], w: f8e5m2[M, 2*N], i: i32[M, N], j: i64[M],
    k: bool[M, N], s: f32[], d: f32[D], h: f32[H], mh: f32[M, H], table: f32[32], for: f32 = 1, β: i64 = 3,
    inout t: bf16[M, N], inout v: f32[M],
) -> (
    o1: f32[M, N], o2: f8e4m3[M, N/2], o3: i32[M, N], o4: i64[M], o5: bool[M, N], o6: bf16[M, 2*N], o7: f32[N],
    count: f32[M, tiles(N)], mean: f32[M, tiles(N)], p: f32[M], sh: f32[M, H],
) {
    x = a.T @ b + f * s * for
    u, v2 = pairs(x)
    o1 <- x * d + h * mh + e + table[j] + onehot(j)
    o2 <- u * v2
    o3 <- idiv(i, 3) % β + row() - col()
    o4 <- abs(j) + 1
    o5 <- k and not (x > 0.0) or i == 3
    o6 <- w
    o7 <- log1p(abs(d))
    t +<- tanh(x)
    v +<- f32(j)
    n, m, _ = tile_welford(x, over=N)
    count <- n
    mean <- m
    p <- pick(u, j, ignore=β)
    sh <- segment_sum(x, over=D)
}
"""


def test_every_kind_of_node_in_one_kernel(tmp_path: Path) -> None:
    kernel = coda.loads(EVERYTHING)["everything"].ir
    assert build(kernel, tmp_path).report.tensor_core_instructions > 0
