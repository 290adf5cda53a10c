"""The formatter: what it prints parses to the same tree, is its own canonical form, and has every comment."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coda_lang.errors import CodaError
from coda_lang.parser import parse
from coda_lang.parser import syntax as s
from coda_lang.parser.format import format_file, format_text
from coda_lang.parser.unparse import WIDTH, string
from coda_lang.source import Source

PROGRAMS = sorted((Path(__file__).parents[2] / "programs").glob("*.coda"))

# -- syntax trees ------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["x", "y", "gate", "rstd", "β", "tiles", "N", "T", "a_rather_long_name_of_a_value"])
INTEGERS = st.sampled_from(["0", "1", "2", "16", "9223372036854775807"])
NUMBERS = INTEGERS | st.sampled_from(["1.0", "0.5", "1e-5", "2.5e10", "1E+5"])
LEAVES = NAMES.map(s.Name) | NUMBERS.map(s.Number) | st.booleans().map(s.Boolean)
BINARY = ["or", "and", "==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "@"]


def _larger(inner: st.SearchStrategy[s.Expr]) -> st.SearchStrategy[s.Expr]:
    arguments = st.builds(s.Argument, st.none() | NAMES, inner)
    return (
        st.builds(s.Binary, st.sampled_from(BINARY), inner, inner)
        | st.builds(s.Unary, st.sampled_from(["-", "not"]), inner)
        | st.builds(s.Attribute, inner, st.just("T"))
        | st.builds(s.Call, NAMES, st.lists(arguments, max_size=4).map(tuple))
        | st.builds(s.Round, st.sampled_from(["bf16", "T"]), inner)
        | st.builds(s.Index, NAMES, inner, st.booleans())
    )


EXPRESSIONS = st.recursive(LEAVES, _larger, max_leaves=25)
DIM_ATOMS = NAMES.map(s.DimName) | INTEGERS.map(s.DimNumber) | st.builds(s.DimTiles, NAMES, NAMES)
DIMS = st.recursive(DIM_ATOMS, lambda d: st.builds(s.DimBinary, st.sampled_from("*/"), d, DIM_ATOMS), max_leaves=3)
TYPES = st.builds(s.TypeExpr, NAMES, st.none() | st.lists(DIMS, max_size=3).map(tuple))
DOCS = st.none() | st.text(st.sampled_from('ab"\\\n\t\r ·/{'), max_size=12)
TARGETS = st.lists(NAMES.map(s.Target), min_size=1, max_size=3).map(tuple)
STATEMENTS = st.builds(s.Bind, TARGETS, EXPRESSIONS) | st.builds(
    s.StoreTo, NAMES.map(s.Target), EXPRESSIONS, st.booleans()
)
DOMAINS = st.builds(s.DomainExpr, st.just("in"), EXPRESSIONS, EXPRESSIONS, st.none() | NAMES) | st.builds(
    s.DomainExpr, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), EXPRESSIONS
)


def _tuples(items: st.SearchStrategy[Any], most: int, least: int = 0) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, min_size=least, max_size=most).map(tuple)


PARAMS = st.builds(s.ParamDef, NAMES, TYPES, st.booleans(), st.none() | DOMAINS, st.none() | EXPRESSIONS)
OUTPUTS = st.builds(s.OutputDef, NAMES, TYPES, st.booleans())
AXES = st.builds(s.AxisDef, NAMES, st.none() | DIMS)
DTYPES = st.builds(s.DTypeDef, NAMES, _tuples(NAMES, 3, 1))
BODIES = _tuples(STATEMENTS, 5)
KINDS = st.sampled_from(["kernel", "map", "reduce"])
KERNELS = st.builds(
    s.KernelDef,
    KINDS,
    NAMES,
    _tuples(AXES, 3, 1),
    _tuples(DTYPES, 2),
    _tuples(PARAMS, 4),
    _tuples(OUTPUTS, 4),
    BODIES,
    DOCS,
) | st.builds(
    s.KernelDef, KINDS, NAMES, st.just(()), st.just(()), _tuples(PARAMS, 2), _tuples(OUTPUTS, 2), BODIES, DOCS
)
FN_PARAMS = _tuples(st.builds(s.FunctionParam, NAMES, st.none() | EXPRESSIONS), 4)
FUNCTIONS = st.builds(
    s.Function, NAMES, FN_PARAMS, st.just(()), _tuples(EXPRESSIONS, 1, 1), st.just(True), DOCS
) | st.builds(s.Function, NAMES, FN_PARAMS, BODIES, _tuples(EXPRESSIONS, 3, 1), st.just(False), DOCS)
IMPORTS = st.builds(
    s.Import, DOCS.map(lambda d: d or "x.coda"), _tuples(st.builds(s.Imported, NAMES, st.none() | NAMES), 6, 1)
)
CONSTANTS = st.builds(s.Const, NAMES, EXPRESSIONS, DOCS)


def _file(doc: str | None, definitions: tuple[s.Definition, ...]) -> s.File:
    first = definitions[0] if definitions else None
    if first is not None and not isinstance(first, s.Import) and first.doc is None:
        doc = None  # a single string would be the definition's
    return s.File(doc, definitions, source=Source("<tree>", ""))


FILES = st.builds(_file, DOCS, _tuples(KERNELS | FUNCTIONS | IMPORTS | CONSTANTS, 4))


@given(FILES)
def test_a_tree_survives(tree: s.File) -> None:
    text = format_file(tree)
    assert parse(text) == tree
    assert format_text(text) == text


@given(EXPRESSIONS)
def test_operands_keep_their_groups(e: s.Expr) -> None:
    text = format_file(_file(None, (s.Const("c", e),)))
    assert parse(text).definitions[0].value == e  # type: ignore[union-attr]


@given(st.text(st.sampled_from('ab"\\\n\t ·'), max_size=10))
def test_a_string_keeps_its_value(value: str) -> None:
    assert parse(string(value)).doc == value


# -- texts -------------------------------------------------------------------------------------------------------------


def _tokens(text: str) -> list[str]:
    from coda_lang.parser.parse import grammar

    return [str(t) for t in grammar().lex(text)]


@st.composite
def _commented(draw: Callable[[st.SearchStrategy[Any]], Any]) -> str:
    """A program whose tokens have comments and line breaks between them, at random."""
    tokens = _tokens(format_file(draw(FILES)))
    gap = st.sampled_from([" ", " ", " ", "\n", "\n\n\n", " // c\n", "\n// own\n", "\n\n  //\n\n", ' // a\n// "b" {\n'])
    parts = [part for token in tokens for part in (draw(gap), token)]
    return "".join([*parts, draw(gap)])


def _comments(text: str) -> list[str]:
    return sorted(c.text for c in parse(text).comments)


@settings(deadline=None)
@given(_commented())
def test_comments_anywhere_are_kept(text: str) -> None:
    out = format_text(text)
    assert parse(out) == parse(text)
    assert _comments(out) == _comments(text)
    assert format_text(out) == out
    assert "\n\n\n" not in out or any('"""' in t for t in _tokens(out))
    assert all(line == line.rstrip() or line.endswith("\r") for line in out.split("\n")) or '"""' in out


