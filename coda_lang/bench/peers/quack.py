"""QuACK (Dao-AILab): GEMMs with epilogues in CuTe DSL. Written for quack-kernels 0.6.5 with nvidia-cutlass-dsl 4.7.0.

Its weights are [K, N] by shape, of either memory order, so b [N, K] is passed as a view. It tunes itself at the first
call of a shape unless told not to. Gated activations take interleaved pairs of columns, as the programs here do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial as partial_of
from importlib import import_module
from typing import Any

from coda_lang.bench.peers import AbsentError, Arguments, Options, Outputs, Peer, Task
from coda_lang.binding import Binding
from coda_lang.ir.program import Kernel

Prepare = Callable[[Arguments], Task]

ACTIVATIONS = {"relu": "relu", "relu_sq": "relu_sq", "silu": "silu", "gelu_tanh": "gelu_tanh_approx"}
GATED = {"swiglu": "swiglu", "reglu": "reglu", "glu": "glu", "geglu_tanh": "geglu"}


def find(binding: Binding, library: str, options: Options) -> Peer:
    """Raises AbsentError without the package, or for a kernel that nothing of it matches."""
    if library != "torch":
        raise AbsentError("it takes torch tensors on a GPU")
    try:
        gemm = import_module("quack.gemm_interface")
    except ImportError as error:
        raise AbsentError(f"not installed (quack-kernels): {error}") from None
    kernel = binding.kernel
    given = {p.name for p in kernel.params}
    asked = {o.name for o in kernel.outputs}
    name = kernel.name
    tuned = options.tuned
    if name in ("linear", "linear_dx", "linear_dw") and not given & {"bias", "alpha", "beta"}:
        return Peer(_linear(kernel, gemm, "c" in given, tuned))
    if name.startswith("linear_") and name[7:] in ACTIVATIONS and "bias" not in given:
        return Peer(_activation(gemm, ACTIVATIONS[name[7:]], "z" in asked, tuned))
    if name in GATED and "bias" not in given:
        return Peer(_activation(gemm, GATED[name], "z" in asked, tuned))
    if name == "rmsnorm_linear":
        return Peer(_scaled(gemm, None, False, tuned))
    if name == "rmsnorm_swiglu":
        return Peer(_scaled(gemm, "swiglu", "z" in asked, tuned))
    if name == "residual_rms":
        return Peer(_residual_rms(gemm, tuned))
    if name in ("rope", "rope_position") and "rotated" not in given:
        return Peer(_rope(name, tuned), "the table is interleaved, and of the rows' own order")
    if name == "cross_entropy" and asked <= {"z", "lse", "t"} and "cap" not in given:
        return Peer(_cross_entropy("z" in asked, tuned), "with the sum over its partials")
    if name == "swiglu_bwd" and asked <= {"y", "dz", "zdz"}:
        return Peer(_swiglu_bwd(gemm, tuned), "its row statistic is Σ y·dy")
    raise AbsentError("nothing of it stores the same outputs")


def _operands(kernel: Kernel, arguments: Arguments) -> tuple[Any, Any]:
    product = kernel.product
    assert product is not None
    a, b = arguments[product.a], arguments[product.b]
    return a.mT if product.a_transposed else a, b.mT if product.b_transposed else b


def _linear(kernel: Kernel, gemm: Any, residual: bool, tuned: bool) -> Prepare:
    def prepare(arguments: Arguments) -> Task:
        a, b = _operands(kernel, arguments)
        name = kernel.outputs[0].name
        if residual:
            return Task(lambda: gemm.gemm_add(a, b, arguments["c"], tuned=tuned), lambda d: {name: d})
        return Task(lambda: gemm.gemm(a, b, tuned=tuned), lambda d: {name: d})

    return prepare


def _activation(gemm: Any, activation: str, keep: bool, tuned: bool) -> Prepare:
    def prepare(arguments: Arguments) -> Task:
        a, b = arguments["a"], arguments["b"].mT
        return Task(
            lambda: gemm.gemm_act(a, b, activation=activation, store_preact=keep, tuned=tuned),
            lambda found: {"z": found[0], "y": found[1]} if keep else {"y": found[1]},
        )

    return prepare


def _scaled(gemm: Any, activation: str | None, keep: bool, tuned: bool) -> Prepare:
    """Rows scaled after the product: (a @ b.T)·rstd, and what follows."""

    def prepare(arguments: Arguments) -> Task:
        a, b, rstd = arguments["a"], arguments["b"].mT, arguments["rstd"]

        def outputs(found: Any) -> Outputs:
            z, y = found
            return {"d": y} if activation is None else {"z": z, "y": y} if keep else {"y": y}

        return Task(
            lambda: gemm.gemm_norm_act(a, b, rstd=rstd, activation=activation, store_preact=keep, tuned=tuned), outputs
        )

    return prepare


def _residual_rms(gemm: Any, tuned: bool) -> Prepare:
    """`gemm_rms` sums its partials in a second kernel; the function below it leaves them, as `residual_rms` does."""
    partial = getattr(gemm, "_gemm_rms_call", None)

    def prepare(arguments: Arguments) -> Task:
        import torch

        a, b, c, w = arguments["a"], arguments["b"].mT, arguments["c"], arguments["w"]
        d, h = torch.empty_like(c), torch.empty_like(c)
        if partial is None:
            run = partial_of(gemm.gemm_rms, a, b, C=c, norm_weight=w, out=h, premult_out=d, tuned=tuned)
        else:
            run = partial_of(partial, a, b, h, c, w, d, dynamic_scheduler=False, tuned=tuned)
        return Task(run, lambda _: {"d": d, "h": h})

    return prepare


def _rope(name: str, tuned: bool) -> Prepare:
    module = import_module("quack.epilogue.library" if name == "rope" else "quack.epilogue.rotary")

    def prepare(arguments: Arguments) -> Task:
        import torch

        a, b, cos, sin = arguments["a"], arguments["b"].mT, arguments["cos"], arguments["sin"]
        if name == "rope":
            whole = torch.stack((cos, sin), -1).flatten(1).contiguous()
            return Task(lambda: module.rope_epi(a, b, table=whole, tuned=tuned), lambda found: {"y": found["D"]})
        position = arguments["position"].long()
        table = torch.stack((cos[position], sin[position]), -1).flatten(1).contiguous()
        bias = torch.zeros(1, b.shape[1], device=a.device)  # it has no such epilogue without one
        return Task(
            lambda: module.rope_table_epi(a, b, cs=table, bias=bias, tuned=tuned), lambda found: {"y": found["D"]}
        )

    return prepare


def _cross_entropy(logits: bool, tuned: bool) -> Prepare:
    library = import_module("quack.epilogue.library")

    def prepare(arguments: Arguments) -> Task:
        a, b, target = arguments["a"], arguments["b"].mT, arguments["target"]
        return Task(
            lambda: library.lse_target_epi(a, b, store_d=logits, target=target, tuned=tuned),
            # The logit of an ignored target is left unwritten, so it is not compared.
            lambda found: {"lse": found["lse"], **({"z": found["D"]} if logits else {})},
        )

    return prepare


def _swiglu_bwd(gemm: Any, tuned: bool) -> Prepare:
    def prepare(arguments: Arguments) -> Task:
        a, b, z = arguments["a"], arguments["b"], arguments["z"]
        return Task(
            lambda: gemm.gemm_dact(a, b, z, activation="swiglu", colvec_reduce=True, tuned=tuned),
            lambda found: {"dz": found[0], "y": found[1]},
        )

    return prepare
