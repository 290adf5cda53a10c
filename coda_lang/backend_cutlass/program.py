"""Programs on the GPU: from a checked call to a compiled kernel, its outputs and its launch."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from coda_lang import arrays
from coda_lang.arrays import ITEM_BYTES, ArrayView
from coda_lang.backend_cutlass import driver, tensormap
from coda_lang.backend_cutlass.abi import ARCHITECTURE, TMA_ALIGNMENT, Emitted, misfit, output_key
from coda_lang.backend_cutlass.build import Cubin, compile_kernel
from coda_lang.backend_cutlass.config import Config, asked, names_tile
from coda_lang.backend_cutlass.default import default, for_kernel
from coda_lang.backend_cutlass.emit import TAP, emit, footprint, head_step
from coda_lang.backend_cutlass.launch import Launchable, refuse_capture
from coda_lang.backend_cutlass.planned import Built, Planned, output_keys
from coda_lang.backend_cutlass.problem import problem
from coda_lang.backend_cutlass.recent import Form, Recent
from coda_lang.backend_cutlass.report import Report, spill_warning
from coda_lang.backend_cutlass.shapes import form_of, grid_of, has_heads_columns
from coda_lang.call import Call, Caller, aliased
from coda_lang.errors import ArgumentError, did_you_mean
from coda_lang.interp import DEFAULT_TILE
from coda_lang.ir.program import Kernel, Param
from coda_lang.ir.types import DTYPES, Dim, DType


@dataclass(frozen=True)
class Compiled:
    """A kernel as it is compiled: its CUDA, the cubin, what the compiler reported, and the schedule it was made for."""

    source: str
    cubin: bytes
    report: Report
    config: Config | None
    emitted: Emitted = field(repr=False)


class GpuProgram:
    """One program's compiled forms: by inputs passed, outputs asked for, element types, schedule and alignment."""

    def __init__(self, caller: Caller[Kernel]) -> None:
        self._caller = caller
        self._built: dict[tuple[Any, ...], Built] = {}
        self._configs: dict[tuple[Any, ...], Config] = {}
        self._kept: dict[tuple[Any, ...], Config | None] = {}
        self.recent = Recent()

    @property
    def name(self) -> str:
        return self._caller.ir.name

    # -- calls --

    def run(self, call: Call[Kernel], config: Any = None, form: Form | None = None) -> dict[str, Any]:
        """Compute the call's outputs on its device and the current stream of its arrays' library.

        A call with a `form` is remembered for `recent`, but not while a graph is being captured that keeps it from
        looking for a tuned schedule.
        """
        plan = self.plan(call, config)
        results = plan()
        if form is not None and (call.kernel.product is None or self._shape_key(call) in self._configs):
            self.recent.keep(form, plan)
        return results

    def plan(self, call: Call[Kernel], config: Any = None, *, tap: Any = None) -> Planned:
        """Compile if need be, allocate outputs and fill the parameter block.

        `tap` is an f32 array [rows, cols] that the kernel stores its accumulator to.
        """
        assert call.device is not None
        aliased(call)
        chosen = self.config(call, config, tap is not None)
        built = self._build(call, chosen, tap is not None)
        tile = built.emitted.tile
        call.check_out(tile)
        call = replace(call, out=self._outputs(call, tile))
        keys = output_keys(call.kernel)
        tensors: dict[str, Any] = {**call.tensors, **{keys[n]: v for n, v in call.out.items()}}
        written = set(keys.values())
        if tap is not None:
            tensors[TAP] = tap
            written.add(TAP)
        inout = {p.name for p in call.kernel.params if p.inout}

        def length(dim: Dim) -> int:
            return call.binding.length(dim, tile)

        plan = built.launchable.plan(tensors, call.scalars, length, written, inout)
        return Planned(plan, call, chosen, built)

    def tile(self, call: Call[Kernel], config: Any = None) -> tuple[int, int]:
        """The tile that such a call would run with; it fixes the extent of partials."""
        if call.kernel.kind == "reduce":
            return DEFAULT_TILE
        return self.emit(call, self.config(call, config)).tile or DEFAULT_TILE

    def emit(self, call: Call[Kernel], config: Config | None, tap: bool = False) -> Emitted:
        """The CUDA that such a call needs. The arrays may lie anywhere: only their layout matters."""
        return emit(call.kernel, call.binding.dtypes, config, direct=_direct(call), cut=_cut(call), tap=tap)

    def config(self, call: Call[Kernel], config: Any = None, tap: bool = False) -> Config | None:
        """The schedule of a call: the one given (a `Config` or its text), a tuned one, or the shape's default.

        Raises ArgumentError for one that is given and does not fit.
        """
        if call.kernel.product is None:
            if config is not None:
                raise ArgumentError(f"{self.name}: a {call.kernel.kind} has no schedule to choose")
            return None
        if config is not None:
            base = self.config(call, None, tap) if _changes_another(config) else None
            return self._given(config, call.kernel, call.binding.dtypes, _direct(call), tap, base)
        key = self._shape_key(call, tap)
        if key not in self._configs:
            tuned, settled = (None, True) if tap else self._tuned(call, _direct(call), _extents(call))
            chosen = tuned or self.untuned(call, tap)
            if not settled:
                return chosen
            self._configs[key] = chosen
        return self._configs[key]

    @staticmethod
    def _shape_key(call: Call[Kernel], tap: bool = False) -> tuple[Any, ...]:
        """What decides on the schedule of a call that names none."""
        types = _types(call.binding.dtypes)
        return id(call.kernel), types, _direct(call), _cut(call), _extents(call), tap, call.device

    def _given(
        self,
        config: Config | str,
        kernel: Kernel,
        dtypes: Mapping[str, DType],
        direct: frozenset[str] = frozenset(),
        tap: bool = False,
        base: Config | None = None,
    ) -> Config:
        """The schedule that a caller names; `base` is what the call would get."""
        try:
            return asked(config, footprint(kernel, dtypes, direct, tap), base)
        except ArgumentError as error:
            raise ArgumentError(f"{self.name}: {error}") from None

    def shape(self, call: Call[Kernel]) -> tuple[int, int, int]:
        """Rows, columns and depth of the call's product."""
        return _extents(call)

    def form(self, call: Call[Kernel]) -> str:
        """All but its shape and the GPU that decides which schedule is kept for a call, as text."""
        from coda_lang.tuning import keys

        return keys.form(call.kernel, call.binding.dtypes, _direct(call), _cut(call))

    def tuned(self, call: Call[Kernel]) -> Config | None:
        """The schedule that was kept for calls like this one, which has a product."""
        return self._tuned(call, _direct(call), _extents(call))[0]

    def untuned(self, call: Call[Kernel], tap: bool = False) -> Config:
        """The default for the shape of a call whose kernel has a product."""
        need = footprint(call.kernel, call.binding.dtypes, _direct(call), tap)
        return default(problem(call.binding, need))

    def forget(self) -> None:
        """Schedules are looked up anew: after some were tuned."""
        self._configs.clear()
        self._kept.clear()
        self.recent.clear()

    def _tuned(
        self, call: Call[Kernel], direct: frozenset[str], shape: tuple[int, int, int]
    ) -> tuple[Config | None, bool]:
        """The schedule kept for the call's bucket, and whether that is final: a graph capture does not read files."""
        from coda_lang.tuning import keys, lookup

        if call.device is None or not lookup.enabled():
            return None, True
        key = (id(call.kernel), _types(call.binding.dtypes), direct, _cut(call), keys.bucket(shape), call.device)
        if key not in self._kept:
            if driver.load().is_capturing(arrays.current_stream(call.tensors.values(), call.device)):
                return None, False
            self._kept[key] = lookup.tuned(call, self.form(call), direct, shape)
        config = self._kept[key]
        return (None, True) if config is not None and self._cuts(call, config) else (config, True)

    def _cuts(self, call: Call[Kernel], config: Config) -> bool:
        """Whether a tile of the schedule cuts a segment."""
        if all(v.op != "segment_sum" for v in call.kernel.values):
            return False
        return misfit(self.emit(call, config), call.binding.length) is not None

    def pending(self, call: Call[Kernel], config: Any = None) -> tuple[tuple[Any, ...], Emitted] | None:
        """The kernel that such a call has yet to build, and what decides on it; None if this process has it."""
        chosen = self.config(call, config)
        key = _form(call, chosen, False)
        return None if key in self._built else (key, self.emit(call, chosen))

    def _build(self, call: Call[Kernel], config: Config | None, tap: bool) -> Built:
        """The kernel of a call. Raises ArgumentError for extents that do not suit it."""
        key = _form(call, config, tap)
        found = self._built.get(key)
        if found is not None:
            self._fits(call, found.emitted)
        else:
            assert call.device is not None
            refuse_capture(arrays.current_stream(call.tensors.values(), call.device))
            start = time.perf_counter()
            emitted = self.emit(call, config, tap)
            self._fits(call, emitted)
            cubin = self._compile(emitted, ARCHITECTURE, start)
            found = self._built[key] = Built(emitted, Launchable(cubin, emitted), cubin.report)
        return found

    def _fits(self, call: Call[Kernel], emitted: Emitted) -> None:
        """Raises ArgumentError for extents that do not suit the kernel."""
        reason = misfit(emitted, call.binding.length)
        if reason is not None:
            raise ArgumentError(f"{self.name}: {reason}")

    def _compile(self, emitted: Emitted, arch: str, start: float) -> Cubin:
        emit_seconds = time.perf_counter() - start
        origin = self._caller.ir.span.source
        cubin = compile_kernel(emitted, arch, origin=origin, progress=tell)
        return replace(cubin, report=replace(cubin.report, emit_seconds=emit_seconds))

    def _outputs(self, call: Call[Kernel], tile: tuple[int, int] | None) -> dict[str, ArrayView]:
        """The caller's arrays, or new ones of the library that the arguments come from."""
        assert call.device is not None
        library = arrays.library(arrays.cuda_library(call.tensors.values()))
        made = {}
        for o in call.kernel.outputs:
            if o.name in call.out:
                made[o.name] = call.out[o.name]
            else:
                shape, dtype = call.binding.shape(o, tile), call.binding.dtype(o).name
                made[o.name] = arrays.view(library.empty(shape, dtype, call.device), o.name, dtype)
        return made

    # -- compiling without a call --

    def compile(
        self,
        arch: str = ARCHITECTURE,
        *,
        dtypes: Mapping[str, str] | None = None,
        inputs: Iterable[str] = (),
        outputs: Collection[str] | None = None,
        config: Config | str | None = None,
        tap: bool = False,
    ) -> Compiled:
        """Compile one form of the program for an architecture: for arrays that fit TMA, and heads that are not cut
        (see `emit`). Needs no GPU.

        Args:
            dtypes: element types by dtype parameter, ``{"T": "f16"}``; by default the first choice of each.
            inputs: the optional inputs that calls will pass.
            outputs: the outputs that calls will ask for; by default all but the optional ones.
            config: a schedule, or its text; by default the one for large problems.
            tap: add an f32 store of the accumulator.

        Raises:
            ArgumentError: an unknown name or element type, or a schedule that does not fit.
            BackendError: the toolchain is missing, or the architecture is not supported.

        The report's warnings say so if registers spill.
        """
        start = time.perf_counter()
        emitted, chosen = self.emitted(dtypes=dtypes, inputs=inputs, outputs=outputs, config=config, tap=tap)
        cubin = self._compile(emitted, arch, start)
        report, spills = cubin.report, spill_warning(cubin.report, chosen)
        if spills is not None:
            report = replace(report, warnings=(*report.warnings, spills))
        return Compiled(emitted.source, cubin.data, report, chosen, emitted)

    def emitted(
        self,
        *,
        dtypes: Mapping[str, str] | None = None,
        inputs: Iterable[str] = (),
        outputs: Collection[str] | None = None,
        config: Config | str | None = None,
        tap: bool = False,
        direct: frozenset[str] = frozenset(),
    ) -> tuple[Emitted, Config | None]:
        """The CUDA of one form of the program, and its schedule. The choices are those of `compile`."""
        from coda_lang.binding import asked_outputs

        ir = self._caller.ir
        optional = {p.name for p in ir.params if p.default is not None}
        for name in inputs:
            if name not in optional:
                help = (
                    did_you_mean(name, optional) or f"the optional inputs are {', '.join(sorted(optional)) or 'none'}"
                )
                raise ArgumentError(f"{self.name}: no optional input `{name}`: {help}")
        passed = frozenset(p.name for p in ir.params if p.default is None) | frozenset(inputs)
        kernel = self._caller.specialised(passed, asked_outputs(ir, outputs))
        types = self._choices(dtypes or {})
        chosen: Config | None = None
        if kernel.product is not None:
            if config is None or _changes_another(config):
                chosen = for_kernel(kernel, types, footprint(kernel, types, direct, tap))
            if config is not None:
                chosen = self._given(config, kernel, types, direct, tap, chosen)
        elif config is not None:
            raise ArgumentError(f"{self.name}: a {kernel.kind} has no schedule to choose")
        return emit(kernel, types, chosen, direct=direct, tap=tap), chosen

    def _choices(self, dtypes: Mapping[str, str]) -> dict[str, DType]:
        ir = self._caller.ir
        known = {p.name: p.choices for p in ir.dtypes}
        for name, dtype in dtypes.items():
            if name not in known:
                raise ArgumentError(f"{self.name}: no dtype parameter `{name}`: it has {', '.join(known) or 'none'}")
            if dtype not in {c.name for c in known[name]}:
                raise ArgumentError(f"{self.name}: `{name}` is {' or '.join(map(str, known[name]))}, got {dtype!r}")
        return {n: DTYPES[dtypes[n]] if n in dtypes else choices[0] for n, choices in known.items()}