@given(st.text(st.sampled_from(list('ab1 \n"/{}()=<-,.+@fn[]:')), max_size=40))
def test_arbitrary_text_is_formatted_or_refused(text: str) -> None:
    try:
        tree = parse(text)
    except CodaError:
        return
    out = format_file(tree)
    assert parse(out) == tree
    assert format_text(out) == out


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_programs_survive(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    out = format_text(text)
    assert parse(out) == parse(text)
    assert [c.text for c in parse(out).comments] == [c.text for c in parse(text).comments]
    assert format_text(out) == out


# -- the form ----------------------------------------------------------------------------------------------------------

MESSY = '''// a licence
"what the file is"  // why
import   "act.coda" {swish,gelu as g,}
import "b.coda" { // both
  x, // one
  y }


const A=1
const B = -(2*A)   // b


fn f(x,beta=1.0)=x*sigmoid((beta*x))
"""doc "quoted" here"""
fn long(g,u) { // open

  s = sigmoid(g)


  // above
  t=((s)) return s*u,t // results
  // end
}
kernel k<M,N=H*D,K;T:bf16|f16>(a:T[M,K],b:T[N,K],rstd:f32[M]>0, // scale
  // optional
  bias:f32[N]=0)->(z:T[M,N]?,y:T[M,N/2]) // outputs
{
  h=a@b.T // product
  gate,up=pairs(h*rstd) // halves
  z<-h

  y<-(silu(gate)*up) - (h - (1.0 - up))
  // done
} // after
// end of file
'''

TIDY = '''// a licence
"what the file is"  // why

import "act.coda" { swish, gelu as g }
import "b.coda" {  // both
    x,  // one
    y,
}

const A = 1
const B = -(2 * A)  // b

fn f(x, beta = 1.0) = x * sigmoid(beta * x)

"""doc "quoted" here"""
fn long(g, u) {  // open
    s = sigmoid(g)

    // above
    t = s
    return s * u, t  // results
    // end
}

kernel k<M, N = H * D, K; T: bf16 | f16>(
    a: T[M, K],
    b: T[N, K],
    rstd: f32[M] > 0,  // scale
    // optional
    bias: f32[N] = 0,
) -> (z: T[M, N]?, y: T[M, N/2]) {  // outputs
    h = a @ b.T                 // product
    gate, up = pairs(h * rstd)  // halves
    z <- h

    y <- silu(gate) * up - (h - (1.0 - up))
    // done
}  // after
// end of file
'''


def test_the_canonical_form() -> None:
    assert format_text(MESSY) == TIDY
    assert format_text(TIDY) == TIDY


@pytest.mark.parametrize(
    ("written", "printed"),
    [
        ("((a + b)) + c", "a + b + c"),
        ("a - (b - c)", "a - (b - c)"),
        ("-(a * b)", "-(a * b)"),
        ("(-a) * b", "-a * b"),
        ("-(-a)", "--a"),
        ("(a / b) * c", "(a / b) * c"),
        ("a @ b.T * c", "(a @ b.T) * c"),
        ("(a @ b.T) + c", "a @ b.T + c"),
        ("not (a == b)", "not a == b"),
        ("(not a) == b", "(not a) == b"),
        ("(a < b) == c", "(a < b) == c"),
        ("a and (b and c)", "a and (b and c)"),
        ("(a or b) and c", "(a or b) and c"),
        ("(a.T).T", "a.T.T"),
        ("(a @ b).T", "(a @ b).T"),
        ("x < -y", "x < -y"),
        ("t[(i), …]", "t[i, ...]"),
    ],
)
def test_parentheses(written: str, printed: str) -> None:
    assert format_text(f"const c = {written}") == f"const c = {printed}\n"


def test_long_lines_are_broken() -> None:
    terms = " + ".join(f"some_function(value_{i}, over=tiles(N))" for i in range(6))
    text = f"fn f(x) {{ y = {terms} z = clamp({terms}, {terms}) return y, z, {terms} }}"
    out = format_text(text)
    assert max(map(len, out.split("\n"))) <= WIDTH
    assert parse(out) == parse(text)
    assert format_text(out) == out


def test_empty_and_comments_only() -> None:
    assert format_text("") == ""
    assert format_text("\n\n  \n") == ""
    assert format_text("\n\n// a\n\n\n\n// b  \n") == "// a\n\n// b\n"


def test_time_is_linear() -> None:
    def seconds(n: int) -> float:
        lines = (f"x{i + 1} = x{i} * 1.5 + 2.0  // c{i}" for i in range(n))
        tree = parse("fn f(x0) {\n" + "\n".join(lines) + f"\nreturn x{n}\n}}")
        best = math.inf
        for _ in range(3):
            start = time.process_time()
            format_file(tree)
            best = min(best, time.process_time() - start)
        return best

    assert seconds(8000) < 16 * 6 * seconds(500)  # a quadratic formatter takes 256 times as long
