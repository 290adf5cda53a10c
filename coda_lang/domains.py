"""Whether elements are what their input says: `rstd: f32[M] > 0`, `target: I[M] in 0..N or ignore_index`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from coda_lang.binding import Binding
from coda_lang.ir.numerics import Array
from coda_lang.ir.program import Bound, Domain, Number


def bound_value(bound: Bound, binding: Binding) -> Number:
    """The number that one side of a domain stands for in a call."""
    return bound.offset + (binding.length(bound.dim) if bound.dim is not None else 0)


def inside(domain: Domain, x: Array, binding: Binding, scalars: Mapping[str, Any]) -> Array:
    """Which elements lie in the domain; `scalars` holds the host scalars of the call, defaults included."""
    ok = np.ones(x.shape, bool)
    if domain.low is not None:
        low = bound_value(domain.low, binding)
        ok &= x > low if domain.low_strict else x >= low
    if domain.high is not None:
        high = bound_value(domain.high, binding)
        ok &= x < high if domain.high_strict else x <= high
    if domain.other is not None and domain.other in scalars:
        ok |= x == scalars[domain.other]
    return ok
