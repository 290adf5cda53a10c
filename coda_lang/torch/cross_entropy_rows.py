"""The loss of each row of a head: of logits that are not written, or of those that are kept for their gradient."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from coda_lang.torch import calls


class RowLosses(NamedTuple):
    """The losses and the logits' logsumexp, f32[M] each; the logits before the cap, f16[M, V]."""

    losses: Tensor
    lse: Tensor
    kept: Tensor | None


def row_losses(
    x: Tensor, weight: Tensor, rstd: Tensor | None, target: Tensor,
    *, ignore_index: int, eps: float, zeta: float, cap: float, keep: bool = False,
) -> RowLosses:  # fmt: skip
    """Of x [M, K] and weight [V, K]; `keep` rounds the logits to f16 first."""
    file = "cross_entropy" if rstd is None else "rmsnorm_cross_entropy"
    asked = [*(["kept"] if keep else []), "lse", "t", *(["zsum"] if eps else [])]
    name = f"{file}_kept" if keep else file
    out = calls.run(
        file, name, asked, a=x, b=weight, rstd=rstd, target=target, ignore_index=ignore_index, cap=cap or None
    )  # fmt: skip
    lse = calls.run("reduces", "lse_from_partials", ["lse"], lse=out.lse).lse
    zmean = None
    if eps:
        zmean = calls.run("reduces", "mean_from_partials", ["mean"], partials=out.zsum, N=weight.shape[0]).mean
    options = {"target": target, "ignore_index": ignore_index, "eps": eps or None, "zeta": zeta or None}
    losses = calls.run("reduces", "loss_from_lse", ["losses"], lse=lse, t=out.t, zmean=zmean, **options).losses
    return RowLosses(losses, lse, out.kept if keep else None)
