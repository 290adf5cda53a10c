"""The checker: a file's syntax tree to a `Module` of typed kernels, or every mistake in it at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path

from coda_lang.errors import CodaError, Note, did_you_mean
from coda_lang.ir import rules
from coda_lang.ir.axes import Grid
from coda_lang.ir.body import BodyChecker, Frame, TooLarge
from coda_lang.ir.constants import BUILTIN, constant_value
from coda_lang.ir.module import Constant, FunctionEntity, Module, Scope
from coda_lang.ir.ops import OPS, REDUCTIONS
from coda_lang.ir.passes import tidy
from coda_lang.ir.program import Kernel, Product
from coda_lang.ir.report import Report
from coda_lang.ir.signature import Signature, SignatureChecker
from coda_lang.ir.types import DTYPES, F32, Dim, axis_dim
from coda_lang.parser import parse, read_source
from coda_lang.parser import syntax as s
from coda_lang.source import Source, Span


def check_file(path: str | os.PathLike[str]) -> Module:
    """Read, parse and check a file and its imports. Raises OSError if `path` cannot be read, or CodaError."""
    return _Loader().load(Path(path), read_source(path))


def check_text(text: str, path: str = "<string>") -> Module:
    """Parse and check a text; imports are relative to the current directory. Raises CodaError."""
    return _Loader().load(Path(path), Source(path, text))


@cache
def prelude() -> Scope:
    text = files("coda_lang.ir").joinpath("prelude.coda").read_text(encoding="utf-8")
    return _ModuleChecker(parse(Source("<prelude>", text)), Path("<prelude>"), _Loader(), Scope()).check().scope


class _Loader:
    """Loads imported files once each and refuses cycles."""

    def __init__(self) -> None:
        self.modules: dict[Path, Module | None] = {}  # None while a file is being loaded

    def load(self, path: Path, source: Source) -> Module:
        key = path.resolve()
        self.modules[key] = None
        module = _ModuleChecker(parse(source), path, self, prelude() if path.name != "<prelude>" else Scope()).check()
        self.modules[key] = module
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
                    if self._declare(d.name, d.name_span, declared, is_kernel=True):
                        self.scope.poisoned.add(d.name)  # until it is checked
                    kernels.append(d)
        for function in functions:
            self._function(function)
        for kernel in kernels:
            self._kernel(kernel, declared)
        if self.report.errors:
            raise CodaError(self.report.errors)
        return Module(str(self.path), self.file.doc, self.scope, tuple(self.report.warnings))

    def _declare(self, name: str, span: Span, declared: dict[str, Span], is_kernel: bool = False) -> bool:
        if name in declared:
            note = [Note("first defined here", declared[name])]
            self.report.add("E0104", span, f"`{name}` is defined twice", "choose another name", note)
            return False
        row = OPS.get(name)
        called = (row is not None and row.callable) or name in REDUCTIONS or name in ("pairs", *self.builtins.names)
        if name in BUILTIN or name in DTYPES or (called and not is_kernel):
            self.report.add("E0112", span, f"`{name}` is built in", "choose another name")
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
            if not self._declare(name, item.span, declared, isinstance(imported, Kernel)):
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
        path = self.path.parent / d.path
        try:
            key = path.resolve()
            if key in self.loader.modules:
                module = self.loader.modules[key]
                if module is None:
                    self.report.add("E0111", d.path_span, f'"{d.path}" imports this file: a cycle', "move what both need to a third file")
                return module
            return self.loader.load(path, read_source(path))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            where = f"looked for {path}"
            self.report.add("E0108", d.path_span, f'cannot read "{d.path}": {reason}', where)
        except CodaError as error:
            self.report.errors += error.diagnostics
            self.loader.modules[path.resolve()] = Module(str(path), None, Scope(poisoned=_names(d)))
            self.scope.poisoned |= {n.alias or n.name for n in d.names}
        return None

    # -- functions --

    def _function(self, d: s.Function) -> None:
        """Check a function's names and calls on arguments of unknown type; types are checked where it is called."""
        seen: dict[str, Span] = {}
        for p in d.params:
            if p.name in seen:
                note = [Note("declared here", seen[p.name])]
                self.report.add("E0102", p.span, f"argument `{p.name}` is declared twice", None, note)
            seen[p.name] = p.span
        entity = self.scope.names[d.name]
        assert isinstance(entity, FunctionEntity)
        dims = SignatureChecker(s.KernelDef("map", d.name, (), (), (), (), ()), self.scope, self.report)
        body = BodyChecker("map", Signature((), (), (), (), ()), dims, _SOME_GRID, self.report)
        frame = Frame(self.scope, {p.name: None for p in d.params}, function=entity)
        body._active.append(entity)
        try:
            body.function_body(d, frame)
        except TooLarge:
            pass  # reported by each kernel that calls it

    # -- kernels --

    def _kernel(self, d: s.KernelDef, declared: dict[str, Span]) -> None:
        before = len(self.report.errors)
        dims = SignatureChecker(d, self.scope, self.report)
        signature = dims.check()
        product, grid, expr, contracted = self._grid(d, signature)
        body = BodyChecker(d.kind, signature, dims, grid, self.report)
        body.contracted = contracted
        body.product = expr
        if product is not None and grid is not None and expr is not None:
            body.accumulator = body.emit("acc", (), None, F32, (grid.rows, grid.cols), expr.span)
        if grid is not None and expr is None or product is not None:
            for output in signature.outputs:
                if grid is not None and not rules.output_place(self.report, grid, output):
                    signature.poisoned.add(output.name)
            for param in signature.params:
                if param.inout and grid is not None and not rules.output_place(self.report, grid, param):
                    signature.poisoned.add(param.name)
        elif d.kind == "reduce":
            for output in signature.outputs:
                self._reduce_output(output.dims, output.name, output.span)
        if grid is None and d.kind != "reduce":
            return  # without a grid nothing in the body has a type
        try:
            body.run(d, self.scope)
        except TooLarge:
            text = f"`{d.name}` has more than 200000 operations once its functions are inlined"
            self.report.add("E0114", d.name_span, text, "split it into several kernels")
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
        if d.name in declared and self.scope.places.get(d.name) == d.name_span:
            self.scope.poisoned.discard(d.name)
            self.scope.names[d.name] = tidy(kernel)

    def _reduce_output(self, dims: tuple[Dim, ...], name: str, span: Span) -> None:
        opaque = next((x for x in dims if x.tiled), None)
        if opaque is not None:
            text = f"output `{name}` of a reduce has extent {opaque}, which is known to the kernel that made it only"
            self.report.add("E0309", span, text, "a reduce combines partials: its outputs have named axes")

    def _grid(
        self, d: s.KernelDef, signature: Signature
    ) -> tuple[Product | None, Grid | None, s.Binary | None, Dim | None]:
        """The tile grid: the product's extents in a kernel, the outputs' in a map."""
        if d.kind == "reduce":
            return None, None, None, None
        products = [e for st in d.body for e in _walk(st.value) if isinstance(e, s.Binary) and e.op == "@"]
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
        for target in (*signature.outputs, *inout, *signature.params):
            if len(target.dims) != 2 or any(x.axis is None for x in target.dims):
                continue
            rows, cols = target.dims
            outer = next((sp for sp in signature.splits if sp.outer == cols or sp.inner.axis == cols.axis), None)
            if outer is not None:
                cols = axis_dim(outer.axis)
            if rows.axis != cols.axis:
                return _make_grid(axis_dim(rows.axis or ""), axis_dim(cols.axis or ""), signature)
        if not signature.poisoned:
            text = f"map `{d.name}` has no output or input with two axes, so it has no tile"
            self.report.add("E0313", d.name_span, text, "a map works on tiles [M, N]; combine vectors in a `reduce`")
        return None


_SOME_GRID = Grid(axis_dim("M"), axis_dim("N"))


def _make_grid(rows: Dim, cols: Dim, signature: Signature) -> Grid:
    return Grid(rows, cols, next((sp for sp in signature.splits if sp.axis == cols.axis), None))


def _names(d: s.Import) -> set[str]:
    return {n.name for n in d.names}


def _walk(expr: s.Expr) -> Iterator[s.Expr]:
    yield expr
    match expr:
        case s.Unary() | s.Attribute() | s.Round():
            yield from _walk(expr.operand)
        case s.Binary():
            yield from _walk(expr.left)
            yield from _walk(expr.right)
        case s.Call():
            for argument in expr.arguments:
                yield from _walk(argument.value)
        case s.Index():
            yield from _walk(expr.index)
