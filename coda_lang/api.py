"""The Python interface: load files, and call what they define with arrays.

    mod = coda.load("programs/rmsnorm_swiglu.coda")
    out = mod.rmsnorm_swiglu(a=a, b=b, rstd=rstd)
    out.z, out.y
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from coda_lang import binding as bindings
from coda_lang.binding import Binding, Shape
from coda_lang.errors import ArgumentError, CodaError, Diagnostic, did_you_mean
from coda_lang.interp import DEFAULT_TILE, interpret
from coda_lang.interp.arrays import dtype_name, is_torch, to_numpy, to_torch
from coda_lang.interp.run import Progress
from coda_lang.ir import check
from coda_lang.ir.axes import Grid
from coda_lang.ir.module import Module as CheckedModule
from coda_lang.ir.numerics import STORAGE, Array
from coda_lang.ir.passes import specialise
from coda_lang.ir.program import Domain, Kernel, Output, Param
from coda_lang.source import Source, Span


def load(path: str | os.PathLike[str]) -> Module:
    """Read and check a `.coda` file. Raises CodaError with every mistake in it, or OSError if it cannot be read."""
    return Module(check.check_file(path))


def loads(text: str, path: str = "<string>") -> Module:
    """Check a program given as text; `path` names it in messages, and imports are relative to it. Raises CodaError."""
    if not isinstance(text, str):
        raise TypeError(f"loads takes a str, got {type(text).__name__}")
    return Module(check.check_text(text, path))


class Module(Mapping[str, "Program"]):
    """The kernels, maps and reduces of a file, as attributes and items, in the order of the file."""

    def __init__(self, checked: CheckedModule) -> None:
        self._programs = {name: Program(kernel) for name, kernel in checked.kernels.items()}
        self.path = checked.path
        self.doc = checked.doc
        self.warnings: tuple[Diagnostic, ...] = checked.warnings

    def __getitem__(self, name: str) -> Program:
        return self._programs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._programs)

    def __len__(self) -> int:
        return len(self._programs)

    def __getattr__(self, name: str) -> Program:
        try:
            return self.__dict__["_programs"][name]  # type: ignore[no-any-return]
        except KeyError:
            known = self.__dict__.get("_programs", {})
            help = did_you_mean(name, known) or f"it has {', '.join(known) or 'none'}"
            raise AttributeError(f"{self.__dict__.get('path')} has no kernel `{name}`: {help}") from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._programs]

    def __repr__(self) -> str:
        return f"<coda module {self.path}: {', '.join(self._programs)}>"


class Result(Mapping[str, Any]):
    """The outputs of a call by name: attributes, items, and unpackable in the order of the signature."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._arrays = dict(arrays)

    def __getitem__(self, name: str) -> Any:
        return self._arrays[name]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._arrays.values())

    def __len__(self) -> int:
        return len(self._arrays)

    def keys(self) -> Any:
        return self._arrays.keys()

    def values(self) -> Any:
        return self._arrays.values()

    def items(self) -> Any:
        return self._arrays.items()

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_arrays"][name]
        except KeyError:
            known = ", ".join(self.__dict__.get("_arrays", {})) or "none"
            raise AttributeError(f"no output `{name}` was computed: the outputs are {known}") from None

    def __repr__(self) -> str:
        shown = ", ".join(f"{n}: {tuple(a.shape)}" for n, a in self._arrays.items())
        return f"Result({shown})"


