"""What a tuned schedule is kept under: the GPU, the program's form, the toolchain, and the bucket of the shape."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from coda_lang.backend_cutlass import build, toolchain
from coda_lang.backend_cutlass.cache import Cache, key_of
from coda_lang.ir.program import Kernel
from coda_lang.ir.types import DType
from coda_lang.version import VERSION

FORMAT = "tuned 2"
_LEAST = 32  # rows, columns or depth: below, tiles are as small as they get
_STEPS = 8  # buckets from a power of two to the next

Shape = tuple[int, int, int]  # rows, columns and the contracted extent of the product


def bucket(shape: Shape) -> Shape:
    """The largest shape of the bucket that a shape lies in.

    Each extent is rounded up to one of the eight equal steps from a power of two to the next, and to 32 at least. So
    extents up to 32 share a bucket, 4096 has one with 3841 to 4095, and two shapes of a bucket differ by an eighth at
    most.
    """
    rows, cols, contracted = (_rounded(x) for x in shape)
    return rows, cols, contracted


def _rounded(extent: int) -> int:
    if extent <= _LEAST:
        return _LEAST
    step = max(1, (1 << (extent - 1).bit_length()) // 2 // _STEPS)
    return -(-extent // step) * step


def form(kernel: Kernel, dtypes: Mapping[str, DType], direct: Collection[str] = (), cut: bool = False) -> str:
    """The kernel's form as text: all that decides the code but the schedule. Names of places in a file do not.

    Args:
        kernel: specialised to the inputs that are passed and the outputs that are asked for.
        dtypes: the element types bound to its dtype parameters.
        direct: the tensors that TMA cannot move as they lie.
        cut: whether tables are followed from head to head (`emit.emit`).
    """
    params = [(p.name, str(p.dtype), p.dims, p.host, p.inout) for p in kernel.params]
    outputs = [(o.name, str(o.dtype), o.dims) for o in kernel.outputs]
    product = kernel.product
    operands = product and (product.a, product.b, product.a_transposed, product.b_transposed, product.contracted)
    values = [(v.op, v.args, repr(v.attr), v.type) for v in kernel.values]
    stores = [(s.target, s.value, s.accumulate) for s in kernel.stores]
    types = sorted((n, t.name) for n, t in dtypes.items())
    splits = [(s.axis, s.outer, s.inner) for s in kernel.splits]
    whole = (kernel.name, kernel.rows, kernel.cols, splits, params, outputs, operands, values, stores, types)
    return repr((*whole, sorted(direct), cut))


def key(gpu: str, program: str, shape: Shape, cache: Cache | None = None) -> str:
    """The key of the entry for a GPU by name, a program's `form`, and a shape.

    The contents of all headers and of NVRTC are in it, and this package's version: other kernels, and another compiler,
    have other fastest schedules.

    Raises:
        BackendError: the toolchain is missing.
    """
    tools = build.digests(toolchain.find(), (Cache() if cache is None else cache).memo)
    return key_of(FORMAT, VERSION, gpu, *tools, program, repr(bucket(shape)))
