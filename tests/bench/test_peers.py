"""The adapters of other libraries, on the CPU: modules stand in that have the libraries' signatures and documented
meaning, so that what an adapter passes, and how it names what comes back, is held to the interpreter.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
from test_torch_reference import KERNELS, tensors

from coda_lang.bench.peers import AbsentError, Options, Peer, find
from coda_lang.call import Call, Caller
from coda_lang.data import draw
from coda_lang.ir.numerics import from_storage
from coda_lang.ir.program import Kernel
from coda_lang.program import Program

F = torch.nn.functional
Tensor = torch.Tensor


def product(a: Tensor, b: Tensor) -> Tensor:
    assert a.shape[1] == b.shape[0], "weights are [K, N]"
    return a.float() @ b.float()


def gated(activation: str, z: Tensor) -> Tensor:
    g, u = z[:, 0::2], z[:, 1::2]
    act = {"swiglu": F.silu, "reglu": F.relu, "glu": torch.sigmoid, "geglu": lambda x: F.gelu(x, approximate="tanh")}
    return act[activation](g) * u


PLAIN = {
    None: lambda x: x,
    "silu": F.silu,
    "relu": F.relu,
    "relu_sq": lambda x: F.relu(x).square(),
    "gelu_tanh_approx": lambda x: F.gelu(x, approximate="tanh"),
}


class Quack:
    """quack.gemm_interface of 0.6.5: the functions that the adapter calls, by their signatures and references."""

    tuned: list[bool]

    def __init__(self) -> None:
        self.tuned = []

    def gemm(self, A: Tensor, B: Tensor, *, tuned: bool = True) -> Tensor:
        self.tuned.append(tuned)
        return product(A, B).to(A.dtype)

    def gemm_add(self, A: Tensor, B: Tensor, C: Tensor, *, tuned: bool = True) -> Tensor:
        return (product(A, B) + C.float()).to(A.dtype)

    def gemm_act(
        self, A: Tensor, B: Tensor, *, activation: str | None = None, store_preact: bool = True, tuned: bool = True
    ) -> tuple[Tensor | None, Tensor]:
        z = product(A, B)
        y = PLAIN[activation](z) if activation in PLAIN else gated(str(activation), z)
        return z.to(A.dtype) if store_preact else None, y.to(A.dtype)

    def gemm_norm_act(
        self,
        A: Tensor,
        B: Tensor,
        *,
        rstd: Tensor,
        activation: str | None = None,
        store_preact: bool = False,
        tuned: bool = True,
    ) -> tuple[Tensor | None, Tensor]:
        z = product(A, B) * rstd[:, None]
        y = PLAIN[activation](z) if activation in PLAIN else gated(str(activation), z)
        return z.to(A.dtype) if store_preact else None, y.to(A.dtype)

    def gemm_rms(
        self,
        A: Tensor,
        B: Tensor,
        *,
        C: Tensor,
        norm_weight: Tensor,
        out: Tensor,
        premult_out: Tensor,
        eps: float = 1e-6,
        tuned: bool = True,
    ) -> tuple[Tensor, Tensor]:
        d = product(A, B) + C.float()
        premult_out.copy_(d)
        out.copy_(d * norm_weight)
        return out, torch.rsqrt(d.square().mean(-1) + eps)

    def gemm_dact(
        self,
        A: Tensor,
        B: Tensor,
        PreAct: Tensor,
        *,
        activation: str,
        colvec_reduce: bool = False,
        tuned: bool = True,
    ) -> tuple[Tensor, ...]:
        dy = product(A, B)
        z = PreAct.float().requires_grad_()
        y = gated(activation, z)
        (dz,) = torch.autograd.grad(y, z, dy)
        return dz.to(A.dtype), y.detach().to(A.dtype), (y.detach() * dy).sum(-1)


class QuackWithPartials(Quack):
    def _gemm_rms_call(
        self,
        A: Tensor,
        B: Tensor,
        out: Tensor,
        C: Tensor,
        norm_weight: Tensor,
        premult_out: Tensor,
        *,
        dynamic_scheduler: bool,
        tuned: bool,
    ) -> Tensor:
        self.gemm_rms(A, B, C=C, norm_weight=norm_weight, out=out, premult_out=premult_out)
        return torch.zeros(A.shape[0], 1)


def turned(z: Tensor, table: Tensor) -> Tensor:
    x, y, cos, sin = z[:, 0::2], z[:, 1::2], table[:, 0::2], table[:, 1::2]
    return torch.stack((x * cos - y * sin, x * sin + y * cos), -1).flatten(1)


def epilogues() -> types.SimpleNamespace:
    """quack.epilogue.library and quack.epilogue.rotary."""

    def rope_epi(A: Tensor, B: Tensor, *, table: Tensor, tuned: bool = True) -> dict[str, Tensor]:
        return {"D": turned(product(A, B), table).to(A.dtype)}

    def rope_table_epi(A: Tensor, B: Tensor, *, cs: Tensor, bias: Tensor, tuned: bool = True) -> dict[str, Tensor]:
        heads = B.shape[1] // cs.shape[1]
        assert bias.shape == (1, B.shape[1])
        return {"D": turned(product(A, B) + bias, cs.repeat(1, heads)).to(A.dtype)}

    def lse_target_epi(
        A: Tensor, B: Tensor, *, store_d: bool = True, target: Tensor, tuned: bool = True
    ) -> dict[str, Tensor]:
        z = product(A, B)
        return {"lse": torch.logsumexp(z, -1), **({"D": z.to(A.dtype)} if store_d else {})}

    return types.SimpleNamespace(rope_epi=rope_epi, rope_table_epi=rope_table_epi, lse_target_epi=lse_target_epi)


def norms() -> types.SimpleNamespace:
    """liger_kernel.ops.fused_add_rms_norm and .rms_norm of 0.8.5."""

    def rms_norm_forward(X: Tensor, W: Tensor, eps: float, offset: float, mode: str, row_mode: Any) -> tuple[Any, ...]:
        rstd = torch.rsqrt(X.float().square().mean(-1) + eps)
        return (X.float() * rstd[:, None] * W).to(X.dtype), X, rstd, 1024, 8, 0

    def fused_add_rms_norm_forward(
        X: Tensor, R: Tensor, W: Tensor, eps: float, offset: float, mode: str
    ) -> tuple[Any, ...]:
        S = (X.float() + R.float()).to(X.dtype)
        rstd = torch.rsqrt(S.float().square().mean(-1) + eps)
        return (S.float() * rstd[:, None] * W).to(X.dtype), S, rstd, 1024, 8, 2, 0

    def fused_add_rms_norm_backward(
        dY: Tensor, dS: Tensor, S: Tensor, W: Tensor, rstd: Tensor, offset: float, mode: int, block: int, warps: int,
        stages: int, in_place: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        assert (mode, block, warps, stages) == (0, 1024, 8, 2)
        assert dY.shape == dS.shape == S.shape
        assert rstd.shape == (S.shape[0],)
        return dY, dY, W

    return types.SimpleNamespace(**{k: v for k, v in locals().items() if callable(v)})


def gates() -> types.SimpleNamespace:
    """liger_kernel.ops.swiglu, .geglu, .relu_squared, .rope and .fused_linear_cross_entropy."""

    def swiglu_fused_gate_up_forward(y: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = y.chunk(2, 1)
        return y, F.silu(gate.float()).to(y.dtype) * up

    def swiglu_fused_gate_up_backward(y: Tensor, dc: Tensor, in_place: bool = False) -> Tensor:
        wide = y.float().requires_grad_()
        gate, up = wide.chunk(2, 1)
        return torch.autograd.grad(F.silu(gate) * up, wide, dc.float())[0].to(y.dtype)

    def geglu_forward(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return a, b, F.gelu(a, approximate="tanh") * b

    def relu_squared_forward(X: Tensor) -> Tensor:
        return F.relu(X).square()

    def rope_forward(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        assert q.shape[0] == k.shape[0] == cos.shape[0] == 1
        assert q.shape[2] == k.shape[2] == cos.shape[1] == sin.shape[1]
        assert q.shape[3] == cos.shape[2]
        return q, k, cos, sin

    def fused_linear_cross_entropy_forward(x: Tensor, weight: Tensor, target: Tensor) -> tuple[Any, ...]:
        return F.cross_entropy(x.float() @ weight.float().T, target), None

    return types.SimpleNamespace(**{k: v for k, v in locals().items() if callable(v)})


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Quack:
    """Both libraries, standing in."""
    quack = QuackWithPartials()
    packages = {"quack": types.ModuleType("quack"), "liger_kernel": types.ModuleType("liger_kernel")}
    modules: dict[str, Any] = {"quack.gemm_interface": quack}
    modules |= dict.fromkeys(("quack.epilogue.library", "quack.epilogue.rotary"), epilogues())
    modules |= dict.fromkeys(("liger_kernel.ops.rms_norm", "liger_kernel.ops.fused_add_rms_norm"), norms())
    files = ("swiglu", "geglu", "relu_squared", "rope", "fused_linear_cross_entropy")
    modules |= {f"liger_kernel.ops.{f}": gates() for f in files}
    for name in ("quack.epilogue", "liger_kernel.ops"):
        packages[name] = types.ModuleType(name)
    for name, module in {**packages, **modules}.items():
        monkeypatch.setitem(sys.modules, name, module)
    return quack


def made(name: str, outputs: str = "", inputs: str = "") -> tuple[Call[Kernel], dict[str, Any]]:
    kernel = KERNELS[name]
    lengths = {"M": 24, "N": 64, "K": 16, "D": 16, "P": 24}
    lengths = {n: x for n, x in lengths.items() if n in kernel.axes}
    given = draw(kernel, sizes=lengths, optional=inputs.split()).arguments
    own = {n: x.copy() if isinstance(x, np.ndarray) else x for n, x in given.items()}
    return Caller(kernel).call(own, outputs.split() or None, None), given


def agree(peer: Peer, call: Call[Kernel], given: dict[str, Any]) -> set[str]:
    """Run the peer, and hold what it shares with the kernel to the interpreter; its names."""
    task = peer.prepare(tensors(given))
    found = task.outputs(task.run())
    tile = (call.binding.length(call.kernel.rows or call.kernel.outputs[0].dims[0]), 256)  # one tile for each row
    results = Program(KERNELS[call.kernel.name]).interpret(
        **given, tile=tile, outputs=[o.name for o in call.kernel.outputs]
    )
    for name, x in found.items():
        want = from_storage(results[name]).reshape(x.shape)
        error = np.linalg.norm(x.float().numpy() - want) / np.linalg.norm(want)
        assert error < 1e-2, f"{name}: {error}"
    return set(found)


QUACK = [
    ("linear", "", "", {"d"}),
    ("linear", "", "c", {"d"}),
    ("linear_dx", "", "", {"dx"}),
    ("linear_dw", "", "", {"dw"}),
    ("linear_silu", "y", "", {"y"}),
    ("linear_relu", "z y", "", {"z", "y"}),
    ("linear_relu_sq", "y", "", {"y"}),
    ("linear_gelu_tanh", "z y", "", {"z", "y"}),
    ("swiglu", "y", "", {"y"}),
    ("reglu", "z y", "", {"z", "y"}),
    ("glu", "y", "", {"y"}),
    ("geglu_tanh", "y", "", {"y"}),
    ("rmsnorm_linear", "", "", {"d"}),
    ("rmsnorm_swiglu", "", "", {"z", "y"}),
    ("rmsnorm_swiglu", "y", "", {"y"}),
    ("residual_rms", "", "", {"d", "h"}),
    ("rope", "", "", {"y"}),
    ("rope_position", "", "", {"y"}),
    ("cross_entropy", "lse t", "", {"lse"}),
    ("cross_entropy", "z lse t", "", {"lse", "z"}),
    ("swiglu_bwd", "y dz zdz", "", {"y", "dz"}),
]


@pytest.mark.parametrize(("name", "outputs", "inputs", "shared"), QUACK)
def test_quack(installed: Quack, name: str, outputs: str, inputs: str, shared: set[str]) -> None:
    call, given = made(name, outputs, inputs)
    assert agree(find("quack", call.binding, "torch"), call, given) == shared


def test_quack_without_its_private_function(installed: Quack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "quack.gemm_interface", Quack())  # type: ignore[arg-type]
    call, given = made("residual_rms")
    assert agree(find("quack", call.binding, "torch"), call, given) == {"d", "h"}


def test_quack_is_told_not_to_tune(installed: Quack) -> None:
    call, given = made("linear")
    for tuned in (True, False):
        agree(find("quack", call.binding, "torch", Options(tuned=tuned)), call, given)
    assert installed.tuned == [True, False]


LIGER = [
    ("swiglu", "y", {"y"}),
    ("geglu_tanh", "y", {"y"}),
    ("linear_relu_sq", "y", {"y"}),
    ("rmsnorm_swiglu", "", set()),
    ("residual_rms", "", {"d"}),
    ("residual_rms_bwd", "", set()),
    ("rope_position", "", set()),
    ("cross_entropy", "lse t", set()),
    ("swiglu_bwd", "y dz zdz", {"dz"}),
]


@pytest.mark.parametrize(("name", "outputs", "shared"), LIGER)
def test_liger(installed: Quack, name: str, outputs: str, shared: set[str]) -> None:
    call, given = made(name, outputs)
    assert agree(find("liger", call.binding, "torch"), call, given) == shared


@pytest.mark.parametrize("name", ["linear", "linear_dx", "linear_dw", "rmsnorm_swiglu", "cross_entropy"])
def test_cublas_is_the_plain_product(name: str) -> None:
    call, given = made(name)
    task = find("cublas", call.binding, "torch").prepare(tensors(given))
    assert call.kernel.product is not None
    found = task.run()
    rows, cols = (call.binding.length(d) for d in (call.kernel.rows, call.kernel.cols) if d is not None)
    assert found.shape == (rows, cols)
    assert task.outputs(found) == {}
    if name.startswith("linear"):
        (want,) = Program(KERNELS[name]).interpret(**given)
        assert np.abs(found.float().numpy() - from_storage(want)).max() < 0.1


@pytest.mark.parametrize("name", ["rmsnorm_swiglu", "residual_rms", "rope_position"])
def test_torch_compile_has_all_outputs(name: str) -> None:
    call, given = made(name)
    peer = find("torch.compile", call.binding, "torch", Options(backend="eager"))
    assert agree(peer, call, given) == {o.name for o in call.kernel.outputs} - {"sq"} | (
        {"sq"} if name == "residual_rms" else set()
    )


@pytest.mark.parametrize(
    ("peer", "name", "outputs", "inputs", "reason"),
    [
        ("quack", "linear_gelu", "y", "", "nothing of it stores the same outputs"),
        ("quack", "linear", "", "bias", "nothing of it"),
        ("quack", "residual_rms_bwd", "", "", "nothing of it"),
        ("liger", "linear", "", "", "it has no kernel for this"),
        ("liger", "swiglu", "y", "bias", "it has no kernel for this"),
        ("liger", "cross_entropy", "z lse", "", "it does not keep the logits"),
        ("cublas", "qk_norm_map", "", "", "a map has no product"),
    ],
)
def test_who_is_absent(installed: Quack, peer: str, name: str, outputs: str, inputs: str, reason: str) -> None:
    call, _ = made(name, outputs, inputs)
    with pytest.raises(AbsentError, match=reason):
        find(peer, call.binding, "torch")


def test_what_is_not_installed_says_so() -> None:
    call, _ = made("swiglu", "y")
    for peer, package in (("quack", "quack-kernels"), ("liger", "liger-kernel")):
        if peer not in sys.modules and f"{peer}_kernel" not in sys.modules:
            with pytest.raises(AbsentError, match=rf"not installed \({package}\)"):
                find(peer, call.binding, "torch")
    with pytest.raises(AbsentError, match="torch sees no GPU here"):
        find("torch.compile", call.binding, "cupy")
