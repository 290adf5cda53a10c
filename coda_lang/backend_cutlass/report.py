"""What a compile says about a kernel: resources, from ptxas's log and the machine code, and times."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from typing import Any

from coda_lang.backend_cutlass import elf
from coda_lang.backend_cutlass.config import Config


@dataclass(frozen=True)
class Report:
    """Resources per thread (registers, stack, spills) and per block (shared memory), sizes in bytes, times in seconds.

    `load_seconds` and `emit_seconds` belong to the launcher and the emitter, who fill them in with `replace`.
    """

    registers: int
    stack_bytes: int  # local memory: indexed arrays and spills
    spill_store_bytes: int
    spill_load_bytes: int
    static_shared_bytes: int
    dynamic_shared_bytes: int
    tensor_core_instructions: int  # HGMMA and QGMMA in the machine code
    cubin_bytes: int
    arch: str
    nvrtc: str
    warnings: tuple[str, ...]  # what ptxas says about performance
    cached: bool
    compile_seconds: float  # of this call: about 0 from the cache
    built_seconds: float  # of the compile that made the cubin
    emit_seconds: float = 0.0
    load_seconds: float = 0.0

    def __str__(self) -> str:
        spills = self.spill_store_bytes + self.spill_load_bytes
        parts = [
            f"{self.registers} registers",
            "no spills" if not spills else f"{spills} bytes of spills",
            f"{self.stack_bytes} bytes of local memory",
            f"{(self.static_shared_bytes + self.dynamic_shared_bytes) / 1024:.1f} KiB of shared memory",
            f"{self.tensor_core_instructions} tensor core instructions",
            f"cubin {self.cubin_bytes / 1024:.0f} KiB for {self.arch}",
            "from the cache" if self.cached else f"compiled in {self.compile_seconds:.2f} s",
        ]
        return ", ".join(parts) + "".join(f"\n  warning: {w}" for w in self.warnings)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Report:
        """The report that `to_json` wrote.

        Raises:
            TypeError: fields are missing or unknown.
        """
        return replace(Report(**data), warnings=tuple(data["warnings"]))


A_FEW = 96  # bytes that a thread stores to memory or loads: 24 registers, which cost less than a smaller tile would


def spill_warning(report: Report, config: Config | None) -> str | None:
    """What to tell the user of a kernel that keeps part of its values in local memory; None if but A_FEW are.

    It is no part of `Report.warnings`: the tuner measures a schedule that spills, and may keep it.
    """
    stored, loaded = report.spill_store_bytes, report.spill_load_bytes
    if max(stored, loaded) <= A_FEW:
        return None
    text = f"registers spill: each thread stores {stored} bytes of values to memory and loads {loaded}"
    if config is None:
        return f"{text}; compute less in one program"
    thrifty = replace(config, rolled=1, epilogue_n=32)
    if thrifty == config:
        return f"{text}; load or store fewer tiles in one kernel"
    return f"{text}; try the schedule {thrifty}, or load and store fewer tiles in one kernel"


def read(cubin: bytes, entry: str, log: str, *, arch: str, nvrtc: str, shared_bytes: int, seconds: float) -> Report:
    """The report of a fresh compile with ``--ptxas-options=-v``; `shared_bytes` is the launch's dynamic memory.

    Raises:
        elf.BadElfError: the cubin is damaged.
    """
    ours = _function(log, entry)
    return Report(
        registers=_number(r"Used (\d+) registers", ours),
        stack_bytes=_number(r"(\d+) bytes stack frame", ours),
        spill_store_bytes=_number(r"(\d+) bytes spill stores", ours),
        spill_load_bytes=_number(r"(\d+) bytes spill loads", ours),
        static_shared_bytes=_static_shared(cubin, entry),
        dynamic_shared_bytes=shared_bytes,
        tensor_core_instructions=elf.tensor_core_instructions(cubin, entry),
        cubin_bytes=len(cubin),
        arch=arch,
        nvrtc=nvrtc,
        warnings=_warnings(log),
        cached=False,
        compile_seconds=seconds,
        built_seconds=seconds,
    )


def _function(log: str, entry: str) -> str:
    """ptxas's lines about one entry function (each function of the unit has such a block)."""
    start = log.find(f"Compiling entry function '{entry}'")
    if start < 0:
        return log
    end = log.find("Compiling entry function", start + 1)
    return log[start:] if end < 0 else log[start:end]


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    return int(match[1]) if match else 0


def _static_shared(cubin: bytes, entry: str) -> int:
    # The first KiB of it is the system's (cluster launches), which ptxas's own "bytes smem" leaves out.
    return sum(s.fields[5] for s in elf.sections(cubin) if s.name == f".nv.shared.{entry}")


def _warnings(log: str) -> tuple[str, ...]:
    """ptxas's performance notes: above all C7509 and its like, "wgmma … serialized", which cost a factor."""
    lines = [line.strip() for line in log.splitlines()]
    return tuple(dict.fromkeys(x for x in lines if "Potential Performance Loss" in x or "serializ" in x))
