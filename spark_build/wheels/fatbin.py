"""Read fat binaries and the sections that hold device code."""

from __future__ import annotations

import re
import struct
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from spark_build.errors import AuditError
from spark_build.wheels.model import FileKind

MAGIC = struct.pack("<I", 0xBA55ED50)

PTX, ELF, LTO = 1, 2, 8  # LTO: NVVM code for link-time optimisation, from nvcc's code=lto_121
_PREFIXES = {PTX: "compute_", ELF: "sm_", LTO: "lto_"}

_CONTAINER = struct.Struct("<4sHHQ")
_ENTRY = struct.Struct("<HHIQI8xI8xQ8x8x")
_VERSION = 1
_SPECIFIC, _FAMILY = 0x100000, 0x200000

MAX_HEADER = 1 << 20  # names and the compiler's options; nvcc writes up to some hundred bytes
MAX_ARCH = 9999
# The most that was met is 36,464 (cuFFT 12.5, with 18,227 containers): what has more is made to exhaust us.
MAX_ITEMS = 1 << 20
_WINDOW = 1 << 20  # bytes read at once


class FatbinError(AuditError):
    """A file whose device code is too absurd to go on reading."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """A container as its header describes it; `size` in bytes, header included."""

    offset: int
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FatbinEntry:
    """Code for one architecture; `size`: stored bytes."""

    offset: int
    container: int  # offset of its container
    kind: int  # PTX, ELF, LTO or a number that is not known here
    arch: int  # 121
    variant: str  # "a", "f" or ""
    size: int

    @property
    def target(self) -> str:
        """Target as nvcc names it: sm_121a, compute_80, lto_90a; kind16_120 for an unknown kind."""
        return f"{_PREFIXES.get(self.kind, f'kind{self.kind}_')}{self.arch}{self.variant}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Stray:
    """The magic number without a container: host code that compares with it, or damage."""

    offset: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FatbinProblem:
    """A container that contradicts its header; its entries before that were listed."""

    offset: int
    message: str


Item = Container | FatbinEntry | Stray | FatbinProblem


class ReadAt(Protocol):
    """Random access to a file; returns fewer bytes than asked for only at its end."""

    def __call__(self, offset: int, size: int, /) -> bytes:
        """Return the `size` bytes at `offset`."""
        ...


class _Window:
    """The part of a file that was read last, so that a search reads each byte once."""

    def __init__(self, read: ReadAt, size: int) -> None:
        self._read, self.size = read, size
        self._start, self._data = 0, b""

    def at(self, offset: int, length: int) -> bytes:
        """Return the `length` bytes at `offset`, fewer at the end of the file."""
        if offset < self._start or offset + length > self._start + len(self._data):
            self._start, self._data = offset, self._read(offset, _WINDOW)
        return self._data[offset - self._start : offset - self._start + length]

    def find(self, offset: int) -> int:
        """Return where the next magic number stands; the file's size where there is none."""
        while len(self.at(offset, len(MAGIC))) == len(MAGIC):
            found = self._data.find(MAGIC, offset - self._start)
            if found >= 0:
                return self._start + found
            offset = self._start + len(self._data) - len(MAGIC) + 1
        return self.size


def scan(read: ReadAt, size: int) -> Iterator[Item]:
    """Yield what a file of `size` bytes holds, in its order. Raises FatbinError beyond MAX_ITEMS.

    What lies within an entry's payload belongs to that entry and is not looked at, as in the driver. After
    a problem the search goes on right behind the damaged header, so that a wrong size hides nothing.
    """
    for number, item in enumerate(_items(_Window(read, size))):
        if number == MAX_ITEMS:
            raise FatbinError(f"more than {MAX_ITEMS:,} fat-binary headers in one file")
        yield item


