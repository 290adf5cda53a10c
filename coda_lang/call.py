"""One call of a program, checked and bound, before a backend is chosen to run it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import numpy as np

from coda_lang import arrays
from coda_lang import binding as bindings
from coda_lang.arrays import ArrayView
from coda_lang.binding import Binding, Shape
from coda_lang.domains import inside
from coda_lang.errors import ArgumentError, did_you_mean
from coda_lang.ir import passes, prune
from coda_lang.ir.axes import Grid
from coda_lang.ir.numerics import STORAGE, to_storage
from coda_lang.ir.program import Block, Definition, Kernel, Number, Output, Param
from coda_lang.ir.show import show_domain
from coda_lang.ir.types import DTYPES, DType

D = TypeVar("D", bound=Definition)


@dataclass
class Call(Generic[D]):
    """What both backends need to run a call.

    ``kernel`` (or block) is specialised to the inputs that were passed and the outputs that were asked for; ``out`` are
    the caller's arrays for outputs, already checked but for extents that depend on the tile.
    """

    kernel: D
    binding: Binding
    tensors: dict[str, ArrayView]
    scalars: dict[str, Number]
    out: dict[str, ArrayView]
    device: int | None
    defaults: dict[str, Number]  # of the host scalars, also of those that were not passed: domains name them

    @property
    def order(self) -> list[str]:
        """The names of the results: what is updated in place, then the outputs."""
        return [p.name for p in self.kernel.params if p.inout] + [o.name for o in self.kernel.outputs]

    def check_out(self, tile: tuple[int, int] | None) -> None:
        """Check the caller's output arrays once the tile is known. Raises ArgumentError."""
        name = self.kernel.name
        for o in self.kernel.outputs:
            view = self.out.get(o.name)
            if view is None:
                continue
            shape, dtype = self.binding.shape(o, tile), self.binding.dtype(o).name
            if view.shape != shape or view.dtype != dtype:
                got = f"{view.dtype}{list(view.shape)}"
                raise ArgumentError(f"{name}: out `{o.name}` must be {dtype}{list(shape)}, got {got}")
            if view.readonly:
                raise ArgumentError(f"{name}: out `{o.name}` is read-only")


