"""The reduces on their own: any number of partials, and the values at the edges."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check, load, normal, wide


@pytest.mark.parametrize("tiles", [1, 2, 17])
@pytest.mark.parametrize("m", [1, 5, 130])
def test_sums(m: int, tiles: int) -> None:
    rng = np.random.default_rng(1)
    rows, columns = normal(rng, m, tiles), normal(rng, tiles, m)
    check("reduces", "sum_partials", {"partials": rows}, {"total": wide(rows).sum(1)})
    check("reduces", "sum_partials_m", {"partials": columns}, {"total": wide(columns).sum(0)})
    check("reduces", "mean_from_partials", {"partials": rows, "N": 100}, {"mean": wide(rows).sum(1) / 100})
    check("reduces", "rstd_from_squares", {"sq": rows**2, "N": 100, "eps": 1e-6},
          {"rstd": (wide(rows**2).sum(1) / 100 + 1e-6).rsqrt()})  # fmt: skip
    check("reduces", "lse_from_partials", {"lse": rows}, {"lse": wide(rows).logsumexp(1)})


def test_unequal_tiles_are_weighted_by_their_count() -> None:
    rng = np.random.default_rng(2)
    x = (5 + rng.standard_normal((7, 100))).astype(np.float32)
    parts = np.split(x.astype(np.float64), [3, 40, 41], axis=1)
    given = {
        "count": np.stack([np.full(7, p.shape[1]) for p in parts], 1).astype(np.float32),
        "mean": np.stack([p.mean(1) for p in parts], 1).astype(np.float32),
        "m2": np.stack([p.var(1) * p.shape[1] for p in parts], 1).astype(np.float32),
    }
    exact = {"mean": np.stack([p.mean(1) for p in parts], 1), "m2": np.stack([p.var(1) * p.shape[1] for p in parts], 1)}
    wide_x = wide(x)
    reference = {"mean": wide_x.mean(1), "rstd": (wide_x.var(1, correction=0) + 1e-5).rsqrt()}
    check("reduces", "mean_rstd", {**given, "eps": 1e-5}, reference, exact)


def test_a_row_of_zeros() -> None:
    module = load("reduces")
    sq = np.zeros((1, 3), np.float32)
    assert module.rstd_from_squares(sq=sq, N=12, eps=0.0).rstd == np.inf
    assert module.rstd_from_squares(sq=sq, N=12, eps=1.0).rstd == 1


def test_logsumexp_at_infinity() -> None:
    inf, nan = np.inf, np.nan
    lse = np.array([[-inf, -inf], [-inf, 3], [inf, 0], [inf, -inf], [nan, 0], [nan, inf], [100, 100]], np.float32)
    got = load("reduces").lse_from_partials(lse=lse).lse
    np.testing.assert_allclose(got, [-inf, 3, inf, inf, nan, nan, 100 + np.log(2)], rtol=1e-6)


def test_loss_from_one_row() -> None:
    loss = load("reduces").loss_from_lse
    one = {"lse": np.float32([2]), "t": np.float32([0.5]), "target": np.array([0])}
    assert loss(**one).loss.shape == ()
    assert loss(**one).loss == 1.5
    assert loss(**one, zeta=0.25).loss == 2.5
    assert loss(**one, eps=0.5, zmean=np.float32([1])).loss == 1.25
