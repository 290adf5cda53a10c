"""Compiles without a GPU: the report, the cache in front, the shortened cubin, and what a failed compile says."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coda_lang.backend_cutlass import build, elf, nvrtc, report
from coda_lang.backend_cutlass.build import compile_kernel
from coda_lang.backend_cutlass.cache import Cache
from coda_lang.backend_cutlass.pool import compile_many
from coda_lang.errors import BackendError
from coda_lang.source import Source

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("tools")

WGMMA = """
extern "C" __global__ void ones(float* p, unsigned long long d) {
  float a[4] = {p[0], p[1], p[2], p[3]};
  asm volatile("wgmma.fence.sync.aligned;");
  asm volatile("{.reg .pred q; setp.ne.b32 q, 1, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
               "{%0, %1, %2, %3}, %4, %4, q, 1, 1, 0, 0;}"
               : "+f"(a[0]), "+f"(a[1]), "+f"(a[2]), "+f"(a[3]) : "l"(d));
  asm volatile("{.reg .pred q; setp.ne.b32 q, 1, 0; wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 "
               "{%0, %1, %2, %3}, %4, %4, q, 1, 1;}"
               : "+f"(a[0]), "+f"(a[1]), "+f"(a[2]), "+f"(a[3]) : "l"(d));
  asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;");
  p[0] = a[0]; p[1] = a[1];
}
"""
LOCAL = """
extern "C" __global__ void ones(float* p, const int* at) {
  __shared__ float s[256];
  float kept[64];
  for (int i = 0; i < 64; ++i) kept[at[i]] = p[i];
  s[threadIdx.x] = kept[at[64]];
  __syncthreads();
  p[threadIdx.x] = s[255 - threadIdx.x];
}
"""


def test_compile_then_cache(emit: Any, store: Cache) -> None:
    said: list[str] = []
    first = compile_kernel(emit(), cache=store, progress=said.append)
    assert said == ["compiling ones for sm_90a"]
    assert not first.report.cached
    second = compile_kernel(emit(), cache=store, progress=said.append)
    assert len(said) == 1
    assert second.report.cached
    assert second.data == first.data
    assert second.key == first.key
    kept = {"cached", "compile_seconds"}
    before, after = (dataclasses.asdict(x.report) for x in (first, second))
    assert {k: v for k, v in before.items() if k not in kept} == {k: v for k, v in after.items() if k not in kept}
    assert 0 < first.report.registers <= 255
    assert first.report.cubin_bytes == len(first.data)
    assert first.report.stack_bytes == first.report.spill_store_bytes == first.report.tensor_core_instructions == 0
    assert re.match(r"13\.\d", first.report.nvrtc)
    assert "no spills" in str(first.report)


def test_a_damaged_entry_is_built_again(emit: Any, store: Cache) -> None:
    first = compile_kernel(emit(), cache=store)
    path = store.path(first.key)
    path.write_bytes(path.read_bytes()[:-100])
    again = compile_kernel(emit(), cache=store)
    assert not again.report.cached
    assert again.data == first.data
    assert compile_kernel(emit(), cache=store).report.cached


def test_an_entry_of_another_reports_form_is_built_again(emit: Any, store: Cache) -> None:
    first = compile_kernel(emit(), cache=store)
    store.put(first.key, {"registers": 1}, first.data)
    assert not compile_kernel(emit(), cache=store).report.cached


@pytest.mark.parametrize("part", ["source", "options", "csrc", "toolchain"])
def test_what_the_key_holds(
    emit: Any, store: Cache, monkeypatch: pytest.MonkeyPatch, part: str, tmp_path: Path
) -> None:
    first = compile_kernel(emit(), cache=store)
    emitted = emit()
    if part == "source":
        emitted = dataclasses.replace(emitted, source=emitted.source + "\n")
    elif part == "options":
        monkeypatch.setattr(build, "OPTIONS", (*build.OPTIONS, "-DX"))
    else:
        tools = build.toolchain.find()
        (tmp_path / "changed.h").write_text("// a new header\n")
        changed = {"csrc": {"csrc": tmp_path}, "toolchain": {"cuda": (*tools.cuda, tmp_path / "changed.h")}}[part]
        monkeypatch.setattr(build.toolchain, "find", lambda: dataclasses.replace(tools, **changed))
    assert compile_kernel(emitted, cache=store).key != first.key


def test_a_read_only_cache_is_said_and_no_error(emit: Any) -> None:
    made = compile_kernel(emit(), cache=Cache(Path("/proc/coda")))
    assert made.data
    assert "not cached" in made.report.warnings[0]


def test_other_architectures(emit: Any, store: Cache) -> None:
    for arch in ("sm_80", "sm_100a", "sm_90", ""):
        with pytest.raises(BackendError, match=f"'{arch}' is not supported") as caught:
            compile_kernel(emit(), arch, cache=store)
        assert "sm_90a" in (caught.value.help or "")


# The report


def test_tensor_core_instructions_are_counted(emit: Any, store: Cache) -> None:
    assert compile_kernel(emit(source=WGMMA), cache=store).report.tensor_core_instructions == 2


def test_local_and_shared_memory(emit: Any, store: Cache) -> None:
    found = compile_kernel(emit(source=LOCAL, shared_bytes=4096), cache=store).report
    assert found.stack_bytes >= 256
    assert found.static_shared_bytes >= 1024
    assert found.dynamic_shared_bytes == 4096
    other = compile_kernel(emit(source=LOCAL, shared_bytes=8192), cache=store).report
    assert other.cached
    assert other.dynamic_shared_bytes == 8192, "the launch's, not the cubin's"


def test_the_block_of_the_right_function_is_read(emit: Any, store: Cache) -> None:
    log = (
        "ptxas info    : Compiling entry function 'first' for 'sm_90a'\n"
        "ptxas         .     8 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads\n"
        "ptxas info    : Used 255 registers, used 1 barriers\n"
        "ptxas info    : Compiling entry function 'second' for 'sm_90a'\n"
        "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 32 registers, used 0 barriers\n"
        "ptxas info    : (C7509) Potential Performance Loss: wgmma.mma_async instructions are serialized\n"
    )
    image = compile_kernel(emit(), cache=store).data
    arguments = {"arch": "sm_90a", "nvrtc": "13.0", "shared_bytes": 0, "seconds": 1.0}
    first, second = (report.read(image, name, log, **arguments) for name in ("first", "second"))
    assert (first.registers, first.stack_bytes, first.spill_store_bytes, first.spill_load_bytes) == (255, 8, 16, 24)
    assert (second.registers, second.stack_bytes) == (32, 0)
    assert "serialized" in str(second)
    assert report.Report.from_json(second.to_json()) == second


# The shortened cubin

MANY = """
namespace headers { template <int I> struct quite_a_long_name_of_a_type {};
template <int I> constexpr quite_a_long_name_of_a_type<I> quite_a_long_name_of_an_object{};
template <int I> __device__ const void* address() { return &quite_a_long_name_of_an_object<I>; } }
extern "C" __global__ void ones(const void** p) {
  p[0] = headers::address<0>(); p[1] = headers::address<1>(); p[2] = headers::address<2>();
}
"""


def test_names_are_shortened_and_nothing_else(tools: Any) -> None:
    options = ["--gpu-architecture=sm_90a", *build.OPTIONS]
    raw, _ = nvrtc.load(tools).compile(MANY, options)
    short = elf.shorten_names(raw)
    assert len(short) < len(raw)
    assert b"quite_a_long_name_of_an_object" in raw
    assert b"quite_a_long" not in short
    before, after = elf.sections(raw), elf.sections(short)
    assert [s.name for s in before] == [s.name for s in after]
    for old, new in zip(before, after, strict=True):
        if old.name not in (".strtab", ".symtab"):
            assert old.data == new.data, old.name
        assert old.fields[8] == new.fields[8]
        assert new.fields[4] % max(1, new.fields[8]) == 0
    symbols = [dict(zip("nioxvs", x, strict=True)) for x in elf._SYMBOL.iter_unpack(_section(before, ".symtab"))]
    shorter = [dict(zip("nioxvs", x, strict=True)) for x in elf._SYMBOL.iter_unpack(_section(after, ".symtab"))]
    assert [{**s, "n": 0} for s in symbols] == [{**s, "n": 0} for s in shorter]
    names = [elf._string(_section(after, ".strtab"), s["n"]) for s in shorter]
    assert "ones" in names
    assert len([n for n in names if n]) == len({n for n in names if n})


def _section(found: list[elf.Section], name: str) -> bytes:
    return next(s.data for s in found if s.name == name)


def test_a_cut_cubin_is_a_bad_elf(tools: Any) -> None:
    raw, _ = nvrtc.load(tools).compile(MANY, ["--gpu-architecture=sm_90a", *build.OPTIONS])
    for cut in (0, 10, 64, 200, len(raw) // 2, len(raw) - 200):
        with pytest.raises(elf.BadElfError):
            elf.shorten_names(raw[:cut])


# Errors

BROKEN = """#include "broken.h"
struct S {};
extern "C" __global__ void ones(float* p) {
  *p = undefined_name;
  f(S{});
  *p = "a";
  *p = other_name;
}
"""
CODA = Source("mlp.coda", 'kernel k(a: f32) {\n    s = foo(a)\n    t = bar(s)\n}\n"""end"""\n')


def test_errors_point_at_the_coda_line(
    emit: Any, store: Cache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "broken.h").write_text("template <class T> __device__ auto f(T x) {\n  return x.foo();\n}\n")
    tools = dataclasses.replace(build.toolchain.find(), csrc=tmp_path)
    monkeypatch.setattr(build.toolchain, "find", lambda: tools)
    lines = {4: CODA.text.index("s = "), 5: CODA.text.index("t = ")}
    with pytest.raises(BackendError) as caught:
        compile_kernel(emit(source=BROKEN, lines=lines), cache=store, origin=CODA)
    text = caught.value.message.splitlines()
    assert text[0] == "the CUDA generated for `ones` does not compile:"
    assert text[1].startswith("  mlp.coda:2:5: (kernel.cu:4) ")
    assert "undefined_name" in text[1]
    assert text[2].startswith("  mlp.coda:3:5: (kernel.cu:5) ")
    assert "(broken.h:2)" in text[2], "the instantiation"
    assert text[3].startswith("  mlp.coda:3:5: (kernel.cu:6) "), "the nearest mapped line above"
    assert text[4] == "  … and 1 more"
    assert len(text) == 5
    (kept,) = store.failed.glob("*.cu")
    assert kept.read_text() == BROKEN
    assert "undefined_name" in kept.with_suffix(".log").read_text()
    assert str(kept) in (caught.value.help or "")
    assert not store.show(), "no entry of a failed compile"


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ('#include "nowhere.h"\n', "nowhere.h"),
        ('extern "C" __global__ void ones(float* p) { asm("nonsense %0;" :: "f"(*p)); }', "nonsense"),
        ('extern "C" __device__ void g();\nextern "C" __global__ void ones() { g(); }', "Unresolved extern function"),
        (
            'extern "C" __global__ void ones(float* p, int i) { __shared__ float s[99999]; s[i] = 1; __syncthreads(); '
            "*p = s[0]; }",
            "too much shared data",
        ),
    ],
)
def test_errors_without_a_line(emit: Any, store: Cache, source: str, word: str) -> None:
    with pytest.raises(BackendError, match="does not compile") as caught:
        compile_kernel(emit(source=source), cache=store)
    assert word in caught.value.message


# Processes


def test_many_kernels_in_processes(emit: Any, store: Cache) -> None:
    kernels = [emit(source=emit().source + f"// {i}\n") for i in range(4)]
    kernels[2] = emit(source="nonsense")
    told: dict[int, Any] = {}
    found = compile_many(kernels, workers=2, cache=store, done=told.__setitem__)
    assert [isinstance(x, BackendError) for x in found] == [False, False, True, False]
    assert told == dict(enumerate(found))
    again = compile_many(kernels[:2], workers=2, cache=store)
    assert all(not isinstance(x, BackendError) and x.report.cached for x in again)
    with pytest.raises(BackendError, match="does not compile"):
        raise found[2]  # type: ignore[misc]


def test_a_worker_that_dies_costs_one_kernel(emit: Any, store: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODA_CUDA_HOME", "/nowhere")  # read by the workers only
    found = compile_many([emit()], workers=1, cache=store)
    assert isinstance(found[0], BackendError)
    assert "NVRTC" in found[0].message
    monkeypatch.setattr(sys, "executable", "/bin/false")
    found = compile_many([emit(), emit()], workers=1, cache=store)
    assert all(isinstance(x, BackendError) and "ended with status 1" in x.message for x in found)


SECOND = """
import coda_lang, pickle, sys, time
start = time.process_time()
from pathlib import Path
from coda_lang.backend_cutlass.build import compile_kernel
from coda_lang.backend_cutlass.cache import Cache
made = compile_kernel(pickle.loads(bytes.fromhex(sys.argv[2])), cache=Cache(Path(sys.argv[1])))
print(made.report.cached, time.process_time() - start, "cupy" in sys.modules, "torch" in sys.modules)
"""


def test_eight_processes_compile_one_kernel_at_once(emit: Any, store: Cache) -> None:
    import pickle

    arguments = [str(store.root), pickle.dumps(emit()).hex()]
    started = [
        subprocess.Popen([sys.executable, "-c", SECOND, *arguments], cwd=ROOT, stdout=subprocess.PIPE) for _ in range(8)
    ]
    said = [p.communicate(timeout=300)[0].decode() for p in started]
    assert [p.returncode for p in started] == [0] * 8
    assert all(said)
    assert len(store.show()) == 1


def test_a_second_process_starts_a_cached_kernel_quickly(emit: Any, store: Cache) -> None:
    import pickle

    compile_kernel(emit(), cache=store)
    assert list(store.memo.iterdir()), "the headers' digest is kept"
    arguments = [str(store.root), pickle.dumps(emit()).hex()]
    times = []
    for _ in range(3):  # the best of three: other work on the machine is not the subject
        out = subprocess.run([sys.executable, "-c", SECOND, *arguments], cwd=ROOT, capture_output=True, check=True)
        cached, seconds, *imported = out.stdout.decode().split()
        assert cached == "True"
        assert imported == ["False", "False"]
        times.append(float(seconds))
    assert min(times) < 0.3, times  # seconds of work that the backend adds to `import coda_lang`; measured: 0.05
