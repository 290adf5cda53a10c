"""Liger (LinkedIn): Triton kernels for what follows a product, which is torch's. Written for liger-kernel 0.8.5.

Weights of gated layers are laid out as its models have them, all gates before all ups, and heads are turned by halves;
so only outputs that do not depend on this are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from coda_lang.bench.peers import AbsentError, Arguments, Options, Outputs, Peer, Task
from coda_lang.binding import Binding

Prepare = Callable[[Arguments], Task]
_EPS = 1e-6


def find(binding: Binding, library: str, options: Options) -> Peer:
    """Raises AbsentError without the package, or for a kernel that nothing of it matches."""
    if library != "torch":
        raise AbsentError("it takes torch tensors on a GPU")
    kernel = binding.kernel
    given, asked = {p.name for p in kernel.params}, {o.name for o in kernel.outputs}
    if kernel.name not in _PREPARE or given & {"bias", "cap", "rotated"}:
        raise AbsentError("it has no kernel for this")
    file, make, note = _PREPARE[kernel.name]
    if kernel.name == "cross_entropy" and "z" in asked:
        raise AbsentError("it does not keep the logits")
    try:
        module = import_module(f"liger_kernel.ops.{file}")
    except ImportError as error:
        raise AbsentError(f"not installed (liger-kernel): {error}") from None
    return Peer(make(module, binding), note)


def _halves(b: Any) -> Any:
    """A weight of interleaved rows (gate, up, gate, up, …) with all gates first."""
    import torch

    return torch.cat((b[0::2], b[1::2])).contiguous()


def _swiglu(module: Any, binding: Binding) -> Prepare:
    def prepare(arguments: Arguments) -> Task:
        a, b = arguments["a"], _halves(arguments["b"]).T
        return Task(lambda: module.swiglu_fused_gate_up_forward(a @ b), lambda found: {"y": found[1]})

    return prepare


def _rmsnorm_swiglu(module: Any, binding: Binding) -> Prepare:
    """Its norm comes before the product, as a kernel of its own that reads and writes the whole input."""
    norm = import_module("liger_kernel.ops.rms_norm")

    def prepare(arguments: Arguments) -> Task:
        import torch

        a, b = arguments["a"], _halves(arguments["b"]).T
        ones = torch.ones(a.shape[1], dtype=a.dtype, device=a.device)

        def run() -> Any:
            x = norm.rms_norm_forward(a, ones, _EPS, 0.0, "llama", None)[0]
            return module.swiglu_fused_gate_up_forward(x @ b)

        return Task(run)

    return prepare


def _geglu(module: Any, binding: Binding) -> Prepare:
    def prepare(arguments: Arguments) -> Task:
        a, b = arguments["a"], arguments["b"]
        gate, up = b[0::2].contiguous().T, b[1::2].contiguous().T
        return Task(lambda: module.geglu_forward(a @ gate, a @ up), lambda found: {"y": found[2]})

    return prepare


def _relu_sq(module: Any, binding: Binding) -> Prepare:
    def prepare(arguments: Arguments) -> Task:
        a, b = arguments["a"], arguments["b"].T
        return Task(lambda: module.relu_squared_forward(a @ b), lambda y: {"y": y})

    return prepare


def _residual_rms(module: Any, binding: Binding) -> Prepare:
    def prepare(arguments: Arguments) -> Task:
        a, b, c = arguments["a"], arguments["b"].T, arguments["c"]
        w = arguments["w"].to(c.dtype)
        return Task(
            lambda: module.fused_add_rms_norm_forward(a @ b, c, w, _EPS, 0.0, "llama"), lambda found: {"d": found[1]}
        )

    return prepare


def _residual_rms_bwd(module: Any, binding: Binding) -> Prepare:
    def prepare(arguments: Arguments) -> Task:
        import torch

        a, b, c = arguments["a"], arguments["b"], arguments["c"]
        w = arguments["w"].to(c.dtype)
        upstream = arguments.get("o")
        upstream = torch.zeros_like(c) if upstream is None else upstream
        _, _, rstd, *settings, mode = module.fused_add_rms_norm_forward(c, torch.zeros_like(c), w, _EPS, 0.0, "llama")
        return Task(lambda: module.fused_add_rms_norm_backward(a @ b, upstream, c, w, rstd, 0.0, mode, *settings, True))

    return prepare


def _rope(module: Any, binding: Binding) -> Prepare:
    """Two products, of the queries and of the keys, each half of the heads."""

    def prepare(arguments: Arguments) -> Task:
        import torch

        a, b, position = arguments["a"], arguments["b"], arguments["position"].long()
        width = 2 * arguments["cos"].shape[1]
        cos, sin = (arguments[n][position].repeat(1, 2)[None].to(a.dtype).contiguous() for n in ("cos", "sin"))
        heads = b.shape[0] // width
        parts = [x.contiguous().T for x in torch.split(b, [(heads - heads // 2) * width, heads // 2 * width])]

        def run() -> Any:
            q, k = ((a @ part).view(1, a.shape[0], -1, width).transpose(1, 2) for part in parts)
            return module.rope_forward(q, k, cos, sin)

        return Task(run)

    return prepare


def _cross_entropy(module: Any, binding: Binding) -> Prepare:
    def prepare(arguments: Arguments) -> Task:
        a, b, target = arguments["a"], arguments["b"], arguments["target"].long()
        return Task(lambda: module.fused_linear_cross_entropy_forward(a, b, target))

    return prepare


def _swiglu_bwd(module: Any, binding: Binding) -> Prepare:
    def prepare(arguments: Arguments) -> Task:
        import torch

        a, b, z = arguments["a"], arguments["b"], arguments["z"]
        saved = torch.cat((z[:, 0::2], z[:, 1::2]), 1).contiguous()

        def outputs(halves: Any) -> Outputs:
            gate, up = halves.chunk(2, 1)
            return {"dz": torch.stack((gate, up), -1).flatten(1)}

        return Task(lambda: module.swiglu_fused_gate_up_backward(saved, a @ b), outputs)

    return prepare


_PREPARE: dict[str, tuple[str, Callable[[Any, Binding], Prepare], str | None]] = {
    "swiglu": ("swiglu", _swiglu, "its z has all gates first"),
    "geglu_tanh": ("geglu", _geglu, "two products"),
    "linear_relu_sq": ("relu_squared", _relu_sq, None),
    "rmsnorm_swiglu": ("swiglu", _rmsnorm_swiglu, "normalises its input first"),
    "residual_rms": ("fused_add_rms_norm", _residual_rms, "h is normalised"),
    "residual_rms_bwd": ("fused_add_rms_norm", _residual_rms_bwd, "stores no normalised input"),
    "rope_position": ("rope", _rope, "two products; heads are turned by halves"),
    "cross_entropy": ("fused_linear_cross_entropy", _cross_entropy, "to the mean loss, in chunks"),
    "swiglu_bwd": ("swiglu", _swiglu_bwd, "stores no y"),
}