class Caller(Generic[D]):
    """Makes calls of one program, and remembers its specialised forms."""

    def __init__(self, definition: D) -> None:
        self.ir = definition
        self._specialised: dict[tuple[frozenset[str], frozenset[str]], D] = {}

    def specialised(self, passed: frozenset[str], asked: frozenset[str]) -> D:
        key = (passed, asked)
        found = self._specialised.get(key)
        if found is None:
            found = self._specialised[key] = specialise(self.ir, passed, asked)
        return found

    def call(self, arguments: Mapping[str, Any], outputs: Any, out: Any, acc: Any = None) -> Call[D]:
        """Check a call and bind its axes. Raises ArgumentError."""
        asked = bindings.asked_outputs(self.ir, outputs)
        given = self._out(out, asked)
        tensors, scalars, axes = self._sort(arguments, acc)
        kernel = self.specialised(frozenset(tensors) | frozenset(scalars), asked)
        shapes = {n: Shape(v.shape, v.dtype) for n, v in tensors.items()}
        if acc is not None:
            axes = self._axes_of(acc, axes)
        binding = bindings.bind(kernel, shapes, axes)
        if acc is not None:  # without operands nothing binds their type, and only stores need it
            for parameter in self.ir.dtypes:
                binding.dtypes.setdefault(parameter.name, parameter.choices[0])
        for p in kernel.params:
            if p.inout and tensors[p.name].readonly:
                raise ArgumentError(f"{self.ir.name}: `{p.name}` is updated in place and is read-only")
        device = self._device({**tensors, **{f"out {n}": v for n, v in given.items()}})
        if device is not None:
            for p in kernel.params:
                if p.name in tensors and not p.dims and tensors[p.name].device is None:
                    host = arrays.to_numpy(tensors[p.name].owner, p.name)
                    tensors[p.name] = arrays.view(arrays.to_device(host, device, p.name), p.name)
        defaults = bindings.host_defaults(self.ir)
        return Call(kernel, binding, tensors, scalars, given, device, defaults)

    def _device(self, views: Mapping[str, ArrayView]) -> int | None:
        """The device of a call; single numbers may lie on the host beside arrays on a GPU."""
        try:
            return arrays.common_device({n: v for n, v in views.items() if v.shape or v.device is not None})
        except ArgumentError as error:
            raise ArgumentError(f"{self.ir.name}: {error}") from None

    def _sort(
        self, arguments: Mapping[str, Any], acc: Any
    ) -> tuple[dict[str, ArrayView], dict[str, Number], dict[str, Any]]:
        """Arguments as tensors, scalars and axis lengths. An optional input that is None is not passed."""
        given = dict(arguments)
        for p in self.ir.params:
            if p.name in given and given[p.name] is None and p.default is not None:
                del given[p.name]
        product = self.ir.product if isinstance(self.ir, Kernel) else None
        operands = (product.a, product.b) if acc is not None and product is not None else ()
        bindings.check_names(self.ir, {**dict.fromkeys(operands), **given})
        tensors: dict[str, ArrayView] = {}
        scalars: dict[str, Number] = {}
        for p in self.ir.params:
            if p.name not in given:
                continue
            if p.host:
                scalars[p.name] = self._scalar(p, given[p.name])
            else:
                tensors[p.name] = self._tensor(p, given[p.name])
        return tensors, scalars, {n: x for n, x in given.items() if n in self.ir.axes}

    def _tensor(self, p: Param, x: Any) -> ArrayView:
        if not p.dims and isinstance(x, (bool, int, float, np.generic)) and not isinstance(p.dtype, str):
            x = self._device_number(p, p.dtype, x)
        if isinstance(x, (list, tuple)):
            raise ArgumentError(f"{self.ir.name}: `{p.name}` must be an array, got a {type(x).__name__}")
        if isinstance(x, np.ndarray) and not isinstance(x, np.ma.MaskedArray):
            plain = _plain(x)
            if p.inout and plain is not x:
                text = f"`{p.name}` is updated in place: it must have native byte order and strides of whole elements"
                raise ArgumentError(f"{self.ir.name}: {text}")
            x = plain
            if x.dtype.type not in {t.type for t in STORAGE.values()}:
                kind = {"f": "float", "i": "int", "u": "int"}.get(x.dtype.kind)
                raise self._wrong_type(p, str(x.dtype), kind, "numpy")
        if arrays.wants_gradient(x):
            help = "pass x.detach(), call it under torch.no_grad(), or use the operations of coda_lang.torch"
            raise ArgumentError(f"{self.ir.name}: `{p.name}` requires a gradient, and this call has none: {help}")
        try:
            found = arrays.view(x, f"{self.ir.name}: `{p.name}`", str(p.dtype))
        except TypeError as error:
            raise ArgumentError(f"{self.ir.name}: `{p.name}` is no array: {error}") from None
        if all(found.dtype != c.name for c in self._choices(p)):
            raise self._wrong_type(p, found.dtype, DTYPES[found.dtype].kind, found.library)
        return found

    def _choices(self, p: Param) -> tuple[DType, ...]:
        if isinstance(p.dtype, DType):
            return (p.dtype,)
        return next(d.choices for d in self.ir.dtypes if d.name == p.dtype)

    def _wrong_type(self, p: Param, got: str, kind: str | None, library: str) -> ArgumentError:
        choices = self._choices(p)
        text = f"`{p.name}` must be {' or '.join(map(str, choices))}, got {got}"
        if kind == choices[0].kind:
            text += f": pass {arrays.converted(p.name, choices[0].name, library)}"
        return ArgumentError(f"{self.ir.name}: {text}")

    def _device_number(self, p: Param, dtype: DType, x: Any) -> np.ndarray[Any, Any]:
        """A number for an input `f32[]`, rounded as a store would."""
        value = x.item() if isinstance(x, np.generic) else x
        if isinstance(value, bool) != (dtype.kind == "bool") or not isinstance(value, (bool, int, float)):
            raise ArgumentError(f"{self.ir.name}: `{p.name}` is {dtype}[], got {x!r}")
        if dtype.kind == "bool":
            return np.asarray(value)
        wide = np.float32 if dtype.kind == "float" else np.int64
        return np.asarray(to_storage(np.asarray(self._number(p, value), wide), dtype.name))

    def _scalar(self, p: Param, x: Any) -> Number:
        if hasattr(x, "item") and getattr(x, "shape", None) == () and x is not np.ma.masked:
            x = x.item()
        if isinstance(x, bool) or not isinstance(x, (int, float)):
            raise ArgumentError(f"{self.ir.name}: `{p.name}` is a scalar {p.dtype}, got {describe(x)}")
        return self._number(p, x)

    def _number(self, p: Param, x: Any) -> Number:
        return bindings.host_number(self.ir, p, x)

    def _axes_of(self, acc: Any, axes: dict[str, Any]) -> dict[str, Any]:
        """The lengths that a given accumulator fixes."""
        ir = self.ir
        if not isinstance(ir, Kernel) or ir.product is None or ir.rows is None or ir.cols is None:
            raise ArgumentError(f"{ir.name}: a {ir.kind} has no accumulator, so `acc` cannot replace it")
        shape = getattr(acc, "shape", None)
        if shape is None or len(shape) != 2:
            raise ArgumentError(f"{self.ir.name}: `acc` has two dimensions, got {describe(acc)}")
        found = dict(axes)
        for dim, length in zip((ir.rows, ir.cols), shape, strict=True):
            whole = length / dim.coef
            if dim.axis is not None and whole.denominator == 1:
                found.setdefault(dim.axis, int(whole))
        return found

    def _out(self, out: Any, asked: frozenset[str]) -> dict[str, ArrayView]:
        if out is None:
            return {}
        if not isinstance(out, Mapping):
            text = f"`out` is a dict from output names to arrays, got {type(out).__name__}"
            raise ArgumentError(f"{self.ir.name}: {text}")
        for name in out:
            if name not in asked:
                known = [o.name for o in self.ir.outputs if o.name in asked]
                help = did_you_mean(str(name), known) or f"the outputs of this call are {', '.join(known) or 'none'}"
                raise ArgumentError(f"{self.ir.name}: `out` has no output `{name}`: {help}")
            if arrays.wants_gradient(out[name]):
                text = f"out `{name}` requires a gradient, and this call has none"
                raise ArgumentError(f"{self.ir.name}: {text}: call it under torch.no_grad()")
        wanted = {o.name: str(o.dtype) for o in self.ir.outputs}
        return {n: arrays.view(x, f"{self.ir.name}: out `{n}`", wanted[n]) for n, x in out.items()}


