"""Blocks as Python sees them: called like kernels, on the host or on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from coda_lang import arrays
from coda_lang.binding import Shape
from coda_lang.blocks import arena
from coda_lang.blocks.expand import Expansion, Launch, Piece, Tile, TileOf, begin, expand
from coda_lang.call import Call, aliased
from coda_lang.errors import ArgumentError
from coda_lang.interp import DEFAULT_TILE
from coda_lang.interp.run import Progress
from coda_lang.ir.numerics import STORAGE, Array
from coda_lang.ir.program import Block, Kernel
from coda_lang.program import Program, Result, Runnable, checked_tile

if TYPE_CHECKING:
    from coda_lang.backend_cutlass.block import GpuBlock, PlannedBlock


class BlockProgram(Runnable[Block]):
    """A block that can be called with arrays. Its kernels are compiled, and its temporaries placed, once a form."""

    def __init__(self, block: Block) -> None:
        super().__init__(block)
        self._programs: dict[int, Program] = {}
        self._gpu: GpuBlock | None = None

    def program(self, kernel: Kernel) -> Program:
        """The program of a kernel that the block calls."""
        return self._programs.setdefault(id(kernel), Program(kernel))

    @property
    def kernels(self) -> tuple[Program, ...]:
        """The kernels, maps and reduces that it launches, those of inner blocks too, each once."""
        return tuple(map(self.program, self.ir.kernels()))

    def interpret(
        self,
        /,
        *positional: Any,
        tile: tuple[int, int] = DEFAULT_TILE,
        exact: bool = False,
        outputs: Any = None,
        out: Any = None,
        check: bool = False,
        progress: Progress | None = None,
        **arguments: Any,
    ) -> Result:
        """Run every step with the reference interpreter: arrays of any library in, NumPy out.

        Args:
            tile: rows and columns of every kernel's tile; fixes tiles(X) and so the partials.
            exact: evaluate in f64 within each step, rounding at its stores only.
            progress: called with the launches done and their number.
        """
        call = self.host_call(positional, arguments, outputs, out, check)
        return Result(self.on_host(call, checked_tile(self.name, tile), exact, progress))

    def out_shapes(self, /, *, outputs: Any = None, **arguments: Any) -> dict[str, Shape]:
        """Shape and element type of each output of such a call, for preallocating; nothing is computed."""
        call = self.caller.call(arguments, outputs, None)
        return {o.name: Shape(call.binding.shape(o), call.binding.dtype(o).name) for o in call.kernel.outputs}

    def memory(self, /, *, outputs: Any = None, tile: tuple[int, int] = DEFAULT_TILE, **arguments: Any) -> arena.Arena:
        """The temporaries of such a call: bytes of the allocation, the most that live at once, and their sum."""
        call = self.caller.call(arguments, outputs, None)
        return arena.plan(self._expand(call, checked_tile(self.name, tile)))

    def plan(self, /, *, outputs: Any = None, out: Any = None, **arguments: Any) -> PlannedBlock:
        """Prepare a call on CUDA arrays: the result launches every kernel again, without allocating or waiting."""
        call = self.caller.call(arguments, outputs, out)
        if call.device is None:
            raise ArgumentError(f"{self.name}: a plan needs CUDA arrays; the interpreter has nothing to prepare")
        return self.gpu.plan(call)

    @property
    def gpu(self) -> GpuBlock:
        if self._gpu is None:
            from coda_lang.backend_cutlass.block import GpuBlock

            self._gpu = GpuBlock(self)
        return self._gpu

    def on_gpu(self, call: Call[Block]) -> dict[str, Any]:
        return self.gpu.run(call)

    def on_host(
        self, call: Call[Block], tile: Tile, exact: bool = False, progress: Progress | None = None
    ) -> dict[str, Array]:
        """Every launch in turn, on arrays in host memory; temporaries share one allocation as they do on a GPU."""
        call.check_out(None)
        aliased(call)
        made = self._expand(call, tile)
        held = _HostArrays(made, call)
        calls = [self._inner(launch, held) for launch in made.launches]
        for _, inner in calls:
            aliased(inner)  # all are looked at before the first one writes
        for done, (program, inner) in enumerate(calls):
            program.on_host(inner, tile, exact)
            if progress is not None:
                progress(done + 1, len(made.launches))
        own = {**made.inputs, **made.outputs}
        return {n: held.whole[own[n]] for n in call.order}

    def _expand(self, call: Call[Block], tile: Tile) -> Expansion:
        return self.expand(begin(call.kernel, call.binding), call, lambda *_: tile)

    def expand(self, made: Expansion, call: Call[Block], tile: TileOf) -> Expansion:
        """Adds the launches of a call to the buffers of its own arrays."""

        def specialised(kernel: Kernel, passed: frozenset[str], asked: frozenset[str]) -> Kernel:
            return self.program(kernel).caller.specialised(passed, asked)

        return expand(made, call.kernel, call.binding, {**call.defaults, **call.scalars}, specialised, tile)

    def _inner(self, launch: Launch, held: _HostArrays) -> tuple[Program, Call[Kernel]]:
        program = self.program(launch.kernel)
        arguments: dict[str, Any] = {n: held.array(p) for n, p in launch.tensors.items()}
        out = {n: held.array(p) for n, p in launch.outputs.items()}
        return program, program.caller.call({**arguments, **launch.scalars, **launch.axes}, list(out), out)


class _HostArrays:
    """The arrays behind an expansion's buffers."""

    def __init__(self, made: Expansion, call: Call[Block]) -> None:
        where = arena.plan(made)
        memory = np.empty(where.bytes, np.uint8)
        self.whole: dict[int, Array] = {}
        for name, i in made.inputs.items():
            if name in call.tensors:
                self.whole[i] = arrays.to_numpy(call.tensors[name], name)
        for name, i in made.outputs.items():
            buffer = made.buffers[i]
            given = call.out.get(name)
            self.whole[i] = (
                arrays.to_numpy(given, name) if given is not None else np.empty(buffer.shape, STORAGE[buffer.dtype])
            )
        for i, offset in where.offsets.items():
            buffer = made.buffers[i]
            storage = STORAGE[buffer.dtype]
            part = memory[offset : offset + buffer.elements * storage.itemsize].view(storage)
            self.whole[i] = buffer.laid_out(part)

    def array(self, piece: Piece) -> Array:
        whole = self.whole[piece.buffer]
        return whole[piece.first : piece.last] if whole.ndim else whole