def _items(window: _Window) -> Iterator[Item]:
    at = window.find(0)
    while window.size - at >= _CONTAINER.size:
        _, version, header, size = _CONTAINER.unpack(window.at(at, _CONTAINER.size))
        end = at + header + size
        if version != _VERSION or not _CONTAINER.size <= header <= MAX_HEADER:
            yield Stray(offset=at)
        elif end > window.size:
            message = f"a container of {end - at} bytes where the file has {window.size - at}"
            yield FatbinProblem(offset=at, message=message)
        else:
            yield Container(offset=at, size=end - at)
            at = window.find((yield from _entries(window, at, at + header, end)))
            continue
        at = window.find(at + len(MAGIC))


def _entries(window: _Window, container: int, at: int, end: int) -> Generator[Item, None, int]:
    """Yield a container's entries up to the first problem; returns where they end."""
    while end - at >= _ENTRY.size:
        kind, _, header, size, packed, arch, flags = _ENTRY.unpack(window.at(at, _ENTRY.size))
        if not _ENTRY.size <= header <= MAX_HEADER:
            problem = f"an entry's header of {header} bytes"
        elif header + size > end - at:
            problem = f"an entry of {header + size} bytes where its container has {end - at} left"
        elif packed > size:
            problem = f"an entry of {size} bytes with {packed} compressed bytes"
        elif not kind or arch > MAX_ARCH:
            problem = f"an entry of kind {kind} for architecture {arch}"
        else:
            variant = ("a" if flags & _SPECIFIC else "") + ("f" if flags & _FAMILY else "")
            yield FatbinEntry(
                offset=at, container=container, kind=kind, arch=arch, variant=variant, size=packed or size
            )
            at += header + size
            continue
        yield FatbinProblem(offset=at, message=problem)
        return at
    if end > at:
        yield FatbinProblem(offset=at, message=f"{end - at} bytes after a container's last entry")
    return at


Role = Literal["loaded", "relocatable"]
ROLES: dict[bytes, Role] = {b".nv_fatbin": "loaded", b"__nv_relfatbin": "relocatable"}
EM_CUDA = 190
ET_REL = 1

ELF_MAGIC = b"\x7fELF"
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
MAX_REGIONS = 1 << 16

