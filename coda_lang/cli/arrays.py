"""Arrays in files: inputs from .npy and .npz, outputs to .npy.

NumPy's format has no name for bf16 and f8. An output of these types is written as f32, which holds each of its values
exactly and which anything loads. An input may be of a wider type than the signature's if that changes no value, or
hold the raw bits that `np.save` writes for `ml_dtypes` arrays.
"""

from __future__ import annotations

import os
import re
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from coda_lang.cli.arguments import UsageError
from coda_lang.ir.numerics import STORAGE, Array, to_storage
from coda_lang.ir.program import Param
from coda_lang.ir.types import DType

_UNNAMED = (STORAGE["bf16"], STORAGE["f8e4m3"], STORAGE["f8e5m2"])
_RAW = {2: ("bf16",), 1: ("f8e4m3", "f8e5m2")}  # NumPy reads them back as void elements of this size


def load(name: str, text: str) -> Array:
    """The array that `--input name=text` means. Raises UsageError."""
    match = re.fullmatch(r"(.+\.npz):([^:/]+)", text)
    path, key = (match[1], match[2]) if match is not None else (text, name)
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        if isinstance(error, OSError) and error.strerror:
            raise UsageError(f"cannot read {path}: {error.strerror.lower()}") from None
        raise UsageError(f"cannot read {path}: it is no .npy or .npz file of plain arrays") from None
    if isinstance(found, np.ndarray):
        return found
    with found:
        if key not in found.files:
            known = ", ".join(found.files) or "nothing"
            raise UsageError(f"{path} has no array `{key}`: it has {known}", f"write --input {name}={path}:KEY")
        try:
            return np.asarray(found[key])
        except (OSError, EOFError, ValueError, zipfile.BadZipFile):
            raise UsageError(f"cannot read `{key}` of {path}: it is no plain array") from None


def choices(p: Param, dtypes: Mapping[str, tuple[DType, ...]]) -> tuple[DType, ...]:
    """The element types that an input may have."""
    return (p.dtype,) if isinstance(p.dtype, DType) else dtypes[p.dtype]


def native(x: Array, allowed: tuple[DType, ...]) -> Array:
    """Raw bits read back as the one bf16 or f8 type they can be; anything else in native byte order."""
    if x.dtype.kind == "V" and x.dtype.names is None:
        fits = [d.name for d in allowed if d.name in _RAW.get(x.dtype.itemsize, ())]
        if len(fits) == 1:
            return x.view(STORAGE[fits[0]])
    return x.astype(x.dtype.newbyteorder("="), copy=False)


def fitted(p: Param, x: Array, dtype: DType, source: str, cast: bool, others: Sequence[DType] = ()) -> Array:
    """`x` in element type `dtype`; a conversion that changes a value needs `cast`. Raises UsageError.

    `others` are the types that the input's dtype parameter might stand for instead.
    """
    target = STORAGE[dtype.name]
    if x.dtype == target:
        return x
    kind = "float" if x.dtype in _UNNAMED else {"f": "float", "i": "int", "u": "int", "b": "bool"}.get(x.dtype.kind)
    if kind != dtype.kind:
        raise UsageError(f"`{p.name}` must be {dtype}, and {source} holds {x.dtype}")
    out, same = _converted(x, dtype)
    if not same and not cast:
        text = f"`{p.name}` must be {dtype}, and {source} holds {x.dtype} values that {dtype} lacks"
        exact = next((t for t in others if _converted(x, t)[1]), None)
        help = "--cast rounds them" if dtype.kind == "float" else None
        if exact is not None:
            help = f"--dtype {p.dtype}={exact} holds them exactly" + (f"; {help}" if help else "")
        elif others and help:
            help += f"; {p.dtype} may also be {' or '.join(map(str, others))}"
        raise UsageError(text, help)
    if not same and dtype.kind == "int":
        raise UsageError(f"`{p.name}` must be {dtype}, and {source} holds integers outside its range")
    return out


def _converted(x: Array, dtype: DType) -> tuple[Array, bool]:
    """`x` in an element type of its kind, and whether every value is the same."""
    with np.errstate(all="ignore"):
        if dtype.kind == "int":
            out = x.astype(STORAGE[dtype.name])
            return out, bool(np.array_equal(out, x))
        wide = x.astype(np.float64 if x.dtype.itemsize > 4 else np.float32)
        out = np.asarray(to_storage(wide, dtype.name))
        back = out.astype(wide.dtype)
        return out, bool(((back == wide) | ((back != back) & (wide != wide))).all())


def save(directory: str, outputs: Mapping[str, Array]) -> dict[str, str]:
    """Write each output to `directory`/NAME.npy; all are complete before the first gets its name.

    Returns:
        The path of each output's file.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    pending: list[tuple[str, Path]] = []
    paths: dict[str, str] = {}
    try:
        for name, x in outputs.items():
            target = folder / f"{name}.npy"
            handle, temporary = tempfile.mkstemp(prefix=f".{name}.", suffix=".npy", dir=folder)
            pending.append((temporary, target))
            paths[name] = str(target)
            with os.fdopen(handle, "wb") as file:
                np.save(file, loadable(x), allow_pickle=False)
            os.chmod(temporary, 0o666 & ~_umask())
        for temporary, target in pending:
            os.replace(temporary, target)
        pending = []
    finally:
        for temporary, _ in pending:
            Path(temporary).unlink(missing_ok=True)
    return paths


def loadable(x: Array) -> Array:
    """bf16 and f8 as f32, exactly."""
    return x.astype(np.float32) if x.dtype in _UNNAMED else x


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
