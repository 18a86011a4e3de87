"""What the loader reads of an ELF file: header, segments, dynamic table.

A little parser and not pyelftools, which believes the file: 65535 segments that each claim the same endless
table keep that busy for hours. Here every loop has a bound.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from spark_build.wheels.contents import HostCode
from spark_build.wheels.sections import ELF_MAGIC, ReadAt

MAX_SEGMENTS = 1170  # Linux loads no more: 64 KiB of headers
MAX_TAGS = 1 << 16
MAX_NAMES = 1 << 13  # names of libraries and symbol versions in one file
MAX_NAME = 1 << 13  # bytes; an RPATH is one name

_LOAD, _DYNAMIC, _INTERP, _STACK = 1, 2, 3, 0x6474E551
_EXECUTABLE, _WRITABLE = 1, 2
_SHARED = 3  # e_type of a library, or of a program that may lie anywhere
_NEEDED, _STRTAB, _STRSZ, _SONAME, _RPATH, _TEXTREL, _RUNPATH, _FLAGS = 1, 5, 10, 14, 15, 22, 29, 30
_DF_TEXTREL = 4
_VERNEED, _VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF


class ElfError(ValueError):
    """The file is not what its headers say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Elf:
    """A readable ELF file."""

    machine: int
    needed: tuple[str, ...]
    host: HostCode


@dataclass(frozen=True, kw_only=True, slots=True)
class _Header:
    order: str  # "<" or ">"
    wide: bool  # 64 bits
    kind: int
    machine: int
    segments: int  # offset of the table
    width: int
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Segment:
    kind: int
    flags: int
    offset: int
    address: int
    size: int


def read_elf(read: ReadAt, size: int) -> Elf:
    """The facts of an ELF file of `size` bytes; ElfError when it is cut or no real one."""
    header = _header(read, size)
    segments = [*_segments(read, size, header)]
    table = [*_dynamic(read, header, segments)]
    names = _Names(read, size, segments, dict(table))
    own = [names.at(value) for tag, value in table if tag == _SONAME]
    paths = [names.at(value) for tag, value in table if tag in (_RPATH, _RUNPATH)]
    flags = [value for tag, value in table if tag == _FLAGS]
    host = HostCode(
        soname=own[0] if own else "",
        # An empty one is no path; an empty part of one is the current folder.
        rpaths=tuple(folder for path in paths if path for folder in path.split(":")),
        versions=tuple(_versions(header, dict(table), names)),
        writable_code=any(
            one.kind == _LOAD and one.flags & _WRITABLE and one.flags & _EXECUTABLE for one in segments
        ),
        executable_stack=_executable_stack(header, segments),
        text_relocations=any(tag == _TEXTREL for tag, _ in table) or any(one & _DF_TEXTREL for one in flags),
    )
    needed = tuple(names.at(value) for tag, value in table if tag == _NEEDED)
    return Elf(machine=header.machine, needed=needed, host=host)


def _header(read: ReadAt, size: int) -> _Header:
    ident = _exactly(read, 0, 16)
    if not ident.startswith(ELF_MAGIC) or ident[4] not in (1, 2) or ident[5] not in (1, 2):
        raise ElfError("no ELF file")
    order, wide = "<>"[ident[5] - 1], ident[4] == 2
    layout = struct.Struct(order + ("HHIQQQIHHHHHH" if wide else "HHIIIIIHHHHHH"))
    kind, machine, _, _, start, sections, _, _, width, count, row, rows, _ = layout.unpack(
        _exactly(read, 16, layout.size)
    )
    # The loader needs no section table, but it stands last: without it the file is cut.
    if sections + row * rows > size:
        raise ElfError("the section table is not in the file")
    return _Header(
        order=order, wide=wide, kind=kind, machine=machine, segments=start, width=width, count=count
    )


