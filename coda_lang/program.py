"""What a file defines, as objects that can be called with arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic

import numpy as np

from coda_lang import arrays
from coda_lang.binding import Shape, show_param
from coda_lang.call import Call, Caller, D, aliased, check_domains, describe, overlap
from coda_lang.errors import ArgumentError, UnknownNameError, did_you_mean
from coda_lang.interp import DEFAULT_TILE, interpret
from coda_lang.interp.run import Progress
from coda_lang.ir.numerics import STORAGE, Array
from coda_lang.ir.program import Block, Kernel

if TYPE_CHECKING:
    from coda_lang.backend_cutlass.planned import Planned
    from coda_lang.backend_cutlass.program import Compiled, GpuProgram
    from coda_lang.backend_cutlass.recent import Form


class Result:
    """The outputs of a call by name: attributes, items as of a dict, and unpackable in the order of the signature."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._arrays = dict(arrays)

    def __getitem__(self, name: str) -> Any:
        if name not in self._arrays:
            raise UnknownNameError(self._unknown(name))
        return self._arrays[name]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._arrays.values())

    def __len__(self) -> int:
        return len(self._arrays)

    def get(self, name: str, default: Any = None) -> Any:
        return self._arrays.get(name, default)

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
            raise AttributeError(self._unknown(name)) from None

    def _unknown(self, name: object) -> str:
        known = ", ".join(self.__dict__.get("_arrays", {})) or "none"
        return f"no output `{name}` was computed: the outputs are {known}"

    def __repr__(self) -> str:
        return f"Result({', '.join(f'{n}: {_shown(a)}' for n, a in self._arrays.items())})"


def _shown(array: Any) -> str:
    """An array's type and shape; of a single number on the host, the number too."""
    try:
        view = arrays.view(array)
    except ArgumentError:  # CuPy holds f8 as bits
        return f"{array.dtype}{list(array.shape)}"
    text = f"{view.dtype}{list(view.shape)}"
    if view.shape or view.device is not None:
        return text
    number = arrays.to_numpy(array).item()
    return f"{text} = {number:.6g}" if isinstance(number, float) else f"{text} = {number}"


def _is_cupy(x: Any) -> bool:
    return type(x).__module__.startswith("cupy")


class Runnable(ABC, Generic[D]):
    """What kernels and blocks have in common: a signature, and a call with arrays."""

    ir: D

    def __init__(self, definition: D) -> None:
        self.ir = definition
        self._updated = tuple(p.name for p in definition.params if p.inout)
        self.caller = Caller(definition)

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
            ("inout " if p.inout else "") + f"{p.name}: {show_param(p)}" + (" = …" if p.default is not None else "")
            for p in self.ir.params
        )
        outputs = ", ".join(f"{o.name}: {show_param(o)}{'?' if o.optional else ''}" for o in self.ir.outputs)
        return f"{self.ir.name}{self._axes}({params}) -> ({outputs})"

    @property
    def _axes(self) -> str:
        ir = self.ir
        splits = {s.axis: f" = {s.outer} * {s.inner}" for s in ir.splits}
        factors = {d.axis for s in ir.splits for d in (s.outer, s.inner)}
        by = {ir.by[0]: f" by {ir.by[1]}"} if isinstance(ir, Block) and ir.by is not None else {}
        axes = ", ".join(f"{n}{splits.get(n, '')}{by.get(n, '')}" for n in ir.axes if n not in factors)
        types = ", ".join(f"{d.name}: {' | '.join(map(str, d.choices))}" for d in ir.dtypes)
        inner = "; ".join(part for part in (axes, types) if part)
        return f"<{inner}>" if inner else ""

    def __repr__(self) -> str:
        return f"<{self.kind} {self.signature}>"

    def _refuse_positional(self, positional: tuple[Any, ...]) -> None:
        if positional:
            names = ", ".join(f"{p.name}=…" for p in self.ir.params if p.default is None)
            raise ArgumentError(f"{self.name}: arguments are passed by name: {self.name}({names})")

    def __call__(
        self, /, *positional: Any, outputs: Any = None, out: Any = None, check: bool = False, **arguments: Any
    ) -> Result:
        """Run where the arrays are: host arrays on the interpreter, CUDA arrays on the GPU and their current stream.

        Args:
            arguments: inputs by name, and lengths of axes that no shape fixes.
            outputs: names of the outputs to compute; by default all but the optional ones.
            out: arrays to write into, by output name.
            check: verify that inputs lie in their domains (this waits for a GPU).

        Returns:
            The outputs, in the library of the arguments: torch tensors if any argument is one, else NumPy or CuPy.

        Raises:
            ArgumentError: an argument is missing, unknown, or of the wrong element type, shape or place.
            BackendError: the GPU path cannot be used.
        """
        self._refuse_positional(positional)
        call = self.caller.call(arguments, outputs, out)
        if check:
            check_domains(call)
        if call.device is not None:
            results = Result(self.on_gpu(call))
        else:
            results = in_library(call, self.on_host(call, DEFAULT_TILE))
        self._tell(arguments, out)
        return Result({n: out.get(n, x) for n, x in results.items()}) if out else results

    def _tell(self, arguments: Mapping[str, Any], out: Mapping[str, Any] | None) -> None:
        """Autograd, of the caller's tensors that were written."""
        for x in (out or {}).values():
            arrays.written(x)
        for name in self._updated:
            arrays.written(arguments[name])

    def host_call(
        self,
        positional: tuple[Any, ...],
        arguments: Mapping[str, Any],
        outputs: Any,
        out: Any,
        check: bool,
        acc: Any = None,
    ) -> Call[D]:
        """A call whose arrays are brought to the host."""
        self._refuse_positional(positional)
        host = {n: _to_host(x, f"{self.name}: `{n}`") for n, x in arguments.items()}
        call = self.caller.call(host, outputs, out, acc)
        if check:
            check_domains(call)
        return call

    @abstractmethod
    def on_host(self, call: Call[D], tile: tuple[int, int]) -> dict[str, Array]:
        """The interpreter on a call whose arrays lie on the host."""

    @abstractmethod
    def on_gpu(self, call: Call[D]) -> dict[str, Any]:
        """A call whose arrays lie on a GPU."""


