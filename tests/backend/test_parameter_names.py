"""Names in generated kernels: whatever a program's names are, its kernel is the same up to names that stay apart."""

from __future__ import annotations

import re
from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import coda_lang as coda
from coda_lang.backend_cutlass.abi import Emitted, Extent, Pointer, Scalar, Stride, TensorMap
from coda_lang.backend_cutlass.build import compile_kernel
from coda_lang.backend_cutlass.cache import Cache
from coda_lang.backend_cutlass.emit import TAP, emit
from coda_lang.backend_cutlass.naming import identifier, joined, name_of, of_entry
from coda_lang.backend_cutlass.parameter_fields import Fields
from coda_lang.errors import BackendError
from coda_lang.ir.passes import specialise
from coda_lang.ir.program import Kernel
from coda_lang.ir.types import DTYPES

# Pieces of names that read like marks, prefixes and suffixes of generated ones.
PIECES = ["x", "_", "é", "stride0", "_rows", "_out", "ue9", "0xe9", "0x", "5f", "0", "1", "arg", "map16", "N"]
NAMES = st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map("".join).filter(str.isidentifier)
SPECIAL = ["tap", "Block", "period", "operand_a", "extent_m", "Tree", "Store_x", "in_x", "coda", "float", "accumulator"]

KERNEL = """
kernel F<M, N = H * D, K, P>(
    a: bf16[M, K], b: bf16[N, K], c: f32[M, N], d: f32[D], g: f32[P, N], h: f32[P, H], i: i64[M], s: f32, z: f32[],
    inout w: f32[M, N],
) -> (c: f32[M, N], o: bf16[M, N/2], p: f32[M], q: f32[M, tiles(N)], r: f32[M, H], v: f32[N]) {
    local1 = a @ b.T + c * d * s + g[i, ...] + h[i, ...] * f32(N)
    local2, local3 = pairs(local1)
    c <- local1 + z
    o <- local2 * local3
    p <- pick(local1, i)
    q <- tile_sum(local1, over=N)
    r <- segment_sum(local1, over=D)
    v <- d * 2.0
    w +<- local1
}
"""
REDUCE = """
reduce F<M, K, N>(a: f32[M, tiles(K)], b: f32[M, tiles(N)], c: f32[M, K, N], s: f32, d: f32[tiles(K), N]) -> (
    a: f32[M], o: f32[M], v: f32[]
) {
    a <- sum(a, over=tiles(K)) * s + f32(K)
    o <- sum(b, over=tiles(N)) + sum(sum(c, over=K), over=N)
    v <- sum(sum(d, over=tiles(K)), over=N)
}
"""
TEMPLATES = {"kernel": KERNEL, "reduce": REDUCE}
DIRECT = ["c", "w", "o", "c'", "g", "h"]  # moved by plain loads and stores
WORDS = {
    "kernel": ["F", *"MNHDKP", *"abcdghiszwopqrv"],
    "reduce": ["F", *"MKN", *"abcsdov"],
}  # fmt: skip


def emitted(text: str, **choices: object) -> Emitted:
    (program,) = coda.loads(text).values()
    kernel = program.ir
    assert isinstance(kernel, Kernel)
    whole = specialise(kernel, frozenset(p.name for p in kernel.params), frozenset(o.name for o in kernel.outputs))
    return emit(whole, {p.name: DTYPES["bf16"] for p in kernel.dtypes}, **choices)  # type: ignore[arg-type]


def renamed(kind: str, names: dict[str, str]) -> str:
    return re.sub(r"\b[A-Za-z]\b", lambda w: names.get(w[0], w[0]), TEMPLATES[kind])


def tokens(source: str) -> list[str]:
    code = "\n".join(line.split("//")[0] for line in source.splitlines())
    assert code.isascii()
    return re.findall(r"\w+|[^\w\s]", code)


def source_of(source: object, names: dict[str, str]) -> str:
    """A field's source with other names in place of the template's; outputs that share an input's are marked."""
    return re.sub(r"""(['"])([A-Za-z])('?)\1""", lambda w: repr(names[w[2]] + w[3]), repr(source))


@cache
def template(kind: str, way: str) -> Emitted:
    return emitted(TEMPLATES[kind], direct=frozenset(DIRECT if way == "direct" else []), tap=way == "tap")