class Program:
    """A kernel, map or reduce that can be called with arrays."""

    def __init__(self, kernel: Kernel) -> None:
        self.ir = kernel
        self._specialised: dict[tuple[frozenset[str], frozenset[str]], Kernel] = {}

    @property
    def name(self) -> str:
        return self.ir.name

    @property
    def kind(self) -> str:
        return self.ir.kind

    @property
    def doc(self) -> str:
        return self.ir.doc

    @property
    def signature(self) -> str:
        """The signature on one line, in the language's own form."""
        params = ", ".join(
            ("inout " if p.inout else "") + f"{p.name}: {bindings.show_param(p)}" + (" = …" if p.default is not None else "")
            for p in self.ir.params
        )
        outputs = ", ".join(f"{o.name}: {bindings.show_param(o)}{'?' if o.optional else ''}" for o in self.ir.outputs)
        return f"{self.ir.name}({params}) -> ({outputs})"

    def __repr__(self) -> str:
        return f"<{self.kind} {self.signature}>"

    def __call__(self, *positional: Any, outputs: Any = None, out: Any = None, check: bool = False, **arguments: Any) -> Result:
        """Run on the arrays' own backend: NumPy arrays and CPU tensors on the interpreter.

        Args:
            arguments: inputs by name, and lengths of axes that no shape fixes.
            outputs: names of the outputs to compute; by default all but the optional ones.
            out: arrays to write into, by output name.
            check: verify that inputs lie in their domains.

        Returns:
            The outputs, in the library of the arguments (torch tensors if any argument is one).

        Raises:
            ArgumentError: an argument is missing, unknown, or of the wrong element type, shape or place.
        """
        self._refuse_positional(positional)
        torch_in = any(is_torch(x) for x in arguments.values())
        result = self._interpret(arguments, outputs, out, check, DEFAULT_TILE, False, None, None)
        if not torch_in:
            return result
        given = out or {}
        inouts = {p.name: arguments[p.name] for p in self.ir.params if p.inout and p.name in arguments}
        return Result({n: given.get(n, inouts.get(n)) if n in given or n in inouts else to_torch(x) for n, x in result.items()})

    def interpret(
        self,
        *positional: Any,
        tile: tuple[int, int] = DEFAULT_TILE,
        exact: bool = False,
        acc: Any = None,
        outputs: Any = None,
        out: Any = None,
        check: bool = False,
        progress: Progress | None = None,
        **arguments: Any,
    ) -> Result:
        """Run the reference interpreter: arrays of any CPU library in, NumPy out.

        Args:
            tile: rows and columns of the accumulator's tile; fixes tiles(X) and so the partials.
            exact: evaluate in f64 throughout, rounding at the stores only.
            acc: an f32 accumulator [rows, cols] to use in place of the product; the operands may then be left out if their
                axes are fixed otherwise.
        """
        self._refuse_positional(positional)
        return self._interpret(arguments, outputs, out, check, tile, exact, acc, progress)

    def out_shapes(self, *, outputs: Any = None, tile: tuple[int, int] = DEFAULT_TILE, **arguments: Any) -> dict[str, Shape]:
        """Shape and element type of each output of such a call, without computing it. Partials are counted for `tile`."""
        asked = bindings.asked_outputs(self.ir, outputs)
        arrays, scalars, axes = self._sort(arguments, None)
        kernel, binding = self._bind(arrays, scalars, axes, asked)
        return {o.name: Shape(binding.shape(o, tile), binding.dtype(o).name) for o in kernel.outputs}

    # -- the steps of a call --

    def _refuse_positional(self, positional: tuple[Any, ...]) -> None:
        if positional:
            names = ", ".join(f"{p.name}=…" for p in self.ir.params if p.default is None)
            raise ArgumentError(f"{self.name}: arguments are passed by name: {self.name}({names})")

    def _interpret(
        self, arguments: dict[str, Any], outputs: Any, out: Any, check: bool,
        tile: tuple[int, int], exact: bool, acc: Any, progress: Progress | None,
    ) -> Result:  # fmt: skip
        asked = bindings.asked_outputs(self.ir, outputs)
        tile = _tile(self.name, tile)
        given = self._given_outputs(out, asked)
        arrays, scalars, axes = self._sort(arguments, acc)
        kernel, binding = self._bind(arrays, scalars, axes, asked, acc)
        if check:
            self._check_domains(kernel, binding, arrays, scalars)
        results = {o.name: self._output_array(kernel, o, binding, tile, given) for o in kernel.outputs}
        written = {n: results[n] for n in given}
        written |= {p.name: arrays[p.name] for p in kernel.params if p.inout}
        arrays = _check_aliases(kernel, arrays, written)
        tap = None
        if acc is not None:
            tap = to_numpy(acc, "acc")
            self._check_acc(binding, tap)
        inputs = {**arrays, **scalars}
        interpret(kernel, binding, inputs, results, tile=tile, exact=exact, acc=tap, progress=progress)
        order = [p.name for p in kernel.params if p.inout] + [o.name for o in kernel.outputs]
        return Result({n: written[n] if n in written else results[n] for n in order})

    def _sort(self, arguments: Mapping[str, Any], acc: Any) -> tuple[dict[str, Array], dict[str, Array], dict[str, Any]]:
        """Arguments as tensors, scalars and axis lengths."""
        given = dict(arguments)
        for p in self.ir.params:
            if p.name in given and given[p.name] is None and p.default is not None:
                del given[p.name]
        if acc is not None and self.ir.product is not None:
            for name in (self.ir.product.a, self.ir.product.b):
                given.setdefault(name, None)
        bindings.check_names(self.ir, given)
        arrays: dict[str, Array] = {}
        scalars: dict[str, Array] = {}
        for p in self.ir.params:
            if p.name not in given:
                continue
            if p.host:
                scalars[p.name] = self._scalar(p, given[p.name])
            elif given[p.name] is not None or acc is None:
                array = to_numpy(given[p.name], p.name)
                if not p.dims and array.dtype.kind in "fiu" and array.shape == () and not p.inout:
                    array = array.astype(STORAGE[p.dtype.name]) if not isinstance(p.dtype, str) else array
                arrays[p.name] = array
        return arrays, scalars, {n: x for n, x in given.items() if n in self.ir.axes}

    def _scalar(self, p: Param, x: Any) -> Array:
        assert not isinstance(p.dtype, str)
        if is_torch(x):
            x = x.item() if x.numel() == 1 else x
        number = np.asarray(x) if isinstance(x, (bool, int, float, np.generic, np.ndarray)) else None
        if number is None or number.shape != () or number.dtype.kind not in "fiub" or isinstance(x, bool):
            raise ArgumentError(f"{self.name}: `{p.name}` is a scalar {p.dtype}, got {_describe(x)}")
        if p.dtype.kind == "int":
            info = np.iinfo(STORAGE[p.dtype.name])
            if number.dtype.kind == "f" or not info.min <= int(number) <= info.max:
                raise ArgumentError(f"{self.name}: `{p.name}` is an {p.dtype} integer, got {x!r}")
        with np.errstate(all="ignore"):
            return number.astype(STORAGE[p.dtype.name])

    def _bind(
        self, arrays: Mapping[str, Array], scalars: Mapping[str, Array], axes: Mapping[str, Any],
        asked: frozenset[str], acc: Any = None,
    ) -> tuple[Kernel, Binding]:  # fmt: skip
        passed = frozenset(arrays) | frozenset(scalars)
        key = (passed, asked)
        kernel = self._specialised.get(key)
        if kernel is None:
            kernel = self._specialised[key] = specialise(self.ir, passed, asked)
        shapes = {n: Shape(x.shape, dtype_name(x)) for n, x in arrays.items()}
        if acc is not None and self.ir.rows is not None and self.ir.cols is not None:
            axes = dict(axes)
            for dim, length in zip((self.ir.rows, self.ir.cols), np.shape(acc), strict=False):
                if dim.axis is not None and dim.axis not in axes and dim.coef == 1:
                    axes[dim.axis] = length
            for p in self.ir.dtypes:  # the operands' type is not needed to evaluate, but outputs may have it
                if not any(q.dtype == p.name and q.name in arrays for q in self.ir.params):
                    binding = bindings.bind(kernel, shapes, axes)
                    binding.dtypes.setdefault(p.name, p.choices[0])
                    return kernel, binding
        return kernel, bindings.bind(kernel, shapes, axes)

    def _check_acc(self, binding: Binding, tap: Array) -> None:
        if self.ir.product is None or self.ir.rows is None or self.ir.cols is None:
            raise ArgumentError(f"{self.name}: a {self.kind} has no accumulator, so `acc` cannot replace it")
        shape = (binding.length(self.ir.rows), binding.length(self.ir.cols))
        if tap.shape != shape or tap.dtype.kind != "f":
            raise ArgumentError(f"{self.name}: `acc` is f32{list(shape)}, got {_describe(tap)}")

    def _given_outputs(self, out: Any, asked: frozenset[str]) -> dict[str, Any]:
        if out is None:
            return {}
        if not isinstance(out, Mapping):
            raise ArgumentError(f"{self.name}: `out` is a dict from output names to arrays, got {type(out).__name__}")
        for name in out:
            if name not in asked:
                help = did_you_mean(str(name), asked) or f"the outputs of this call are {', '.join(sorted(asked))}"
                raise ArgumentError(f"{self.name}: `out` has no output `{name}`: {help}")
        return dict(out)

    def _output_array(
        self, kernel: Kernel, o: Output, binding: Binding, tile: tuple[int, int], given: Mapping[str, Any]
    ) -> Array:
        shape, dtype = binding.shape(o, tile), binding.dtype(o).name
        if o.name not in given:
            return np.empty(shape, STORAGE[dtype])
        array = to_numpy(given[o.name], f"out {o.name}")
        if array.shape != shape or dtype_name(array) != dtype:
            got = f"{dtype_name(array)}{list(array.shape)}"
            raise ArgumentError(f"{self.name}: out `{o.name}` must be {dtype}{list(shape)}, got {got}")
        if not array.flags.writeable:
            raise ArgumentError(f"{self.name}: out `{o.name}` is read-only")
        return array

    def _check_domains(
        self, kernel: Kernel, binding: Binding, arrays: Mapping[str, Array], scalars: Mapping[str, Array]
    ) -> None:
        for p in kernel.params:
            x = arrays.get(p.name, scalars.get(p.name))
            if p.domain is None or x is None or not x.size:
                continue
            wide = x.astype(np.float64) if x.dtype.kind not in "iu" else x.astype(np.int64)
            ok = _inside(p.domain, wide, binding, scalars, kernel)
            if not ok.all():
                place = tuple(int(i) for i in np.argwhere(~ok)[0])
                value = wide[place] if place else wide[()]
                text = f"`{p.name}` holds {value} at {list(place)}, outside its domain {show_domain(p.domain)}"
                raise ArgumentError(f"{self.name}: {text}")


