"""Fat-binary containers: what device code a file holds, listed from headers alone, nothing is decompressed.

Layout (little-endian), as nvcc 13.0 writes and cuobjdump 13.1 reads it; offsets in bytes:

container  0 u32 magic 0xBA55ED50, 4 u16 version, 6 u16 header size, 8 u64 size of the entries that follow
entry      0 u16 kind, 2 u16 version, 4 u32 header size, 8 u64 payload size (padded), 16 u32 compressed size,
           20 u32 options, 24 u16 minor, 26 u16 major, 28 u32 architecture, 32 u32 name, 36 u32 name length,
           40 u64 flags, 48 u64 -, 56 u64 size decompressed; then name, options, payload

Whether code is relocatable stands nowhere in here: the section says it (`wheels/sections.py`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from spark_build.errors import AuditError

MAGIC = struct.pack("<I", 0xBA55ED50)

PTX, ELF, LTO = 1, 2, 8  # LTO: NVVM code for link-time optimisation, from nvcc's code=lto_121
_PREFIXES = {PTX: "compute_", ELF: "sm_", LTO: "lto_"}

_CONTAINER = struct.Struct("<4sHHQ")
_ENTRY = struct.Struct("<HHIQI8xI8xQ8xQ")
_VERSION = 1
_SPECIFIC, _FAMILY = 0x100000, 0x200000
_LZ4, _ZSTD = 0x2000, 0x8000  # nvcc --compress-mode=speed, =size

MAX_HEADER = 1 << 20  # names and the compiler's options; nvcc writes up to some hundred bytes
MAX_ARCH = 9999
# The most that was met is 36,464 (cuFFT 12.5, with 18,227 containers): what has more is made to exhaust us.
MAX_ITEMS = 1 << 20


class FatbinError(AuditError):
    """A file with device code that is no file anybody would ship: reading it was given up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """A container as its header describes it. `size`: bytes, with the header."""

    offset: int
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """Code for one architecture. `size`: stored bytes; `full_size`: decompressed bytes."""

    offset: int
    container: int  # offset of its container
    kind: int  # PTX, ELF, LTO or a number that is not known here
    arch: int  # 121
    variant: str  # "a", "f" or ""
    compression: str  # "lz4", "zstd", "unknown" or "" for none
    size: int
    full_size: int

    @property
    def target(self) -> str:
        """As nvcc names it: sm_121a, compute_80, lto_90a; kind16_120 for an unknown kind."""
        return f"{_PREFIXES.get(self.kind, f'kind{self.kind}_')}{self.arch}{self.variant}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Stray:
    """The magic number without a container behind it: host code that compares with it, or damage."""

    offset: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A container that is not what its header says. What it holds up to there has been listed."""

    offset: int
    message: str


Item = Container | Entry | Stray | Problem


class Scanner:
    """Finds the containers in a file that arrives in chunks of any size; keeps less than 64 bytes of it.

    What lies within an entry's payload belongs to that entry and is not looked at, as in the driver. After
    a problem the search goes on right behind the damaged header, so that a wrong size hides nothing.
    """

    def __init__(self, *, size: int | None = None) -> None:
        """`size`: of the whole file in bytes, where it is known: wrong sizes are then met at once."""
        self._size = size
        self._tail = b""  # received, not yet looked at; begins at _next
        self._received = 0
        self._next = 0  # where the next header is looked for, absolute
        self._start = self._end = 0  # of the container that _next is in
        self._inside = False
        self._count = 0

    def feed(self, chunk: bytes) -> list[Item]:
        """What became known with these bytes, in the order of the file. FatbinError beyond MAX_ITEMS."""
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
        """What is wrong because the file ends here."""
        if not self._inside or self._end <= self._received:
            return []
        self._inside = False
        return [
            Problem(offset=self._start, message=_cut(self._end - self._start, self._received - self._start))
        ]

    def _step(self, data: bytes, base: int, items: list[Item]) -> bool:
        """One header, or the search for one; False when more bytes are needed."""
        if not self._inside:
            return self._search(data, base, items)
        left = self._end - self._next
        if left < _ENTRY.size:
            self._inside = False
            if left:
                items.append(
                    Problem(offset=self._next, message=f"{left} bytes after a container's last entry")
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
            items.append(Problem(offset=self._next, message=_cut(header + size, self._size - self._next)))
            self._next += len(MAGIC)
        else:
            items.append(Container(offset=self._next, size=header + size))
            self._start, self._end, self._inside = self._next, end, True
            self._next += header
        return True

    def _entry(self, data: bytes, at: int, items: list[Item]) -> None:
        kind, _, header, size, packed, arch, flags, full = _ENTRY.unpack_from(data, at)
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
                Entry(
                    offset=self._next,
                    container=self._start,
                    kind=kind,
                    arch=arch,
                    variant=("a" if flags & _SPECIFIC else "") + ("f" if flags & _FAMILY else ""),
                    compression=_compression(flags, packed),
                    size=packed or size,
                    full_size=full or size,
                )
            )
            self._next += header + size
            return
        items.append(Problem(offset=self._next, message=problem))
        self._inside = False


def _compression(flags: int, packed: int) -> str:
    if flags & _LZ4:
        return "lz4"
    if flags & _ZSTD:
        return "zstd"
    return "unknown" if packed else ""


def _cut(claimed: int, there: int) -> str:
    return f"a container of {claimed} bytes where the file has {there}"
