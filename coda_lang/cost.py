"""What a call costs at least: the arithmetic and the memory traffic that its program asks for, from the IR alone."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from coda_lang.binding import Binding
from coda_lang.ir.ops import OPS
from coda_lang.ir.program import Kernel, Output, Param, Value
from coda_lang.ir.types import Dim

# They move elements, and compute nothing.
_MOVES = frozenset({"even", "odd", "unpairs"})


@dataclass(frozen=True)
class Cost:
    """`flops` are those of the product, 2·M·N·K; `operations` are the element operations of all else, each counted
    once, whatever it takes. `reads` and `writes` are bytes by tensor: each array moved once, as if caches were perfect.
    """

    flops: int
    operations: int
    reads: dict[str, int]
    writes: dict[str, int]

    @property
    def bytes(self) -> int:
        return sum(self.reads.values()) + sum(self.writes.values())


@dataclass(frozen=True)
class Peak:
    """What a GPU can do at most: `flops` of dense products of 16-bit floats, `bandwidth` in bytes, both a second."""

    name: str
    flops: float
    bandwidth: float
    multiprocessors: int


# NVIDIA's H200 datasheet (SXM): 1979 TFLOP/s in bf16 and f16 with sparsity, which is 989 dense, and 4.8 TB/s.
H200 = Peak("H200", 989e12, 4.8e12, 132)


def cost(binding: Binding, tile: tuple[int, int] | None = None) -> Cost:
    """The cost of a call.

    Args:
        binding: of the kernel as `specialise` made it for the call: only what is read and asked for counts.
        tile: rows and columns of a tile; fixes the extent of partials.
    """
    kernel = binding.kernel

    def count(dims: tuple[Dim, ...]) -> int:
        return prod(binding.length(d, tile) for d in dims)

    def size(target: Param | Output) -> int:
        return count(target.dims) * binding.dtype(target).bits // 8

    reads = {p.name: size(p) for p in kernel.params if p.name in _loaded(kernel)}
    for p in kernel.params:
        rows = [kernel.values[v.args[0]] for v in kernel.values if v.op == "gather" and v.attr == p.name]
        if rows:
            row = count(p.dims[1:]) * binding.dtype(p).bits // 8
            reads[p.name] = min(size(p), sum(count(index.type.dims) for index in rows) * row)
    writes = {}
    for store in kernel.stores:
        writes[store.target] = size(kernel.target(store.target))
        if store.accumulate:
            reads[store.target] = writes[store.target]
    flops = 0
    if kernel.product is not None:
        assert kernel.rows is not None
        assert kernel.cols is not None
        flops = 2 * count((kernel.rows, kernel.cols, kernel.product.contracted))
    return Cost(flops, sum(count(_worked(kernel, v)) for v in kernel.values if _works(v)), reads, writes)


def roofline(cost: Cost, operand_bits: int = 16, peak: Peak = H200) -> tuple[float, float]:
    """The least seconds that the product and the traffic take; neither can be beaten, and at best they overlap.

    The tensor cores do twice as many products of 8-bit operands as of 16-bit ones.
    """
    return cost.flops / (peak.flops * 16 / operand_bits), cost.bytes / peak.bandwidth


def _loaded(kernel: Kernel) -> set[str]:
    """The arrays that are read in full."""
    names = {str(v.attr) for v in kernel.values if v.op == "load"}
    if kernel.product is not None:
        names |= {kernel.product.a, kernel.product.b}
    return {p.name for p in kernel.params if p.name in names and not p.host}


def _works(value: Value) -> bool:
    return OPS[value.op].cls in (0, 1, 4, 5) and value.op not in _MOVES


def _worked(kernel: Kernel, value: Value) -> tuple[Dim, ...]:
    """The extents that an operation runs over: a reduction's are those of its argument."""
    return value.type.dims if OPS[value.op].cls == 1 else kernel.values[value.args[0]].type.dims
