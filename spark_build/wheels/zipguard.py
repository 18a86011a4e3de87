"""What makes a zip dangerous to open or to read; refused before anything in it is believed."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

from spark_build.wheels.payload import Entry

MAX_READ = 16 << 20  # bytes asked for at once: a central directory of this size lists 200 000 files
MAX_UNPACKED = 64 << 30
FREELY, RATIO = 1 << 30, 200  # what unpacks to more than a gigabyte may grow this much
_LOCAL_HEADER = 30


class Bounded(io.BufferedReader):
    """A file from which zipfile cannot ask for gigabytes at once, whatever the headers in it say."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path))
        self._size = os.fstat(self.fileno()).st_size

    def read(self, size: int | None = -1, /) -> bytes:
        """As usual, up to MAX_READ bytes."""
        wanted = self._size - self.tell() if size is None or size < 0 else size
        if min(wanted, self._size) > MAX_READ:
            raise zipfile.BadZipFile(f"a directory or header of {wanted:,} bytes")
        return super().read(size)


def refuse(archive: zipfile.ZipFile, size: int) -> None:
    """Raise BadZipFile for a zip of `size` bytes that would unpack to no end, or to the same bytes twice."""
    infos = archive.infolist()
    if any(not info.filename for info in infos):
        raise zipfile.BadZipFile("an entry without a name")  # zipfile stumbles over it elsewhere
    unpacked = sum(info.file_size for info in infos)
    if unpacked > MAX_UNPACKED or unpacked > max(FREELY, RATIO * size):
        raise zipfile.BadZipFile(
            f"a zip bomb: {size:,} bytes would unpack to {unpacked:,} (more than {RATIO} times as many)"
        )
    end, before = 0, ""
    for info in sorted(infos, key=lambda info: info.header_offset):
        if info.header_offset < end:
            raise zipfile.BadZipFile(f"{before} and {info.filename} overlap: a zip bomb")
        end = info.header_offset + _LOCAL_HEADER + info.compress_size
        before = info.filename
    if end > size:
        raise zipfile.BadZipFile(f"{before} would end after the end of the file")


def oddities(archive: zipfile.ZipFile) -> list[str]:
    """What a zip should not hold, though it can be read."""
    infos = archive.infolist()
    folders = [info for info in infos if info.is_dir()]
    found = [
        f"{info.filename}: a folder with {info.file_size} bytes in it" for info in folders if info.file_size
    ]
    found += [
        f"{info.filename}: not a safe relative name"
        for info in folders
        if not is_safe(info.filename.removesuffix("/"))
    ]
    first = min((info.header_offset for info in infos), default=0)
    return found + ([f"{first} bytes stand before the first file of the zip"] if first else [])


def is_safe(name: str) -> bool:
    """Whether an archive name stays inside the folder it is unpacked to."""
    parts = name.split("/")
    return "\\" not in name and not any(part in ("", ".", "..") for part in parts)


def entry(info: zipfile.ZipInfo) -> Entry:
    """The same without what zipfile needs."""
    return Entry(
        name=info.filename,
        size=info.file_size,
        packed=info.compress_size,
        mode=info.external_attr >> 16,
    )
