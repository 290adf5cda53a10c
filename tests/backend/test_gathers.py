"""Tables read by row: a ragged tile's columns past the end read nothing of them."""

from __future__ import annotations

import re

import pytest

import coda_lang as coda
from coda_lang.backend_cutlass.abi import Emitted
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
MAP = ("map f<M, N = H * D, P>(x: f32[M, N]", "")


def emitted(
    columns: str, use: str = "", half: str = "", direct: bool = False, kind: tuple[str, str] = KERNEL
) -> Emitted:
    head, product = kind
    pairs = product + "p, q = pairs(t[i, ...])" * (columns == "2*N")
    kernel = coda.loads(TEXT.format(head=head, columns=columns, use=use, half=half, pairs=pairs))["f"].ir
    assert isinstance(kernel, Kernel)
    whole = specialise(kernel, frozenset(p.name for p in kernel.params), frozenset("yz"))
    return emit(whole, {}, direct=frozenset("t") if direct else frozenset())


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


def test_columns_within_a_head_need_no_condition() -> None:
    expected = [("inner2.column_of(0)", ""), ("inner2.column_of(1)", "")]
    assert reads(emitted("D", "* t[i, ...]", direct=True)) == expected


def test_columns_of_one_head_are_distances_from_the_first() -> None:
    e = emitted("D", "* t[i, ...]")
    assert reads(e) == [(f"coda::offset<Shape, 2>(k * 2 + {c})", "") for c in range(2)]
    assert re.search(r"coda::TableCursor<float> t\d+\[2\];", e.source)
    assert "column_of" not in e.source


def test_a_map_reads_a_tables_columns_in_runs_where_they_lie_side_by_side() -> None:
    e = emitted("D", "* t[i, ...]", kind=MAP)
    assert re.search(r"coda::TableRun<float, 8> w\d+\[2\];", e.source)
    assert len(re.findall(r"if \(k % 4 == 0\) .*\.read\(t\d+\[h\]\.from", e.source)) == 1
    assert "column_of" not in e.source
    assert "inner2.column_of" in emitted("D", "* t[i, ...]", direct=True, kind=MAP).source


@pytest.mark.parametrize(("head", "cut"), [(64, False), (128, False), (32, True), (96, True)])
def test_a_table_whose_heads_end_within_a_subtile_is_walked(head: int, cut: bool) -> None:
    pairs = product = ""
    text = TEXT.format(head=MAP[0], columns="D", use="* t[i, ...]", half="", pairs=pairs + product)
    program = coda.loads(text)["f"]
    call = described_call(program.ir, sizes={"M": 5, "D": head, "H": 4, "P": 7})
    assert ("t" in program.gpu.emit(call, None).direct) == cut


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("columns", ["D", "H", "N"])
@pytest.mark.parametrize("direct", [False, True])
def test_a_map_with_a_table_compiles(columns: str, direct: bool, store: Cache) -> None:
    assert compile_kernel(emitted(columns, "* t[i, ...]", direct=direct, kind=MAP), cache=store).data


@pytest.mark.usefixtures("tools")
def test_a_head_wise_table_compiles(store: Cache) -> None:
    assert compile_kernel(emitted("H", "* t[i, ...]"), cache=store).data


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
