"""Every error and warning code: the rule behind it, a program that breaks it, and the mended program.

`coda-run explain` and the reference page read this table; a test runs each pair of programs. The paper is CODA
(arXiv 2605.19269), whose five primitive classes (§3.1) the codes E03xx enforce.
"""

from __future__ import annotations

from dataclasses import dataclass

# A file that lies beside each example, for those about imports. The example itself is `program.coda`.
_CALLED = """\
map double<M, N>(x: f32[M, N]) -> (y: f32[M, N]) { y <- 2.0 * x }
map added<M, N>(x: f32[M, N], w: f32[N]) -> (y: f32[M, N]) { y <- x + w }
map squares<M, N>(x: f32[M, N]) -> (y: f32[M, N], s: f32[M, tiles(N)]) {
    y <- x * x
    s <- tile_sum(x, over=N)
}
map grow<M, N>(x: f32[M, N], inout sum: f32[M, N]) -> () { sum +<- x }
reduce total<M, N>(s: f32[M, tiles(N)]) -> (t: f32[M]) { t <- sum(s, over=tiles(N)) }
"""
BESIDE = {"act.coda": "fn swish(x) = x * sigmoid(x)\n", "steps.coda": _CALLED}


@dataclass(frozen=True)
class Code:
    """``wrong`` gives the code when it is checked and ``right`` nothing; None where no short program can show it."""

    title: str
    text: str
    wrong: str | None
    right: str | None


def _kernel(body: str, inputs: str = "", outputs: str = "d: bf16[M, N]", axes: str = "M, N, K") -> str:
    more = f", {inputs}" if inputs else ""
    return f"kernel k<{axes}>(a: bf16[M, K], b: bf16[N, K]{more}) -> ({outputs}) {{\n    {_lines(body)}\n}}\n"


def _map(body: str, inputs: str = "", outputs: str = "d: f32[M, N]", axes: str = "M, N") -> str:
    more = f", {inputs}" if inputs else ""
    return f"map m<{axes}>(x: f32[M, N]{more}) -> ({outputs}) {{\n    {_lines(body)}\n}}\n"


def _reduce(body: str, inputs: str = "p: f32[M, tiles(N)]", outputs: str = "d: f32[M]", axes: str = "M, N") -> str:
    return f"reduce r<{axes}>({inputs}) -> ({outputs}) {{\n    {_lines(body)}\n}}\n"


def _block(body: str, inputs: str = "x: f32[M, N]", outputs: str = "y: f32[M, N]", axes: str = "M, N") -> str:
    block = f"block b<{axes}>({inputs}) -> ({outputs}) {{\n    {_lines(body)}\n}}\n"
    return 'import "steps.coda" { added, double, grow, squares, total }\n\n' + block


def _lines(body: str) -> str:
    return body.replace("\n", "\n    ")


_DOUBLING = "fn level_17(x) = x\n" + "".join(
    f"fn level_{i}(x) = level_{i + 1}(x) * level_{i + 1}(x + {i}.5)\n" for i in range(16, 0, -1)
)
_NESTED = "-(" * 101