@pytest.mark.parametrize("way", ["usual", "direct", "tap"])
@pytest.mark.parametrize("kind", ["kernel", "reduce"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_kernel_is_the_same_whatever_its_names(kind: str, way: str, data: st.DataObject) -> None:
    words = WORDS[kind]
    legal = NAMES.filter(lambda n: n != "_") | st.sampled_from(SPECIAL)
    given_names = data.draw(st.lists(legal, min_size=len(words), max_size=len(words), unique=True))
    names = dict(zip(words, given_names, strict=True))
    first = template(kind, way)
    direct = frozenset(names[k[0]] + k[1:] for k in DIRECT if way == "direct" and k[0] in names)
    second = emitted(renamed(kind, names), direct=direct, tap=way == "tap")
    assert [(f.ctype, f.offset) for f in first.fields] == [(f.ctype, f.offset) for f in second.fields]
    assert [source_of(f.source, names) for f in first.fields] == [repr(f.source) for f in second.fields]
    assert len({f.name for f in second.fields}) == len(second.fields)
    there: dict[str, str] = {}
    back: dict[str, str] = {}
    mine, yours = tokens(first.source), tokens(second.source)
    assert len(mine) == len(yours)
    for x, y in zip(mine, yours, strict=True):
        assert there.setdefault(x, y) == y
        assert back.setdefault(y, x) == x
    assert of_entry(second.entry) == names["F"]


@given(st.text(st.characters(categories=["L", "N", "Pc"]) | st.sampled_from("_0xe'"), max_size=12))
@example("_0xe9_")
@example("__0x")
@example("é'")
def test_an_identifier_reads_back(name: str) -> None:
    made = identifier(name)
    assert re.fullmatch(r"[A-Za-z0-9_]*", made)
    assert name_of(made) == name


@given(NAMES, NAMES, NAMES, NAMES)
@example("N", "x_y", "N_x", "y")
def test_joined_names_are_told_apart(a: str, b: str, c: str, d: str) -> None:
    assert (joined("k", a, b) == joined("k", c, d)) == ((a, b) == (c, d))


def test_a_field_of_another_source_is_no_second_one() -> None:
    block = Fields()
    assert block.add("n", "int64_t", Stride("x", 0)) == block.add("n", "int64_t", Stride("x", 0)) == "block.n"
    with pytest.raises(BackendError, match=r"two parameters .* named n: "):
        block.add("n", "int64_t", Stride("x", 1))


PAIRS = [
    "map F<M, N>(x: f32[M, N], x_stride0: f32, t: f32[M, N]) -> (y: f32[M, N]) { y <- t * x * x_stride0 }",
    "map F<M, N, P>(t: f32[P, N], t_rows: i64, i: i64[M]) -> (y: f32[M, N]) { y <- t[i, ...] * f32(t_rows) }",
    "map F<M, N>(x: f32[M, N]) -> (x: f32[M, N], x_out: f32[M, N]) { x <- x  x_out <- x * 2.0 }",
    "map F<M, N>(é: f32[M, N], _ue9_: f32[M, N], _0xe9_: f32[M, N]) -> (y: f32[M, N]) { y <- é - _ue9_ - _0xe9_ }",
    "reduce F<M, N, N_x>(x_y: f32[M, tiles(N)], y: f32[M, tiles(N_x)], x: f32[M], x_stride0: f32) -> (o: f32[M])"
    " { o <- sum(x_y, over=tiles(N)) + sum(y, over=tiles(N_x)) + x * x_stride0 }",
]


@pytest.mark.parametrize("text", PAIRS)
def test_each_thing_that_a_kernel_reads_has_its_own_field(text: str) -> None:
    (program,) = coda.loads(text).values()
    e = emitted(text, direct=frozenset({"x", "t", "x'", "x_out", "y"}))
    named = {str(f.source.tensor) for f in e.fields if isinstance(f.source, (Pointer, TensorMap))}
    params, outputs = program.ir.params, program.ir.outputs
    inputs = {p.name for p in params}
    assert named == {p.name for p in params if not p.host} | {o.name + "'" * (o.name in inputs) for o in outputs}
    assert {f.source.param for f in e.fields if isinstance(f.source, Scalar)} == {p.name for p in params if p.host}
    tiles = {d for p in params for d in p.dims if d.tiled}
    assert tiles <= {f.source.dim for f in e.fields if isinstance(f.source, Extent)}


@pytest.mark.parametrize("name", ["acc", "tap", "accumulator"])
def test_the_tap_shares_no_tensor_of_the_program(name: str) -> None:
    text = f"kernel F<M, N, K>(a: bf16[M, K], b: bf16[N, K]) -> ({name}: f32[M, N]) {{ {name} <- a @ b.T }}"
    maps = [f.source.tensor for f in emitted(text, tap=True).fields if isinstance(f.source, TensorMap)]
    assert sorted(maps) == sorted(["a", "a", "b", "b", name, TAP])  # one of each operand is of its last rows
    assert not TAP.isidentifier()


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("text", [PAIRS[2], PAIRS[3], PAIRS[4]])
def test_names_that_looked_alike_compile(text: str, store: Cache) -> None:
    assert compile_kernel(emitted(text), cache=store).data


@pytest.mark.usefixtures("tools")
def test_an_output_named_tap_compiles_beside_the_tap(store: Cache) -> None:
    text = "kernel é<M, N, K>(a: bf16[M, K], b: bf16[N, K]) -> (tap: f32[M, N]) { tap <- a @ b.T }"
    assert compile_kernel(emitted(text, tap=True), cache=store).data
