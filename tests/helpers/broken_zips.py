"""Broken wheels: the zip itself."""

from __future__ import annotations

import struct
import sys
import zipfile
import zlib
from pathlib import Path

from tests.helpers.corpus import CENTRAL, END, LOCAL, RECORD, case, everywhere, set_field, sound, with_bytes
from tests.helpers.wheels import entries_of, record_of, write_zip

with_bytes("truncated", "no readable wheel: File is not a zip file", lambda raw: raw[: len(raw) // 2])
with_bytes("no zip", "no readable wheel: File is not a zip file", lambda _: b"<html>404</html>\n")
with_bytes("nothing before the directory", "no readable wheel", lambda raw: raw[raw.find(CENTRAL) :])
with_bytes(
    "a program before the zip",
    "record: 40 bytes stand before the first file",
    lambda raw: b"#!/bin/sh\n".ljust(40) + raw,
)
with_bytes(
    "an entry without a name",
    "no readable wheel: an entry without a name",
    lambda raw: set_field(raw, None, 46, b"\0", which=1),
)
with_bytes("encrypted", "is encrypted", lambda raw: set_field(raw, 6, 8, b"\1"))
with_bytes(
    "an unknown compression",
    "compression method is not supported",
    lambda raw: set_field(raw, 8, 10, b"\x63\0"),
)
with_bytes("a wrong CRC", "no readable wheel: Bad CRC-32", lambda raw: set_field(raw, 14, 16, b"\1\2\3\4"))
with_bytes(
    "a size that is too small",
    "no readable wheel",
    lambda raw: set_field(raw, 22, 24, struct.pack("<I", 3), which=1),
)
with_bytes(
    "a size that is too large",
    "the zip says 99999",
    lambda raw: set_field(raw, 22, 24, struct.pack("<I", 99999), which=1),
)
with_bytes(
    "a bomb that says so", "a zip bomb", lambda raw: set_field(raw, 22, 24, struct.pack("<I", 0xF0000000))
)
with_bytes(
    "overlapping entries",
    "overlap: a zip bomb",
    lambda raw: set_field(raw, None, 42, struct.pack("<I", 0), which=1),
)
with_bytes(
    "an entry beyond the end",
    "would end after the end",
    lambda raw: set_field(raw, None, 42, struct.pack("<I", 1 << 30)),
)
with_bytes(
    "a directory larger than the file",
    "no readable wheel",
    lambda raw: raw[:-10] + struct.pack("<I", 0x7FFFFFFF) + raw[-6:],
)


def zeros(count: int) -> bytes:
    """A deflate stream of 16 MiB blocks of zeros, made as cheaply as it is small."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = bytes(16 << 20)
    first = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    return first * count + packer.flush()


def _bomb(raw: bytearray, said: int) -> bytes:
    """One more entry, of 1.5 GiB, that says it unpacks to `said` bytes."""
    packed = zeros(96)
    name = b"demo/bomb.bin"
    sizes = struct.pack("<III", 0, len(packed), said)
    start, end = raw.find(CENTRAL), raw.rfind(END)
    local = struct.pack("<4sHHHHH", LOCAL, 20, 0, 8, 0, 33) + sizes + struct.pack("<HH", len(name), 0) + name
    central = struct.pack("<4sHHHHHH", CENTRAL, 20, 20, 0, 8, 0, 33) + sizes
    central += struct.pack("<HHHHHII", len(name), 0, 0, 0, 0, 0, start) + name
    directory = bytes(raw[start:end]) + central
    count = struct.unpack_from("<H", raw, end + 8)[0] + 1
    body = bytes(raw[:start]) + local + packed
    return body + directory + struct.pack("<4sHHHHIIH", END, 0, 0, count, count, len(directory), len(body), 0)


with_bytes("a real bomb", "a zip bomb", lambda raw: _bomb(raw, 96 * (16 << 20)))
with_bytes(
    "a real bomb that lies",
    "no readable wheel: Bad CRC-32 for file 'demo/bomb.bin'",
    lambda raw: _bomb(raw, 100),
)


def _crowd(raw: bytearray) -> bytes:
    """A directory of 300 000 entries for the same bytes."""
    start = raw.find(CENTRAL)
    one = bytes(raw[start : everywhere(raw, CENTRAL)[1]])
    directory = one * 300_000
    return (
        bytes(raw[:start])
        + directory
        + struct.pack("<4sHHHHIIH", END, 0, 0, 65535, 65535, len(directory), start, 0)
    )


with_bytes("a crowd of entries", "a directory or header of", _crowd)


def _zip64(raw: bytearray, *, directory: int, extra: int | None = None) -> bytes:
    """The same with zip64 records that may say anything."""
    start, end = raw.find(CENTRAL), raw.rfind(END)
    rows = bytearray(raw[start:end])
    if extra is not None:
        length = struct.unpack_from("<H", rows, 28)[0]
        rows[24:28] = b"\xff" * 4
        rows[30:32] = struct.pack("<H", 12)
        rows[46 + length : 46 + length] = struct.pack("<HHQ", 1, 8, extra)
    size = len(rows) if directory < 0 else directory
    count = struct.unpack_from("<H", raw, end + 8)[0]
    where = start + len(rows)
    record = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, start)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, where, 1)
    last = struct.pack("<4sHHHHIIH", END, 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return bytes(raw[:start]) + bytes(rows) + record + locator + last


with_bytes("zip64 with an endless directory", "no readable wheel", lambda raw: _zip64(raw, directory=1 << 60))
with_bytes("zip64 with an endless file", "a zip bomb", lambda raw: _zip64(raw, directory=-1, extra=1 << 60))


@case("LZMA that asks for 4 GiB", "no readable wheel")
def _(folder: Path, workshop: Path) -> Path:
    wheel = sound(folder, workshop)
    write_zip(wheel, entries_of(wheel), compression=zipfile.ZIP_LZMA)
    raw = bytearray(wheel.read_bytes())
    at = raw.find(b"\x05\x00\x5d")  # the size of the properties, then the first of them
    raw[at + 3 : at + 7] = b"\xff\xff\xff\xff"
    set_field(raw, 14, 16, b"\1\2\3\4")
    wheel.write_bytes(raw)
    return wheel


def _hidden(raw: bytearray) -> bytearray:
    """A whole file between two others that the directory does not list: a stream reader unpacks it."""
    data = b"evil = True\n"
    name = b"demo/evil.py"
    sizes = struct.pack("<III", zlib.crc32(data), len(data), len(data))
    entry = (
        LOCAL
        + struct.pack("<HHHHH", 20, 0, 0, 0, 33)
        + sizes
        + struct.pack("<HH", len(name), 0)
        + name
        + data
    )
    directory = everywhere(raw, CENTRAL)[0]
    raw[directory:directory] = entry
    at = everywhere(raw, END)[-1]
    raw[at + 16 : at + 20] = struct.pack("<I", directory + len(entry))
    return raw


with_bytes("a file that only a stream has", "bytes behind it belong to no file of the zip", _hidden)


TAKEN = ("demo/data.bin",) if sys.version_info >= (3, 12) else ()  # zipfile goes by the second name


@case("a second name", "the zip also calls it demo/evil.py")
def _renamed(folder: Path, workshop: Path) -> Path:
    """RECORD names it as the zipfile of this Python does."""
    wheel = sound(folder, workshop)
    entries = entries_of(wheel)
    named = [("demo/evil.py" if name in TAKEN else name, data) for name, data in entries[:-1]]
    entries[-1] = (RECORD, record_of(dict(named), RECORD).encode())
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in entries:
            info = zipfile.ZipInfo(name)
            if name == "demo/data.bin":
                other = b"\x01" + struct.pack("<I", zlib.crc32(name.encode())) + b"demo/evil.py"
                info.extra = struct.pack("<HH", 0x7075, len(other)) + other
            archive.writestr(info, data)
    return wheel
