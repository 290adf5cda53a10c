"""Every map of the operation table on the GPU, for numbers of every kind and size, within what its row states."""

from __future__ import annotations

import numpy as np
import pytest
from rows import MAPS, arguments, kinds_of, text_of

import coda_lang as coda
from coda_lang import arrays
from coda_lang.compare import same_bits
from coda_lang.ir.ops import OPS

pytestmark = pytest.mark.gpu

ULP, TINY, LARGEST = 2.0**-23, 2.0**-149, 2.0**128
COUNT = 20_000  # random numbers beside the special ones


@pytest.mark.parametrize(("name", "kinds"), [(row.name, kinds) for row in MAPS for kinds in kinds_of(row)])
def test_a_map_of_any_number(name: str, kinds: str, record_property: pytest.RecordProperty) -> None:
    row, args = OPS[name], arguments(kinds, COUNT)
    given = {f"x{i}": np.resize(x, (8, -(-len(x) // 16) * 2)) for i, x in enumerate(args)}  # an even number of columns
    f = coda.loads(text_of(row, kinds)).f
    want = f.interpret(**given).y
    got = arrays.to_numpy(arrays.view(f(**{n: arrays.to_device(x, 0) for n, x in given.items()}).y, "y"))
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    if not row.gpu_ulp and not row.gpu_abs:
        wrong = ~same_bits(got, want)
        share = 0.0
    else:
        exact, found = (np.nan_to_num(x.astype(np.float64), posinf=LARGEST, neginf=-LARGEST) for x in (want, got))
        allowed = row.gpu_abs + (row.gpu_ulp + 0.5) * np.maximum(ULP * np.abs(exact), TINY)
        off = np.abs(found - exact)
        wrong = (np.isnan(got) != np.isnan(want)) | ~(off <= allowed)
        wrong |= (want == 0) & (got == 0) & (np.signbit(want) != np.signbit(got))
        share = float((off / allowed).max())
    at = np.argwhere(wrong)[:4]
    told = [([x[tuple(i)] for x in given.values()], got[tuple(i)], want[tuple(i)]) for i in at]
    assert not wrong.any(), f"{name}: {wrong.sum()} of {wrong.size}: {told}"
    record_property("share", round(share, 3))
