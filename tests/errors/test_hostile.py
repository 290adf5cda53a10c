"""Text that no person would write, and text that is nearly right: a `CodaError` or a program, and soon."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import coda_lang as coda
from coda_lang.errors import CodaError
from coda_lang.ir.check import check_file, check_text
from coda_lang.ir.module import Module
from coda_lang.parser.parse import SIZE_LIMIT, read_source

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted((ROOT / "programs").glob("*.coda"))
EXAMPLE = re.search(r"```coda\n(.*?)```", (ROOT / "docs" / "language.md").read_text(encoding="utf-8"), re.S)
assert EXAMPLE is not None
TOKEN = re.compile(r'"""(?:[^\\]|\\.)*?"""|"(?:[^"\\\n]|\\.)*"|//[^\n]*|\w+|<-|\+<-|->|\.\.+|[=!<>]=|\s+|.', re.S)
# Whole programs are many tokens, and most of them are alike: kernels of the shorter files are mutated.
SEEDS = [EXAMPLE[1], *(p.read_text(encoding="utf-8") for p in PROGRAMS if p.stat().st_size < 1200)]
WORDS = """
kernel map reduce fn const import as return inout in or and not true false round
< > ( ) [ ] { } , : ; = == <- +<- -> + - * / % @ . .. ... ? |
tiles pairs unpairs pick onehot row col sum max tile_sum tile_welford segment_sum select exp silu over ignore
f32 bf16 bool i64 M N K T H D a b x y acc 0 1 2 1.5 1e39 99999999999999999999 inf nan _
é 北 \x00 \u200b \ufeff # ' \\ ! ^ & `
""".split()  # noqa: SIM905


def outcome(text: str, path: str = "programs/case.coda") -> Module | CodaError:
    """What checking gives; a program has a store for each output, and a message can be printed."""
    try:
        module = check_text(text, path)
    except CodaError as error:
        return presentable(error)
    for kernel in module.kernels.values():
        stored = {store.target for store in kernel.stores}
        assert stored == {o.name for o in kernel.outputs} | {p.name for p in kernel.params if p.inout}
    return module


def presentable(error: CodaError) -> CodaError:
    assert error.diagnostics
    str(error).encode()
    for d in error.diagnostics:
        assert 0 <= d.span.start <= d.span.end <= len(d.span.source.text)
    return error


def codes(text: str) -> set[str]:
    found = outcome(text)
    return {d.code for d in found.diagnostics} if isinstance(found, CodaError) else set()


def a_map(body: str, inputs: str = "") -> str:
    return f"map m<M, N>(x: f32[M, N]{', ' + inputs if inputs else ''}) -> (d: f32[M, N]) {{\n{body}\n}}\n"


# -- arbitrary and mutated text ------------------------------------------------------------------------------------


@given(st.text())
@example("\x00")
@example("\ud800")
@example("\ufeffconst A = 1")
@example('"""')
def test_arbitrary_text(text: str) -> None:
    outcome(text)


@given(st.lists(st.sampled_from(WORDS), max_size=60).map(" ".join))
def test_arbitrary_words(text: str) -> None:
    outcome(text)


