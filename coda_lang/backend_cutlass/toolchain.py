"""Where NVRTC and the headers are.

Nothing here imports a CUDA package: the pip packages put their files under ``nvidia/cu13`` and
``cutlass_library/source`` of a site folder, a toolkit puts them under its root, and looking for the files
is faster than importing and works for half-installed packages too, so that a message can name what is missing.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from coda_lang.errors import BackendError

CUDA_MAJOR = 13  # the toolkit that the shims and the numeric contract were checked with
CUTLASS_MAJOR = 4
INSTALL = "pip install 'coda-lang[gpu]'"

# A header that stands for its package, searched for below an include folder.
HEADERS = (
    ("cuda_runtime.h", "nvidia-cuda-runtime"),
    ("crt/mma.h", "nvidia-cuda-crt"),
    ("cccl/cuda/std/type_traits", "nvidia-cuda-cccl"),
)


@dataclass(frozen=True)
class Toolchain:
    """The files that a compile reads: the compiler's libraries and the include folders, first match first."""

    nvrtc: Path
    builtins: Path
    csrc: Path
    cutlass: Path
    cuda: tuple[Path, ...]

    @property
    def includes(self) -> tuple[Path, ...]:
        return (self.csrc, self.cutlass, *self.cuda)


@cache
def find() -> Toolchain:
    """The toolchain of this installation; ``find.cache_clear()`` makes it look again.

    Raises:
        BackendError: something is missing or of another major version; the message names the package.
    """
    roots = list(cuda_roots())
    nvrtc, builtins = _nvrtc(roots)
    return Toolchain(nvrtc, builtins, csrc_folder(), _cutlass(), _cuda_includes(roots))


def cuda_roots() -> Iterator[Path]:
    """Folders with CUDA's ``include`` and ``lib``: CODA_CUDA_HOME alone if set, else pip packages, then toolkits."""
    forced = os.environ.get("CODA_CUDA_HOME")
    if forced:
        yield Path(forced)
        return
    for site in _sites():
        yield site / "nvidia" / f"cu{CUDA_MAJOR}"
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable])
    yield Path("/usr/local/cuda")
    yield Path(f"/usr/local/cuda-{CUDA_MAJOR}")


def csrc_folder() -> Path:
    """The project's own headers: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "csrc", package.parent / "csrc"):
        if folder.is_dir():
            return folder
    raise BackendError("the CUDA headers of coda_lang (csrc/) are missing", f"reinstall: {INSTALL}")


def _sites() -> Iterator[Path]:
    seen = set()
    for entry in sys.path:
        site = Path(entry or ".")
        if site not in seen and site.is_dir():
            seen.add(site)
            yield site


def _nvrtc(roots: list[Path]) -> tuple[Path, Path]:
    folders = [r / lib for r in roots for lib in ("lib", "lib64", "targets/x86_64-linux/lib")]
    for folder in folders:
        library = folder / f"libnvrtc.so.{CUDA_MAJOR}"
        if library.is_file():
            # `.alt` is a second build of the same library for another memory allocator.
            found = sorted(p for p in folder.glob(f"libnvrtc-builtins.so.{CUDA_MAJOR}*") if ".alt" not in p.name)
            if not found:
                raise BackendError(f"{library} is there, but libnvrtc-builtins is not", f"reinstall: {INSTALL}")
            return library.resolve(), found[-1].resolve()
    others = [p for f in (*folders, *_other_nvrtc_folders()) for p in sorted(f.glob("libnvrtc.so.[0-9]*"))]
    if others:
        raise BackendError(
            f"NVRTC {CUDA_MAJOR} is needed; found only {others[0]}",
            f"{INSTALL} brings nvidia-cuda-nvrtc {CUDA_MAJOR}.x",
        )
    raise BackendError(
        f"NVRTC (libnvrtc.so.{CUDA_MAJOR}) was not found",
        f"{INSTALL}, or set CODA_CUDA_HOME to a CUDA {CUDA_MAJOR} toolkit",
    )


def _other_nvrtc_folders() -> Iterator[Path]:
    """Where the pip packages of other CUDA versions put NVRTC: only to say what was found."""
    for site in _sites():
        yield site / "nvidia" / "cuda_nvrtc" / "lib"
        yield from (p / "lib" for p in site.glob("nvidia/cu1[0-9]"))


def _cuda_includes(roots: list[Path]) -> tuple[Path, ...]:
    candidates = [r / "include" for r in roots]
    found: dict[str, Path] = {}
    for header, package in HEADERS:
        folder = next((f for f in candidates if (f / header).is_file()), None)
        if folder is None:
            raise BackendError(f"the header <{header}> was not found", f"pip install {package} ({INSTALL} brings it)")
        found[header] = folder
    runtime = found["cuda_runtime.h"]
    version = _define(runtime / "cuda.h", "CUDA_VERSION")
    if version is None or version // 1000 != CUDA_MAJOR:
        raise BackendError(
            f"the CUDA headers in {runtime} are of version {_cuda_version(version)}, but NVRTC is {CUDA_MAJOR}.x",
            f"pip install 'nvidia-cuda-runtime=={CUDA_MAJOR}.*'",
        )
    folders = [runtime, found["crt/mma.h"], found["cccl/cuda/std/type_traits"] / "cccl"]
    return tuple(dict.fromkeys(folders))


def _cutlass() -> Path:
    forced = os.environ.get("CODA_CUTLASS_DIR")
    if forced:
        candidates = [Path(forced), Path(forced) / "include"]
    else:
        checkout = Path(__file__).resolve().parent.parent.parent / "third_party" / "cutlass" / "include"
        candidates = [checkout, *(s / "cutlass_library" / "source" / "include" for s in _sites())]
    folder = next((f for f in candidates if (f / "cutlass" / "cutlass.h").is_file() and (f / "cute").is_dir()), None)
    if folder is None:
        where = f"CODA_CUTLASS_DIR is {forced}" if forced else "neither in third_party/cutlass nor installed"
        raise BackendError(f"the CUTLASS headers were not found: {where}", "pip install nvidia-cutlass==4.2.0.0")
    major = _define(folder / "cutlass" / "version.h", "CUTLASS_MAJOR")
    if major != CUTLASS_MAJOR:
        raise BackendError(
            f"CUTLASS {CUTLASS_MAJOR}.x is needed; {folder} is {major}.x", "pip install nvidia-cutlass==4.2.0.0"
        )
    return folder


def _define(header: Path, name: str) -> int | None:
    try:
        match = re.search(rf"^#define\s+{name}\s+(\d+)", header.read_text(errors="replace"), re.MULTILINE)
    except OSError:
        return None
    return int(match[1]) if match else None


def _cuda_version(version: int | None) -> str:
    return "unknown" if version is None else f"{version // 1000}.{version % 1000 // 10}"
