"""What emission makes: parameter blocks, the tree, places, constants and schedules. Nothing is compiled here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import coda_lang as coda
from coda_lang.backend_cutlass import cuda_ops
from coda_lang.backend_cutlass.abi import (
    Emitted,
    Extent,
    Pointer,
    Stride,
    TensorMap,
    ctype_bytes,
    grid,
    misfit,
    output_key,
)
from coda_lang.backend_cutlass.config import (
    SHARED_LIMIT,
    Config,
    Footprint,
    asked,
    deepest,
    rejection,
)
from coda_lang.backend_cutlass.default import default, for_kernel
from coda_lang.backend_cutlass.emit import TAP, emit, footprint
from coda_lang.backend_cutlass.naming import identifier
from coda_lang.backend_cutlass.problem import Problem
from coda_lang.errors import ArgumentError, BackendError
from coda_lang.ir.ops import OPS
from coda_lang.ir.passes import specialise
from coda_lang.ir.program import Kernel
from coda_lang.ir.types import BF16, BOOL, F16, F32, I64, Dim, DType

PROGRAMS = Path(__file__).parents[2] / "programs"


def every_kernel() -> Iterator[tuple[str, Kernel]]:
    for path in sorted(PROGRAMS.glob("*.coda")):
        for program in coda.load(path).values():
            if isinstance(program.ir, Kernel) and program.ir.span.source.path == str(path):
                yield program.name, program.ir


KERNELS = dict(every_kernel())


def emitted(kernel: Kernel, config: Config | None = None, dtype: DType = BF16, **choices: object) -> Emitted:
    types = {p.name: dtype if dtype in p.choices else p.choices[0] for p in kernel.dtypes}
    whole = specialise(kernel, frozenset(p.name for p in kernel.params), frozenset(o.name for o in kernel.outputs))
    return emit(whole, types, config, **choices)  # type: ignore[arg-type]


def loads(text: str) -> Kernel:
    return next(iter(coda.loads(text).values())).ir


def lengths(**extents: int):  # type: ignore[no-untyped-def]
    def length(dim: Dim) -> int:
        return int(dim.coef * (1 if dim.axis is None else extents[dim.axis]))

    return length


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_every_program_has_a_block_the_host_can_fill(name: str) -> None:
    kernel = KERNELS[name]
    e = emitted(kernel)
    assert e.params_bytes % 64 == 0
    end = 0
    for f in e.fields:
        size = ctype_bytes(f.ctype)
        assert f.offset % min(size, 64) == 0
        assert f.offset >= end
        end = f.offset + size
        assert f"== {f.offset}" in e.source
    assert end <= e.params_bytes
    read = {f.source.tensor for f in e.fields if isinstance(f.source, (TensorMap, Pointer))}
    names = frozenset(p.name for p in kernel.params)
    assert {output_key(names, o.name) for o in kernel.outputs} <= read
    assert {p.name for p in kernel.params if not p.host} <= read


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_every_store_of_a_program_has_its_line_in_the_source(name: str) -> None:
    kernel = KERNELS[name]
    e = emitted(kernel)
    text = kernel.span.source.text
    source = e.source.splitlines()
    for line, offset in e.lines.items():
        assert 1 <= line <= len(source)
        assert 0 <= offset < max(len(text), 1)
    for store in kernel.stores:
        if kernel.values[store.value].op != "tile_welford":  # whose parts share a node, and the line of the first
            assert store.span.start in e.lines.values(), store.target


def test_an_output_may_share_an_inputs_name() -> None:
    e = emitted(loads("map f<M, N>(x: f32[M, N]) -> (x: f32[M, N]) { x <- x + 1.0 }"))
    assert {f.source.tensor for f in e.fields if hasattr(f.source, "tensor")} == {"x", "x'"}


def test_names_that_c_does_not_have_are_spelled_out() -> None:
    e = emitted(loads("map f<M, N>(int: f32[M, N], β: f32[N], k: f32) -> (class: f32[M, N]) { class <- int * β + k }"))
    assert e.source.replace("…", "").split("//")[0].isascii()
    code = "\n".join(line.split("//")[0] for line in e.source.splitlines())
    assert code.isascii()
    assert not re.search(r"\b(int|class) =", code)


def test_different_names_stay_different() -> None:
    names = ["β", "beta", "x'", "x", "_", "B"]
    assert len({identifier(n) for n in names}) == len(names)


def test_every_map_of_the_operation_table_has_a_cuda_line() -> None:
    pairs = {"even", "odd", "unpairs"}  # which elements they are, the compute node knows
    assert {name for name, op in OPS.items() if op.cls == 1} - pairs == set(cuda_ops.CUDA)


@pytest.mark.parametrize("number", [0.0, -0.0, 1.0, -2.5, 0.1, 1e-45, 3.4028235e38, 1e30, float("inf"), -float("inf")])
def test_a_float_constant_is_exact_to_the_bit(number: float) -> None:
    x = float(np.float32(number))
    text = cuda_ops.literal(x, F32).strip("()")
    if "int_as_float" in text:
        bits = int(re.search(r"0x[0-9a-f]+", text)[0], 16)  # type: ignore[index]
        value = np.array([bits], np.uint32).view(np.float32)[0]
    else:
        assert text.endswith("f")
        body = text[:-1]
        value = np.float32(float.fromhex(body) if "0x" in body else float(body))
    assert np.float32(value).tobytes() == np.float32(x).tobytes()


def test_constants_of_other_kinds() -> None:
    assert cuda_ops.literal(True, BOOL) == "true"
    assert cuda_ops.literal(-3, I64) == "int64_t(-3)"
    assert "9223372036854775807" in cuda_ops.literal(-(2**63), I64)
    assert cuda_ops.literal(float("nan"), F32) == "coda::nan()"


def test_an_output_that_is_not_asked_for_is_not_emitted() -> None:
    kernel = KERNELS["rmsnorm_swiglu"]
    whole = specialise(kernel, frozenset({"a", "b", "rstd"}), frozenset({"y"}))
    e = emit(whole, {"T": BF16})
    assert "Store_y" in e.source
    assert "Store_z" not in e.source


def test_tensors_that_tma_cannot_move_go_another_way() -> None:
    kernel = KERNELS["residual_rms"]
    usual, direct = emitted(kernel), emitted(kernel, direct=frozenset({"c", "d"}))
    assert "TileLoad<Shape, coda::bf16" in usual.source
    assert "TileLoad" not in direct.source
    assert "DirectTile<Shape, coda::bf16, 2, coda::Columns::kWhole, false>" in direct.source
    maps = {f.source.tensor for f in direct.fields if isinstance(f.source, TensorMap)}
    assert maps == {"a", "b", "h"}


def test_strides_of_vectors_are_the_calls() -> None:
    e = emitted(KERNELS["rmsnorm_linear"])
    assert Stride("rstd", 0) in [f.source for f in e.fields]


def test_the_accumulator_can_be_tapped() -> None:
    e = emitted(KERNELS["rmsnorm_linear"], tap=True)
    assert any(isinstance(f.source, TensorMap) and f.source.tensor == TAP for f in e.fields)
    assert "float, 2, &Compute::Outputs" in e.source


@pytest.mark.parametrize(
    ("name", "boxes"),
    [
        ("rmsnorm_linear", ((64, 128), (64, 128))),
        ("linear_dx", ((64, 128), (64, 32))),
        ("linear_dw", ((64, 64), (64, 32))),
    ],
)
def test_operands_come_in_boxes_of_their_memory_order(
    name: str, boxes: tuple[tuple[int, int], tuple[int, int]]
) -> None:
    e = emitted(KERNELS[name], Config(128, 256, 2, 1, "cooperative", 3))
    sources = [f.source for f in e.fields[:2]]
    assert [s.box for s in sources if isinstance(s, TensorMap)] == list(boxes)
    assert [f.name for f in e.fields[:2]] == ["operand_a", "operand_b"]


@pytest.mark.parametrize("config", ["128x128,cluster=2x1,pingpong,stages=3", "128x128,cluster=1x2,pingpong,stages=3"])
@pytest.mark.parametrize("name", ["linear", "linear_dx", "linear_dw"])
def test_the_descriptors_of_last_rows_follow_the_operands(name: str, config: str) -> None:
    """Where `run` of csrc/coda/gemm.hpp looks for them: of operands that come row by row, each in the others' boxes."""
    kernel = KERNELS[name]
    assert kernel.product is not None
    fields = sorted(emitted(kernel, Config.parse(config)).fields, key=lambda f: f.offset)
    by_rows = {"operand_a": not kernel.product.a_transposed, "operand_b": kernel.product.b_transposed}
    ends = [side for side, rows in by_rows.items() if rows]
    first = fields[: 2 + len(ends)]
    assert [f.name for f in first] == ["operand_a", "operand_b", *(f"{side}_end" for side in ends)]
    assert [f.offset for f in first] == [i * ctype_bytes("TensorMap") for i in range(len(first))]
    source = {f.name: f.source for f in first}
    for side in ends:
        whole = source[side]
        assert isinstance(whole, TensorMap)
        assert source[f"{side}_end"] == replace(whole, end=True)
    assert not any(f.name.endswith("_end") for f in fields[len(first) :])


