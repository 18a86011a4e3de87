"""Where device code may lie in a file: ELF sections, archive members, whole cubins and fat binaries.

A little parser and not pyelftools: it reads a few kilobytes of a library of any size, and a damaged table is
a problem to report, not an exception of some kind.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from spark_build.wheels.device import FileKind
from spark_build.wheels.fatbin import MAGIC, FatbinError, Problem

Role = Literal["loaded", "relocatable"]
ROLES: dict[bytes, Role] = {b".nv_fatbin": "loaded", b"__nv_relfatbin": "relocatable"}
EM_CUDA = 190
ET_REL = 1

ELF_MAGIC = b"\x7fELF"
AR_MAGIC = b"!<arch>\n"
_AR_HEADER = 60
_IDENT_64_LITTLE = ELF_MAGIC + b"\x02\x01"
_HEADER = struct.Struct("<4sBBBBB7xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NOBITS = 8
_EXTENDED = 0xFFFF  # the number of the name table stands in section 0
_SLAB = 1 << 16  # bytes of the table read at a time: a multiple of a row
_LONGEST_NAME = 64
_MAX_NAMES = 16 << 20
_MAX_NOTE = 4096
MAX_SECTIONS = 1 << 21
MAX_MEMBERS = MAX_REGIONS = 1 << 16

_CUBIN_ABI_7 = 7  # ptxas up to CUDA 12.9 for what is older than sm_100
_ACCELERATED_7, _ACCELERATED_8 = 0x800, 0x8
_COMPAT_ISA = re.compile(rb"(?:.{4})*?\x02\x09\x01", re.DOTALL)


class ReadAt(Protocol):
    """Random access to a file: fewer bytes than asked for only at its end."""

    def __call__(self, offset: int, size: int, /) -> bytes:
        """The `size` bytes at `offset`."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """Bytes [start, end) of the file in which containers play this role."""

    start: int
    end: int
    role: Role


@dataclass(frozen=True, kw_only=True, slots=True)
class Cubin:
    """A whole file or archive member that is machine code for one architecture, without a container.

    In an archive its role is "elsewhere": cuobjdump 13.1 does not list it there.
    """

    offset: int
    target: str  # sm_121a
    role: Role | Literal["elsewhere"]


Part = Region | Cubin | Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class _Section:
    name: bytes
    start: int  # absolute
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Table:
    start: int  # from the beginning of the object
    count: int
    names: bytes


@dataclass(slots=True)
class _Budget:
    """A section table is cheap to fake and takes a microsecond per row: bounded over a whole archive."""

    left: int = MAX_SECTIONS

    def spend(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise FatbinError(f"more than {MAX_SECTIONS:,} ELF sections in one file")


def kind_of(head: bytes) -> FileKind:
    """By the first 64 bytes."""
    if head.startswith(AR_MAGIC):
        return "archive"
    if head.startswith(MAGIC):
        return "fatbin"
    if head.startswith(ELF_MAGIC):
        return "cubin" if _is_cubin(head) else "elf"
    return "other"


def parts(read: ReadAt, size: int) -> Iterator[Part]:
    """Regions, cubins and problems of a file of `size` bytes; FatbinError when there are absurdly many.

    A file with a damaged section table has a problem and no region: its containers are then elsewhere.
    """
    budget = _Budget()
    members = _members(read, size) if read(0, len(AR_MAGIC)) == AR_MAGIC else iter([(0, size)])
    regions = 0
    for member in members:
        for part in [member] if isinstance(member, Problem) else _object(read, *member, budget):
            regions += 1
            if regions > MAX_REGIONS:
                raise FatbinError(f"more than {MAX_REGIONS:,} sections with device code in one file")
            yield part


def _members(read: ReadAt, size: int) -> Iterator[tuple[int, int] | Problem]:
    """Offset and size of each member of a static archive."""
    at = len(AR_MAGIC)
    for _ in range(MAX_MEMBERS):
        if at >= size:
            return
        header = read(at, _AR_HEADER)
        digits = header[48:58].strip()
        if header[58:60] != b"`\n" or not digits.isdigit():
            yield Problem(offset=at, message="no header of an archive member")
            return
        start, length = at + _AR_HEADER, int(digits)
        if start + length > size:
            yield Problem(offset=at, message=f"an archive member of {length} bytes is cut")
            return
        yield start, length
        at = start + length + length % 2
    raise FatbinError(f"more than {MAX_MEMBERS:,} members in one archive")


def _object(read: ReadAt, base: int, size: int, budget: _Budget) -> Iterator[Part]:
    """The parts of a file, or of an archive member, for which base is not 0."""
    head = read(base, min(size, _HEADER.size))
    if head.startswith(MAGIC) and not base:
        yield Region(start=base, end=base + size, role="loaded")
    elif head.startswith(ELF_MAGIC) and len(head) < _HEADER.size:
        yield Problem(offset=base, message="an ELF header that is cut")
    elif _is_cubin(head):
        yield from _cubin(read, base, size, budget)
    elif head.startswith(_IDENT_64_LITTLE):
        yield from _host(read, base, size, budget)


def _host(read: ReadAt, base: int, size: int, budget: _Budget) -> Iterator[Part]:
    for section in _sections(read, base, size, budget):
        if isinstance(section, Problem):
            yield section
        elif (role := ROLES.get(section.name)) and section.size:
            yield Region(start=section.start, end=section.start + section.size, role=role)


def _sections(read: ReadAt, base: int, size: int, budget: _Budget) -> Iterator[_Section | Problem]:
    """The sections that have bytes in the file; none for a file without a table."""
    table = _table(read, base, size, budget)
    if isinstance(table, Problem):
        yield table
    elif table:
        end = table.start + table.count * _SECTION.size
        for at in range(table.start, end, _SLAB):
            for name, kind, _, _, start, length, *_ in _SECTION.iter_unpack(
                read(base + at, min(_SLAB, end - at))
            ):
                text = table.names[name : name + _LONGEST_NAME].partition(b"\0")[0]
                if kind != _NOBITS and start + length <= size:
                    yield _Section(name=text, start=base + start, size=length)
                elif kind != _NOBITS and text in ROLES:
                    yield Problem(offset=base + at, message=f"section {text.decode()} is not in the file")


def _table(read: ReadAt, base: int, size: int, budget: _Budget) -> _Table | Problem | None:
    """The section table, whose fields lie within the object; None without one."""
    header = _HEADER.unpack(read(base, _HEADER.size))
    start, width, count, names_at = header[11], header[16], header[17], header[18]
    if not start:
        return None
    if width != _SECTION.size or start + width > size:
        return Problem(offset=base, message="a section table that is not in the file")
    first = _SECTION.unpack(read(base + start, width))
    count = count or first[5]
    names_at = first[6] if names_at == _EXTENDED else names_at
    if start + count * width > size or names_at >= count:
        return Problem(offset=base, message=f"a table of {count} sections that is not in the file")
    budget.spend(count)
    names, length = _SECTION.unpack(read(base + start + names_at * width, width))[4:6]
    if names + length > size or length > _MAX_NAMES:
        return Problem(offset=base, message=f"a table of section names of {length} bytes")
    return _Table(start=start, count=count, names=read(base + names, length))


def _is_cubin(head: bytes) -> bool:
    return (
        len(head) >= 20
        and head.startswith(_IDENT_64_LITTLE)
        and int.from_bytes(head[18:20], "little") == EM_CUDA
    )


def _cubin(read: ReadAt, base: int, size: int, budget: _Budget) -> Iterator[Part]:
    """The architecture from e_flags; the variant from there too, or from the compiler's own sections."""
    header = _HEADER.unpack(read(base, _HEADER.size))
    abi, kind, flags = header[5], header[6], header[12]
    number = flags & 0xFF if abi <= _CUBIN_ABI_7 else flags >> 8 & 0xFF
    variant = "a" if flags & (_ACCELERATED_7 if abi <= _CUBIN_ABI_7 else _ACCELERATED_8) else ""
    for section in _sections(read, base, size, budget):
        if isinstance(section, Problem):
            yield section
        elif section.name in (b".nv.compat", b".note.nv.tkinfo") and not variant:
            variant = _variant(section.name, number, read(section.start, min(section.size, _MAX_NOTE)))
    alone: Role = "relocatable" if kind == ET_REL else "loaded"
    yield Cubin(offset=base, target=f"sm_{number}{variant}", role="elsewhere" if base else alone)


def _variant(section: bytes, number: int, data: bytes) -> str:
    """ptxas 13.0 marks `a` in .nv.compat only, `f` nowhere but in the command line that it notes."""
    if section == b".nv.compat":
        return "a" if _COMPAT_ISA.match(data) else ""
    said = re.search(rb"-arch sm_%d([af])\b" % number, data)
    return said[1].decode() if said else ""
