"""What an operation keeps for its backward pass, once that has used it: what is large there decides the peak."""

import torch
from torch import Tensor

from coda_lang.torch import once

LARGE = 1 << 26  # bytes from which on memory counts more than the host's time of a call into a given array


def used_up(kept: Tensor, *others: Tensor | None) -> bool:
    """Whether `kept`, saved and shown to nobody, is large and will not be read after this backward pass.

    That is so where the graph that keeps it is used up, and no tracer or transform stands between the tensors of the
    call, `others` too, and their memory.
    """
    if type(kept) is not Tensor or kept.nbytes < LARGE or torch.compiler.is_compiling() or once.graph_is_kept():
        return False
    f = torch._C._functorch
    given = (t for t in (kept, *others) if t is not None)
    return not any(f.is_functorch_wrapped_tensor(t) or f.is_legacy_batchedtensor(t) for t in given)


def give_back(kept: Tensor) -> None:
    """Free its memory before the graph does, if it is used up: products that are still to come need some."""
    if used_up(kept) and kept.untyped_storage().resizable():
        kept.untyped_storage().resize_(0)
