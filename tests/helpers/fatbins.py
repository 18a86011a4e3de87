"""Containers and ELF files for tests, written from the format's description, not with the parser's tables."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

MAGIC = b"\x50\xed\x55\xba"
PREFIX = {1: "compute_", 2: "sm_", 8: "lto_"}
BITS = {"": 0, "a": 0x100000, "f": 0x200000}
PACKED = {"": 0, "lz4": 0x2000, "zstd": 0x8000}


@dataclass(frozen=True, kw_only=True)
class Made:
    """One entry as it should be listed."""

    kind: int = 2
    arch: int = 121
    variant: str = ""
    compression: str = ""
    payload: bytes = b"\x7fELF"
    padding: int = 0
    options: bytes = b""

    @property
    def target(self) -> str:
        return f"{PREFIX.get(self.kind, f'kind{self.kind}_')}{self.arch}{self.variant}"

    @property
    def size(self) -> int:
        return len(self.payload) + (0 if self.compression else self.padding)

    def bytes(self) -> bytes:
        flags = 0x11 | BITS[self.variant] | PACKED[self.compression]
        packed = len(self.payload) if self.compression else 0
        stored = len(self.payload) + self.padding
        head = struct.pack("<HHIQ", self.kind, 0x101, 64 + len(self.options), stored)
        head += struct.pack("<IIHHI", packed, 64, 8, 1, self.arch)
        head += struct.pack("<IIQQQ", 0, 0, flags, 0, 1000 if packed else 0)
        return head + self.options + self.payload + bytes(self.padding)


def container(*entries: Made, size: int | None = None, version: int = 1) -> bytes:
    """A container of these entries; `size` lies about what follows its header."""
    body = b"".join(entry.bytes() for entry in entries)
    return MAGIC + struct.pack("<HHQ", version, 16, len(body) if size is None else size) + body


def elf(sections: Sequence[tuple[str, bytes]], *, machine: int = 183, flags: int = 0, abi: int = 0) -> bytes:
    """A 64-bit object with these sections in this order, its section table at the end."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name, _ in sections) + b".shstrtab\0"
    body, table = b"", bytes(64)
    for name, data in [*sections, (".shstrtab", names)]:
        at = names.index(b"\0" + name.encode() + b"\0") + 1
        table += struct.pack("<IIQQQQIIQQ", at, 1, 2, 0, 64 + len(body), len(data), 0, 0, 8, 0)
        body += data + bytes(-len(data) % 8)
    head = b"\x7fELF\x02\x01\x01" + bytes([0, abi]) + bytes(7)
    head += struct.pack("<HHIQQQ", 3, machine, 1, 0, 0, 64 + len(body))
    count = len(sections) + 2
    return head + struct.pack("<IHHHHHH", flags, 64, 0, 0, 64, count, count - 1) + body + table
