"""What an operation keeps for its backward pass, once that has used it: what is large there decides the peak.

Nobody else may see it, now or later. A tensor that was shown to nobody, neither to the caller nor to a hook of
`torch.autograd.graph.saved_tensors_hooks`, belongs to the graph, and a graph that is not kept runs once.
"""

import torch
from torch import Tensor

from coda_lang.torch import calls, once

LARGE = 1 << 26  # bytes from which on memory counts more than the host's time of a call into a given array
_CHECKPOINTS = "torch.utils.checkpoint"  # whose hooks make anew, or hold until the backward pass, what is saved


def seen_by_nobody() -> bool:
    """Whether what an operation saves now goes to its graph alone. Where PyTorch does not say, a hook is assumed."""
    asked = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if asked is None:
        return False
    hooks = asked(False)
    return hooks is None or all(getattr(h, "__module__", None) == _CHECKPOINTS for h in hooks)


def used_up(kept: Tensor, *others: Tensor | None) -> bool:
    """Whether `kept`, which nobody else sees, is large and will not be read after this backward pass.

    That is so where the graph that keeps it is used up, and no tracer or transform stands between the tensors of the
    call, `others` too, and their memory.
    """
    if type(kept) is not Tensor or kept.nbytes < LARGE or torch.compiler.is_compiling() or once.graph_is_kept():
        return False
    return not calls.transformed(kept, *others)


def give_back(kept: Tensor, *others: Tensor | None) -> None:
    """Free its memory before the graph does, if it is used up: products that are still to come need some.

    A pass that fails after this leaves it changed, as one that wrote over it would: PyTorch then refuses another.
    """
    if not used_up(kept, *others):
        return
    torch.autograd.graph.increment_version(kept)
    storage = kept.untyped_storage()
    if storage.resizable() and storage.nbytes() == kept.nbytes:
        storage.resize_(0)
