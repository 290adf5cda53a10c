"""The checker: a file's syntax tree to a `Module` of typed kernels, or every mistake in it at once."""

from __future__ import annotations

import os
import sys
import threading
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from coda_lang.errors import CodaError, Note, did_you_mean, in_order
from coda_lang.ir import rules
from coda_lang.ir.axes import Grid
from coda_lang.ir.body import AbandonedError, BodyChecker
from coda_lang.ir.constants import constant_value, refuse_name
from coda_lang.ir.module import Constant, FunctionEntity, Module, Scope
from coda_lang.ir.ops import OPS, REDUCTIONS
from coda_lang.ir.passes import tidy
from coda_lang.ir.program import Definition, Kernel, Output, Param, Product
from coda_lang.ir.report import Report
from coda_lang.ir.signature import Signature, SignatureChecker
from coda_lang.ir.types import F32, Dim, axis_dim
from coda_lang.parser import parse, read_source
from coda_lang.parser import syntax as s
from coda_lang.source import Source, Span


def check_file(path: str | os.PathLike[str]) -> Module:
    """Read, parse and check a file and its imports. Raises OSError if `path` cannot be read, or CodaError."""
    with _deep_recursion():
        return _Loader().load(Path(path), read_source(path))


def check_text(text: str, path: str = "<string>") -> Module:
    """Parse and check a text; imports are relative to the current directory. Raises CodaError."""
    with _deep_recursion():
        return _Loader().load(Path(path), Source(path, text.removeprefix("\ufeff")))


@contextmanager
def _deep_recursion() -> Iterator[None]:
    """Room for the nesting that `MAX_NESTING` and `MAX_IMPORTS` allow, whatever the caller's own depth is."""
    global _deep, _before  # the limit is the process's: the first thread in raises it, the last one out restores it
    with _limit:
        if not _deep:
            _before = sys.getrecursionlimit()
            sys.setrecursionlimit(max(_before, 20_000))
        _deep += 1
    try:
        yield
    finally:
        with _limit:
            _deep -= 1
            if not _deep:
                sys.setrecursionlimit(_before)


_limit = threading.Lock()
_deep = _before = 0


@cache
def prelude() -> Scope:
    text = files("coda_lang.ir").joinpath("prelude.coda").read_text(encoding="utf-8")
    return _ModuleChecker(parse(Source("<prelude>", text)), Path("<prelude>"), _Loader(), Scope()).check().scope


class _Loader:
    """Loads imported files once each and refuses cycles."""

    def __init__(self) -> None:
        self.modules: dict[Path, Module | None] = {}  # None while a file is being loaded
        self.broken: set[Path] = set()  # files whose errors are reported
        self.depth = 0

    def load(self, path: Path, source: Source) -> Module:
        key = path.resolve()
        self.modules[key] = None
        self.depth += 1
        module = _ModuleChecker(parse(source), path, self, prelude() if path.name != "<prelude>" else Scope()).check()
        self.modules[key] = module
        self.depth -= 1
        return module


