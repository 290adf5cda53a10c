"""Blocks on the GPU: every launch prepared once, temporaries in one allocation, and nothing but launches afterwards."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coda_lang import arrays
from coda_lang.arrays import ITEM_BYTES, ArrayView, packed_strides
from coda_lang.backend_cutlass.abi import output_key
from coda_lang.backend_cutlass.build import is_cached
from coda_lang.backend_cutlass.launch import refuse_capture
from coda_lang.backend_cutlass.planned import Planned
from coda_lang.backend_cutlass.pool import compile_many
from coda_lang.backend_cutlass.program import tell
from coda_lang.binding import Binding
from coda_lang.blocks import arena
from coda_lang.blocks.expand import Expansion, Launch, Piece, Tile, begin
from coda_lang.call import Call, aliased
from coda_lang.ir.program import Block, Kernel

if TYPE_CHECKING:
    from coda_lang.blocks.program import BlockProgram
    from coda_lang.program import Program

_KEPT = 8  # plans of one block that are kept, each with its temporaries


class PlannedBlock:
    """A prepared call of a block. Calling it launches; ``outputs`` maps names to the arrays that each run writes.

    ``memory`` says what the temporaries take. A plan has one set of them: run it on one stream at a time.
    """

    def __init__(
        self, made: Expansion, launches: list[Planned], memory: arena.Arena, outputs: dict[str, Any], where: _Where
    ) -> None:
        self._made, self._where = made, where
        self.launches, self.memory, self.outputs = tuple(launches), memory, outputs

    @property
    def steps(self) -> list[tuple[Launch, Planned]]:
        return list(zip(self._made.launches, self.launches, strict=True))

    def views(self, launch: Launch) -> dict[str, ArrayView]:
        """The inputs of a launch, where they lie."""
        return self._where.views(launch.tensors)

    def results(self, launch: Launch) -> dict[str, ArrayView]:
        """The outputs of a launch, where they lie."""
        return self._where.views(launch.outputs)

    @property
    def notes(self) -> tuple[str, ...]:
        """What makes each run slower than need be."""
        return tuple(dict.fromkeys(note for planned in self.launches for note in planned.notes))

    def __call__(self) -> dict[str, Any]:
        for launch in self.launches:
            launch()
        return self.outputs

    def bind(self, views: Mapping[str, ArrayView], outputs: dict[str, Any]) -> None:
        """Points the plan at other arrays of the block, each of the form of the one it replaces.

        Raises:
            ArgumentError: an array differs.
        """
        own = {**self._made.inputs, **self._made.outputs}
        moved = {own[name]: view for name, view in views.items()}
        for launch, planned in self.steps:
            names = frozenset(p.name for p in launch.kernel.params)
            pieces = {**launch.tensors, **{output_key(names, n): p for n, p in launch.outputs.items()}}
            planned.point({n: _rows(moved[p.buffer], p) for n, p in pieces.items() if p.buffer in moved})
        self._where.placed |= moved
        self.outputs = outputs


class GpuBlock:
    """A block's plans by the form of its arguments."""

    def __init__(self, program: BlockProgram) -> None:
        self._program = program
        self._kept: dict[tuple[Any, ...], tuple[PlannedBlock, threading.Lock]] = {}

    def run(self, call: Call[Block]) -> dict[str, Any]:
        """Compute the call's outputs on its device and the current stream of its arrays' library."""
        aliased(call)
        key = _form(call)
        found = self._kept.get(key)
        if found is None:
            plan, lock = self.plan(call), threading.Lock()
            while len(self._kept) >= _KEPT:
                self._kept.pop(next(iter(self._kept)), None)
            self._kept[key] = plan, lock
            with lock:
                return plan()
        plan, lock = found
        arrays_, views = _outputs(call)
        with lock:  # what is launched reads this call's arguments
            plan.bind({**call.tensors, **views}, _results(call, arrays_))
            return plan()

    def plan(self, call: Call[Block]) -> PlannedBlock:
        """Compile what is not compiled, allocate outputs and temporaries, and prepare every launch.

        Raises:
            ArgumentError: arrays share memory or do not fit; a step refuses its lengths.
            BackendError: a kernel does not compile, or no memory is left.
        """
        call.check_out(None)
        aliased(call)
        outputs, views = _outputs(call)
        made = begin(call.kernel, call.binding)
        where = _Where(call, made, {made.inputs[n]: v for n, v in call.tensors.items()})
        where.placed |= {made.outputs[n]: v for n, v in views.items()}

        def tile(
            kernel: Kernel,
            form: Kernel,
            binding: Binding,
            tensors: Mapping[str, Piece],
            stored: Mapping[str, Piece],
        ) -> Tile:
            inner = Call(form, binding, where.views(tensors), {}, where.views(stored), call.device, {})
            return self._program.program(kernel).gpu.tile(inner)

        self._program.expand(made, call, tile)
        memory = arena.plan(made)
        where.allocate(memory)
        calls = [self._call(launch, where) for launch in made.launches]
        self._compile(calls, arrays.current_stream(call.tensors.values(), call.device or 0))
        launches = [program.gpu.plan(inner) for program, inner in calls]
        return PlannedBlock(made, launches, memory, _results(call, outputs), where)

    def _call(self, launch: Launch, where: _Where) -> tuple[Program, Call[Kernel]]:
        program = self._program.program(launch.kernel)
        tensors, out = where.views(launch.tensors), where.views(launch.outputs)
        return program, program.caller.call({**tensors, **launch.scalars, **launch.axes}, list(out), out)

    def _compile(self, calls: list[tuple[Program, Call[Kernel]]], stream: int) -> None:
        """What is not in the cache is compiled in parallel; an error comes when the launch is prepared."""
        units = dict(unit for program, call in calls if (unit := program.gpu.pending(call)) is not None)
        missing = [unit for unit in units.values() if not is_cached(unit)]
        if len(missing) > 1:
            refuse_capture(stream)
            tell(f"compiling {len(missing)} kernels of {self._program.name}")
            compile_many(missing)


