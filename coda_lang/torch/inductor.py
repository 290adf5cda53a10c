"""What PyTorch's inductor needs to compile a chain of these operations in seconds.

Before 2.13 it writes a message about each operation that it has no lowering for, with all that the operation's inputs
were made from, even if nobody asks for messages (torch/_inductor/graph.py, "Creating implicit fallback"): along a chain
that text doubles with each operation, and six layers took three minutes. Operations on its list are called as they are
without a message.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef

WRITES = torch.__version__ < "2.13"  # the message, asked for or not


def fake(operation: CustomOpDef) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`operation.register_fake`, whose function also puts the operation on inductor's list, once that is imported.

    Inductor traces with it before it looks at its list; importing inductor for those who never compile takes seconds.
    """

    def register(shapes: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(shapes)
        def traced(*args: Any, **kwargs: Any) -> Any:
            lowering = sys.modules.get("torch._inductor.lowering")
            if WRITES and lowering is not None:
                lowering.FALLBACK_ALLOW_LIST.add(operation._qualname)
            return shapes(*args, **kwargs)

        operation.register_fake(traced)
        return shapes

    return register
