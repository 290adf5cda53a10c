"""Finding NVRTC and headers, and what is said when something is missing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from coda_lang.backend_cutlass import toolchain
from coda_lang.backend_cutlass.nvrtc import Nvrtc
from coda_lang.errors import BackendError

Make = Callable[..., None]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site folder with all that is needed, as pip lays it out, and nothing else to be found."""
    files = {
        "nvidia/cu13/lib/libnvrtc.so.13": "",
        "nvidia/cu13/lib/libnvrtc.alt.so.13": "",
        "nvidia/cu13/lib/libnvrtc-builtins.so.13.0": "",
        "nvidia/cu13/lib/libnvrtc-builtins.alt.so.13.0": "",
        "nvidia/cu13/include/cuda_runtime.h": "",
        "nvidia/cu13/include/cuda.h": "#define CUDA_VERSION 13000\n",
        "nvidia/cu13/include/crt/mma.h": "",
        "nvidia/cu13/include/cccl/cuda/std/type_traits": "",
        "cutlass_library/source/include/cutlass/cutlass.h": "",
        "cutlass_library/source/include/cutlass/version.h": "#define CUTLASS_MAJOR 4\n",
        "cutlass_library/source/include/cute/tensor.hpp": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for variable in ("CUDA_HOME", "CUDA_PATH", "CODA_CUDA_HOME", "CODA_CUTLASS_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(toolchain, "cuda_roots", lambda: iter([tmp_path / "nvidia" / "cu13"]))
    toolchain.find.cache_clear()
    yield tmp_path  # type: ignore[misc]
    toolchain.find.cache_clear()


def test_pip_packages(site: Path) -> None:
    found = toolchain.find()
    cuda = site / "nvidia/cu13"
    assert found.nvrtc == cuda / "lib/libnvrtc.so.13"
    assert found.builtins == cuda / "lib/libnvrtc-builtins.so.13.0"
    assert found.includes[1:] == (
        site / "cutlass_library/source/include",
        cuda / "include",
        cuda / "include/cccl",
    )
    assert found.csrc.name == "csrc"


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        ("nvidia/cu13/lib/libnvrtc.so.13", ["libnvrtc.so.13", "coda-lang[gpu]", "CODA_CUDA_HOME"]),
        ("nvidia/cu13/lib/libnvrtc-builtins.so.13.0", ["libnvrtc-builtins"]),
        ("nvidia/cu13/include/cuda_runtime.h", ["<cuda_runtime.h>", "nvidia-cuda-runtime"]),
        ("nvidia/cu13/include/crt/mma.h", ["<crt/mma.h>", "nvidia-cuda-crt"]),
        ("nvidia/cu13/include/cccl/cuda/std/type_traits", ["nvidia-cuda-cccl"]),
        ("cutlass_library/source/include/cutlass/cutlass.h", ["CUTLASS", "nvidia-cutlass==4.2.0.0"]),
    ],
)
def test_what_is_missing_is_named(site: Path, gone: str, words: list[str]) -> None:
    (site / gone).unlink()
    with pytest.raises(BackendError) as caught:
        toolchain.find()
    for word in words:
        assert word in str(caught.value)


def test_nvrtc_of_another_major_version(site: Path) -> None:
    (site / "nvidia/cu13/lib/libnvrtc.so.13").rename(site / "nvidia/cu13/lib/libnvrtc.so.12")
    with pytest.raises(BackendError, match=r"NVRTC 13 is needed; found only .*libnvrtc\.so\.12"):
        toolchain.find()


def test_headers_of_another_major_version(site: Path) -> None:
    (site / "nvidia/cu13/include/cuda.h").write_text("#define CUDA_VERSION 12080\n")
    with pytest.raises(BackendError, match=r"are of version 12\.8, but NVRTC is 13"):
        toolchain.find()


def test_cutlass_of_another_major_version(site: Path) -> None:
    (site / "cutlass_library/source/include/cutlass/version.h").write_text("#define CUTLASS_MAJOR 3\n")
    with pytest.raises(BackendError, match=r"CUTLASS 4\.x is needed"):
        toolchain.find()


def test_a_checkout_of_cutlass_goes_first(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = site / "cutlass_library/source"
    monkeypatch.setenv("CODA_CUTLASS_DIR", str(source))
    assert toolchain.find().cutlass == source / "include"
    monkeypatch.setenv("CODA_CUTLASS_DIR", str(site / "nowhere"))
    toolchain.find.cache_clear()
    with pytest.raises(BackendError, match="CODA_CUTLASS_DIR is"):
        toolchain.find()


def test_the_order_of_cuda_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setenv("CUDA_HOME", "/opt/cuda")
    monkeypatch.delenv("CODA_CUDA_HOME", raising=False)
    roots = list(toolchain.cuda_roots())
    assert roots[:2] == [tmp_path / "nvidia/cu13", Path("/opt/cuda")]
    monkeypatch.setenv("CODA_CUDA_HOME", "/mine")
    assert list(toolchain.cuda_roots()) == [Path("/mine")]


def test_a_library_that_cannot_be_loaded(site: Path) -> None:
    found = toolchain.find()
    with pytest.raises(BackendError, match="NVRTC cannot be loaded"):
        Nvrtc(found.nvrtc, found.builtins)
