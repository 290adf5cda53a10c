"""What is read from a cubin, which is an ELF file, and the one thing that is changed in it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMTAB, _STRTAB, _NOBITS = 2, 3, 8
_FUNCTION, _SECTION_SYMBOL = 2, 3
_ALIGNMENT = 128  # the largest of any section: that of code

# The low 12 bits of an instruction of sm_90: what nvdisasm prints as HGMMA (16-bit operands) and QGMMA (8-bit ones).
HGMMA, QGMMA = 0x9F0, 0x9F3


class BadElfError(ValueError):
    """Not a 64-bit little-endian ELF file, or cut off."""


@dataclass(frozen=True)
class Section:
    name: str
    fields: tuple[int, ...]  # of Elf64_Shdr
    data: bytes

    @property
    def kind(self) -> int:
        return self.fields[1]


def sections(cubin: bytes) -> list[Section]:
    """All sections in the order of the section table.

    Raises:
        BadElfError: the file is damaged.
    """
    try:
        header = _HEADER.unpack_from(cubin)
        if header[0][:6] != b"\x7fELF\x02\x01":
            raise BadElfError("not a 64-bit little-endian ELF file")
        table, count, names = header[6], header[12], header[13]
        raw = [_SECTION.unpack_from(cubin, table + i * _SECTION.size) for i in range(count)]
        strings = _slice(cubin, raw[names][4], raw[names][5])
        return [
            Section(_string(strings, f[0]), f, b"" if f[1] in (0, _NOBITS) else _slice(cubin, f[4], f[5])) for f in raw
        ]
    except (struct.error, IndexError) as error:
        raise BadElfError(str(error)) from error


def instructions(cubin: bytes, entry: str) -> Iterator[int]:
    """The opcode (low 12 bits) of every 128-bit instruction of a kernel."""
    for section in sections(cubin):
        if section.name == f".text.{entry}":
            for low, _ in struct.iter_unpack("<QQ", section.data):
                yield low & 0xFFF


def tensor_core_instructions(cubin: bytes, entry: str) -> int:
    """How many warpgroup matrix instructions a kernel has."""
    return sum(code in (HGMMA, QGMMA) for code in instructions(cubin, entry))


def shorten_names(cubin: bytes) -> bytes:
    """The same cubin with a one-letter name in place of each data symbol's mangled one.

    ``-default-device`` makes a device object of every constexpr variable template of the headers: hundreds of
    kilobytes of names that nothing looks up (relocations go by symbol index). Kernels keep their names. Sections
    keep their order, contents and alignment.

    Raises:
        BadElfError: the file is damaged, or laid out in a way that this function does not know.
    """
    found = sections(cubin)
    tables = [i for i, s in enumerate(found) if s.kind == _SYMTAB]
    if len(tables) != 1:
        raise BadElfError(f"{len(tables)} symbol tables")
    strings = found[tables[0]].fields[6]
    if strings == _HEADER.unpack_from(cubin)[13]:
        raise BadElfError("symbols and sections share their names")
    names, pool, symbols = found[strings].data, bytearray(b"\0"), bytearray()
    for number, symbol in enumerate(_SYMBOL.iter_unpack(found[tables[0]].data)):
        name = _string(names, symbol[0])
        if name:
            # A data symbol's name is replaced, not dropped: the loader may want names to be unique.
            short = name if symbol[1] & 15 in (_FUNCTION, _SECTION_SYMBOL) or name.startswith(".") else f"_{number:x}"
            at = len(pool)
            pool += (short if len(short) < len(name) else name).encode() + b"\0"
            symbol = (at, *symbol[1:])
        symbols += _SYMBOL.pack(*symbol)
    return _rebuild(cubin, found, {strings: bytes(pool), tables[0]: bytes(symbols)})


def _rebuild(cubin: bytes, found: list[Section], changed: dict[int, bytes]) -> bytes:
    """The file again with some sections replaced: what is behind them moves by multiples of the largest alignment."""
    header = list(_HEADER.unpack_from(cubin))
    out, moved = bytearray(_HEADER.size), {0: 0}
    fields = [list(s.fields) for s in found]
    for i in sorted(range(1, len(found)), key=lambda i: (found[i].fields[4], i)):
        data = changed.get(i, found[i].data)
        out += bytes((fields[i][4] - len(out)) % _ALIGNMENT)  # distances inside a segment stay as they are
        moved[fields[i][4]] = len(out)  # several sections without contents may share a place
        fields[i][4] = len(out)
        if found[i].kind != _NOBITS:
            fields[i][5] = len(data)
            out += data
    out += bytes(-len(out) % 8)
    table, segments = header[6], header[5]
    header[6] = len(out)
    for f in fields:
        out += _SECTION.pack(*f)
    if header[10]:
        header[5] = len(out)
        for i in range(header[10]):
            segment = list(_SEGMENT.unpack(_slice(cubin, segments + i * _SEGMENT.size, _SEGMENT.size)))
            if segment[2] == segments:  # the segment table itself
                segment[2] = header[5]
            elif segment[2] in moved:
                segment[2] = moved[segment[2]]
            elif segment[5]:
                raise BadElfError("a segment that starts in no section")
            out += _SEGMENT.pack(*segment)
    if table == 0:
        raise BadElfError("no section table")
    out[: _HEADER.size] = _HEADER.pack(*header)
    return bytes(out)


def _slice(data: bytes, offset: int, size: int) -> bytes:
    if offset + size > len(data):
        raise BadElfError("cut off")
    return data[offset : offset + size]


def _string(strings: bytes, offset: int) -> str:
    end = strings.find(b"\0", offset)
    if end < 0:
        raise BadElfError("a name without an end")
    return strings[offset:end].decode(errors="replace")