def test_the_names_of_the_operands_do_not_decide_their_order() -> None:
    kernel = loads("kernel f<M, N, K>(b: bf16[N, K], a: bf16[M, K]) -> (d: bf16[M, N]) { d <- a @ b.T }")
    e = emitted(kernel)
    assert [f.source.tensor for f in e.fields[:2] if isinstance(f.source, TensorMap)] == ["a", "b"]


def test_f8_operands_are_refused() -> None:
    kernel = loads("kernel f<M, N, K>(a: f8e4m3[M, K], b: f8e4m3[N, K]) -> (d: bf16[M, N]) { d <- a @ b.T }")
    with pytest.raises(BackendError, match="f8e4m3 operands"):
        emitted(kernel)


def test_a_schedule_that_does_not_fit_is_refused_with_the_reason() -> None:
    with pytest.raises(BackendError, match="bytes of shared memory"):
        emitted(KERNELS["residual_rms"], Config(128, 256, 2, 1, "cooperative", 6))


# -- launches ----------------------------------------------------------------------------------------------------------


def test_a_persistent_kernel_fills_the_device_with_whole_clusters() -> None:
    e = emitted(KERNELS["rmsnorm_linear"], Config(128, 256, 2, 1, "cooperative", 4))
    assert grid(e, lengths(M=8192, N=8192, K=64), 66) == (132, 1, 1)
    assert grid(e, lengths(M=300, N=520, K=64), 66) == (12, 1, 1)  # 3 x 3 tiles, two rows of clusters
    assert grid(e, lengths(M=1, N=1, K=64), 66) == (2, 1, 1)