@given(st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join))
def test_arbitrary_bodies(body: str) -> None:
    outcome(a_map(body, "i: i32[M], w: f32[N], t: f32[P, N]"))


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A program with some tokens deleted, doubled, swapped, replaced or inserted."""
    tokens = TOKEN.findall(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 4))):
        places = [i for i, token in enumerate(tokens) if not token.isspace()]
        if not places:
            break
        at, other = draw(st.sampled_from(places)), draw(st.sampled_from(places))
        match draw(st.sampled_from(["delete", "double", "swap", "replace", "insert", "copy"])):
            case "delete":
                tokens[at] = ""
            case "double":
                tokens[at] += " " + tokens[at]
            case "swap":
                tokens[at], tokens[other] = tokens[other], tokens[at]
            case "replace":
                tokens[at] = draw(st.sampled_from(WORDS))
            case "insert":
                tokens[at] += " " + draw(st.sampled_from(WORDS)) + " "
            case _:
                tokens[at] = tokens[other]
    return "".join(tokens)


@given(mutated())
def test_mutated_programs(text: str) -> None:
    outcome(text, str(ROOT / "programs" / "case.coda"))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_every_prefix_by_lines(path: Path) -> None:
    """What an editor sees while a program is typed."""
    lines = path.read_text(encoding="utf-8").split("\n")
    for end in range(0, len(lines), 1 + len(lines) // 25):
        outcome("\n".join(lines[:end]), str(path))


# -- depth and size ------------------------------------------------------------------------------------------------

DOUBLING = "fn g30(x) = x\n" + "".join(f"fn g{i}(x) = g{i + 1}(x) + g{i + 1}(x + 1)\n" for i in range(30))
CHAIN = "fn g1500(x) = x\n" + "".join(f"fn g{i}(x) = g{i + 1}(x)\n" for i in range(1500))
DEEP_CHAIN = "fn g9(x) = x\n" + "".join(
    f"fn g{i}(x) = {'-(' * 89}g{i + 1}({'-(' * 9}x{')' * 9}){')' * 89}\n" for i in range(9)
)

LARGE = {
    "parentheses": (a_map("d <- " + "(" * 10_000 + "x" + ")" * 10_000), set()),
    "open parentheses": ("fn f(x) = " + "(" * 100_000, {"E0004"}),
    "closed parentheses": (")" * 100_000, {"E0004"}),
    "brackets of all kinds": ("([{<" * 20_000, {"E0003"}),
    "minus signs": (a_map("d <- " + "-" * 50_000 + "x"), {"E0005"}),
    "nots": (a_map("d <- f32(" + "not " * 50_000 + "true)"), {"E0005"}),
    "a sum": (a_map("d <- x" + " + x" * 50_000), {"E0005"}),
    "calls": (a_map("d <- " + "exp(" * 20_000 + "x" + ")" * 20_000), {"E0005"}),
    "transposes": (a_map("d <- x" + ".T" * 50_000), {"E0005"}),
    "an extent": (a_map("d <- x", "y: f32[N" + "*1" * 50_000 + "]"), {"E0005"}),
    "an extent of quotients": (a_map("d <- x", "y: f32[N" + "/1" * 50_000 + "]"), {"E0005"}),
    "a chain of statements": (
        a_map("y0 = x\n" + "\n".join(f"y{i + 1} = y{i} * x" for i in range(20_000)) + "\nd <- y20000"),
        set(),
    ),
    "functions that double": (DOUBLING + a_map("d <- g0(x)"), {"E0114"}),
    "functions that double integers": (DOUBLING + a_map("d <- x * g0(1)"), set()),
    "functions that double nothing": (DOUBLING + a_map("d <- g0(unknown)"), {"E0101"}),
    "integers that double": (
        "fn h40(x) = x\n"
        + "".join(f"fn h{i}(x) = h{i + 1}(x * 2) + h{i + 1}(x * 2 + 1)\n" for i in range(40))
        + a_map("d <- x * h0(1)"),
        {"E0114"},
    ),
    "a chain of functions": (CHAIN + a_map("d <- g600(x)"), set()),
    "a longer chain of functions": (CHAIN + a_map("d <- g0(x)"), {"E0005"}),
    "deep expressions in a chain of functions": (DEEP_CHAIN + a_map("d <- g0(x)"), set()),
    "a circle of many functions": (
        "".join(f"fn r{i}(x) = r{(i + 1) % 5000}(x)\n" for i in range(5000)),
        {"E0110"},
    ),
    "a long number": ("const A = " + "1" * 100_000, {"E0113"}),
    "a long fraction": ("const A = 1." + "1" * 100_000, set()),
    "a long exponent": ("const A = 1e" + "9" * 100_000, {"E0113"}),
    "a long name": ("fn f(x) = " + "x" * 100_000, {"E0010"}),
    "a long line": ("fn f(x) = x" + " " * 500_000 + "+ y", {"E0101"}),
    "a long string": ('"' + "x" * 500_000 + '"\nfn f(x) = x', set()),
    "quotes": ('"' * 50_001, {"E0006"}),
    "backslashes in a string": ('"' + "\\" * 100_001, {"E0006"}),
    "many arguments": ("fn f(x) = f(" + "x, " * 20_000 + ")", {"E0110", "E0201"}),
    "many names": (a_map(", ".join(f"y{i}" for i in range(20_000)) + " = x\nd <- x"), {"E0206"}),
    "many inputs": (a_map("d <- x", ", ".join(f"y{i}: f32[M]" for i in range(5_000))), set()),
    "many syntax errors": ("\n".join(f"fn f{i}(x) = x x" for i in range(3_000)), {"E0003"}),
    "many errors": ("\n".join(f"fn h{i}(x) = y{i}" for i in range(3_000)), {"E0101"}),
    "many misspelt names": (
        a_map(
            "\n".join(f"value{i} = x" for i in range(1900)) + "\n" + "\n".join(f"z{i} = valve{i}" for i in range(1900))
        ),
        {"E0101"},
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_input(name: str) -> None:
    text, expected = LARGE[name]
    start = time.process_time()
    assert codes(text) == expected
    assert time.process_time() - start < 60  # seconds; most take less than one


@pytest.mark.parametrize("what", ["inputs", "outputs", "functions"])
def test_time_grows_with_the_size(what: str) -> None:
    def seconds(n: int) -> float:
        names = range(n)
        if what == "functions":
            text = "fn g0(x) = x\n" + "\n".join(f"fn g{i + 1}(x) = g{i}(1.0)" for i in names)
        elif what == "inputs":
            inputs = ", ".join(f"x{i}: f32[M]" for i in names)
            body = "\n".join(f"y{i} = x{i} + 1.0\n_ = y{i}" for i in names)
            text = f"map m<M, N>(x: f32[M, N], {inputs}) -> (d: f32[M, N]) {{\n{body}\nd <- x\n}}"
        else:
            outputs = ", ".join(f"d{i}: f32[M, N]" for i in names)
            body = "\n".join(f"d{i} <- x" for i in names)
            text = f"map m<M, N>(x: f32[M, N]) -> ({outputs}) {{\n{body}\n}}"
        start = time.process_time()
        outcome(text)
        return time.process_time() - start

    small, large = min(seconds(500) for _ in range(2)), seconds(4000)
    assert large < 8 * 4 * small  # 64 times as long if each looked at all others


def test_at_most_twenty_are_shown_and_the_rest_counted() -> None:
    found = outcome("\n".join(f"fn h{i}(x) = y" for i in range(100)))
    assert isinstance(found, CodaError)
    assert len(found.diagnostics) == 100
    assert str(found).count("error[E0101]") == 20
    assert str(found).endswith("… and 80 more")


# -- files ---------------------------------------------------------------------------------------------------------


def failing(path: Path) -> CodaError:
    with pytest.raises(CodaError) as caught:
        check_file(path)
    return caught.value


def test_a_file_beyond_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "large.coda"
    path.write_bytes(b"// comment\n" * (5 * 2**20 // 11))
    start = time.process_time()
    error = failing(path)
    assert time.process_time() - start < 2  # it is not parsed
    assert [d.code for d in error.diagnostics] == ["E0009"]
    assert str(error).startswith(f"{path}:1:1: error[E0009]: the file has more than 4 MiB")
    with pytest.raises(CodaError, match="E0009"):
        check_text(" " * (SIZE_LIMIT + 1))


def test_a_file_without_an_end() -> None:
    with pytest.raises(CodaError, match="E0009"):
        read_source("/dev/zero")


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "latin.coda"
    path.write_bytes(b"\xef\xbb\xbfconst A = 1\n// caf\xe9\n")
    error = failing(path)
    assert str(error).split("\n") == [
        f"{path}:2:7: error[E0001]: byte 0xe9 is not UTF-8",
        "    2 | // caf",
        "      |       ^",
        "  help: save the file as UTF-8",
    ]


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "bom.coda"
    path.write_bytes(b"\xef\xbb\xbffn f(x) = y\n")
    assert [(d.span.line, d.span.column) for d in failing(path).diagnostics] == [(1, 11)]
    with pytest.raises(CodaError, match=":1:11: error"):
        coda.loads("\ufefffn f(x) = y\n")


def test_half_a_surrogate_pair_in_a_text() -> None:
    with pytest.raises(CodaError) as caught:
        coda.loads("// a \ud83d\nfn f(x) = x\n")
    assert [d.code for d in caught.value.diagnostics] == ["E0001"]
    str(caught.value).encode()


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_carets_stand_under_the_place(newline: str) -> None:
    text = newline.join(["fn f(x) {", "\ty = 北京 + x // 北京", "    return y", "}", ""])
    with pytest.raises(CodaError) as caught:
        coda.loads(text)
    shown = str(caught.value).split("\n")
    assert shown[0].startswith("<string>:2:6: error[E0101]")
    assert shown[1] == "    2 |  y = 北京 + x // 北京"
    assert shown[2] == "      |      ^^^^"  # four columns: each of the two characters takes two


def test_control_characters_do_not_reach_a_terminal() -> None:
    with pytest.raises(CodaError) as caught:
        coda.loads("fn f(x) = y // \x1b[31m\x07\r \x9b\u2028\n")
    assert all(c.isprintable() or c == "\n" for c in str(caught.value))


# -- imports -------------------------------------------------------------------------------------------------------


def linear(folder: Path, count: int) -> Path:
    for i in range(count):
        (folder / f"f{i}.coda").write_text(f'import "f{i + 1}.coda" {{ f }}\n')
    (folder / f"f{count}.coda").write_text("fn f(x) = x\n")
    return folder / "f0.coda"


def test_a_chain_of_imports(tmp_path: Path) -> None:
    assert "f" in check_file(linear(tmp_path, 99)).scope.names


def test_a_longer_chain_of_imports(tmp_path: Path) -> None:
    error = failing(linear(tmp_path, 2000))
    assert [d.code for d in error.diagnostics] == ["E0115"]
    assert "imports are nested more than 100 deep" in str(error)


def test_a_file_imported_by_many_paths_is_read_once(tmp_path: Path) -> None:
    """Diamonds upon diamonds: 2⁴⁰ paths lead to the last file."""
    for i in range(40):
        for side in "ab":
            imports = "".join(f'import "{s}{i + 1}.coda" {{ f as {s} }}\n' for s in "ab")
            (tmp_path / f"{side}{i}.coda").write_text(imports + "fn f(x) = a(x)\n")
    for side in "ab":
        (tmp_path / f"{side}40.coda").write_text("fn f(x) = x\n")
    assert "f" in check_file(tmp_path / "a0.coda").scope.names


def test_a_loop_of_symbolic_links(tmp_path: Path) -> None:
    os.symlink(tmp_path / "b.coda", tmp_path / "a.coda")
    os.symlink(tmp_path / "a.coda", tmp_path / "b.coda")
    with pytest.raises(OSError, match="symbolic links"):
        check_file(tmp_path / "a.coda")
    (tmp_path / "c.coda").write_text('import "a.coda" { f }\nfn g(x) = f(x)\n')
    assert [d.code for d in failing(tmp_path / "c.coda").diagnostics] == ["E0108"]


def test_a_link_to_the_importing_file_is_a_cycle(tmp_path: Path) -> None:
    (tmp_path / "a.coda").write_text('import "link.coda" { f }\n')
    os.symlink(tmp_path / "a.coda", tmp_path / "link.coda")
    assert [d.code for d in failing(tmp_path / "a.coda").diagnostics] == ["E0111"]


@pytest.mark.parametrize("path", [".", "..", "", "/", "missing.coda", "a\\0b", "x" * 5000, "/dev/null/x", "file:///x"])
def test_imports_that_cannot_be_read(path: str, tmp_path: Path) -> None:
    (tmp_path / "a.coda").write_text(f'import "{path}" {{ f }}\nfn g(x) = f(x)\n')
    error = failing(tmp_path / "a.coda")
    assert [d.code for d in error.diagnostics] == ["E0108"]
    assert len(str(error)) < 2000


def test_a_broken_import_is_told_apart_from_its_importer(tmp_path: Path) -> None:
    (tmp_path / "a.coda").write_text('import "b.coda" { f }\nfn g(x) = f(x) + q\n')
    (tmp_path / "b.coda").write_bytes(b"\xff")
    assert [d.code for d in failing(tmp_path / "a.coda").diagnostics] == ["E0101", "E0001"]


def test_the_recursion_limit_is_put_back() -> None:
    import sys

    before = sys.getrecursionlimit()
    outcome(CHAIN + a_map("d <- g0(x)"))
    assert sys.getrecursionlimit() == before


# -- speed ---------------------------------------------------------------------------------------------------------


def test_programs_are_checked_in_milliseconds() -> None:
    check_file(PROGRAMS[0])  # the grammar and the prelude are read once
    start = time.process_time()
    for path in PROGRAMS:
        check_file(path)
    assert (time.process_time() - start) / len(PROGRAMS) < 0.25  # about 0.03