def _changes_another(config: Config | str) -> bool:
    """Whether what a caller names is parts of the schedule that the call would get."""
    return isinstance(config, str) and not names_tile(config)


def _form(call: Call[Kernel], config: Config | None, tap: bool) -> tuple[Any, ...]:
    """What decides on the machine code of a call."""
    return id(call.kernel), _types(call.binding.dtypes), config, _direct(call), _cut(call), tap


def _direct(call: Call[Kernel]) -> frozenset[str]:
    """The tiles that TMA cannot move as they lie, and the vectors read in runs that its rule does not fit.

    Operands are left out: a copy of them is made that it can move.
    """
    kernel: Kernel = call.kernel
    operands = {kernel.product.a, kernel.product.b} if kernel.product is not None else set()
    # Nearly all arrays fit, so what their place in the program asks of them is looked at last.
    unfit_inputs = {n: v for n, v in call.tensors.items() if v.shape and n not in operands and _misfits(v)}
    found = {n for n, v in unfit_inputs.items() if len(v.shape) == 2 or _read_in_runs(call, kernel.param(n))}
    names = frozenset(p.name for p in kernel.params)
    for o in kernel.outputs:
        view = call.out.get(o.name)
        if view is not None:
            unfit = len(view.shape) == 2 and _misfits(view)
        else:
            unfit = False
            if len(o.dims) == 2 and not any(d.tiled for d in o.dims):
                rows, columns = call.binding.shape(o)
                unfit = rows > 1 and columns * ITEM_BYTES[call.binding.dtype(o).name] % TMA_ALIGNMENT != 0
        if unfit:
            found.add(output_key(names, o.name))
    return frozenset(found)