def specialise(definition: D, passed: frozenset[str], asked: frozenset[str]) -> D:
    if isinstance(definition, Block):
        return cast(D, prune.specialise(definition, passed, asked))
    assert isinstance(definition, Kernel)
    return cast(D, passes.specialise(definition, passed, asked))


def _plain(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array in native byte order whose strides are whole elements, as every backend reads it."""
    if not x.dtype.isnative:
        x = x.astype(x.dtype.newbyteorder("="))
    if any(s % x.dtype.itemsize for s in x.strides):
        x = x.copy()
    return x


def describe(x: Any) -> str:
    """How a message names something that was passed."""
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return f"an array {x.dtype}{list(x.shape)}"
    return repr(x) if isinstance(x, (bool, int, float, str)) else type(x).__name__


def check_domains(call: Call[D]) -> None:
    """Every input lies in its domain. Raises ArgumentError naming the first element that does not."""
    values = {n: np.asarray(x) for n, x in call.scalars.items()}
    values |= {n: arrays.to_numpy(v.owner, n) for n, v in call.tensors.items()}
    scalars: dict[str, Any] = {**call.defaults, **{n: values[n] for n in call.scalars}}
    for p in call.kernel.params:
        x = values.get(p.name)
        if p.domain is None or x is None or not x.size:
            continue
        with np.errstate(invalid="ignore"):  # a signalling NaN lies in no domain either
            wide = x.astype(np.int64 if x.dtype.kind in "iu" else np.float64)
        ok = inside(p.domain, wide, call.binding, scalars)
        if not ok.all():
            place = tuple(int(i) for i in np.argwhere(~ok)[0])
            at = f" at {list(place)}" if place else ""
            text = f"`{p.name}` holds {wide[place]}{at}, outside its domain `{p.name} {show_domain(p.domain)}`"
            raise ArgumentError(f"{call.kernel.name}: {text}")


def aliased(call: Call[D]) -> set[str]:
    """The inputs whose memory an output or `inout` input shares, each legally: a tile of the same layout.

    Its elements may be of another type of the same size: each lies over the one that it is made from.

    Raises ArgumentError for any other sharing: an element could then be read after it was written.
    """
    kernel = call.kernel
    written = dict(call.out)
    written |= {p.name: call.tensors[p.name] for p in kernel.params if p.inout}
    for name, target in written.items():
        if _overlaps_itself(target):
            raise ArgumentError(f"{kernel.name}: `{name}` has elements that share memory, and each is written")
    names = list(written)
    for i, name in enumerate(names):
        for other in names[i + 1 :]:
            if overlap(written[name], written[other]):
                raise ArgumentError(f"{kernel.name}: outputs `{name}` and `{other}` share memory")
    shared = set()
    for name, target in written.items():
        for p in kernel.params:
            x = call.tensors.get(p.name)
            if x is None or (p.inout and p.name == name) or not overlap(target, x):
                continue
            if not _may_alias(kernel, kernel.target(name), p) or not _same_layout(target, x):
                rule = "an output may alias only a tile input of the same layout and element size"
                if isinstance(kernel, Block):
                    rule = "the outputs of a block share no memory with its inputs"
                raise ArgumentError(f"{kernel.name}: `{name}` shares memory with input `{p.name}`: {rule}")
            shared.add(p.name)
    return shared


def _may_alias(kernel: Definition, target: Output | Param, p: Param) -> bool:
    if not isinstance(kernel, Kernel) or kernel.rows is None or kernel.cols is None:
        return False
    elsewhere = {v.attr for v in kernel.values if v.op == "gather"}  # inputs of which other tiles' elements are read
    if kernel.product is not None:
        elsewhere |= {kernel.product.a, kernel.product.b}
    return Grid(kernel.rows, kernel.cols).is_tile(p.dims) and p.dims == target.dims and p.name not in elsewhere


def _same_layout(x: ArrayView, y: ArrayView) -> bool:
    sizes = arrays.ITEM_BYTES[x.dtype], arrays.ITEM_BYTES[y.dtype]
    return (x.pointer, x.shape, x.strides) == (y.pointer, y.shape, y.strides) and sizes[0] == sizes[1]


def overlap(x: ArrayView, y: ArrayView) -> bool:
    """Whether two arrays share an element. Only addresses are looked at, so device memory is as good as the host's."""
    if 0 in x.shape or 0 in y.shape or x.device != y.device:
        return False
    (start, end), (other, past) = x.span, y.span
    if end <= other or past <= start:
        return False
    try:
        return np.shares_memory(_addresses(x), _addresses(y), max_work=10_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _overlaps_itself(v: ArrayView) -> bool:
    """Whether two elements may share memory: each stride steps over all that smaller ones reach."""
    reach = 0
    for stride, n in sorted((abs(s), n) for s, n in zip(v.strides, v.shape, strict=True) if n > 1):
        if stride <= reach:
            return 0 not in v.shape
        reach += stride * (n - 1)
    return False


class _Addresses:
    def __init__(self, v: ArrayView) -> None:
        size = arrays.ITEM_BYTES[v.dtype]
        self.__array_interface__ = {
            "version": 3,
            "data": (v.pointer, True),
            "shape": v.shape,
            "strides": tuple(s * size for s in v.strides),
            "typestr": f"|V{size}",
        }


def _addresses(v: ArrayView) -> np.ndarray[Any, Any]:
    """A NumPy array over the same addresses. It is never read."""
    return np.asarray(_Addresses(v))
