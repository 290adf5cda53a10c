"""The tuned schedule of a call, if there is one: what the launcher asks before it takes the default."""

from __future__ import annotations

import os

from coda_lang.backend_cutlass import device
from coda_lang.backend_cutlass.config import Config, rejection
from coda_lang.backend_cutlass.emit import footprint
from coda_lang.call import Call
from coda_lang.errors import ArgumentError, BackendError
from coda_lang.ir.program import Kernel
from coda_lang.tuning.keys import Shape, key
from coda_lang.tuning.store import TunedStore

SWITCH = "CODA_TUNED"  # 0: tuned schedules are not used


def enabled() -> bool:
    return os.environ.get(SWITCH) != "0"


def tuned(call: Call[Kernel], program: str, direct: frozenset[str], shape: Shape) -> Config | None:
    """The schedule kept for the call's GPU, its `program`'s form (`keys.form`) and the bucket of its shape. None if
    there is none, or it cannot be built any more.
    """
    assert call.device is not None
    try:
        found = TunedStore().get(key(device.get(call.device).name, program, shape))
        config = None if found is None else Config.parse(found.config)
    except (ArgumentError, BackendError):
        return None  # of another version, or nothing is there to compile with: the launch says so
    if config is None or rejection(config, footprint(call.kernel, call.binding.dtypes, direct)) is not None:
        return None
    return config
