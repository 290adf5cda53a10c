"""Functions of other languages: what says the same here, or why nothing does."""

from __future__ import annotations

# Each right-hand side is an expression of a body with the values x, y and the numbers lo, hi.
WRITTEN = {
    "maximum": "max(x, y)",
    "minimum": "min(x, y)",
    "fmax": "max(x, y)",
    "fmin": "min(x, y)",
    "pow": "exp2(y * log2(x))",
    "clip": "clamp(x, lo, hi)",
    "hardtanh": "clamp(x, -1.0, 1.0)",
    "relu6": "clamp(x, 0.0, 6.0)",
    "hardsigmoid": "clamp(x / 6.0 + 0.5, 0.0, 1.0)",
    "hardswish": "x * clamp(x / 6.0 + 0.5, 0.0, 1.0)",
    "swish": "silu(x)",
    "mish": "x * tanh(softplus(x))",
    "elu": "select(x > 0.0, x, exp(x) - 1.0)",
    "leaky_relu": "max(x, 0.01 * x)",
    "logistic": "sigmoid(x)",
    "normcdf": "ndtr(x)",
    "norm_cdf": "ndtr(x)",
    "normal_cdf": "ndtr(x)",
    "logsigmoid": "-softplus(-x)",
    "neg": "-x",
    "negative": "-x",
    "rcp": "reciprocal(x)",
    "inv": "reciprocal(x)",
    "inverse": "reciprocal(x)",
    "sqr": "x * x",
    "square": "x * x",
    "sign": "select(x > 0.0, 1.0, select(x < 0.0, -1.0, 0.0))",
    "fabs": "abs(x)",
    "ln": "log(x)",
    "log10": "0.3010299956639812 * log2(x)",
    "expm1": "exp(x) - 1.0",
    "exp10": "exp2(3.321928094887362 * x)",
    "sinh": "0.5 * (exp(x) - exp(-x))",
    "cosh": "0.5 * (exp(x) + exp(-x))",
    "isnan": "x != x",
    "isinf": "abs(x) == inf",
}
_NEAREST = "x + 12582912.0 - 12582912.0"  # 1.5 · 2²³: the sum has no place left for a fraction
# Functions that a file can define; right while |x| is less than 2²².
DEFINED = {
    "floor": f"fn floor(x) {{ r = {_NEAREST}  return select(r > x, r - 1.0, r) }}",
    "ceil": f"fn ceil(x) {{ r = {_NEAREST}  return select(r < x, r + 1.0, r) }}",
    "trunc": f"fn trunc(x) {{ a = abs(x)  r = {_NEAREST.replace('x', 'a')}  f = select(r > a, r - 1.0, r)  "
    "return select(x < 0.0, -f, f) }",
    "rint": f"fn rint(x) = {_NEAREST}",
}
_TABLE = "there is no `{0}`: compute a table of it before, and pass that as an input"
_ROWS = "`{0}` needs whole rows, and a kernel sees one tile: store partials and combine them in a `reduce`"
_SAID = {
    **dict.fromkeys(("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "erfinv", "lgamma", "gamma"), _TABLE),
    **dict.fromkeys(("layernorm", "layer_norm", "rmsnorm", "rms_norm", "norm", "std", "var"), _ROWS),
    **dict.fromkeys(
        ("argmax", "argmin", "topk", "sort", "cumsum", "cumprod", "prod", "median"),
        "`{0}` is in none of the five classes: compute it outside",
    ),
    **dict.fromkeys(("dropout", "rand", "randn", "random"), "there are no random numbers: pass a mask as an input"),
    "where": "use select(condition, x, y)",
    "mean": "use sum(x, over=N) / N in a reduce",
    "softmax": "a softmax needs whole rows: use tile_logsumexp and a reduce",
    "logsumexp": "use tile_logsumexp(x, over=N) in a kernel",
    "cast": "use round<bf16>(x), or f32(i)",
    "transpose": "only operands of the product are transposed: `a.T @ b`",
    "float": "convert an integer or a bool with f32(i)",
    "int": "a float stays one: compare, or use idiv on integers",
}
# In a kernel or map, and in a reduce.
_PARTIAL = {
    "absmax": ("tile_absmax(x, over=N)", "max(abs(x), over=N)"),
    "amax": ("tile_max(x, over=N)", "max(x, over=N)"),
    "amin": ("tile_max(-x, over=N)", "min(x, over=N)"),
}


def advice(name: str, kind: str) -> str | None:
    """What to write for a function that the language lacks, in a kernel, map or reduce."""
    name = name.lower()
    if name in WRITTEN:
        return f"write `{WRITTEN[name]}`"
    if name in DEFINED:
        return f"for |x| < 2²²: `{DEFINED[name]}`"
    if kind == "reduce" and _SAID.get(name) == _ROWS:
        return "write it with `sum(…, over=N)`"
    if name in _PARTIAL:
        return f"write `{_PARTIAL[name][kind == 'reduce']}`"
    return _SAID[name].format(name) if name in _SAID else None