def _cut(call: Call[Kernel]) -> bool:
    """Whether heads end within a part of a tile, in a kernel that reads tables with a column for each of a head's."""
    kernel = call.kernel
    read = {str(v.attr) for v in kernel.values if v.op == "gather"}
    if not read:  # nearly all kernels
        return False
    grid = grid_of(kernel)
    if grid.split is None or call.binding.length(grid.split.inner) % head_step(kernel) == 0:
        return False
    return any(has_heads_columns(grid, p.dims) for p in kernel.params if p.name in read)


def _extents(call: Call[Kernel]) -> tuple[int, int, int]:
    """Rows, columns and depth of the product."""
    kernel = call.kernel
    assert kernel.rows is not None
    assert kernel.cols is not None
    assert kernel.product is not None
    rows, cols, depth = map(call.binding.length, (kernel.rows, kernel.cols, kernel.product.contracted))
    return rows, cols, depth


def _read_in_runs(call: Call[Kernel], vector: Param) -> bool:
    """Whether neighbours of a vector are read at once where they are aligned: of floats along all columns."""
    kernel = call.kernel
    if kernel.kind == "reduce" or call.binding.dtype(vector).kind != "float":
        return False
    if any(v.op == "gather" and v.attr == vector.name for v in kernel.values):  # a table
        return False
    form = form_of(grid_of(kernel), vector.dims)
    return form.kind == "row" and form.columns == "kWhole"


def _misfits(view: ArrayView) -> bool:
    return 0 not in view.shape and tensormap.misfit(view) is not None


def _types(dtypes: Mapping[str, DType]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((n, t.name) for n, t in dtypes.items()))


def tell(text: str) -> None:
    """A compile takes seconds: say so, but only to a person."""
    if sys.stderr.isatty():
        print(f"{text} …", file=sys.stderr, flush=True)
