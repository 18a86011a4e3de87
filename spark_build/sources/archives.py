"""Unpack source archives that nobody vouches for: what is refused leaves nothing behind.

Its own checks throughout: tarfile's filters are missing from some distributions' Python 3.11, and
nothing is ever written through a link.
"""

from __future__ import annotations

import bz2
import calendar
import errno
import gzip
import lzma
import os
import stat
import struct
import sys
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO, cast

from spark_build.errors import HostError, SourceError
from spark_build.files import CHUNK, remove_tree
from spark_build.sources.tree import RefusedError, Tree

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_BYTES = 64 << 30
MAX_ENTRIES = 2_000_000
MAX_HEADER = 16 << 20  # bytes: a longer extended header or link target is an attack on memory

_NAMES = (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)
# What the readers raise on damaged input.
DAMAGE = (
    tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, zstd.ZstdError, struct.error,
    ValueError, OverflowError,
    RecursionError,  # tarfile reads extended headers of extended headers by recursion
)  # fmt: skip


def unpack(
    archive: Path, destination: Path, *, max_bytes: int = MAX_BYTES, max_entries: int = MAX_ENTRIES
) -> Path:
    """Unpack a tar (.gz, .bz2, .xz, .zst) or zip; the single top folder, or `destination` itself.

    Raises SourceError for a damaged or hostile archive, HostError when `destination` is in use.
    """
    taken = destination.exists() and not (destination.is_dir() and not any(destination.iterdir()))
    if taken or destination.is_symlink():
        raise HostError(f"{destination} is in the way", hint=f"remove {destination}, then try again")
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
    try:
        tree = Tree(temporary, max_bytes, max_entries)
        with archive.open("rb") as file:
            magic = file.read(6)
            file.seek(0)
            if magic.startswith((b"PK\x03\x04", b"PK\x05\x06")):
                _unzip(file, tree)
            else:
                _untar(decompressed(file, magic), tree)
        tree.finish()
        temporary.chmod(0o755)
        temporary.rename(destination)
    except BaseException as error:
        remove_tree(temporary)
        reason = _reason(error)
        if reason is None:
            raise
        raise SourceError(
            f"cannot unpack {archive.name}: {reason}", hint=f"check what the pin of {archive.name} names"
        ) from error
    entries = list(destination.iterdir())
    only = entries[0] if len(entries) == 1 else destination
    return only if only.is_dir() and not only.is_symlink() else destination


def _reason(error: BaseException) -> str | None:
    """What is wrong with the archive, in words; None when the archive is not to blame."""
    if isinstance(error, RefusedError):
        return str(error)
    if isinstance(error, NotImplementedError):
        return "it is packed in a way that Python cannot read"
    # gzip and bz2 report damage as an OSError without a number.
    damaged = isinstance(error, DAMAGE) or (isinstance(error, OSError) and error.errno is None)
    if damaged:
        return f"it is damaged ({' '.join(str(error).split()) or type(error).__name__})"
    if isinstance(error, OSError) and error.errno in _NAMES:
        return f"it holds a name that cannot be written ({error.strerror})"
    return None


class Metered:
    """A stream for tarfile: bounded in all (headers too) and in each read, remembers the last one."""

    def __init__(self, stream: BinaryIO, limit: int) -> None:
        self.stream = stream
        self.limit = limit
        self.last = b""

    def read(self, size: int = -1) -> bytes:
        """As usual, but not everything at once."""
        if not 0 <= size <= MAX_HEADER:
            raise RefusedError("it has an enormous header")
        self.last = self.stream.read(size)
        self._check()
        return self.last

    def seek(self, offset: int, whence: int = 0) -> int:
        """As usual, up to the limit."""
        if offset > self.limit:
            raise RefusedError("it is too large once unpacked")
        return self.stream.seek(offset, whence)

    def tell(self) -> int:
        """As usual."""
        return self.stream.tell()

    def drain(self) -> None:
        """Read the rest: only at its end does a compressed stream prove its checksum."""
        while self.stream.read(CHUNK):
            self._check()

    def _check(self) -> None:
        if self.stream.tell() > self.limit:
            raise RefusedError("it is too large once unpacked")


def decompressed(file: BinaryIO, magic: bytes) -> BinaryIO:
    """The content of a file that begins with these bytes (6 of them) and may be compressed."""
    if magic.startswith(b"\x1f\x8b"):
        return cast("BinaryIO", gzip.GzipFile(fileobj=file))
    if magic.startswith(b"BZh"):
        return cast("BinaryIO", bz2.BZ2File(file))
    if magic.startswith(b"\xfd7zXZ"):
        return cast("BinaryIO", lzma.LZMAFile(file))
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        return cast("BinaryIO", zstd.ZstdFile(file))
    return file


def _untar(stream: BinaryIO, tree: Tree) -> None:
    # Headers and padding come on top of the content: at most two blocks and a bit for each entry.
    metered = Metered(stream, tree.left + 4096 * min(tree.entries_left, MAX_ENTRIES) + MAX_HEADER)
    with tarfile.open(fileobj=cast("BinaryIO", metered), mode="r:") as tar:
        while (member := tar.next()) is not None:
            if member.isdir():
                tree.folder(member.name, member.mtime)
            elif member.issym():
                tree.symlink(member.name, member.linkname, member.mtime)
            elif member.islnk():
                tree.hardlink(member.name, member.linkname)
            elif member.isreg():
                content = tar.extractfile(member)
                assert content is not None
                executable = bool(member.mode & stat.S_IXUSR)
                tree.file(member.name, content, member.size, member.mtime, executable=executable)
            else:
                raise RefusedError(f"{member.name!r} is neither file, folder nor link")
        # tarfile takes a broken header for the end; the real end is zeros, or nothing.
        if metered.last.strip(b"\0") or 0 < len(metered.last) < tarfile.BLOCKSIZE:
            raise EOFError(f"broken off after entry {len(tar.getmembers())}")
    metered.drain()


def _unzip(file: BinaryIO, tree: Tree) -> None:
    with zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            mtime = _zip_time(entry)
            mode = entry.external_attr >> 16
            kind = stat.S_IFMT(mode)
            if entry.flag_bits & 1:
                raise RefusedError("it is encrypted")
            if entry.is_dir():
                tree.folder(entry.filename, mtime)
                continue
            if kind == stat.S_IFLNK and entry.file_size > 4096:
                raise RefusedError(f"{entry.filename!r} is a link with an enormous target")
            with archive.open(entry) as content:
                if kind == stat.S_IFLNK:
                    tree.symlink(entry.filename, os.fsdecode(content.read(4097)), mtime)
                elif kind in (0, stat.S_IFREG):
                    executable = bool(mode & stat.S_IXUSR)
                    tree.file(entry.filename, content, entry.file_size, mtime, executable=executable)
                    content.read(1)  # at the end the checksum is compared
                else:
                    raise RefusedError(f"{entry.filename!r} is neither file, folder nor link")


def _zip_time(entry: zipfile.ZipInfo) -> float:
    """Zips keep local times without a zone; UTC makes them the same everywhere."""
    try:
        return float(calendar.timegm((*entry.date_time, 0, 0, 0)))
    except ValueError:
        return 0.0  # month 0: written by tools that know no time
