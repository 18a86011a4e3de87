"""Read what somebody brought: the files of an archive or a folder, one after the other."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from spark_build.files import CHUNK
from spark_build.sources import archives
from spark_build.sources.archives import MAX_ENTRIES, Metered, RefusedError, decompressed
from spark_build.text import printable
from spark_build.transfer.bundle import Progress
from spark_build.transfer.bundle_write import silent
from spark_build.transfer.manifest import DAMAGE, refused
from spark_build.wheels import reader

PACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")


class Content(Protocol):
    """What the bytes of a file are read from."""

    def read(self, size: int, /) -> bytes:
        """At most so many of the next ones; none at the end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Incoming:
    """One regular file; its content can be read until the next one is asked for."""

    name: str
    size: int
    content: Content

    def chunks(self) -> Iterator[bytes]:
        """Its bytes, once."""
        while chunk := self.content.read(CHUNK):
            yield chunk

    def save(self, path: Path) -> str:
        """Write it to a new file; its sha256."""
        digest = hashlib.sha256()
        with path.open("xb", buffering=0) as out:
            for chunk in self.chunks():
                digest.update(chunk)
                out.write(chunk)
        return digest.hexdigest()


@contextlib.contextmanager
def incoming(path: Path, progress: Progress = silent) -> Iterator[Iterator[Incoming]]:
    """The files of a folder, with manifest.json first, or of a tar (.gz, .bz2, .xz, .zst) in its order.

    Names are safe and come once. Raises StoreError or DAMAGE for what nobody should take in.
    """
    if path.is_dir():
        yield _of_folder(path, progress)
        return
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        magic = file.read(6)
        file.seek(0)
        told = _Told(file, size, progress)
        # What is not compressed ends where the file does.
        limit = max(reader.FREELY, reader.RATIO * size) if magic.startswith(PACKED) else 1 << 62
        try:
            yield _of_tar(path, Metered(decompressed(cast("BinaryIO", told), magic), limit))
        except RefusedError as error:
            raise refused(path, str(error)) from error
        except (*DAMAGE, *archives.DAMAGE) as error:
            said = printable(" ".join(str(error).split()))[:300]
            raise refused(path, f"it is cut short or no export of ours ({said})") from error
        except OSError as error:
            # gzip and bz2 report damage as an OSError without a number.
            if error.errno is not None:
                raise
            raise refused(path, f"it is damaged ({error})") from error


class _Told(io.RawIOBase):
    """A file that tells how far it was read."""

    def __init__(self, file: BinaryIO, size: int, progress: Progress) -> None:
        self._file, self._size, self._progress = file, size, progress

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(size)
        self._progress(self._file.tell(), self._size)
        return data

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


def _of_tar(path: Path, stream: Metered) -> Iterator[Incoming]:
    seen: set[str] = set()
    with tarfile.open(fileobj=cast("BinaryIO", stream), mode="r:") as tar:
        while (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # it would keep all of them
            name = member.name.removeprefix("./")
            if member.isdir() and (name in ("", ".") or reader.is_safe(name.rstrip("/"))):
                continue
            # A sparse file may claim any size without holding a byte.
            if not member.isreg() or member.issparse():
                raise refused(path, f"it holds {_shown(member.name)}, which is {_kind(member)}")
            if name in seen or not _is_sane(name):
                why = "is there twice" if name in seen else "is no safe name for a file"
                raise refused(path, f"it holds {_shown(member.name)}, which {why}")
            if len(seen) >= MAX_ENTRIES:
                raise refused(path, f"it holds more than {MAX_ENTRIES:,} files")
            seen.add(name)
            yield Incoming(name=name, size=member.size, content=_Member(stream, member))
        # tarfile takes a broken header for the end; the real end is zeros, or nothing.
        if stream.last.strip(b"\0") or len(stream.last) < tarfile.BLOCKSIZE or not seen:
            raise EOFError("it is cut short")
    stream.drain()


class _Member:
    """The content of a member, as it comes out of the stream: tarfile's own reader copies it three times."""

    def __init__(self, stream: Metered, member: tarfile.TarInfo) -> None:
        stream.seek(member.offset_data)
        self._stream, self._left = stream, member.size

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(min(size, self._left))
        if not data and self._left:
            raise EOFError("it is cut short")
        self._left -= len(data)
        return data


def _kind(member: tarfile.TarInfo) -> str:
    if member.issym() or member.islnk():
        return "a link"
    if member.issparse():
        return "a sparse file"
    return "a folder outside it" if member.isdir() else "a device or a pipe"


def _shown(name: str) -> str:
    return printable(repr(name)[:300])


def _is_sane(name: str) -> bool:
    return reader.is_safe(name) and name.isprintable() and len(name) < 4096


def _of_folder(path: Path, progress: Progress) -> Iterator[Incoming]:
    names = []
    for place in sorted(path.rglob("*")):
        mode = place.lstat().st_mode
        name = str(place.relative_to(path))
        if stat.S_ISLNK(mode):
            raise refused(
                path, f"it holds {name!r}, a link", hint="cp -rL makes a copy of real files: import that"
            )
        if not stat.S_ISDIR(mode) and not (stat.S_ISREG(mode) and _is_sane(name)):
            raise refused(path, f"it holds {printable(name[:300])!r}, which is no plain file")
        if stat.S_ISREG(mode):
            names.append((name != "manifest.json", name, place.stat().st_size))
    total, done = sum(size for _, _, size in names), 0
    for _, name, size in sorted(names):
        descriptor = os.open(path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            yield Incoming(name=name, size=size, content=file)
        done += size
        progress(done, total)
