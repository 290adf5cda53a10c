"""The compute node: all maps of a body as one function over a thread's fragment.

Scalars come first, then what varies by row alone, then, for each block of 8 accumulator columns, what varies by
column alone and for each of the two rows the rest, element by element in straight-line code. The compiler sees one
fragment at a time, in registers, with every index known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from coda_lang.backend_cutlass import cuda_ops
from coda_lang.backend_cutlass.cuda_ops import WIDE
from coda_lang.backend_cutlass.shapes import Form
from coda_lang.ir.ops import TILE_RESULTS
from coda_lang.ir.program import Kernel
from coda_lang.ir.types import Dim
from coda_lang.source import NOWHERE, Source, Span


@dataclass
class Text:
    """Lines of CUDA, and the place in `origin` that each comes from; those of imported functions have none."""

    origin: Source
    lines: list[str] = field(default_factory=list)
    places: list[int | None] = field(default_factory=list)

    def add(self, line: str, span: Span = NOWHERE) -> None:
        for part in line.split("\n"):
            self.lines.append(part)
            self.places.append(span.start if span is not NOWHERE and span.source is self.origin else None)

    def extend(self, other: Text, indent: str = "") -> None:
        for line, place in zip(other.lines, other.places, strict=True):
            self.lines.append(indent + line if line else line)
            self.places.append(place)


@dataclass(frozen=True)
class Member:
    """A result that nodes behind the compute node read: value `value` spread to `form`."""

    name: str
    value: int
    form: Form
    added: int | None = None  # the loaded old value that it is added to (`+<-`)

    def ctype(self, kernel: Kernel) -> str:
        return f"coda::Values<{WIDE[kernel.values[self.value].type.dtype.kind]}, {count(self.form)}>"


def count(form: Form) -> str:
    """How many elements a thread holds."""
    match form.kind:
        case "scalar":
            return "1"
        case "column":
            return "2"
        case "row":
            return f"kBlocks * {form.width}"
        case _:
            return f"kBlocks * {2 * form.width}"


@dataclass(frozen=True)
class Table:
    """A table that is read by row: its address, rows and strides as expressions, and where its columns lie."""

    element: str  # its type in memory
    data: str
    rows: str
    strides: tuple[str, ...]
    form: Form
    in_one_head: bool  # what a thread reads in a subtile lies in one head, its runs of columns aligned
    blocks: int  # whose columns are read at once

    @property
    def columns(self) -> int:
        """1 or 2 extents."""
        return len(self.strides)

    @property
    def guarded(self) -> bool:
        """Whether a ragged tile's columns past the end lie past the table's; n mod D never does."""
        return self.columns == 2 and self.form.columns != "kInner"


class Functor:
    """Writes the body of the compute node's `visit`.

    `inputs` maps a value (a load or the accumulator) to the name of the fragment that brings it; `scalars` and
    `lengths` a host scalar's name and an extent to the expression of their field; `tables` are gathered from.
    `run` is how many blocks of columns lie side by side in a thread: `kRun` of its schedule.
    """

    def __init__(
        self,
        kernel: Kernel,
        forms: list[Form],
        inputs: dict[int, str],
        scalars: dict[str, str],
        lengths: dict[Dim, str],
        tables: dict[str, Table],
        run: int,
    ) -> None:
        self.kernel, self.forms, self.inputs = kernel, forms, inputs
        self.scalars, self.lengths, self.tables, self.run = scalars, lengths, tables, run
        self.olds: dict[int, tuple[str, Form]] = {}  # what `+<-` adds to: a number below 0 -> its fragment
        self.lasting: list[str] = []  # declarations of what lasts from one subtile of a row of them to the next

    # -- operands --------------------------------------------------------------------------------------------------

    def element(self, index: int, width: int, c: int) -> str:
        """How element c of a run of `width` reads value `index`: the row is h, the block k."""
        if index < 0:
            name, form = self.olds[index]
            return _brought(name, form, c)
        value, form = self.kernel.values[index], self.forms[index]
        own = c if form.width in (0, width) else c * form.width // width
        if value.op == "const":
            assert isinstance(value.attr, (int, float))
            return cuda_ops.literal(value.attr, value.type.dtype)
        if value.op == "axis":
            assert isinstance(value.attr, Dim)
            name = self.lengths[value.attr]
            return f"float({name})" if value.type.dtype.kind == "float" else f"int64_t({name})"
        if value.op == "load" and value.attr in self.scalars:
            return self.scalars[str(value.attr)]
        if index in self.inputs:
            return _brought(self.inputs[index], form, own)
        match form.kind:
            case "scalar":
                return f"v{index}"
            case "column":
                return f"v{index}[h]"
            case _:
                return f"v{index}_{own}"

    def compute(self, index: int, c: int) -> str:
        """The expression of element c of a value that is computed here."""
        value, form = self.kernel.values[index], self.forms[index]
        args = value.args
        match value.op:
            case "row":
                return "int64_t(first_row + 8 * h)"
            case "col":
                return f"int64_t(column2 + {self._along(2, c)})"
            case "onehot":
                return f"column2 + {self._along(2, c)} == {self._narrowed(args[0])} ? 1.0f : 0.0f"
            case "even" | "odd":
                wide = self.forms[args[0]].width
                return self.element(args[0], wide, 2 * c + (value.op == "odd")) if wide else self.element(args[0], 0, 0)
            case "unpairs":
                return self.element(args[c % 2], form.width // 2, c // 2)
            case "gather":
                return self._gather(index, c)
        return cuda_ops.expression(value, [self.element(a, form.width, c) for a in args])

    def _narrowed(self, index: int) -> str:
        return f"i{index}[h]" if self.forms[index].rows else f"i{index}"

    def _gather(self, index: int, c: int) -> str:
        value = self.kernel.values[index]
        table = self.tables[str(value.attr)]
        if table.columns == 1:
            return f"{self._table_row(index)}[0]"
        _, h = self._each_row(index)
        row, width = f"t{index}{h}", table.form.width
        along = self._along(width, c)
        if table.blocks > 1:
            return f"w{index}{h}.value[k % {table.blocks} * {width} + {c}]"
        if table.in_one_head:
            return f"{row}[coda::offset<Shape, {width}>(k * {width} + {c})]"
        walk = _walk_name(self.forms[index])
        inner = table.form.columns == "kInner"
        at = f"column{width} + {along}" if walk is None else f"{walk}.{'column' if inner else 'head'}_of({along})"
        if table.strides[1] != "1":
            at = f"{table.strides[1]} * {at if walk is not None else f'({at})'}"
        guard = f"column{width} + {along} < end{width} ? " if table.guarded else ""
        return f"{guard}{row}[{at}] : 0.0f" if guard else f"{row}[{at}]"

    def _along(self, width: int, c: int) -> str:
        """Element c of block k, from the first column of the run of blocks that k is in."""
        return str(c) if self.run == 1 else f"k % {self.run} * {width} + {c}"

    def _table_row(self, index: int) -> str:
        """The row that a gather reads."""
        value = self.kernel.values[index]
        table = self.tables[str(value.attr)]
        row = self.element(value.args[0], 0, 0)
        return f"coda::TableRow<{table.element}>({table.data}, {table.strides[0]}, {table.rows}, {row})"

    def _table_reads(self, indices: Sequence[int]) -> list[tuple[int, Table]]:
        """The gathers among values that read tables of rows, each with its table."""
        values = self.kernel.values
        reads = [(i, self.tables[str(values[i].attr)]) for i in indices if values[i].op == "gather"]
        return [(i, table) for i, table in reads if table.columns == 2]

    def _each_row(self, index: int) -> tuple[str, str]:
        """What a statement about the row that a gather reads begins with, and the subscript, if a thread has two."""
        rows = self.forms[self.kernel.values[index].args[0]].rows
        return ("CODA_UNROLL for (int h = 0; h < 2; ++h) ", "[h]") if rows else ("", "")

    # -- text ------------------------------------------------------------------------------------------------------

    def write(self, members: list[Member]) -> Text:
        """The body of `visit`: computes every member of `out[0]`."""
        text = Text(self.kernel.span.source)
        text.add("cutlass::Array<Outputs, 1> out;")
        computed = [i for i in range(len(self.kernel.values)) if self._computed(i)]
        by_kind: dict[str, list[int]] = {"scalar": [], "column": [], "row": [], "tile": []}
        for i in computed:
            by_kind[self.forms[i].kind].append(i)
        spread = [m for m in members if m.form.kind in ("row", "tile")]
        self._positions(text, computed, spread)
        for i in by_kind["scalar"]:
            text.add(f"const {self._type(i)} v{i} = {self.compute(i, 0)};{self._note(i)}", self._span(i))
        for i in by_kind["column"]:
            text.add(f"{self._type(i)} v{i}[2];", self._span(i))
            text.add(
                f"CODA_UNROLL for (int h = 0; h < 2; ++h) v{i}[h] = {self.compute(i, 0)};{self._note(i)}", self._span(i)
            )
        for i in sorted({v.args[0] for v in self.kernel.values if v.op == "onehot"}):
            if self.forms[i].rows:
                text.add(f"int i{i}[2];")
                text.add(
                    f"CODA_UNROLL for (int h = 0; h < 2; ++h) i{i}[h] = coda::column_index({self.element(i, 0, 0)});"
                )
            else:
                text.add(f"const int i{i} = coda::column_index({self.element(i, 0, 0)});")
        for i, table in self._table_reads(computed):
            self._begin_row(text, i, table)
        for m in members:
            if m.form.kind == "scalar":
                text.add(f"out[0].{m.name}[0] = {self._stored(m, 0)};", self._member_span(m))
            elif m.form.kind == "column":
                line = f"CODA_UNROLL for (int h = 0; h < 2; ++h) out[0].{m.name}[h] = {self._stored(m, 0)};"
                text.add(line, self._member_span(m))
        if spread:
            self._blocks(text, by_kind, members)
        text.add("return out;")
        return text

    def _begin_row(self, text: Text, index: int, table: Table) -> None:
        """The row that a gather reads, found once a tile; where heads are not cut, the subtile's place in it."""
        (loop, h), width, span = self._each_row(index), table.form.width, self._span(index)
        two = "[2]" if h else ""
        kind, start = f"coda::TableRow<{table.element}>", self._table_row(index)
        if table.in_one_head:
            kind = f"coda::TableCursor<{table.element}>"
            start = f"{kind}({start}, start{width}.at)"
        self.lasting.append(f"{kind} t{index}{two};")
        text.add(f"if (epi_n == 0) {loop}t{index}{h} = {start};{self._note(index)}", span)
        if table.in_one_head:
            text.add(f"else {loop}t{index}{h}.move(start{width}.at - before{width});", span)
            if table.blocks > 1:
                text.add(f"coda::TableRun<{table.element}, {table.blocks * width}> w{index}{two};", span)

    def _blocks(self, text: Text, by_kind: dict[str, list[int]], members: list[Member]) -> None:
        text.add("CODA_UNROLL for (int k = 0; k < kBlocks; ++k) {")
        for i, table in self._table_reads([*by_kind["row"], *by_kind["tile"]]):
            if table.blocks > 1:
                width, (loop, h) = table.form.width, self._each_row(i)
                place = f"t{i}{h}.from + coda::offset<Shape, {width}>(k * {width})"
                text.add(f"  if (k % {table.blocks} == 0) {loop}w{i}{h}.read({place});", self._span(i))
        for i in by_kind["row"]:
            self._elements(text, i, "  ")
        for m in members:
            if m.form.kind == "row":
                for c in range(m.form.width):
                    text.add(
                        f"  out[0].{m.name}[k * {m.form.width} + {c}] = {self._stored(m, c)};", self._member_span(m)
                    )
        tiles = [m for m in members if m.form.kind == "tile"]
        if tiles:
            text.add("  CODA_UNROLL for (int h = 0; h < 2; ++h) {")
            for i in by_kind["tile"]:
                self._elements(text, i, "    ")
            for m in tiles:
                w = m.form.width
                for c in range(w):
                    text.add(
                        f"    out[0].{m.name}[(k * 2 + h) * {w} + {c}] = {self._stored(m, c)};", self._member_span(m)
                    )
            text.add("  }")
        last = "" if self.run == 1 else f"if (k % {self.run} == {self.run - 1}) "
        for width, name in self._walks:
            text.add(f"  {last}{name}.advance({4 * self.run * width});")
        for width in self._columns:
            text.add(f"  {last}column{width} += {4 * self.run * width};")
        text.add("}")

    def _elements(self, text: Text, index: int, indent: str) -> None:
        for c in range(self.forms[index].width):
            note = self._note(index) if c == 0 else ""
            text.add(
                f"{indent}const {self._type(index)} v{index}_{c} = {self.compute(index, c)};{note}", self._span(index)
            )

    def _stored(self, m: Member, c: int) -> str:
        new = self.element(m.value, m.form.width, c)
        if m.added is None:
            return new
        return f"{self.element(m.added, m.form.width, c)} + {new}"

    def _positions(self, text: Text, computed: list[int], spread: list[Member]) -> None:
        """Where the thread's elements are, if a value asks."""
        ops = {self.kernel.values[i].op for i in computed}
        if "row" in ops:
            text.add("const int first_row = tile.first_row(epi_m);")
        widths = {2} if ops & {"col", "onehot"} else set()
        walks: dict[str, int] = {}
        starts: set[int] = set()
        guards = set()
        for i, table in self._table_reads(computed):
            form = self.forms[i]
            if table.in_one_head:
                starts.add(form.width)
                continue
            walk = _walk_name(form)
            if table.guarded:
                widths.add(form.width)
                guards.add(form.width)
            if walk is not None:
                walks[walk] = form.width
                if f"coda::Heads {walk};" not in self.lasting:
                    self.lasting.append(f"coda::Heads {walk};")
                    text.add(f"if (epi_n == 0) {walk} = {_heads(form.width)};")
        for width in sorted(widths):
            text.add(f"int column{width} = coda::first_column<Shape, {width}>(tile, epi_n);")
        for width in sorted(guards):
            text.add(f"const int end{width} = coda::width_of<{width}>(tile.n);")
        for width in sorted(starts):
            self.lasting.append(f"coda::Heads start{width};")
            text.add(f"const int before{width} = start{width}.at;")
            text.add(f"if (epi_n == 0) start{width} = {_heads(width)};")
            text.add(f"else start{width}.advance(kBlocks * {4 * width});")
        self._walks = [(w, n) for n, w in sorted(walks.items())]
        self._columns = sorted(widths)

    def _computed(self, index: int) -> bool:
        value = self.kernel.values[index]
        return not (index in self.inputs or value.op in ("const", "axis", "load") or value.op in TILE_RESULTS)

    def _type(self, index: int) -> str:
        return WIDE[self.kernel.values[index].type.dtype.kind]

    def _span(self, index: int) -> Span:
        return self.kernel.values[index].span

    def _member_span(self, m: Member) -> Span:
        return self._span(m.value)

    def _note(self, index: int) -> str:
        return note(self._span(index))


def _brought(name: str, form: Form, c: int) -> str:
    """An element of a fragment that a load brings."""
    match form.kind:
        case "scalar":
            return f"{name}[0]"
        case "column":
            return f"{name}[h]"
        case "row":
            return f"{name}[k * {form.width} + {c}]"
        case _:
            return f"{name}[(k * 2 + h) * {form.width} + {c}]"


def _heads(width: int) -> str:
    """Where the thread's first run of `width` columns begins, within its head."""
    return f"coda::Heads(coda::first_column<Shape, {width}>(tile, 0), coda::width_of<{width}>(block.period))"


def _walk_name(form: Form) -> str | None:
    return {"kWhole": None, "kInner": f"inner{form.width}", "kOuter": f"outer{form.width}"}[form.columns]


def note(span: Span) -> str:
    """A comment with the .coda text that a line comes from."""
    if span is NOWHERE:
        return ""
    text = " ".join(span.text.split())
    return f"  // {span.line}: {text if len(text) <= 60 else text[:57] + '…'}".rstrip("\\")
