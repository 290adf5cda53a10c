"""Every file of `programs/`: it loads, says what it is, has the names that callers rely on, and runs on drawn data."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import PROGRAMS

import coda_lang as coda
from coda_lang.ir.numerics import STORAGE
from coda_lang.parser.format import format_text

FILES = sorted(PROGRAMS.glob("*.coda"))
ACTIVATIONS = ("relu", "relu_sq", "gelu", "gelu_tanh", "silu", "quick_gelu")
FAMILIES = ("linear_act", "act_bwd", "act_bwd_map", "reduces")  # many kernels of equal rank
LENGTHS = {"M": 6, "N": 24, "K": 8, "H": 3, "D": 8, "P": 4, "A": 4, "F": 10, "Q": 24, "C": 8, "V": 24}

# The programs page of the design: what checks outside this repository call.
EXPECTED = {
    "linear": {"linear": "a b c bias alpha beta -> d"},
    "linear_act": {f"linear_{act}": "a b bias -> z y" for act in ACTIVATIONS},
    "residual_rms": {"residual_rms": "a b c w -> d sq h", "rstd_from_squares": "sq eps -> rstd"},
    "rmsnorm_linear": {"rmsnorm_linear": "a b rstd -> d"},
    "rmsnorm_swiglu": {"rmsnorm_swiglu": "a b rstd -> z y"},
    "swiglu": dict.fromkeys(("swiglu", "geglu", "geglu_tanh", "reglu", "glu"), "a b bias -> z y")
    | {"swiglu_oai": "a b bias alpha limit -> z y"},
    "rope": {"rope": "a b cos sin -> y", "rope_position": "a b cos sin position rotated -> y"},
    "rmsnorm_rope": {"rmsnorm_rope": "a b rstd cos sin -> z y"},
    "cross_entropy": {
        "cross_entropy": "a b target ignore_index cap -> z lse t zsum",
        "cross_entropy_kept": "a b target ignore_index cap -> kept lse t zsum",
        "lse_from_partials": "lse -> lse",
        "loss_from_lse": "lse t target zmean eps zeta ignore_index -> loss losses",
    },
    "rmsnorm_cross_entropy": {
        "rmsnorm_cross_entropy": "a b rstd target ignore_index cap -> z lse t zsum",
        "rmsnorm_cross_entropy_kept": "a b rstd target ignore_index cap -> kept lse t zsum",
    },
    "layernorm_linear": {
        "layernorm_linear": "a b mean rstd colsum bias -> d",
        "mean_rstd": "count mean m2 eps -> mean rstd",
    },
    "qk_norm": {"qk_norm": "a b -> z sq"},
    "scaled": {"scaled": "x scale -> y y16"},
    "quantize": {"quantize": "a b scale -> d absmax", "absmax_scale": "absmax previous limit -> scale"},
    "residual_rms_bwd": {
        "residual_rms_bwd": "a b c rstd w zdz o -> o_new c_out dw",
        "zdz_from_partials": "zdz -> zdz",
    },
    "swiglu_bwd": {"swiglu_bwd": "a b z -> y dz zdz dbias"},
    "rope_bwd": {"rope_bwd": "a b y cos sin -> dz zdz", "rope_bwd_map": "dy y cos sin -> dz zdz"},
    "cross_entropy_bwd": {"cross_entropy_bwd": "a b lse target dloss ignore_index eps zeta cap -> dz"},
    "cross_entropy_bwd_map": {
        "cross_entropy_bwd_map": "x lse target dloss ignore_index eps zeta cap rstd -> da da16 zdz",
    },
    "linear_dw": {"linear_dw": "a b -> dw", "linear_dw_accumulate": "a b dw -> ", "linear_dw_f32": "a b -> dw"},
    "act_bwd": {f"{act}_bwd": "a b z -> dz dbias y zdz" for act in ACTIVATIONS},
    "reduces": {"sum_partials": "partials -> total", "sum_partials_m": "partials -> total"},
}  # fmt: skip


@pytest.mark.parametrize("file", FILES, ids=lambda p: p.stem)
def test_file(file: Path) -> None:
    module = coda.load(file)
    assert not module.warnings
    assert module.doc
    assert len(module.doc.splitlines()[0]) < 120
    assert all(module[name].doc for name in module)
    defined = re.findall(r"^(?:kernel|map|reduce|block) (\w+)", file.read_text(), re.M)
    if defined and file.stem not in FAMILIES:
        assert defined[0] == file.stem  # a file's main kernel has its name


@pytest.mark.parametrize("file", FILES, ids=lambda p: p.stem)
def test_is_formatted(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert format_text(text) == text


@pytest.mark.parametrize("file", EXPECTED)
def test_names(file: str) -> None:
    module = coda.load(PROGRAMS / f"{file}.coda")
    for name, expected in EXPECTED[file].items():
        ir = module[name].ir
        assert f"{' '.join(p.name for p in ir.params)} -> {' '.join(o.name for o in ir.outputs)}" == expected


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("file", FILES, ids=lambda p: p.stem)
def test_runs(file: Path, dtype: str) -> None:
    """All outputs, with and without the optional inputs; nothing is NaN and nothing is left unwritten."""
    module = coda.load(file)
    for name in module:
        program = module[name]
        everything = [o.name for o in program.ir.outputs]
        for optional in (False, True):
            args = arguments(program, dtype, optional)
            got = program.interpret(**args, outputs=everything or None, check=True, tile=(4, 8))
            for output, x in got.items():
                assert not np.isnan(x.astype(np.float64)).any(), f"{name}: {output}"


@pytest.mark.parametrize("axis", ["M", "K"])
@pytest.mark.parametrize("file", FILES, ids=lambda p: p.stem)
def test_empty(file: Path, axis: str) -> None:
    """No rows: empty results. Nothing to sum in the product: the epilogue of zero."""
    module = coda.load(file)
    for name in module:
        program = module[name]
        if axis not in program.ir.axes or program.kind == "reduce":
            continue
        args = arguments(program, "bf16", True, LENGTHS | {axis: 0})
        tile = {} if program.kind == "block" else {"tile": (4, 8)}  # the outputs of a block do not depend on it
        shapes = program.out_shapes(**args, **tile)
        got = program.interpret(**args, tile=(4, 8))
        for output, shape in shapes.items():
            assert got[output].shape == shape.shape
            assert output == "loss" or not np.isnan(got[output].astype(np.float64)).any()  # the mean of no rows is NaN


def arguments(program: Any, dtype: str, optional: bool, lengths: dict[str, int] = LENGTHS) -> dict[str, Any]:
    """Data drawn from a program's domains. An axis that no shape fixes is passed by name."""
    ir = program.ir
    rng = np.random.default_rng(0)
    fixed = {d.axis for p in ir.params for d in p.dims if not d.tiled}
    args: dict[str, Any] = {axis: lengths[axis] for axis in ir.axes if axis not in fixed}
    for p in ir.params:
        if p.default is not None and not optional:
            continue
        shape = tuple(3 if d.tiled else int(d.coef * lengths[d.axis or "M"]) for d in p.dims)
        if isinstance(p.dtype, str):
            choices = next(q.choices for q in ir.dtypes if q.name == p.dtype)
            storage = STORAGE[dtype if choices[0].kind == "float" else "i64"]
        else:
            storage = STORAGE[p.dtype.name]
        if storage.kind == "i":
            high = lengths["P"] if p.name == "position" else lengths["N"]
            drawn = rng.integers(0, high, shape).astype(storage)
            args[p.name] = {"ignore_index": -100, "rotated": 8}.get(p.name, drawn)
            continue
        x = rng.standard_normal(shape)
        if p.domain is not None:
            x = np.abs(x) + 0.1
        args[p.name] = float(x) if p.host else x.astype(storage)
    return args
