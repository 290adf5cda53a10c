"""Runs one case on the GPU, with poisoned outputs and an accumulator tap, and holds it against the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gpu_cases import Case

from coda_lang import arrays
from coda_lang.backend_cutlass.abi import Emitted
from coda_lang.backend_cutlass.planned import Planned
from coda_lang.call import Call
from coda_lang.compare import bit_equal_outputs, compare, same_bits
from coda_lang.interp import DEFAULT_TILE
from coda_lang.ir.numerics import Array
from coda_lang.ir.program import Kernel

if TYPE_CHECKING:
    from gpu_random import RandomCase  # brings in torch, which a sanitizer need not see


def host_call(case: Case | RandomCase) -> Call[Kernel]:
    """The call on host arrays: enough to know what has to be compiled."""
    return case.program.caller.call(case.arguments(), case.outputs, None)


def emitted(case: Case | RandomCase) -> Emitted:
    call = host_call(case)
    gpu, tap = case.program.gpu, _tapped(case)
    return gpu.emit(call, gpu.config(call, case.config, tap), tap)


def _tapped(case: Case | RandomCase) -> bool:
    return case.program.ir.product is not None


def device_arguments(arguments: dict[str, Any], device: int = 0) -> dict[str, Any]:
    return {n: arrays.to_device(x, device, n) if isinstance(x, np.ndarray) else x for n, x in arguments.items()}


def poisoned(shape: tuple[int, ...], dtype: str, device: int = 0) -> Any:
    """An array whose every bit is set: NaN in each float type."""
    x = arrays.library("cupy").empty(shape, dtype, device)
    if x.size:
        x.reshape(-1).view("uint8")[...] = 255
    return x


class GpuRun:
    """One prepared case."""

    def __init__(self, case: Case | RandomCase, seed: int = 0) -> None:
        self.case = case
        program = case.program
        self.arguments = case.arguments(seed)
        on_device = device_arguments(self.arguments)
        first = program.caller.call(on_device, case.outputs, None)
        config = program.gpu.config(first, case.config, _tapped(case))
        self.kernel = first.kernel
        self.tile = program.gpu.emit(first, config, _tapped(case)).tile or DEFAULT_TILE
        binding = self.binding = first.binding
        out = {o.name: poisoned(binding.shape(o, self.tile), binding.dtype(o).name) for o in first.kernel.outputs}
        self.tap = None
        if _tapped(case):
            assert first.kernel.rows is not None
            assert first.kernel.cols is not None
            shape = (binding.length(first.kernel.rows), binding.length(first.kernel.cols))
            self.tap = poisoned(shape, "f32")
        call = program.caller.call(on_device, case.outputs, out)
        self.plan: Planned = program.gpu.plan(call, config, tap=self.tap)

    def results(self) -> dict[str, Array]:
        types = {t.name: self.binding.dtype(t).name for t in (*self.kernel.outputs, *self.kernel.params)}
        return {n: arrays.to_numpy(arrays.view(x, n, types[n]), n) for n, x in self.plan().items()}


def assert_same_bits(what: str, got: Array, want: Array, context: str = "") -> None:
    same = same_bits(got, want)
    assert same.all(), (
        f"{what} differs in {(~same).sum()} of {same.size} elements, first at {np.argwhere(~same)[0]}: "
        f"{got[~same].ravel()[:4]} for {want[~same].ravel()[:4]}{context}"
    )


def check(case: Case | RandomCase) -> dict[str, float]:
    """Run a case and check every output; returns the share of the bound that each uses (0: equal to the bit)."""
    run = GpuRun(case)
    got = run.results()
    kernel, tile, arguments = run.kernel, run.tile, run.arguments
    acc = None if run.tap is None else arrays.to_numpy(run.tap)
    inputs = {n: np.asarray(x) for n, x in arguments.items() if not isinstance(x, np.ndarray)} | {
        n: x for n, x in arguments.items() if isinstance(x, np.ndarray)
    }
    shares: dict[str, float] = {}
    if acc is not None and case.exact:
        assert kernel.product is not None
        p = kernel.product
        a, b = (arguments[n].astype(np.float64) for n in (p.a, p.b))
        product = (a.T if p.a_transposed else a) @ (b.T if p.b_transposed else b)
        np.testing.assert_array_equal(acc, product, "the accumulator of small integers is exact")
    copies = {n: x.copy() if isinstance(x, np.ndarray) else x for n, x in arguments.items()}
    reference = case.program.interpret(**copies, tile=tile, acc=acc, outputs=case.outputs)
    for name in bit_equal_outputs(kernel):
        assert_same_bits(f"{case}: {name}", got[name], reference[name])
        shares[name] = 0.0
    rest = {n: x for n, x in got.items() if n not in shares}
    for given in (acc,) if acc is None or case.exact else (acc, None):
        for c in compare(kernel, inputs, rest, tile, acc=given):
            where = f"first at {c.first_wrong}: " if c.first_wrong else ""
            values = f"{got[c.name][c.first_wrong]} for {reference[c.name][c.first_wrong]}" if c.first_wrong else ""
            bound = f"error up to {c.error:.3g}, {c.share:.3g} of the bound"
            outside = f"{c.wrong} of {c.elements} elements outside the bound"
            assert c.ok, f"{case}: {c.name}: {outside}, {where}{values}, {bound}"
            shares[c.name] = max(shares.get(c.name, 0.0), c.share)
    return shares
