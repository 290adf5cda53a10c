"""What is measured: rows in named groups, each group small enough for one run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import coda_lang as coda
from coda_lang.api import Program
from coda_lang.ir.program import Kernel

HERE = Path(__file__).parent
PROGRAMS = HERE.parent / "programs"
HEAD, POSITIONS = 128, 16384
PLAIN = ("cublas",)
LAYERS = ((2048, 5632), (4096, 11008), (8192, 22016))  # hidden size and MLP


@dataclass(frozen=True)
class Spec:
    """One call. `m`, `n`, `k` are the rows, columns and depth of its product, whatever the program calls them."""

    file: str
    kernel: str
    label: str
    m: int
    n: int
    k: int
    outputs: tuple[str, ...] | None = None
    inputs: tuple[str, ...] = ()
    peers: tuple[str, ...] | None = None  # None: all
    group: str = field(default="", compare=False)

    @property
    def path(self) -> Path:
        own = HERE / f"{self.file}.coda"
        return own if own.is_file() else PROGRAMS / f"{self.file}.coda"

    def program(self) -> Program:
        return _program(self.path, self.kernel)

    def sizes(self, kernel: Kernel) -> dict[str, int]:
        """Lengths by the program's own axes."""
        assert kernel.rows is not None
        assert kernel.cols is not None
        assert kernel.product is not None
        found = {"D": HEAD, "P": POSITIONS}
        dims = (kernel.rows, kernel.cols, kernel.product.contracted)
        for dim, length in zip(dims, (self.m, self.n, self.k), strict=True):
            assert dim.axis is not None
            found[dim.axis] = int(length / dim.coef)
        return {n: x for n, x in found.items() if n in kernel.axes}


@cache
def _program(path: Path, kernel: str) -> Program:
    found = coda.load(path)[kernel]
    assert isinstance(found, Program)
    return found


LINEAR = (
    Spec("linear", "linear", "linear (a·bᵀ)", 0, 0, 0),
    Spec("linear_dx", "linear_dx", "linear (a·b)", 0, 0, 0),
    Spec("linear_dw", "linear_dw", "linear (aᵀ·b)", 0, 0, 0),
    Spec("rmsnorm_linear", "rmsnorm_linear", "row scale", 0, 0, 0),
    Spec("linear_act", "linear_silu", "silu", 0, 0, 0, ("y",)),
    Spec("linear_act", "linear_gelu", "gelu", 0, 0, 0, ("y",)),
    Spec("quantize", "quantize", "to f8, with absmax", 0, 0, 0),
)
FUSED = (
    Spec("rmsnorm_swiglu", "rmsnorm_swiglu", "row scale + SwiGLU, both stored", 0, 0, 0),
    Spec("swiglu", "swiglu", "SwiGLU, y alone", 0, 0, 0, ("y",)),
    Spec("rope", "rope", "RoPE, full table", 0, 0, 0),
    Spec("rope", "rope_position", "RoPE, small table", 0, 0, 0),
    Spec("residual_rms", "residual_rms", "residual + partial RMS", 0, 0, 0),
    Spec("residual_layernorm", "residual_layernorm", "residual + partial LayerNorm", 0, 0, 0),
)
BACKWARD = (
    Spec("residual_rms_bwd", "residual_rms_bwd", "residual + RMS, backward", 0, 0, 0, inputs=("o",)),
    Spec("swiglu_bwd", "swiglu_bwd", "SwiGLU, backward", 0, 0, 0, ("y", "dz", "zdz")),
    Spec("act_bwd", "gelu_bwd", "gelu, backward", 0, 0, 0),
    Spec("rope_bwd", "rope_bwd", "RoPE, backward", 0, 0, 0),
    Spec("linear_dw", "linear_dw_accumulate", "dW, added to f32", 0, 0, 0),
)
LAYOUTS = (LINEAR[0], LINEAR[1], LINEAR[2], Spec("linear_tt", "linear_tt", "linear (aᵀ·bᵀ)", 0, 0, 0))
HEADS = (
    Spec("cross_entropy", "cross_entropy", "cross-entropy statistics", 0, 0, 0, ("lse", "t")),
    Spec("cross_entropy_bwd", "cross_entropy_bwd", "cross-entropy, backward", 0, 0, 0),
)


def _sized(specs: tuple[Spec, ...], m: int, n: int, k: int) -> list[Spec]:
    return [replace(s, m=m, n=n, k=k) for s in specs]


def _layer(tokens: int, width: int, mlp: int) -> list[Spec]:
    """The products of a Llama layer, forward and backward, without attention."""
    forward = [
        ("residual_rms", "residual_rms", "attention's output, residual, RMS", width, width),
        ("rmsnorm_swiglu", "rmsnorm_swiglu", "gate and up, SwiGLU", 2 * mlp, width),
        ("residual_rms", "residual_rms", "down, residual, RMS", width, mlp),
        ("rmsnorm_rope", "rmsnorm_rope_position", "query, key and value, RoPE", 3 * width, width),
    ]
    backward = [
        ("swiglu_bwd", "swiglu_bwd", "through down and SwiGLU", mlp, width),
        ("residual_rms_bwd", "residual_rms_bwd", "through gate and up, RMS", width, 2 * mlp),
    ]
    found = [Spec(f, kernel, label, tokens, n, k) for f, kernel, label, n, k in (*forward, *backward)]
    found = [replace(s, outputs=("y", "dz", "zdz")) if s.kernel == "swiglu_bwd" else s for s in found]
    found = [replace(s, inputs=("o",)) if s.kernel == "residual_rms_bwd" else s for s in found]
    return [*found, Spec("linear_dw", "linear_dw", "dW of gate and up", 2 * mlp, width, tokens)]


def _groups() -> dict[str, list[Spec]]:
    groups: dict[str, list[Spec]] = {}
    for size in (4096, 8192):
        groups[f"linear-{size}"] = _sized(LINEAR, size, size, size)
        groups[f"fused-{size}"] = _sized(FUSED, size, size, size)
        groups[f"backward-{size}"] = _sized(BACKWARD, size, size, size)
    groups["layouts"] = [replace(s, peers=PLAIN) for size in (4096, 8192) for s in _sized(LAYOUTS, size, size, size)]
    groups["cross-entropy"] = [s for v in (32768, 131072) for s in _sized(HEADS, 4096, v, 4096)]
    for width, mlp in LAYERS:
        groups[f"layer-{width}"] = _layer(16384, width, mlp)
    rows = [2**i for i in range(4, 18)]
    for name, spec in (("linear", LINEAR[0]), ("swiglu", FUSED[0]), ("residual", FUSED[4])):
        groups[f"scaling-{name}"] = [replace(spec, m=m, n=4096, k=4096, peers=PLAIN) for m in rows]
    few = (128, 192, 200, 256, 300, 384, 512, 513, 768, 1024, 1100, 1536)
    groups["few-rows"] = [replace(LINEAR[0], m=m, n=4096, k=4096, peers=PLAIN) for m in few]
    return {name: [replace(s, group=name) for s in specs] for name, specs in groups.items()}


GROUPS = _groups()