_CUBIN_ABI_7 = 7  # ptxas up to CUDA 12.9 for what is older than sm_100
_ACCELERATED_7, _ACCELERATED_8 = 0x800, 0x8
_COMPAT_ISA = re.compile(rb"(?:.{4})*?\x02\x09\x01", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """Bytes [start, end) of the file, with the role of containers in them."""

    start: int
    end: int
    role: Role


@dataclass(frozen=True, kw_only=True, slots=True)
class Cubin:
    """Machine code for one architecture as a whole file."""

    target: str  # sm_121a
    role: Role


Part = Region | Cubin | FatbinProblem


@dataclass(frozen=True, kw_only=True, slots=True)
class _Section:
    name: bytes
    start: int
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Table:
    start: int
    count: int
    names: bytes


def kind_of(head: bytes) -> FileKind:
    """Return the kind of a file by its first 64 bytes."""
    if head.startswith(MAGIC):
        return "fatbin"
    if head.startswith(ELF_MAGIC):
        return "cubin" if _is_cubin(head) else "elf"
    return "other"


def parts(read: ReadAt, size: int) -> Iterator[Part]:
    """Yield regions, cubins and problems of a file of `size` bytes. Raises FatbinError for too many.

    A file with a damaged section table has a problem and no region: its containers are then elsewhere.
    """
    for number, part in enumerate(_parts(read, size)):
        if number == MAX_REGIONS:
            raise FatbinError(f"more than {MAX_REGIONS:,} sections with device code in one file")
        yield part


def _parts(read: ReadAt, size: int) -> Iterator[Part]:
    head = read(0, min(size, _HEADER.size))
    if head.startswith(MAGIC):
        yield Region(start=0, end=size, role="loaded")
    elif head.startswith(ELF_MAGIC) and len(head) < _HEADER.size:
        yield FatbinProblem(offset=0, message="an ELF header that is cut")
    elif _is_cubin(head):
        yield from _cubin(read, size)
    elif head.startswith(_IDENT_64_LITTLE):
        yield from _host(read, size)


def _host(read: ReadAt, size: int) -> Iterator[Part]:
    for section in _sections(read, size):
        if isinstance(section, FatbinProblem):
            yield section
        elif (role := ROLES.get(section.name)) and section.size:
            yield Region(start=section.start, end=section.start + section.size, role=role)


def _sections(read: ReadAt, size: int) -> Iterator[_Section | FatbinProblem]:
    """Yield the sections with bytes in the file."""
    table = _table(read, size)
    if isinstance(table, FatbinProblem):
        yield table
    elif table:
        end = table.start + table.count * _SECTION.size
        for at in range(table.start, end, _SLAB):
            for name, kind, _, _, start, length, *_ in _SECTION.iter_unpack(read(at, min(_SLAB, end - at))):
                text = table.names[name : name + _LONGEST_NAME].partition(b"\0")[0]
                if kind != _NOBITS and start + length <= size:
                    yield _Section(name=text, start=start, size=length)
                elif kind != _NOBITS and text in ROLES:
                    yield FatbinProblem(offset=at, message=f"section {text.decode()} is not in the file")


def _table(read: ReadAt, size: int) -> _Table | FatbinProblem | None:
    """Return the section table, if it lies within the file."""
    header = _HEADER.unpack(read(0, _HEADER.size))
    start, width, count, names_at = header[11], header[16], header[17], header[18]
    if not start:
        return None
    if width != _SECTION.size or start + width > size:
        return FatbinProblem(offset=0, message="a section table that is not in the file")
    first = _SECTION.unpack(read(start, width))
    count = count or first[5]
    names_at = first[6] if names_at == _EXTENDED else names_at
    if start + count * width > size or names_at >= count:
        return FatbinProblem(offset=0, message=f"a table of {count} sections that is not in the file")
    if count > MAX_SECTIONS:
        raise FatbinError(f"more than {MAX_SECTIONS:,} ELF sections in one file")
    names, length = _SECTION.unpack(read(start + names_at * width, width))[4:6]
    if names + length > size or length > _MAX_NAMES:
        return FatbinProblem(offset=0, message=f"a table of section names of {length} bytes")
    return _Table(start=start, count=count, names=read(names, length))


def _is_cubin(head: bytes) -> bool:
    return (
        len(head) >= 20
        and head.startswith(_IDENT_64_LITTLE)
        and int.from_bytes(head[18:20], "little") == EM_CUDA
    )


def _cubin(read: ReadAt, size: int) -> Iterator[Part]:
    """Yield the architecture from e_flags, and the variant from there or from the compiler's sections."""
    header = _HEADER.unpack(read(0, _HEADER.size))
    abi, kind, flags = header[5], header[6], header[12]
    number = flags & 0xFF if abi <= _CUBIN_ABI_7 else flags >> 8 & 0xFF
    variant = "a" if flags & (_ACCELERATED_7 if abi <= _CUBIN_ABI_7 else _ACCELERATED_8) else ""
    for section in _sections(read, size):
        if isinstance(section, FatbinProblem):
            yield section
        elif section.name in (b".nv.compat", b".note.nv.tkinfo") and not variant:
            variant = _variant(section.name, number, read(section.start, min(section.size, _MAX_NOTE)))
    yield Cubin(target=f"sm_{number}{variant}", role="relocatable" if kind == ET_REL else "loaded")


def _variant(section: bytes, number: int, data: bytes) -> str:
    """Return the variant: ptxas 13.0 marks `a` in .nv.compat only, `f` only in its command line."""
    if section == b".nv.compat":
        return "a" if _COMPAT_ISA.match(data) else ""
    said = re.search(rb"-arch sm_%d([af])\b" % number, data)
    return said[1].decode() if said else ""