class Program(Runnable[Kernel]):
    """A kernel, map or reduce that can be called with arrays."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self._gpu: GpuProgram | None = None

    def __call__(
        self, /, *positional: Any, outputs: Any = None, out: Any = None, check: bool = False, **arguments: Any
    ) -> Result:
        found = None if positional or check else self._form(arguments, outputs, out)
        if found is None:
            return super().__call__(*positional, outputs=outputs, out=out, check=check, **arguments)
        results = self.gpu.recent.again(found)
        if results is None:
            results = self.gpu.run(self.caller.call(arguments, outputs, out), form=found)
        self._tell(arguments, out)
        return Result(results)

    __call__.__doc__ = Runnable.__call__.__doc__

    def _form(self, arguments: Mapping[str, Any], outputs: Any, out: Any) -> Form | None:
        """What a call on a GPU is recognised by; None on the host, and for what has to be looked at."""
        if self._gpu is None and not any(getattr(x, "is_cuda", _is_cupy(x)) for x in arguments.values()):
            return None
        from coda_lang.backend_cutlass.recent import form_of

        return form_of(arguments, outputs, out)

    def interpret(
        self,
        /,
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
        """Run the reference interpreter: arrays of any library in, NumPy out.

        Args:
            tile: rows and columns of the accumulator's tile; fixes tiles(X) and so the partials.
            exact: evaluate in f64 throughout, rounding at the stores only; arithmetic on literals alone stays f32.
            acc: an f32 accumulator [rows, cols] in place of the product; the operands may then be left out.
            progress: called with the rows done and their number.

        An `inout` input that lies on a GPU is not changed; the result holds its new value.
        """
        call = self.host_call(positional, arguments, outputs, out, check, acc)
        tap = None if acc is None else self._accumulator(call, acc)
        return Result(self.on_host(call, checked_tile(self.name, tile), exact, tap, progress))

    def out_shapes(
        self, /, *, outputs: Any = None, tile: tuple[int, int] | None = None, config: Any = None, **arguments: Any
    ) -> dict[str, Shape]:
        """Shape and element type of each output of such a call, for preallocating; nothing is computed.

        Partials are counted for `tile`, by default the tile that the call itself would use.
        """
        call = self.caller.call(arguments, outputs, None)
        if tile is None:
            tile = self.gpu.tile(call, config) if call.device is not None else DEFAULT_TILE
        chosen = checked_tile(self.name, tile)
        return {o.name: Shape(call.binding.shape(o, chosen), call.binding.dtype(o).name) for o in call.kernel.outputs}

    # -- the GPU --

    def on_gpu(self, call: Call[Kernel]) -> dict[str, Any]:
        return self.gpu.run(call)

    @property
    def gpu(self) -> GpuProgram:
        if self._gpu is None:
            from coda_lang.backend_cutlass.program import GpuProgram

            self._gpu = GpuProgram(self.caller)
        return self._gpu

    def compile(
        self,
        arch: str = "sm_90a",
        *,
        dtypes: Mapping[str, str] | None = None,
        inputs: Iterable[str] = (),
        outputs: Collection[str] | None = None,
        config: Any = None,
        tap: bool = False,
        **unknown: Any,
    ) -> Compiled:
        """Compile one form of the program without running it: needs no GPU.

        Args:
            arch: only "sm_90a" (H100, H200, GH200).
            dtypes: element types by dtype parameter, ``{"T": "f16"}``; by default the first choice of each.
            inputs: the optional inputs that calls will pass.
            outputs: the outputs that calls will ask for; by default all but the optional ones.
            config: a schedule, as in ``"128x256,cluster=2x1,cooperative"``; by default the one for large problems.
            tap: add an f32 store of the accumulator.

        Returns:
            An object with ``source`` (CUDA), ``cubin`` (bytes), ``report`` (registers, spills, times, warnings) and
            ``config``.

        Raises:
            ArgumentError: an unknown name or element type, or a schedule that does not fit.
            BackendError: the toolchain is missing, or the architecture is not supported.
        """
        for name, value in unknown.items():
            raise ArgumentError(f"{self.name}: compile takes no `{name}`: {self._instead(name, value)}")
        return self.gpu.compile(arch, dtypes=dtypes, inputs=inputs, outputs=outputs, config=config, tap=tap)

    def _instead(self, name: str, value: Any) -> str:
        """What a keyword that `compile` does not have is written as."""
        if any(d.name == name for d in self.ir.dtypes):
            return f"write `dtypes={{{name!r}: {value!r}}}`"
        if any(p.name == name for p in self.ir.params):
            return "a compiled kernel is good for all arrays; `inputs` names the optional ones that calls pass"
        if name in self.ir.axes:
            return "a compiled kernel is good for all lengths"
        options = ("arch", "dtypes", "inputs", "outputs", "config")
        return did_you_mean(name, options) or f"it takes {', '.join(options)}"

    def plan(self, /, *, outputs: Any = None, out: Any = None, config: Any = None, **arguments: Any) -> Planned:
        """Prepare a call on CUDA arrays: the result runs it again and again at a few microseconds of host time.

        Each run reads and writes the same arrays; ``.outputs`` holds the results.
        """
        call = self.caller.call(arguments, outputs, out)
        if call.device is None:
            raise ArgumentError(f"{self.name}: a plan needs CUDA arrays; the interpreter has nothing to prepare")
        return self.gpu.plan(call, config)

    # -- the interpreter --

    def on_host(
        self,
        call: Call[Kernel],
        tile: tuple[int, int],
        exact: bool = False,
        acc: Array | None = None,
        progress: Progress | None = None,
    ) -> dict[str, Array]:
        """The interpreter on a call whose arrays lie on the host."""
        call.check_out(tile)
        shared = aliased(call)
        inputs: dict[str, Array] = {n: np.asarray(x) for n, x in call.scalars.items()}
        for name, view in call.tensors.items():
            array = arrays.to_numpy(view, name)
            inputs[name] = array.copy() if name in shared else array
        results: dict[str, Array] = {}
        for o in call.kernel.outputs:
            if o.name in call.out:
                results[o.name] = arrays.to_numpy(call.out[o.name], o.name)
            else:
                results[o.name] = np.empty(call.binding.shape(o, tile), STORAGE[call.binding.dtype(o).name])
        interpret(call.kernel, call.binding, inputs, results, tile=tile, exact=exact, acc=acc, progress=progress)
        results |= {p.name: inputs[p.name] for p in call.kernel.params if p.inout}
        return {n: results[n] for n in call.order}

    def _accumulator(self, call: Call[Kernel], acc: Any) -> Array:
        assert self.ir.rows is not None and self.ir.cols is not None
        tap = arrays.to_numpy(acc, f"{self.name}: `acc`")
        shape = (call.binding.length(self.ir.rows), call.binding.length(self.ir.cols))
        if tap.shape != shape or tap.dtype != np.float32:
            raise ArgumentError(f"{self.name}: `acc` is f32{list(shape)}, got {describe(tap)}")
        view = arrays.view(tap, "acc")
        shared = any(overlap(view, target) for target in call.out.values())
        return tap.copy() if shared else tap  # it is read after outputs are written


def in_library(call: Call[D], results: Mapping[str, Array]) -> Result:
    """Results on the host, as torch tensors if any argument is one; the caller's own arrays as they are."""
    if not any(v.library == "torch" for v in call.tensors.values()):
        return Result(results)
    own = {n: v.owner for n, v in {**call.tensors, **call.out}.items() if n in call.out or _is_inout(call, n)}
    return Result({n: own[n] if n in own else arrays.to_torch(x) for n, x in results.items()})


def _is_inout(call: Call[D], name: str) -> bool:
    return any(p.name == name and p.inout for p in call.kernel.params)


def _to_host(x: Any, name: str) -> Any:
    """A device array as NumPy; anything else as it is."""
    if isinstance(x, np.ndarray) or not hasattr(x, "__dlpack_device__"):
        return x
    view = arrays.view(x, name)
    return x if view.device is None else arrays.to_numpy(view, name)


def checked_tile(name: str, tile: Any) -> tuple[int, int]:
    try:
        rows, cols = (int(t.__index__()) for t in tile)
    except (TypeError, ValueError, AttributeError):
        raise ArgumentError(f"{name}: `tile` is (rows, columns), got {tile!r}") from None
    if rows < 1 or cols < 2 or cols % 2:
        raise ArgumentError(f"{name}: a tile has at least one row and an even number of columns, got {tile!r}")
    return rows, cols
