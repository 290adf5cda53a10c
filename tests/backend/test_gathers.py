"""Tables read by row: a ragged tile's columns past the end read nothing of them."""

from __future__ import annotations

import re

import pytest

import coda_lang as coda
from coda_lang.backend_cutlass.abi import Emitted, TensorMap
from coda_lang.backend_cutlass.build import compile_kernel
from coda_lang.backend_cutlass.cache import Cache
from coda_lang.backend_cutlass.config import Config
from coda_lang.backend_cutlass.emit import emit
from coda_lang.ir.passes import specialise
from coda_lang.ir.program import Kernel
from coda_lang.measure.described import described_call

TEXT = """
{head}, i: i64[M], t: f32[P, {columns}]) -> (y: f32[M, N], z: f32[M, N/2]) {{
    {pairs}
    y <- x {use}
    u, v = pairs(x)
    z <- u * v {half}
}}
"""

KERNEL = ("kernel f<M, N = H * D, K, P>(a: bf16[M, K], b: bf16[N, K]", "x = a @ b.T\n    ")
ALONG = ("kernel f<M, N = H * D, K, P>(a: bf16[M, K], b: bf16[K, N]", "x = a @ b\n    ")
MAP = ("map f<M, N = H * D, P>(x: f32[M, N]", "")


def emitted(
    columns: str,
    use: str = "",
    half: str = "",
    direct: bool = False,
    kind: tuple[str, str] = KERNEL,
    config: str | None = None,
    dtype: str = "f32",
    cut: bool = False,
) -> Emitted:
    head, product = kind
    pairs = product + "p, q = pairs(t[i, ...])" * (columns == "2*N")
    text = TEXT.format(head=head, columns=columns, use=use, half=half, pairs=pairs).replace("t: f32", f"t: {dtype}")
    kernel = coda.loads(text)["f"].ir
    assert isinstance(kernel, Kernel)
    whole = specialise(kernel, frozenset(p.name for p in kernel.params), frozenset("yz"))
    asked = Config.parse(config) if config else None
    return emit(whole, {}, asked, direct=frozenset("t") if direct else frozenset(), cut=cut)


def reads(e: Emitted) -> list[tuple[str, str]]:
    """The column of each read of the table, and the condition under which it is read."""
    lines = [line.split("//")[0] for line in e.source.splitlines() if re.search(r"= .*\bt\d+\[h\]\[", line)]
    found = [re.search(r"= (?:(.*) \? )?t\d+\[h\]\[(?:block\.\w+ \* )?(.*)\](?: : 0\.0f)?;", line) for line in lines]
    assert lines
    assert all(found)
    return [(m[2], m[1] or "") for m in found if m]


@pytest.mark.parametrize("direct", [False, True])
def test_one_column_for_each_head_is_read_inside_the_problem_only(direct: bool) -> None:
    e = emitted("H", "* t[i, ...]", direct=direct)
    assert reads(e) == [(f"outer2.head_of({c})", f"column2 + {c} < end2") for c in range(2)]
    assert "const int end2 = coda::width_of<2>(tile.n);" in e.source
    assert "column2 += 8;" in e.source


@pytest.mark.parametrize(
    ("columns", "use", "half", "width"),
    [("N", "* t[i, ...]", "", 2), ("N/2", "", "* t[i, ...]", 1), ("2*N", "* p * q", "", 4)],
)
def test_whole_rows_are_read_inside_the_problem_only(columns: str, use: str, half: str, width: int) -> None:
    e = emitted(columns, use, half)
    assert reads(e) == [(f"column{width} + {c}", f"column{width} + {c} < end{width}") for c in range(width)]


@pytest.mark.parametrize("direct", [False, True])
def test_columns_within_a_head_need_no_condition(direct: bool) -> None:
    """Read by their stride only where the elements of a row are apart, not where heads are cut."""
    e = emitted("D", "* t[i, ...]", direct=direct, cut=True)
    assert reads(e) == [("inner2.column_of(0)", ""), ("inner2.column_of(1)", "")]
    assert ("block.stride1_t *" in e.source) == direct


