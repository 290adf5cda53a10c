"""cuBLAS: the product alone, without any epilogue, into an array that is there."""

from __future__ import annotations

from typing import Any

from coda_lang.bench.peers import AbsentError, Arguments, Options, Peer, Task
from coda_lang.binding import Binding


def find(binding: Binding, library: str, options: Options) -> Peer:
    """Raises AbsentError for a kernel without a product, and where the library cannot multiply the operands."""
    product = binding.kernel.product
    if product is None:
        raise AbsentError(f"a {binding.kernel.kind} has no product")

    def operands(arguments: Arguments) -> tuple[Any, Any]:
        a, b = arguments[product.a], arguments[product.b]
        return a.T if product.a_transposed else a, b.T if product.b_transposed else b

    def torchs(arguments: Arguments) -> Task:
        import torch

        a, b = operands(arguments)
        out = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)
        return Task(lambda: torch.mm(a, b, out=out))

    def cupys(arguments: Arguments) -> Task:
        import cupy  # type: ignore[import-untyped,unused-ignore]

        a, b = operands(arguments)
        try:
            out = cupy.matmul(a, b)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise AbsentError(f"CuPy does not multiply these arrays: {error}") from error
        return Task(lambda: cupy.matmul(a, b, out=out))

    return Peer(torchs) if library == "torch" else Peer(cupys, "CuPy's matmul")