class _ModuleChecker:
    def __init__(self, file: s.File, path: Path, loader: _Loader, builtins: Scope) -> None:
        self.file, self.path, self.loader = file, path, loader
        self.report = Report()
        self.scope = Scope(builtins=builtins)
        self.builtins = builtins

    def check(self) -> Module:
        functions: list[s.Function] = []
        kernels: list[s.KernelDef] = []
        blocks: dict[str, s.KernelDef] = {}
        declared: dict[str, Span] = {}
        for d in self.file.definitions:
            match d:
                case s.Import():
                    self._import(d, declared)
                case s.Const():
                    if self._declare(d.name, d.span, declared):
                        value = constant_value(d.value, self.scope, self.report)
                        if value is None:
                            self.scope.poisoned.add(d.name)
                        else:
                            self.scope.names[d.name] = Constant(d.name, value, d.span)
                case s.Function():
                    if self._declare(d.name, d.name_span, declared):
                        self.scope.names[d.name] = FunctionEntity(d, self.scope)
                        functions.append(d)
                case s.KernelDef():
                    fresh = self._declare(d.name, d.name_span, declared, is_kernel=True)
                    if fresh:
                        self.scope.kernels.add(d.name)
                    if d.kind != "block":
                        kernels.append(d)
                    else:  # one that is defined twice is checked too, but cannot be called
                        blocks[d.name if fresh else f"{d.name}@{d.span.start}"] = d
        self._divisions()
        self._recursion(functions)
        for function in functions:
            self._function(function)
        for kernel in kernels:
            self._kernel(kernel)
        if blocks:
            self._blocks(blocks)
        if self.report.errors:
            raise CodaError(self.report.errors)
        return Module(str(self.path), self.file.doc, self.scope, tuple(in_order(self.report.warnings)))

    def _declare(self, name: str, span: Span, declared: dict[str, Span], is_kernel: bool = False) -> bool:
        if name in declared:
            note = [Note("first defined here", declared[name])]
            self.report.add("E0104", span, f"`{name}` is defined twice", "choose another name", note)
            return False
        if refuse_name(name, span, self.report):
            return False
        row = OPS.get(name)
        called = (row is not None and row.callable) or name in REDUCTIONS or name in ("pairs", *self.builtins.names)
        if called and not is_kernel:
            self.report.add("E0112", span, f"`{name}` is a built-in function", "choose another name")
            self.scope.poisoned.add(name)
            return False
        declared[name] = span
        self.scope.places[name] = span
        return True

    # -- imports --

    def _import(self, d: s.Import, declared: dict[str, Span]) -> None:
        module = self._imported_module(d)
        for item in d.names:
            name = item.alias or item.name
            imported = module.scope.names.get(item.name) if module is not None else None
            if not self._declare(name, item.span, declared, isinstance(imported, Definition)):
                continue
            if module is None:
                self.scope.poisoned.add(name)
            elif item.name not in module.scope.names:
                help = did_you_mean(item.name, module.scope.names)
                known = ", ".join(module.scope.names) or "nothing"
                text = f'"{d.path}" has no `{item.name}`'
                self.report.add("E0109", item.span, text, help or f"it has {known}")
                self.scope.poisoned.add(name)
            else:
                self.scope.names[name] = module.scope.names[item.name]

    def _imported_module(self, d: s.Import) -> Module | None:
        path, depth = self.path.parent / d.path, self.loader.depth
        try:
            key = path.resolve()
            if key in self.loader.broken:
                return None
            if key in self.loader.modules:
                module = self.loader.modules[key]
                if module is None:
                    text = f'"{d.path}" imports this file: a cycle'
                    self.report.add("E0111", d.path_span, text, "move what both need to a third file")
                return module
            if self.loader.depth >= MAX_IMPORTS:
                text = f"imports are nested more than {MAX_IMPORTS} deep"
                self.report.add("E0115", d.path_span, text, "import from the file that defines the name")
                return None
            if path.exists() and not path.is_file():  # a pipe would be waited for
                raise OSError("it is no file")
            return self.loader.load(path, read_source(path))
        except CodaError as error:
            self.report.errors += error.diagnostics
            self.loader.broken.add(key)
            self.loader.depth = depth
        except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: a loop of symbolic links
            reason = getattr(error, "strerror", None) or str(error)
            shown = d.path if len(d.path) <= 100 else d.path[:99] + "…"
            where = f"looked for {self.path.parent / shown}"
            self.report.add("E0108", d.path_span, f'cannot read "{shown}": {reason}', where)
        return None

    # -- comments --

    def _divisions(self) -> None:
        """Warn of a comment that was meant as a division: `i // 2`, or `i // n` of a name, close behind its operand."""
        text = self.file.source.text
        places = sorted(_statements(self.file), key=lambda p: p[0].start)
        starts = [span.start for span, _ in places]
        for comment in self.file.comments:
            divisor = comment.text[2:].strip()
            if comment.own_line or (not divisor.isidentifier() and not divisor.isdecimal()):
                continue
            line = text.rfind("\n", 0, comment.start) + 1
            before = text[line : comment.start].rstrip(" \t")
            at = line + len(before)
            found = bisect_left(starts, at) - 1
            if found < 0 or at > places[found][0].end or before[-1] in ",({[":
                continue
            close = comment.start - at <= 1
            if divisor.isdecimal() or (close and divisor in places[found][1]):
                span = Span(self.file.source, comment.start, comment.start + len(comment.text))
                help = f"write `idiv(…, {divisor})` for whole numbers, `/` for floats"
                self.report.add("W0004", span, f"`//` begins a comment: nothing is divided by {divisor}", help)

    # -- functions --

    def _recursion(self, functions: list[s.Function]) -> None:
        """Functions are inlined, so none may reach itself. Only functions of one file can: imports have no cycles."""
        _, circles = _walk_calls({d.name: list(_calls(d)) for d in functions})
        for call, path in circles:
            self._circle("E0110", call, path, "functions are inlined and cannot recur")
            self.scope.recursive.update(path)

    def _circle(self, code: str, call: s.Call, path: list[str], help: str) -> None:
        chain = " → ".join(f"`{n}`" for n in (*path, call.function))
        text = f"`{call.function}` calls itself" if len(path) == 1 else f"a circle of calls: {chain}"
        self.report.add(code, call.function_span, text, help)

    def _blocks(self, blocks: dict[str, s.KernelDef]) -> None:
        """Checks each block after those that it calls."""
        from coda_lang.ir.block import BlockChecker, called  # most files have none

        order, circles = _walk_calls({name: list(called(d)) for name, d in blocks.items()})
        for call, path in circles:
            self._circle("E0508", call, path, "a block is a fixed list of launches")
        for name in order:
            block = BlockChecker(blocks[name], self.scope, self.report).check()
            if block is not None and self.scope.places.get(name) == block.span:
                self.scope.names[name] = block

    def _function(self, d: s.Function) -> None:
        """Check a function's names and calls on arguments of unknown type; types are checked where it is called."""
        seen: dict[str, Span] = {}
        for p in d.params:
            if p.name in seen:
                note = [Note("declared here", seen[p.name])]
                self.report.add("E0102", p.span, f"argument `{p.name}` is declared twice", "choose another name", note)
            refuse_name(p.name, p.span, self.report)
            seen[p.name] = p.span
        entity = self.scope.names[d.name]
        assert isinstance(entity, FunctionEntity)
        dims = SignatureChecker(s.KernelDef("map", d.name, (), (), (), (), ()), self.scope, self.report)
        body = BodyChecker(d, Signature((), (), (), (), ()), dims, _SOME_GRID, self.report)
        with suppress(AbandonedError):
            body.function_alone(entity)

    # -- kernels --

    def _kernel(self, d: s.KernelDef) -> None:
        before = len(self.report.errors)
        dims = SignatureChecker(d, self.scope, self.report)
        signature = dims.check()
        product, grid, expr, contracted = self._grid(d, signature)
        body = BodyChecker(d, signature, dims, grid, self.report)
        body.contracted = contracted
        body.product = expr
        if product is not None and grid is not None and expr is not None:
            body.accumulator = body.emit("acc", (), None, F32, (grid.rows, grid.cols), expr.span)
        stored: list[Output | Param] = [*signature.outputs, *(p for p in signature.params if p.inout)]
        if grid is not None:
            fits = [rules.output_place(self.report, grid, target) for target in stored]
        else:
            fits = [d.kind != "reduce" or rules.reduce_output(self.report, target) for target in stored]
        signature.poisoned |= {target.name for target, fit in zip(stored, fits, strict=True) if not fit}
        if not d.outputs and not any(p.inout for p in d.params):
            help = "declare what it computes: `-> (d: f32[M, N])`"
            self.report.add("E0409", d.name_span, f"{d.kind} `{d.name}` has no output", help)
        if grid is None and d.kind != "reduce":
            # Without a grid nothing has a type, but names can be checked.
            names = {p.name for p in d.params} | {o.name for o in d.outputs}
            unknown = replace(signature, params=(), outputs=(), poisoned=names)
            body = BodyChecker(d, unknown, dims, _SOME_GRID, self.report)
            body.product = expr
        with suppress(AbandonedError):
            body.run(self.scope)
        for axis, span in dims.axes.items():
            if axis not in dims.used_axes:
                self.report.add("W0003", span, f"axis `{axis}` is not used")
        if len(self.report.errors) > before:
            return
        kernel = Kernel(
            kind=d.kind,  # type: ignore[arg-type]
            name=d.name,
            doc=d.doc or "",
            axes=signature.axes,
            splits=signature.splits,
            dtypes=signature.dtypes,
            params=signature.params,
            outputs=signature.outputs,
            product=product,
            rows=grid.rows if grid is not None else None,
            cols=grid.cols if grid is not None else None,
            values=tuple(body.values),
            stores=tuple(body.stores),
            span=d.name_span,
        )
        if self.scope.places.get(d.name) == d.name_span:
            self.scope.names[d.name] = tidy(kernel)

    def _grid(
        self, d: s.KernelDef, signature: Signature
    ) -> tuple[Product | None, Grid | None, s.Binary | None, Dim | None]:
        """The tile grid: the product's extents in a kernel, the outputs' in a map."""
        if d.kind == "reduce":
            return None, None, None, None
        products = [e for st in d.body for e in s.walk(st.value) if isinstance(e, s.Binary) and e.op == "@"]
        if d.kind == "map":
            return None, self._map_grid(d, signature), None, None
        if not products:
            help = "begin with `acc = a @ b.T`; an epilogue without a product is a `map`"
            self.report.add("E0302", d.name_span, f"kernel `{d.name}` has no product", help)
            return None, None, None, None
        expr = products[0]
        a = rules.operand(self.report, expr.left, signature)
        b = rules.operand(self.report, expr.right, signature)
        extents = rules.product_extents(self.report, expr, a, b) if a is not None and b is not None else None
        if extents is None or a is None or b is None:
            return None, None, expr, None
        rows, cols, contracted = extents
        product = Product(a[0].name, b[0].name, a[1], b[1], contracted, span=expr.span)
        return product, _make_grid(rows, cols, signature), expr, contracted

    def _map_grid(self, d: s.KernelDef, signature: Signature) -> Grid | None:
        inout = [p for p in signature.params if p.inout]
        grids: list[Grid] = []
        stored: list[Output | Param] = [*signature.outputs, *inout]
        for target in (*stored, *signature.params):
            if len(target.dims) != 2 or any(x.axis is None for x in target.dims):
                continue
            rows, cols = target.dims
            outer = next((sp for sp in signature.splits if sp.outer == cols or sp.inner.axis == cols.axis), None)
            if outer is not None:
                cols = axis_dim(outer.axis)
            if rows.axis != cols.axis:
                grids.append(_make_grid(axis_dim(rows.axis or ""), axis_dim(cols.axis or ""), signature))
        if grids:  # the first that has a place for every output: a table may be declared before the tiles
            return next((g for g in grids if all(rules.placed(g, t.dims) for t in stored)), grids[0])
        if not signature.poisoned:
            text = f"map `{d.name}` has no output or input with two axes, so it has no tile"
            self.report.add("E0313", d.name_span, text, "a map works on tiles [M, N]; combine vectors in a `reduce`")
        return None