def bound_value(bound: bindings.Number | Any, binding: Binding) -> float | int:
    """The number that one side of a domain stands for in a call."""
    return bound.offset + (binding.length(bound.dim) if bound.dim is not None else 0)  # type: ignore[no-any-return]


def _inside(domain: Domain, x: Array, binding: Binding, scalars: Mapping[str, Array], kernel: Kernel) -> Array:
    ok = np.ones(x.shape, bool)
    if domain.low is not None:
        low = bound_value(domain.low, binding)
        ok &= x > low if domain.low_strict else x >= low
    if domain.high is not None:
        high = bound_value(domain.high, binding)
        ok &= x < high if domain.high_strict else x <= high
    if domain.other is not None:
        ok |= x == scalars[domain.other] if domain.other in scalars else x == _default_of(kernel, domain.other)
    return ok


def _default_of(kernel: Kernel, name: str) -> Any:
    return next((p.default for p in kernel.params if p.name == name), None)


def show_domain(domain: Domain) -> str:
    """A domain as it is written."""

    def side(bound: Any) -> str:
        if bound.dim is None:
            return f"{bound.offset:g}" if isinstance(bound.offset, float) else str(bound.offset)
        return f"{bound.dim}" + (f" + {bound.offset}" if bound.offset else "")

    if domain.low is not None and domain.high is not None:
        return f"in {side(domain.low)}..{side(domain.high)}" + (f" or {domain.other}" if domain.other else "")
    if domain.low is not None:
        return f"{'>' if domain.low_strict else '>='} {side(domain.low)}"
    return f"{'<' if domain.high_strict else '<='} {side(domain.high)}"