def test_a_map_has_a_block_for_each_tile() -> None:
    e = emitted(KERNELS["swiglu_bwd_map"])
    assert e.tile is not None
    assert grid(e, lengths(M=129, N=257), 132) == (-(-129 // e.tile[0]) * -(-257 // e.tile[1]), 1, 1)


def test_heads_must_suit_the_tile() -> None:
    e = emitted(KERNELS["qk_norm"], Config(128, 256, 2, 1, "cooperative", 4))
    assert misfit(e, lengths(M=1, H=4, D=128)) is None
    assert "D = 96 is not one of 8, 16, 32, 64, 128, 256" in str(misfit(e, lengths(M=1, H=4, D=96)))
    assert misfit(e, lengths(M=1, H=4, D=4)) is not None


def test_a_reduce_names_the_tiles_of_each_input() -> None:
    e = emitted(KERNELS["rstd_from_squares"])
    dims = [f.source.dim for f in e.fields if isinstance(f.source, Extent)]
    assert any(d.tiled and d.of == "sq" for d in dims)
    assert e.tile is None


# -- schedules ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["128x256,cluster=2x1,cooperative,stages=4", "64x128,cluster=1x1,pingpong,stages=6,raster=m"]
)
def test_a_configuration_reads_back(text: str) -> None:
    assert str(Config.parse(text)) == text


def test_parts_that_are_not_named_have_their_defaults() -> None:
    assert Config.parse("stages=3") == replace(Config(), stages=3)
    usual = Config(128, 128, schedule="pingpong", stages=6)
    assert Config.parse("serpentine=0", usual) == replace(usual, serpentine=0)
    assert Config.parse("128x256,serpentine=0", usual) == Config(serpentine=0)
    assert Config.parse("64x96, pingpong").epilogue_n == 32
    assert Config.parse("64x96, epilogue = 64").epilogue_n == 64, "as it is said, to be refused"
    assert asked("128x128, pingpong, stages = 2", Footprint()).stages == 2
    assert Config.parse("128x128x64, pingpong") == replace(Config(), tile_m=128, tile_n=128, schedule="pingpong")


@pytest.mark.parametrize(
    "text",
    [
        "fast",
        "128x",
        "stages=",
        "cluster=2",
        "raster=k",
        "stages=-1",
        "128x128x32",
        "swizzle=" + "9" * 5000,
        "stages=٣",
    ],
)
def test_what_is_no_configuration_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="no part of a schedule: write a tile"):
        Config.parse(text)


@pytest.mark.parametrize("name", sorted(k for k, v in KERNELS.items() if v.product is not None))
@pytest.mark.parametrize("shape", [None, (1, 8), (64, 4096), (512, 512), (4096, 4096)])
def test_the_default_schedule_fits_every_program(name: str, shape: tuple[int, int] | None) -> None:
    kernel = KERNELS[name]
    whole = specialise(kernel, frozenset(p.name for p in kernel.params), frozenset(o.name for o in kernel.outputs))
    for dtype in (BF16, F16):
        types = {p.name: dtype if dtype in p.choices else p.choices[0] for p in kernel.dtypes}
        need = footprint(whole, types)
        config = default(Problem(*shape, 4096, need)) if shape else for_kernel(whole, types, need)
        assert rejection(config, need) is None


@pytest.mark.parametrize("kind", ["map", "kernel"])
def test_a_program_with_many_outputs_still_fits(kind: str) -> None:
    outputs = ", ".join(f"o{i}: f32[M, N]" for i in range(40))
    stores = "\n".join(f"    o{i} <- x * {i}.5" for i in range(40))
    inputs = "x: f32[M, N]" if kind == "map" else "a: bf16[M, K], b: bf16[N, K]"
    product = "" if kind == "map" else "    x = a @ b.T\n"
    axes = "M, N" if kind == "map" else "M, N, K"
    e = emitted(loads(f"{kind} many<{axes}>({inputs}) -> ({outputs}) {{\n{product}{stores}\n}}"))
    assert e.shared_bytes <= SHARED_LIMIT
    assert ("coda::TileStore" in e.source) == (kind == "kernel")
    assert "coda::DirectStore" in e.source


def test_stages_are_as_many_as_fit() -> None:
    config = deepest(Config(), Footprint())
    assert rejection(config) is None
    assert rejection(replace(config, stages=config.stages + 1)) is not None
