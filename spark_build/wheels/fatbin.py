"""Read fat binaries and the sections that hold device code."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
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


class Scanner:
    """A search for containers in chunks of any size; keeps less than 64 bytes.

    What lies within an entry's payload belongs to that entry and is not looked at, as in the driver. After
    a problem the search goes on right behind the damaged header, so that a wrong size hides nothing.
    """

    def __init__(self, *, size: int | None = None) -> None:
        """Start; `size` of the whole file in bytes, where known, reveals wrong sizes at once."""
        self._size = size
        self._tail = b""  # received, not yet looked at; begins at _next
        self._received = 0
        self._next = 0  # where the next header is looked for, absolute
        self._start = self._end = 0  # of the container that _next is in
        self._inside = False
        self._count = 0

    def feed(self, chunk: bytes) -> list[Item]:
        """Return the items that these bytes complete, in file order. Raises FatbinError beyond MAX_ITEMS."""
        items: list[Item] = []
        data = self._tail + chunk if self._tail else chunk
        base = self._received - len(self._tail)
        self._received += len(chunk)
        while self._next < self._received and self._step(data, base, items):
            if self._count + len(items) > MAX_ITEMS:
                raise FatbinError(f"more than {MAX_ITEMS:,} fat-binary headers in one file")
        self._count += len(items)
        self._tail = data[self._next - base :] if self._next < self._received else b""
        return items

    def close(self) -> list[Item]:
        """Return the problems that the end of the file reveals."""
        if not self._inside or self._end <= self._received:
            return []
        self._inside = False
        return [
            FatbinProblem(
                offset=self._start, message=_cut(self._end - self._start, self._received - self._start)
            )
        ]

    def _step(self, data: bytes, base: int, items: list[Item]) -> bool:
        """Read one header or search for one; returns False when more bytes are needed."""
        if not self._inside:
            return self._search(data, base, items)
        left = self._end - self._next
        if left < _ENTRY.size:
            self._inside = False
            if left:
                items.append(
                    FatbinProblem(offset=self._next, message=f"{left} bytes after a container's last entry")
                )
            return True
        if self._received - self._next < _ENTRY.size:
            return False
        self._entry(data, self._next - base, items)
        return True

    def _search(self, data: bytes, base: int, items: list[Item]) -> bool:
        found = data.find(MAGIC, self._next - base)
        if found < 0:
            self._next = max(self._next, self._received - len(MAGIC) + 1)
            return False
        self._next = base + found
        if len(data) - found < _CONTAINER.size:
            return False
        _, version, header, size = _CONTAINER.unpack_from(data, found)
        end = self._next + header + size
        if version != _VERSION or not _CONTAINER.size <= header <= MAX_HEADER:
            items.append(Stray(offset=self._next))
            self._next += len(MAGIC)
        elif self._size is not None and end > self._size:
            items.append(
                FatbinProblem(offset=self._next, message=_cut(header + size, self._size - self._next))
            )
            self._next += len(MAGIC)
        else:
            items.append(Container(offset=self._next, size=header + size))
            self._start, self._end, self._inside = self._next, end, True
            self._next += header
        return True

    def _entry(self, data: bytes, at: int, items: list[Item]) -> None:
        kind, _, header, size, packed, arch, flags = _ENTRY.unpack_from(data, at)
        left = self._end - self._next
        if not _ENTRY.size <= header <= MAX_HEADER:
            problem = f"an entry's header of {header} bytes"
        elif header + size > left:
            problem = f"an entry of {header + size} bytes where its container has {left} left"
        elif packed > size:
            problem = f"an entry of {size} bytes with {packed} compressed bytes"
        elif not kind or arch > MAX_ARCH:
            problem = f"an entry of kind {kind} for architecture {arch}"
        else:
            items.append(
                FatbinEntry(
                    offset=self._next,
                    container=self._start,
                    kind=kind,
                    arch=arch,
                    variant=("a" if flags & _SPECIFIC else "") + ("f" if flags & _FAMILY else ""),
                    size=packed or size,
                )
            )
            self._next += header + size
            return
        items.append(FatbinProblem(offset=self._next, message=problem))
        self._inside = False


def _cut(claimed: int, there: int) -> str:
    return f"a container of {claimed} bytes where the file has {there}"


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
    """Random access to a file; returns fewer bytes than asked for only at its end."""

    def __call__(self, offset: int, size: int, /) -> bytes:
        """Return the `size` bytes at `offset`."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """Bytes [start, end) of the file, with the role of containers in them."""

    start: int
    end: int
    role: Role


@dataclass(frozen=True, kw_only=True, slots=True)
class Cubin:
    """Machine code for one architecture as a whole file or archive member.

    In an archive its role is "elsewhere": cuobjdump 13.1 does not list it there.
    """

    offset: int
    target: str  # sm_121a
    role: Role | Literal["elsewhere"]


Part = Region | Cubin | FatbinProblem


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
    """A bound on section table rows in an archive: they are cheap to fake and take a microsecond each."""

    left: int = MAX_SECTIONS

    def spend(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise FatbinError(f"more than {MAX_SECTIONS:,} ELF sections in one file")


def kind_of(head: bytes) -> FileKind:
    """Return the kind of a file by its first 64 bytes."""
    if head.startswith(AR_MAGIC):
        return "archive"
    if head.startswith(MAGIC):
        return "fatbin"
    if head.startswith(ELF_MAGIC):
        return "cubin" if _is_cubin(head) else "elf"
    return "other"


def parts(read: ReadAt, size: int) -> Iterator[Part]:
    """Yield regions, cubins and problems of a file of `size` bytes. Raises FatbinError for too many.

    A file with a damaged section table has a problem and no region: its containers are then elsewhere.
    """
    budget = _Budget()
    members = _members(read, size) if read(0, len(AR_MAGIC)) == AR_MAGIC else iter([(0, size)])
    regions = 0
    for member in members:
        for part in [member] if isinstance(member, FatbinProblem) else _object(read, *member, budget):
            regions += 1
            if regions > MAX_REGIONS:
                raise FatbinError(f"more than {MAX_REGIONS:,} sections with device code in one file")
            yield part


def _members(read: ReadAt, size: int) -> Iterator[tuple[int, int] | FatbinProblem]:
    """Yield offset and size of each member of a static archive."""
    at = len(AR_MAGIC)
    for _ in range(MAX_MEMBERS):
        if at >= size:
            return
        header = read(at, _AR_HEADER)
        digits = header[48:58].strip()
        if header[58:60] != b"`\n" or not digits.isdigit():
            yield FatbinProblem(offset=at, message="no header of an archive member")
            return
        start, length = at + _AR_HEADER, int(digits)
        if start + length > size:
            yield FatbinProblem(offset=at, message=f"an archive member of {length} bytes is cut")
            return
        yield start, length
        at = start + length + length % 2
    raise FatbinError(f"more than {MAX_MEMBERS:,} members in one archive")


def _object(read: ReadAt, base: int, size: int, budget: _Budget) -> Iterator[Part]:
    """Yield the parts of an object; `base` is its offset in an archive, else 0."""
    head = read(base, min(size, _HEADER.size))
    if head.startswith(MAGIC) and not base:
        yield Region(start=base, end=base + size, role="loaded")
    elif head.startswith(ELF_MAGIC) and len(head) < _HEADER.size:
        yield FatbinProblem(offset=base, message="an ELF header that is cut")
    elif _is_cubin(head):
        yield from _cubin(read, base, size, budget)
    elif head.startswith(_IDENT_64_LITTLE):
        yield from _host(read, base, size, budget)


def _host(read: ReadAt, base: int, size: int, budget: _Budget) -> Iterator[Part]:
    for section in _sections(read, base, size, budget):
        if isinstance(section, FatbinProblem):
            yield section
        elif (role := ROLES.get(section.name)) and section.size:
            yield Region(start=section.start, end=section.start + section.size, role=role)


def _sections(read: ReadAt, base: int, size: int, budget: _Budget) -> Iterator[_Section | FatbinProblem]:
    """Yield the sections with bytes in the file."""
    table = _table(read, base, size, budget)
    if isinstance(table, FatbinProblem):
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
                    yield FatbinProblem(
                        offset=base + at, message=f"section {text.decode()} is not in the file"
                    )


def _table(read: ReadAt, base: int, size: int, budget: _Budget) -> _Table | FatbinProblem | None:
    """Return the section table, if it lies within the object."""
    header = _HEADER.unpack(read(base, _HEADER.size))
    start, width, count, names_at = header[11], header[16], header[17], header[18]
    if not start:
        return None
    if width != _SECTION.size or start + width > size:
        return FatbinProblem(offset=base, message="a section table that is not in the file")
    first = _SECTION.unpack(read(base + start, width))
    count = count or first[5]
    names_at = first[6] if names_at == _EXTENDED else names_at
    if start + count * width > size or names_at >= count:
        return FatbinProblem(offset=base, message=f"a table of {count} sections that is not in the file")
    budget.spend(count)
    names, length = _SECTION.unpack(read(base + start + names_at * width, width))[4:6]
    if names + length > size or length > _MAX_NAMES:
        return FatbinProblem(offset=base, message=f"a table of section names of {length} bytes")
    return _Table(start=start, count=count, names=read(base + names, length))


def _is_cubin(head: bytes) -> bool:
    return (
        len(head) >= 20
        and head.startswith(_IDENT_64_LITTLE)
        and int.from_bytes(head[18:20], "little") == EM_CUDA
    )


def _cubin(read: ReadAt, base: int, size: int, budget: _Budget) -> Iterator[Part]:
    """Yield the architecture from e_flags, and the variant from there or from the compiler's sections."""
    header = _HEADER.unpack(read(base, _HEADER.size))
    abi, kind, flags = header[5], header[6], header[12]
    number = flags & 0xFF if abi <= _CUBIN_ABI_7 else flags >> 8 & 0xFF
    variant = "a" if flags & (_ACCELERATED_7 if abi <= _CUBIN_ABI_7 else _ACCELERATED_8) else ""
    for section in _sections(read, base, size, budget):
        if isinstance(section, FatbinProblem):
            yield section
        elif section.name in (b".nv.compat", b".note.nv.tkinfo") and not variant:
            variant = _variant(section.name, number, read(section.start, min(section.size, _MAX_NOTE)))
    alone: Role = "relocatable" if kind == ET_REL else "loaded"
    yield Cubin(offset=base, target=f"sm_{number}{variant}", role="elsewhere" if base else alone)


def _variant(section: bytes, number: int, data: bytes) -> str:
    """Return the variant: ptxas 13.0 marks `a` in .nv.compat only, `f` only in its command line."""
    if section == b".nv.compat":
        return "a" if _COMPAT_ISA.match(data) else ""
    said = re.search(rb"-arch sm_%d([af])\b" % number, data)
    return said[1].decode() if said else ""