def _segments(read: ReadAt, size: int, header: _Header) -> Iterator[_Segment]:
    layout = struct.Struct(header.order + ("IIQQQQQQ" if header.wide else "IIIIIIII"))
    if header.count > MAX_SEGMENTS or (header.count and header.width != layout.size):
        raise ElfError("no segment table that Linux would load")
    for fields in layout.iter_unpack(_exactly(read, header.segments, header.count * layout.size)):
        if header.wide:
            kind, flags, offset, address, _, length, _, _ = fields
        else:
            kind, offset, address, _, length, _, flags, _ = fields
        if kind in (_LOAD, _DYNAMIC) and offset + length > size:
            raise ElfError("a segment is not in the file")
        yield _Segment(kind=kind, flags=flags, offset=offset, address=address, size=length)


def _dynamic(read: ReadAt, header: _Header, segments: list[_Segment]) -> Iterator[tuple[int, int]]:
    tables = [one for one in segments if one.kind == _DYNAMIC and one.size]
    if len(tables) > 1:
        raise ElfError("more than one dynamic table")
    layout = struct.Struct(header.order + ("QQ" if header.wide else "II"))
    for one in tables:
        count = one.size // layout.size
        if count > MAX_TAGS:
            raise ElfError("an endless dynamic table")
        for tag, value in layout.iter_unpack(_exactly(read, one.offset, count * layout.size)):
            if tag == 0:
                return
            yield tag, value


class _Names:
    """The strings and the memory that a dynamic table points to."""

    def __init__(self, read: ReadAt, size: int, segments: list[_Segment], table: dict[int, int]) -> None:
        self._read, self._size = read, size
        self._loaded = [one for one in segments if one.kind == _LOAD]
        self._table, self._length = table.get(_STRTAB), table.get(_STRSZ, 0)
        self._left = MAX_NAMES

    def at(self, index: int) -> str:
        """The string at this index of the table."""
        self._left -= 1
        if self._table is None or index >= self._length or self._left < 0:
            raise ElfError("a name that is not in the string table")
        data = self._read(self.offset(self._table) + index, min(self._length - index, MAX_NAME))
        text, end, _ = data.partition(b"\0")
        if not end:
            raise ElfError("a name without an end")
        return text.decode(errors="backslashreplace")

    def offset(self, address: int) -> int:
        """Where the byte that is loaded at `address` lies in the file."""
        for one in self._loaded:
            if one.address <= address < one.address + one.size:
                return one.offset + address - one.address
        raise ElfError("an address that no segment loads")

    def memory(self, address: int, size: int) -> bytes:
        """The bytes that are loaded at `address`."""
        return _exactly(self._read, self.offset(address), size)


def _versions(header: _Header, table: dict[int, int], names: _Names) -> Iterator[tuple[str, str]]:
    """(library, version) for each symbol version that the file asks for: DT_VERNEED."""
    start, count = table.get(_VERNEED), table.get(_VERNEEDNUM, 0)
    if start is None:
        return
    outer, inner = struct.Struct(f"{header.order}HHIII"), struct.Struct(f"{header.order}IHHII")
    at = start
    for _ in range(count):
        _, wanted, file, first, following = outer.unpack(names.memory(at, outer.size))
        library, here = names.at(file), at + first
        for _ in range(wanted):
            _, _, _, name, more = inner.unpack(names.memory(here, inner.size))
            yield library, names.at(name)
            here += more
        at += following


def _executable_stack(header: _Header, segments: list[_Segment]) -> bool:
    """Whether the loader must make all stacks executable: also where a library does not say."""
    said = [one.flags for one in segments if one.kind == _STACK]
    if said:
        return bool(said[0] & _EXECUTABLE)
    program = any(one.kind == _INTERP for one in segments)
    library = header.kind == _SHARED and any(one.kind == _DYNAMIC for one in segments)
    return library and not program


def _exactly(read: Callable[[int, int], bytes], offset: int, size: int) -> bytes:
    data = read(offset, size) if offset < 1 << 62 else b""
    if len(data) != size:
        raise ElfError("the file is cut")
    return data