@dataclass
class _Where:
    """Where buffers lie; one that is not placed yet is taken to be aligned as it will be."""

    call: Call[Block]
    made: Expansion
    placed: dict[int, ArrayView]

    def views(self, pieces: Mapping[str, Piece]) -> dict[str, ArrayView]:
        return {n: self._view(p) for n, p in pieces.items()}

    def allocate(self, memory: arena.Arena) -> None:
        """Places the temporaries, in one new allocation."""
        assert self.call.device is not None
        library = arrays.library(arrays.cuda_library(self.call.tensors.values()))
        allocation = library.empty((max(memory.bytes, arena.ALIGNMENT),), "bool", self.call.device)
        for i, offset in memory.offsets.items():
            buffer = self.made.buffers[i]
            flat = library.typed(allocation[offset : offset + buffer.elements * ITEM_BYTES[buffer.dtype]], buffer.dtype)
            self.placed[i] = arrays.view(buffer.laid_out(flat), buffer.name, buffer.dtype)

    def _view(self, piece: Piece) -> ArrayView:
        held = self.placed.get(piece.buffer)
        if held is not None:
            return _rows(held, piece)
        library = arrays.cuda_library(self.call.tensors.values())
        strides = packed_strides(piece.shape)
        if len(strides) == 2:
            strides = (self.made.buffers[piece.buffer].pitch, 1)
        return ArrayView(arena.ALIGNMENT, piece.shape, strides, piece.dtype, self.call.device, None, library)


def _rows(view: ArrayView, piece: Piece) -> ArrayView:
    """The piece's rows of a whole buffer."""
    if not view.shape or piece.shape == view.shape:
        return view
    return arrays.view(view.owner[piece.first : piece.last], "a piece", view.dtype)


def _outputs(call: Call[Block]) -> tuple[dict[str, Any], dict[str, ArrayView]]:
    """The caller's arrays, or new ones of the library that the arguments come from."""
    assert call.device is not None
    library = arrays.library(arrays.cuda_library(call.tensors.values()))
    made, views = {}, dict(call.out)
    for o in call.kernel.outputs:
        dtype = call.binding.dtype(o).name
        if o.name in call.out:
            made[o.name] = call.out[o.name].owner
        else:
            made[o.name] = library.empty(call.binding.shape(o), dtype, call.device)
            views[o.name] = arrays.view(made[o.name], o.name, dtype)
    return made, views


def _results(call: Call[Block], outputs: Mapping[str, Any]) -> dict[str, Any]:
    inout = {p.name for p in call.kernel.params if p.inout}
    return {n: call.tensors[n].owner if n in inout else outputs[n] for n in call.order}


def _form(call: Call[Block]) -> tuple[Any, ...]:
    """What a plan depends on, but for the addresses of the block's own arrays."""
    assert call.device is not None
    views = {**call.tensors, **{f"out {n}": v for n, v in call.out.items()}}
    return (
        id(call.kernel),
        tuple((n, v.shape, v.strides, v.dtype, v.library, v.pointer % 16) for n, v in views.items()),
        tuple((n, repr(x)) for n, x in call.scalars.items()),  # as text: 0.0 and -0.0 are equal, but not the same
        tuple(call.binding.extents.items()),
        tuple(call.binding.dtypes.items()),
        call.device,
        arrays.current_stream(call.tensors.values(), call.device),
    )