CODES: dict[str, Code] = {
    # -- text ------------------------------------------------------------------------------------------------------
    "E0001": Code(
        "not UTF-8",
        "A file is UTF-8 text, with or without a byte order mark. In a text given from Python, half of a surrogate "
        "pair is refused: it is no character, and no file could hold it.",
        None,
        None,
    ),
    "E0002": Code(
        "unexpected character",
        "No token begins with this character.",
        "fn square(x) = x ^ 2\n",
        "fn square(x) = x * x\n",
    ),
    "E0003": Code(
        "syntax",
        "The grammar has no place for this token here; the message names what it expected.",
        _map("y = 2 x\nd <- y"),
        _map("y = 2 * x\nd <- y"),
    ),
    "E0004": Code(
        "bracket without a partner",
        "Each bracket is closed by its own kind, and none is closed that was not opened.",
        "fn half(x) = (x / 2.0\n",
        "fn half(x) = (x / 2.0)\n",
    ),
    "E0005": Code(
        "nested too deep",
        "An expression is nested at most 100 deep, and at most 1000 together with the functions it calls. A sum of "
        "100 terms is nested too: it is added from the left.",
        f"fn f(x) = {_NESTED}x{')' * 101}\n",
        "fn f(x) = -x\n",
    ),
    "E0006": Code(
        "string not closed",
        'A string ends on its line; `"""` begins one that may span lines.',
        '"half of x\nfn half(x) = x / 2.0\n',
        '"half of x"\nfn half(x) = x / 2.0\n',
    ),
    "E0007": Code(
        "string that documents nothing",
        "A string documents the definition that follows it. The first of a file documents the file if another "
        "string, an import or a constant follows.",
        'fn half(x) = x / 2.0\n"half of x"\n',
        '"half of x"\nfn half(x) = x / 2.0\n',
    ),
    "E0008": Code(
        "keyword as a name",
        "The keywords `import as const fn kernel map reduce return inout in or and not true false round` name nothing.",
        _map("d <- x + in", "in: f32[M]"),
        _map("d <- x + input", "input: f32[M]"),
    ),
    "E0009": Code(
        "file too large",
        "A file has at most 4 MiB, so that every file is read in bounded time.",
        None,
        None,
    ),
    "E0010": Code(
        "name too long",
        "A name has at most 100 characters.",
        f"fn {'x' * 101}(x) = x\n",
        f"fn {'x' * 100}(x) = x\n",
    ),
    # -- names -----------------------------------------------------------------------------------------------------
    "E0101": Code(
        "unknown name",
        "A body sees the names bound above, the inputs, the axes (as their lengths) and the constants of the file. "
        "A function sees its arguments, constants and other functions, and not the kernel's names.",
        _map("d <- x * weight", "weights: f32[N]"),
        _map("d <- x * weights", "weights: f32[N]"),
    ),
    "E0102": Code(
        "name bound twice",
        "A name is bound once (the program is in SSA form). Inputs, axes, constants and arguments are bound names.",
        _map("y = x * 2.0\ny = y + 1.0\nd <- y"),
        _map("y = x * 2.0\nz = y + 1.0\nd <- z"),
    ),
    "E0103": Code(
        "unknown function",
        "Functions are the built-in operations, those defined with `fn` in this file, and imported ones. Kernels, maps "
        "and reduces are called from outside.",
        _map("d <- signoid(x)"),
        _map("d <- sigmoid(x)"),
    ),
    "E0104": Code(
        "defined twice",
        "Functions, constants, kernels, maps, reduces and imported names of a file all differ in name.",
        "const SCALE = 2.0\nfn SCALE(x) = 2.0 * x\n",
        "const SCALE = 2.0\nfn scale(x) = SCALE * x\n",
    ),
    "E0105": Code(
        "unknown axis",
        "Each axis is declared in `<…>`.",
        _map("d <- x + y", "y: f32[P]"),
        _map("d <- x + y", "y: f32[N]"),
    ),
    "E0106": Code(
        "unknown element type",
        "Element types are f32, f16, bf16, f8e4m3, f8e5m2, i32, i64, bool, and the type parameters of the signature. "
        "`round<…>` takes one of the float types.",
        _map("d <- x", outputs="d: fp16[M, N]"),
        _map("d <- x", outputs="d: f16[M, N]"),
    ),
    "E0107": Code(
        "output read",
        "A store does not bind a name: what later lines may read is the unrounded value, under a name of its own. The "
        "name of the output is free for it.",
        _map("z <- x * 2.0\ny <- relu(z)", outputs="z: bf16[M, N], y: bf16[M, N]"),
        _map("z = x * 2.0\nz <- z\ny <- relu(z)", outputs="z: bf16[M, N], y: bf16[M, N]"),
    ),
    "E0108": Code(
        "import not readable",
        "An import is a path relative to the importing file.",
        'import "acts.coda" { swish }\n' + _map("d <- swish(x)"),
        'import "act.coda" { swish }\n' + _map("d <- swish(x)"),
    ),
    "E0109": Code(
        "no such name in the import",
        "An imported file offers its functions, constants, kernels, maps and reduces, and what it imports itself.",
        'import "act.coda" { swich }\n' + _map("d <- swich(x)"),
        'import "act.coda" { swish }\n' + _map("d <- swish(x)"),
    ),
    "E0110": Code(
        "recursion",
        "Functions are inlined where they are called, so none may call itself, directly or by way of others.",
        "fn f(x) = x + g(x)\nfn g(x) = f(x / 2.0)\n",
        "fn f(x) = x + g(x)\nfn g(x) = x / 2.0\n",
    ),
    "E0111": Code(
        "import cycle",
        "Imports have no cycles.",
        'import "program.coda" { f }\nfn g(x) = f(x)\n',
        'import "act.coda" { swish }\nfn g(x) = swish(x)\n',
    ),
    "E0112": Code(
        "name with a fixed meaning",
        "`inf` and `nan`, element types and `_` cannot be given another meaning, nor can a file define a function or "
        "constant with the name of a built-in function. (A kernel may have such a name, and so may a local value.)",
        "fn exp(x) = x * x\n",
        "fn square(x) = x * x\n",
    ),
    "E0113": Code(
        "number out of range",
        "Whole numbers fit i64, others f32.",
        _map("d <- x * 1e39"),
        _map("d <- x * 1e38"),
    ),
    "E0114": Code(
        "program too large",
        "A kernel has at most 100000 operations once its functions are inlined. Functions that call each other twice "
        "double the number at each level.",
        _DOUBLING + _map("d <- level_1(x)"),
        "fn f(x) = x * x\n" + _map("d <- f(x)"),
    ),
    "E0115": Code(
        "imports nested too deep",
        "A chain of imports has at most 100 files.",
        None,
        None,
    ),
    "E0116": Code(
        "open integer expression too large",
        "Whole numbers and axis lengths serve as integers and as floats, and arithmetic on them stays open until it is "
        "used; at most 200 of them may be joined so. `f32(…)` says that a float is meant.",
        _map("a = N * N * N * N\nb = a * a * a * a\nc = b * b * b * b\ne = c * c * c * c\nd <- x * e"),
        _map("y = f32(N) * f32(N)\nd <- x * y"),
    ),
    "E0117": Code(
        "name of an option of calls",
        "Calls from Python take inputs and axes by name, beside their own options `outputs`, `out`, `check`, `tile`, "
        "`exact`, `acc`, `progress` and `config`, so no input and no axis has one of these names. (An output may, and "
        "so may a local value.)",
        _map("d <- x + out", "out: f32[M, N]"),
        _map("d <- x + old", "old: f32[M, N]"),
    ),
    # -- types and extents -----------------------------------------------------------------------------------------
    "E0201": Code(
        "number of arguments",
        "A call gives each argument once; only those of `fn` with a default may be left out.",
        _map("d <- clamp(x, 1.0)"),
        _map("d <- clamp(x, 0.0, 1.0)"),
    ),
    "E0202": Code(
        "wrong kind",
        "An operation takes floats, integers or bools, and nothing is converted silently: `f32(i)` makes a float of an "
        "integer or a bool.",
        _map("d <- x * exp(row())"),
        _map("d <- x * exp(f32(row()))"),
    ),
    "E0203": Code(
        "extents that do not meet",
        "Broadcasting is by axis name. Two values meet if their column extents are equal, if one has none, or if "
        "one is a head-wise part of the other.",
        _map("g, u = pairs(x)\nd <- g * x + u"),
        _map("g, u = pairs(x)\nd <- unpairs(g * u, u)"),
    ),
    "E0204": Code(
        "no such argument",
        "An argument given by name has one of the function's names, and is given once.",
        _map("d <- clamp(x, low=0.0, hi=1.0)"),
        _map("d <- clamp(x, lo=0.0, hi=1.0)"),
    ),
    "E0205": Code(
        "operands of different kinds",
        "Both operands of arithmetic, of a comparison and of `select` are floats, or both integers (or both bools, "
        "where a bool can be compared or selected).",
        _map("d <- x + row()"),
        _map("d <- x + f32(row())"),
    ),
    "E0206": Code(
        "number of results",
        "A call with several results is bound to as many names; `_` drops one.",
        _map("gate = pairs(x)\nd <- gate", outputs="d: f32[M, N/2]"),
        _map("gate, _ = pairs(x)\nd <- gate", outputs="d: f32[M, N/2]"),
    ),
    "E0207": Code(
        "not a constant",
        "Constants, defaults and the bounds of domains are arithmetic on numbers and constants defined above.",
        "const TWICE = 2.0 * ONE\nconst ONE = 1.0\n",
        "const ONE = 1.0\nconst TWICE = 2.0 * ONE\n",
    ),
    "E0208": Code(
        "not an extent",
        "An extent is an axis times a rational number (`N/2`, `3*N/2`), a whole number, or `tiles(X)`. `H * D` is one "
        "where an axis is split so.",
        _map("d <- x", "y: f32[M * N]"),
        _map("d <- x * y", "y: f32[M, N]"),
    ),
    "E0209": Code(
        "type that an input or output cannot have",
        "A scalar that the host passes is f32, i32 or i64; `[]` makes one on the device of any type. An output has "
        "extents. An `inout` input is a tensor of floats in a kernel or a map, without a default.",
        _map("d <- x * scale", "scale: bf16"),
        _map("d <- x * scale", "scale: f32"),
    ),
    "E0210": Code(
        "operand type",
        "The operands of the product are bf16, f16, f8e4m3 or f8e5m2 inputs of one type, neither optional nor inout: "
        "tensor cores multiply 16- and 8-bit floats.",
        "kernel k<M, N, K>(a: f32[M, K], b: f32[N, K]) -> (d: f32[M, N]) {\n    d <- a @ b.T\n}\n",
        "kernel k<M, N, K>(a: bf16[M, K], b: bf16[N, K]) -> (d: f32[M, N]) {\n    d <- a @ b.T\n}\n",
    ),
    "E0211": Code(
        "contracted extents differ",
        "The product sums over one extent that both operands have: the last of the left one, the first of the right "
        "one, after their `.T`.",
        _kernel("d <- a @ b"),
        _kernel("d <- a @ b.T"),
    ),
    "E0212": Code(
        "accumulator without two axes",
        "The row axis and the column axis of the product are named and differ, so that vectors are matched by name "
        "even if M = N.",
        "kernel gram<M, K>(a: bf16[M, K], b: bf16[M, K]) -> (d: f32[M, M]) {\n    d <- a @ b.T\n}\n",
        "kernel gram<M, N, K>(a: bf16[M, K], b: bf16[N, K]) -> (d: f32[M, N]) {\n    d <- a @ b.T\n}\n",
    ),
    "E0213": Code(
        "width that a tile cannot have",
        "Values and tensors are half, once or twice as wide as the accumulator (class 3: tiles).",
        _map("d <- x + y", "y: f32[M, 4*N]"),
        _map("d <- x + y", "y: f32[M, N]"),
    ),
    "E0214": Code(
        "default that does not fit",
        "The default of an optional input is a number of its kind.",
        _map("d <- x * f32(n)", "n: i32 = 0.5"),
        _map("d <- x * f32(n)", "n: i32 = 1"),
    ),
    "E0215": Code(
        "domain",
        "A domain is `in low..high` (the upper end is excluded), with `or scalar` behind it, or one bound: `> x`. A "
        "bound is a number, or an extent plus or minus a number.",
        _map("d <- x * onehot(target)", "target: i32[M] in 0..-N"),
        _map("d <- x * onehot(target)", "target: i32[M] in 0..N"),
    ),
    "E0216": Code(
        "axis of a reduction",
        "A reduction names the axis it runs along: `over=N`.",
        _map("d <- tile_sum(x)", outputs="d: f32[M, tiles(N)]"),
        _map("d <- tile_sum(x, over=N)", outputs="d: f32[M, tiles(N)]"),
    ),
    "E0217": Code(
        "type parameter",
        "The choices of a type parameter are all floats, all integers or bool, and its name is its own.",
        _map("d <- y", "y: T[M, N]", axes="M, N; T: bf16 | i32"),
        _map("d <- x + y", "y: T[M, N]", axes="M, N; T: bf16 | f16"),
    ),
    "E0218": Code(
        "split axis",
        "An axis is split into two different factors, `N = H * D`, one of them a name; a factor is not split again.",
        _map("d <- x * y", "y: f32[D]", axes="M, N = H * D * E"),
        _map("d <- x * y", "y: f32[D]", axes="M, N = H * D"),
    ),
    "E0219": Code(
        "type parameter that no input has",
        "A call binds a type parameter by the element type of an argument, so an input must have it.",
        _map("d <- x", outputs="d: T[M, N]", axes="M, N; T: bf16 | f16"),
        _map("d <- x + y", "y: T[N]", "d: T[M, N]", "M, N; T: bf16 | f16"),
    ),
    # -- the five classes ------------------------------------------------------------------------------------------
    "E0301": Code(
        "second product",
        "A kernel is one matrix product and its epilogue.",
        _kernel("h = a @ b.T\nd <- h * (a @ b.T)"),
        _kernel("h = a @ b.T\nd <- h * h"),
    ),
    "E0302": Code(
        "kernel without a product",
        "A kernel has a product of two of its inputs; an epilogue alone is a `map`.",
        "kernel k<M, N>(x: f32[M, N]) -> (d: f32[M, N]) {\n    d <- exp(x)\n}\n",
        "map m<M, N>(x: f32[M, N]) -> (d: f32[M, N]) {\n    d <- exp(x)\n}\n",
    ),
    "E0303": Code(
        "operand that is no input",
        "The operands of the product are inputs with two extents, or their transposes: the mainloop reads them before "
        "any epilogue runs. A function has no product.",
        _kernel("d <- (2.0 * a) @ b.T"),
        _kernel("d <- 2.0 * (a @ b.T)"),
    ),
    "E0304": Code(
        "transposed value",
        "Only operands of the product take `.T`: an element of a transposed value lives in another tile.",
        _map("d <- x + x.T"),
        _map("d <- x + y", "y: f32[M, N]"),
    ),
    "E0305": Code(
        "result of a tile reduction used",
        "A reduction of a tile (classes 4 and 5) is a partial result, and `pick` (class 2) is known to one tile only. "
        "The same kernel can only store them; a `reduce` combines them.",
        _map("s = tile_sum(x, over=N)\nd <- x / s"),
        _map("s <- tile_sum(x, over=N)", outputs="s: f32[M, tiles(N)]"),
    ),
    "E0306": Code(
        "pair without columns",
        "`pairs` and `unpairs` (class 1) work on the neighbouring columns 2j and 2j+1, the only neighbours that one "
        "thread holds.",
        _map("g, u = pairs(s)\nd <- x * g * u", "s: f32[M]"),
        _map("d <- x * s * s", "s: f32[M]"),
    ),
    "E0307": Code(
        "input that does not lie along the tile",
        "An input read by element is [], [M], [N] or [M, N] (classes 2 and 3), with half and double width: reading "
        "another tile is outside the classes.",
        _map("d <- x + y", "y: f32[N, M]"),
        _map("d <- x + y", "y: f32[M, N]"),
    ),
    "E0308": Code(
        "gather",
        "Class 2 gathers whole rows of an input, `table[index, ...]`, with one integer for each row; `pick` and "
        "`onehot` address one column for each row. No other gather is in the classes.",
        _map("d <- x + t[j, ...]", "t: f32[P, N], j: i32[N]", axes="M, N, P"),
        _map("d <- x + t[i, ...]", "t: f32[P, N], i: i32[M]", axes="M, N, P"),
    ),
    "E0309": Code(
        "output that is no function of the tile",
        "An output is [M, N] or of half or double width, [M], [N], a head's [M, H], or partials [M, tiles(N)] and "
        "[tiles(M), N]. A reduce has outputs with named extents.",
        _kernel("d <- a @ b.T", outputs="d: bf16[N, M]"),
        _kernel("d <- a @ b.T"),
    ),
    "E0310": Code(
        "reduction along another axis",
        "A tile reduction (class 4) takes a tile and runs over its row or its column axis; a stateful one (class 5) "
        "over its columns; `segment_sum` over the inner factor of a split column axis. A reduction of a `reduce` "
        "runs over an extent that its value has.",
        _kernel("s <- tile_sum(a @ b.T, over=K)", outputs="s: f32[M, tiles(N)]"),
        _kernel("s <- tile_sum(a @ b.T, over=N)", outputs="s: f32[M, tiles(N)]"),
    ),
    "E0311": Code(
        "operation of another kind of program",
        "Kernels and maps see one tile; `sum`, `max` and `min` with `over=` need all partials and belong to a "
        "`reduce`, which has no tiles, tables and products in turn.",
        _map("d <- sum(x, over=N)", outputs="d: f32[M]"),
        _map("d <- tile_sum(x, over=N)", outputs="d: f32[M, tiles(N)]"),
    ),
    "E0312": Code(
        "contracted axis",
        "The product sums over its contracted axis, and the epilogue has no place along it.",
        _kernel("d <- (a @ b.T) * scale", "scale: f32[K]"),
        _kernel("d <- (a @ b.T) * scale", "scale: f32[N]"),
    ),
    "E0313": Code(
        "map without a tile",
        "A map works on tiles of an output or input with two axes; vectors alone are combined in a `reduce`.",
        "map m<M>(x: f32[M]) -> (d: f32[M]) {\n    d <- exp(x)\n}\n",
        "reduce m<M>(x: f32[M]) -> (d: f32[M]) {\n    d <- exp(x)\n}\n",
    ),
    "E0314": Code(
        "partials of different tilings",
        "`tiles(X)` is opaque and fresh for each input of a reduce: two kernels may be tiled differently. Partials "
        "that are combined element by element share a named axis.",
        _reduce("d <- sum(p * q, over=tiles(N))", "p: f32[M, tiles(N)], q: f32[M, tiles(N)]"),
        _reduce("d <- sum(p * q, over=P)", "p: f32[M, P], q: f32[M, P]", axes="M, P"),
    ),
    "E0315": Code(
        "partials read in a kernel",
        "A kernel sees one tile, and [M, tiles(N)] has one number for each; a `reduce` combines them before.",
        _map("d <- x * p", "p: f32[M, tiles(N)]"),
        _map("d <- x * p", "p: f32[M]"),
    ),
    "E0316": Code(
        "two extents along one axis",
        "A reduce matches extents by axis name, so an input or output of it has each axis once (`N` and `tiles(N)` are "
        "two).",
        _reduce("d <- sum(p, over=M)", "p: f32[M, M]", axes="M"),
        _reduce("d <- sum(p, over=P)", "p: f32[M, P]", axes="M, P"),
    ),
    "E0317": Code(
        "axis as an index",
        "A value is written without its extents: `bias`, not `bias[N]`. As an index, the length of an axis would be "
        "one past the last row.",
        _map("d <- x * r[M]", "r: f32[M]"),
        _map("d <- x * r", "r: f32[M]"),
    ),
    # -- stores ----------------------------------------------------------------------------------------------------
    "E0401": Code(
        "output never stored",
        "Each output is stored exactly once, and each `inout` input is added to.",
        _map("y = exp(x)"),
        _map("d <- exp(x)"),
    ),
    "E0402": Code(
        "output stored twice",
        "Each output is stored exactly once.",
        _map("d <- x\nd <- exp(x)"),
        _map("d <- exp(x)"),
    ),
    "E0403": Code(
        "adding to something else",
        "`+<-` adds to an `inout` input: an output has no old value, and other inputs are not written.",
        _map("d +<- x"),
        "map m<M, N>(x: f32[M, N], inout d: f32[M, N]) -> () {\n    d +<- x\n}\n",
    ),
    "E0404": Code(
        "store to an input",
        "Inputs are not written, except that `+<-` adds to an `inout` one.",
        _map("y <- x\nd <- x", "y: f32[M, N]"),
        _map("y <- x\nd <- x", outputs="d: f32[M, N], y: bf16[M, N]"),
    ),
    "E0405": Code(
        "store of another kind",
        "Floats are stored to floats (and rounded to the output's type), integers to integers, bools to bools.",
        _map("d <- x > 0.0"),
        _map("d <- f32(x > 0.0)"),
    ),
    "E0406": Code(
        "store of other extents",
        "A stored value has the extents of its output, or spreads along those it lacks; it loses none. `tiles(X)` is "
        "made by tile reductions only, and consumed by reductions only.",
        _map("g, u = pairs(x)\nd <- g * u"),
        _map("g, u = pairs(x)\nd <- g * u", outputs="d: f32[M, N/2]"),
    ),
    "E0407": Code(
        "no such output",
        "A store names an output or an `inout` input of the kernel; a function stores nothing.",
        _map("dd <- x"),
        _map("d <- x"),
    ),
    "E0408": Code(
        "inout read",
        "An `inout` input is added to and not read: `d +<- x` is round(f32(old) + x).",
        _map("d <- x + old\nold +<- x", "inout old: f32[M, N]"),
        _map("d <- x\nold +<- x", "inout old: f32[M, N]"),
    ),
    "E0409": Code(
        "no output",
        "A kernel, map or reduce has an output, or an `inout` input.",
        "map m<M, N>(x: f32[M, N]) -> () {\n}\n",
        _map("d <- x"),
    ),
    "E0410": Code(
        "call that does nothing",
        "Kernels, maps, reduces and functions compute values: a call whose value nobody gets does nothing. A block may "
        "call what updates an `inout` input.",
        _map("exp(x)\nd <- x"),
        _map("y = exp(x)\nd <- y"),
    ),
    # -- blocks ----------------------------------------------------------------------------------------------------
    "E0501": Code(
        "not a kernel",
        "A block calls kernels, maps, reduces and other blocks: those of its file, and those that it imports.",
        _block("y <- doubled(x)"),
        _block("y <- double(x)"),
    ),
    "E0502": Code(
        "arguments of a call",
        "Arguments are passed by name, or in the order of the inputs; each input without a default once. Lengths of "
        "axes may be passed by name too.",
        _block("y <- double(x=x, scale=2.0)"),
        _block("y <- double(x=x)"),
    ),
    "E0503": Code(
        "argument of another type",
        "An array has the element type that the callee declares, or one of its choices; what the callee takes by value "
        "is a number. A block converts nothing.",
        _block("y <- double(x)", "x: bf16[M, N]"),
        _block("y <- double(x)"),
    ),
    "E0504": Code(
        "argument of other extents",
        "The arguments of a call fix the callee's axes, each to one extent of the block. Axes are names: `M` and `N` "
        "are different even where their lengths agree.",
        _block("y <- added(x, w)", "x: f32[M, N], w: f32[M]"),
        _block("y <- added(x, w)", "x: f32[M, N], w: f32[N]"),
    ),
    "E0505": Code(
        "number of results of a call",
        "A call binds all of the callee's outputs, or all but the optional ones; `_` drops one, `k(…).y` takes one.",
        _block("h, r = double(x)\ny <- h"),
        _block("h = double(x)\ny <- h"),
    ),
    "E0506": Code(
        "computation in a block",
        "A block only passes arrays on. What computes is a kernel, map or reduce.",
        _block("y <- double(x) + x"),
        _block("y <- added(double(x), w)", "x: f32[M, N], w: f32[N]"),
    ),
    "E0507": Code(
        "output of a block",
        "An output of a block is a result of one call, of the output's own type, and of no other output.",
        _block("y <- x"),
        _block("y <- double(x)"),
    ),
    "E0508": Code(
        "block that calls itself",
        "A block is a fixed list of launches, so it cannot reach itself.",
        _block("y <- b(x)"),
        _block("y <- double(x)"),
    ),
    "E0509": Code(
        "partials in a block's signature",
        "How many partials there are depends on how a kernel is tiled, so they stay inside a block.",
        _block("z, s = squares(x)\ny <- z\np <- s", outputs="y: f32[M, N], p: f32[M, tiles(N)]"),
        _block("z, s = squares(x)\ny <- z\np <- total(s)", outputs="y: f32[M, N], p: f32[M]"),
    ),
    "E0510": Code(
        "inout in a block",
        "What a call updates in place is an `inout` input of the block, which is otherwise not read.",
        _block("grow(x, sum=t)\ny <- double(x)", "x: f32[M, N], t: f32[M, N]"),
        _block("grow(x, sum=t)\ny <- double(x)", "x: f32[M, N], inout t: f32[M, N]"),
    ),
    "E0511": Code(
        "axis that is not cut",
        "`M by 2048` makes a block work on that many rows at a time. Every array along M then has it as its first "
        "extent, and every output is along M: what all pieces add to is an `inout` input.",
        _block("y <- double(x)", axes="M, N by 256"),
        _block("y <- double(x)", axes="M by 256, N"),
    ),
    "E0512": Code(
        "optional input passed on",
        "An input that a call may leave out can only be passed on to one that may be left out too, with the same "
        "default.",
        _block("y <- added(x, w)", "x: f32[M, N], w: f32[N] = 0"),
        _block("y <- added(x, w)", "x: f32[M, N], w: f32[N]"),
    ),
    # -- warnings --------------------------------------------------------------------------------------------------
    "W0001": Code(
        "input not used",
        "Nothing reads this input. It must be passed all the same.",
        _map("d <- x", "y: f32[M]"),
        _map("d <- x * y", "y: f32[M]"),
    ),
    "W0002": Code(
        "name not used",
        "Nothing reads this value. `_` drops a result.",
        _map("y = exp(x)\nd <- x"),
        _map("y = exp(x)\nd <- y"),
    ),
    "W0003": Code(
        "axis not used",
        "No extent, bound or value has this axis, so every call must pass its length by name for nothing.",
        _map("d <- x", axes="M, N, K"),
        _map("d <- x"),
    ),
    "W0004": Code(
        "comment that may be a division",
        "`//` begins a comment, here one that is a number or a name and stands behind an operand. `idiv(i, j)` divides "
        "whole numbers, and `/` floats.",
        _map("d <- x * f32(col() // 2\n)"),
        _map("d <- x * f32(idiv(col(), 2))"),
    ),
}