def test_columns_of_one_head_are_distances_from_the_first() -> None:
    e = emitted("D", "* t[i, ...]", kind=ALONG)
    assert reads(e) == [(f"coda::offset<Shape, 2>(k * 2 + {c})", "") for c in range(2)]
    assert re.search(r"coda::TableCursor<float> t\d+\[2\];", e.source)
    assert "column_of" not in e.source
    assert "kRun = 1;" in e.source


def operand(e: Emitted) -> TensorMap:
    source = next(f.source for f in e.fields if f.name == "operand_b")
    assert isinstance(source, TensorMap)
    return source


@pytest.mark.parametrize(
    ("config", "run", "blocks"),
    [
        ("128x128,pingpong,cluster=2x1", 8, 2),  # two blocks of two f32: 16 bytes
        ("128x256,cooperative,epilogue=32,stages=2,stores=1", 4, 2),
        ("128x192,pingpong,epilogue=32", 4, 1),  # 192 accumulators: 8 bytes
        ("64x128,pingpong,cluster=4x1", 1, 1),  # a share of 32 rows is no group of 64
        ("64x128,pingpong,cluster=4x1,epilogue=32", 4, 2),
    ],
)
def test_a_product_lays_columns_side_by_side_for_its_tables(config: str, run: int, blocks: int) -> None:
    e = emitted("D", "* t[i, ...]", config=config)
    assert f"kRun = {run};" in e.source
    assert operand(e).run == run
    found = re.search(r"coda::TableRun<float, (\d+)> w\d+\[2\];", e.source)
    assert (int(found[1]) // 2 if found else 1) == blocks


def test_each_table_is_read_as_it_lies() -> None:
    """One that TMA's rule does not fit is walked beside one that is read by 16 bytes."""
    text = """kernel two<M, N = H * D, K, P>(a: bf16[M, K], b: bf16[N, K], i: i32[M], t: f32[P, D], u: f32[P, D]) ->
        (y: bf16[M, N]) { y <- (a @ b.T) * t[i, ...] + u[i, ...] }"""
    kernel = coda.loads(text)["two"].ir
    assert isinstance(kernel, Kernel)
    whole = specialise(kernel, frozenset(p.name for p in kernel.params), frozenset("y"))
    for direct, run, cursors, rows in (("", 8, 2, 0), ("u", 8, 1, 1), ("tu", 1, 0, 2)):
        e = emit(whole, {}, Config.parse("128x128,pingpong"), direct=frozenset(direct))
        assert f"kRun = {run};" in e.source
        assert len(re.findall(r"coda::TableCursor<float> t\d+\[2\];", e.source)) == cursors
        assert len(re.findall(r"coda::TableRow<float> t\d+\[2\];", e.source)) == rows


def test_sums_over_heads_keep_their_blocks_whole() -> None:
    text = """kernel sums<M, N = H * D, K, P>(a: bf16[M, K], b: bf16[N, K], i: i32[M], t: f32[P, D]) ->
        (y: bf16[M, N], s: f32[M, H]) { x = (a @ b.T) * t[i, ...]
        y <- x
        s <- segment_sum(x, over=D) }"""
    kernel = coda.loads(text)["sums"].ir
    assert isinstance(kernel, Kernel)
    whole = specialise(kernel, frozenset(p.name for p in kernel.params), frozenset("ys"))
    e = emit(whole, {})
    assert "kRun = 1;" in e.source
    assert operand(e).run == 1


@pytest.mark.parametrize("columns", ["H", "N"])
def test_nothing_else_changes_the_order_of_columns(columns: str) -> None:
    for e in (emitted(columns, "* t[i, ...]"), emitted("D", "* t[i, ...]", direct=True), emitted("D")):
        assert "kRun = 1;" in e.source
        assert operand(e).run == 1


def test_a_map_reads_a_tables_columns_in_runs_where_they_lie_side_by_side() -> None:
    e = emitted("D", "* t[i, ...]", kind=MAP)
    assert re.search(r"coda::TableRun<float, 4> w\d+\[2\];", e.source)
    assert len(re.findall(r"if \(k % 2 == 0\) .*\.read\(t\d+\[h\]\.from", e.source)) == 1
    assert "column_of" not in e.source
    assert "inner2.column_of" in emitted("D", "* t[i, ...]", direct=True, kind=MAP).source


@pytest.mark.parametrize(
    ("kind", "head", "cut"),
    [
        *((KERNEL, head, cut) for head, cut in ((64, False), (192, False), (32, True), (96, True))),
        *((MAP, head, cut) for head, cut in ((8, False), (96, False), (4, True), (12, True))),
    ],
)
def test_a_table_is_followed_from_head_to_head_where_heads_are_cut(kind: tuple[str, str], head: int, cut: bool) -> None:
    text = TEXT.format(head=kind[0], columns="D", use="* t[i, ...]", half="", pairs=kind[1])
    program = coda.loads(text)["f"]
    sizes = {"M": 5, "D": head, "H": 4, "P": 7, **({"K": 8} if kind is KERNEL else {})}
    call = described_call(program.ir, sizes=sizes)
    e = program.gpu.emit(call, program.gpu.config(call))
    assert (e.cut, "inner2.column_of" in e.source, "TableCursor" in e.source) == (cut, cut, not cut)
    assert "t" not in e.direct


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("columns", ["D", "H", "N"])
@pytest.mark.parametrize("direct", [False, True])
def test_a_map_with_a_table_compiles(columns: str, direct: bool, store: Cache) -> None:
    assert compile_kernel(emitted(columns, "* t[i, ...]", direct=direct, kind=MAP), cache=store).data


@pytest.mark.usefixtures("tools")
def test_a_head_wise_table_compiles(store: Cache) -> None:
    assert compile_kernel(emitted("H", "* t[i, ...]"), cache=store).data


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(("dtype", "bits"), [("f8e4m3", 8), ("bf16", 16), ("f32", 32)])
@pytest.mark.parametrize("config", ["128x128,pingpong,cluster=2x1,stores=1", "64x64,pingpong,epilogue=32,rolled=1"])
def test_a_table_is_read_by_16_bytes(dtype: str, bits: int, config: str, store: Cache) -> None:
    """Of a row's 16 (or 8) columns of a thread."""
    columns = 16 if "cluster" in config else 8
    made = emitted("D", "* t[i, ...]", config=config, dtype=dtype)
    found = re.search(r"coda::TableRun<coda::\w+, (\d+)>|coda::TableRun<float, (\d+)>", made.source)
    assert found is not None
    assert int(found[1] or found[2]) * bits == min(128, columns * bits)
    assert compile_kernel(made, cache=store).data


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("dtype", ["f8e5m2", "bf16", "f32"])
def test_a_table_of_any_type_compiles_in_a_loop_over_subtiles(dtype: str, store: Cache) -> None:
    """The row's address then lasts from one turn to the next."""
    text = f"""kernel looped<M, N, K, P>(a: bf16[M, K], b: bf16[N, K], t: {dtype}[P, N], i: i32[M]) -> (d: f32[M, N]) {{
        d <- (a @ b.T) * t[i, ...]
    }}"""
    kernel = coda.loads(text)["looped"].ir
    assert isinstance(kernel, Kernel)
    whole = specialise(kernel, frozenset(p.name for p in kernel.params), frozenset("d"))
    made = emit(whole, {}, Config.parse("128x128,pingpong,epilogue=32,rolled=1"))
    assert compile_kernel(made, cache=store).data