def _tile(name: str, tile: Any) -> tuple[int, int]:
    try:
        rows, cols = (int(t.__index__()) for t in tile)
    except (TypeError, ValueError, AttributeError):
        raise ArgumentError(f"{name}: `tile` is (rows, columns), got {tile!r}") from None
    if rows < 1 or cols < 2 or cols % 2:
        raise ArgumentError(f"{name}: a tile has at least one row and an even number of columns, got {tile!r}")
    return rows, cols


def _describe(x: Any) -> str:
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return f"an array {x.dtype}{list(x.shape)}"
    return repr(x) if isinstance(x, (bool, int, float, str)) else type(x).__name__


def _check_aliases(kernel: Kernel, arrays: dict[str, Array], written: Mapping[str, Array]) -> dict[str, Array]:
    """What is written may share memory only with a tile input of the same layout, which is then read from a copy."""
    names = list(written)
    for i, name in enumerate(names):
        for other in names[i + 1 :]:
            if _overlap(written[name], written[other]):
                raise ArgumentError(f"{kernel.name}: outputs `{name}` and `{other}` share memory")
    safe = dict(arrays)
    for name, target in written.items():
        for p in kernel.params:
            x = arrays.get(p.name)
            if x is None or (p.inout and p.name == name) or not _overlap(target, x):
                continue
            if not _may_alias(kernel, kernel.target(name), p) or not _same_layout(target, x):
                text = f"`{name}` shares memory with input `{p.name}`"
                rule = "an output may alias only a tile input of identical layout"
                raise ArgumentError(f"{kernel.name}: {text}: {rule}")
            safe[p.name] = x.copy()
    return safe


def _may_alias(kernel: Kernel, target: Output | Param, p: Param) -> bool:
    if kernel.rows is None or kernel.cols is None:
        return False
    grid = Grid(kernel.rows, kernel.cols)
    operands = (kernel.product.a, kernel.product.b) if kernel.product is not None else ()
    return grid.is_tile(p.dims) and p.dims == target.dims and p.name not in operands


def _same_layout(x: Array, y: Array) -> bool:
    place = x.__array_interface__["data"][0] == y.__array_interface__["data"][0]
    return bool(place and x.shape == y.shape and x.strides == y.strides and x.dtype == y.dtype)


def _overlap(x: Array, y: Array) -> bool:
    if not np.may_share_memory(x, y):
        return False
    try:
        return np.shares_memory(x, y, max_work=10_000)
    except np.exceptions.TooHardError:
        return True


__all__ = ["ArgumentError", "CodaError", "Module", "Program", "Result", "Source", "Span", "load", "loads"]