MAX_IMPORTS = 100
_SOME_GRID = Grid(axis_dim("M"), axis_dim("N"))


def _statements(file: s.File) -> Iterator[tuple[Span, set[str]]]:
    """Where statements and results of functions stand, with the names of their definition."""
    for d in file.definitions:
        if not isinstance(d, (s.Function, s.KernelDef)):
            continue
        names = {p.name for p in d.params} | {t.text for st in d.body if isinstance(st, s.Bind) for t in st.targets}
        names |= {a.name for a in d.axes} if isinstance(d, s.KernelDef) else set()
        nodes = [*d.body, *(d.results if isinstance(d, s.Function) else ())]
        yield from ((node.span, names) for node in nodes)


def _calls(d: s.Function) -> Iterator[s.Call]:
    for expr in (*(p.default for p in d.params if p.default is not None), *(st.value for st in d.body), *d.results):
        yield from (e for e in s.walk(expr) if isinstance(e, s.Call))


def _walk_calls(calls: dict[str, list[s.Call]]) -> tuple[list[str], list[tuple[s.Call, list[str]]]]:
    """Definitions, each after those that it calls; and each call that closes a circle, with the names on it."""
    pending = {name: iter(own) for name, own in calls.items()}
    order: dict[str, None] = {}
    circles = []
    for first in calls:
        path = [first] if first not in order else []  # the calls that lead to where the walk is
        on_path = set(path)
        while path:
            call = next(pending[path[-1]], None)
            if call is None:
                on_path.discard(path[-1])
                order[path.pop()] = None
            elif call.function in on_path:
                circles.append((call, path[path.index(call.function) :]))
            elif call.function in calls and call.function not in order:
                path.append(call.function)
                on_path.add(call.function)
    return list(order), circles


def _make_grid(rows: Dim, cols: Dim, signature: Signature) -> Grid:
    return Grid(rows, cols, next((sp for sp in signature.splits if axis_dim(sp.axis) == cols), None))
