"""Unpack archives without writing outside their folder."""

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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol, cast

from spark_build.errors import AGAIN, Hint, HostError, SourceError
from spark_build.files import CHUNK, remove_tree

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


def unpack(archive: Path, destination: Path) -> Path:
    """Unpack a tar (.gz, .bz2, .xz, .zst) or zip; the single top folder, or `destination` itself.

    Raises SourceError for a damaged or hostile archive, HostError when `destination` is in use.
    """
    hint = f"check what the pin of {archive.name} names"
    with (
        filled(destination, f"unpack {archive.name}", hint) as tree,
        archive.open("rb") as file,
    ):
        magic = file.read(6)
        file.seek(0)
        if magic.startswith((b"PK\x03\x04", b"PK\x05\x06")):
            _unzip(file, tree)
        else:
            untar(decompressed(file, magic), tree)
    entries = list(destination.iterdir())
    only = entries[0] if len(entries) == 1 else destination
    return only if only.is_dir() and not only.is_symlink() else destination


@contextmanager
def filled(destination: Path, what: str, hint: str) -> Iterator[Tree]:
    """Yield a tree that becomes `destination` when the block ends well; else nothing is left.

    Raises HostError when `destination` is in use, SourceError "cannot WHAT" for what must not be written.
    """
    taken = destination.exists() and not (destination.is_dir() and not any(destination.iterdir()))
    if taken or destination.is_symlink():
        raise HostError(f"{destination} is in the way", hint=Hint(f"remove {destination}, then ", AGAIN))
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
    try:
        tree = Tree(temporary)
        yield tree
        tree.finish()
        temporary.chmod(0o755)
        temporary.rename(destination)
    except BaseException as error:
        remove_tree(temporary)
        reason = _reason(error)
        if reason is None:
            raise
        raise SourceError(f"cannot {what}: {reason}", hint=hint) from error


def _reason(error: BaseException) -> str | None:
    """Return what is wrong with the archive; None when the error has another cause."""
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
    """A stream for tarfile with limits in total (headers included) and per read; keeps the last read."""

    def __init__(self, stream: BinaryIO, limit: int) -> None:
        self.stream = stream
        self.limit = limit
        self.last = b""
        # Bytes of the header that is read now: Python 3.14 reads it in pieces, the first when it opens a tar.
        self.header: int | None = 0

    def read(self, size: int = -1) -> bytes:
        """Read `size` bytes; refuses an unbounded or huge read."""
        if self.header is not None:
            self.header += size
        if size < 0 or max(size, (self.header or 0) - 2 * tarfile.BLOCKSIZE) > MAX_HEADER:
            raise RefusedError("it has an enormous header")
        self.last = self.stream.read(size)
        self._check()
        return self.last

    def seek(self, offset: int, whence: int = 0) -> int:
        """Seek, up to the limit."""
        if self.header is not None:
            self.header = 0
        if offset > self.limit:
            raise RefusedError("it is too large once unpacked")
        return self.stream.seek(offset, whence)

    def tell(self) -> int:
        """Return the position."""
        return self.stream.tell()

    def drain(self) -> None:
        """Read the rest: a compressed stream proves its checksum only at its end."""
        while self.stream.read(CHUNK):
            self._check()

    def _check(self) -> None:
        if self.stream.tell() > self.limit:
            raise RefusedError("it is too large once unpacked")


def decompressed(file: BinaryIO, magic: bytes) -> BinaryIO:
    """Return the decompressed stream of a file that begins with these 6 bytes."""
    if magic.startswith(b"\x1f\x8b"):
        return cast("BinaryIO", gzip.GzipFile(fileobj=file))
    if magic.startswith(b"BZh"):
        return cast("BinaryIO", bz2.BZ2File(file))
    if magic.startswith(b"\xfd7zXZ"):
        return cast("BinaryIO", lzma.LZMAFile(file))
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        return cast("BinaryIO", zstd.ZstdFile(file))
    return file


def next_member(tar: tarfile.TarFile, metered: Metered) -> tarfile.TarInfo | None:
    """Return the next member, whose header is bounded as a whole; None at the end."""
    metered.header = 0
    try:
        return tar.next()
    finally:
        metered.header = None


def untar(stream: BinaryIO, tree: Tree, seconds: float | None = None) -> None:
    """Write a tar's entries to the tree, all of them with one time where `seconds` since 1970 is given."""
    # Headers and padding come on top of the content: at most two blocks and a bit for each entry.
    metered = Metered(stream, tree.left + 4096 * tree.entries_left + MAX_HEADER)
    with tarfile.open(fileobj=cast("BinaryIO", metered), mode="r:") as tar:
        while (member := next_member(tar, metered)) is not None:
            mtime = member.mtime if seconds is None else seconds
            if member.isdir():
                tree.folder(member.name, mtime)
            elif member.issym():
                tree.symlink(member.name, member.linkname, mtime)
            elif member.islnk():
                tree.hardlink(member.name, member.linkname)
            elif member.isreg():
                content = tar.extractfile(member)
                assert content is not None
                executable = bool(member.mode & stat.S_IXUSR)
                tree.file(member.name, content, member.size, mtime, executable=executable)
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
    """Return a zip entry's time; read as UTC, because zips keep local times without a zone."""
    try:
        return float(calendar.timegm((*entry.date_time, 0, 0, 0)))
    except ValueError:
        return 0.0  # month 0: written by tools that know no time


MAX_DEPTH = 200  # folders in each other; far more would exhaust whoever walks the tree
LATEST = 1 << 33  # seconds: times beyond (year 2242) are nonsense that some file systems refuse


class Readable(Protocol):
    """A source of bytes."""

    def read(self, size: int = ..., /) -> bytes:
        """Return at most `size` bytes; none at the end."""


class RefusedError(Exception):
    """An archive that is not acceptable; the text gives the reason."""


class Tree:
    """The folder being filled; checks every path and follows no link."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.left = MAX_BYTES
        self.entries_left = MAX_ENTRIES
        self.times: dict[Path, float] = {}  # of folders, set at the end: filling them changes them
        self.links: list[Path] = []
        self.folders: set[Path] = {root}

    def place(self, name: str) -> Path:
        """Return an entry's path, with its parents made, and count it."""
        self.entries_left -= 1
        if self.entries_left < 0:
            raise RefusedError("it has too many entries")
        path = self._inside(name)
        if path != self.root:
            self._make(path.parent)
        return path

    def folder(self, name: str, mtime: float) -> None:
        """Make a folder; an existing one is fine."""
        path = self.place(name)
        self._make(path)
        self.times[path] = mtime

    def file(self, name: str, content: Readable, size: int, mtime: float, *, executable: bool) -> None:
        """Write a regular file of exactly `size` bytes; of its permissions only executable is kept."""
        path = self._fresh(name)
        self._spend(size)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, 0o600), "wb") as out:
            missing = size
            while missing:
                block = content.read(min(CHUNK, missing))
                if not block:
                    raise EOFError(f"{name} ends early")
                out.write(block)
                missing -= len(block)
            os.fchmod(out.fileno(), 0o755 if executable else 0o644)
        _set_time(path, mtime)

    def symlink(self, name: str, target: str, mtime: float) -> None:
        """Make a symbolic link that stays inside, through any chain of links."""
        path = self._fresh(name)
        if not target or "\0" in target or target.startswith("/"):
            raise RefusedError(f"the link {name} leads out of it")
        path.symlink_to(target)
        self.links.append(path)
        _set_time(path, mtime)

    def hardlink(self, name: str, target: str) -> None:
        """Make a hard link to an earlier file."""
        source = self._inside(target)
        real = not self._through_link(source) and source.is_file() and not source.is_symlink()
        if not real:
            raise RefusedError(f"the link {name} leads to no file in it")
        path = self._fresh(name, keep=source)
        if path != source:
            os.link(source, path, follow_symlinks=False)

    def finish(self) -> None:
        """Refuse links that lead out, now that all targets exist, and set times."""
        root = os.path.realpath(self.root)
        for path in self.links:
            if not path.is_symlink():
                continue  # a later entry took its place
            if not Path(os.path.realpath(path)).is_relative_to(root):
                raise RefusedError(f"the link {path.relative_to(self.root)} leads out of it")
            if _goes_round(path):
                raise RefusedError(f"the link {path.relative_to(self.root)} leads back to itself")
        for folder in sorted(self.folders, key=lambda folder: len(folder.parts), reverse=True):
            # Without an entry of its own a folder is as old as its newest content, never "now":
            # times decide what is rebuilt, and the newest one becomes SOURCE_DATE_EPOCH.
            newest = max(
                (entry.stat(follow_symlinks=False).st_mtime for entry in os.scandir(folder)), default=0
            )
            folder.chmod(0o755)
            _set_time(folder, self.times.get(folder, newest))

    def _inside(self, name: str) -> Path:
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts or "\0" in name:
            raise RefusedError(f"the entry {name!r} leads out of it")
        if len(pure.parts) > MAX_DEPTH:
            raise RefusedError("it has folders in folders without end")
        return self.root / pure

    def _fresh(self, name: str, keep: Path | None = None) -> Path:
        """Return a path with nothing at it; as in tar, the later of two entries with one name wins."""
        path = self.place(name)
        if path in self.folders or path == self.root:
            raise RefusedError(f"{name!r} is both a folder and something else")
        if path != keep:
            path.unlink(missing_ok=True)
        return path

    def _make(self, path: Path) -> None:
        if path in self.folders:
            return
        parts = path.relative_to(self.root).parts
        for count in range(1, len(parts) + 1):
            step = self.root.joinpath(*parts[:count])
            if step in self.folders:
                continue
            try:
                step.mkdir()
            except FileExistsError:
                raise RefusedError(f"{step.name!r} is both a folder and something else") from None
            self.folders.add(step)

    def _through_link(self, path: Path) -> bool:
        return path.parent not in self.folders

    def _spend(self, size: int) -> None:
        self.left -= size
        if size < 0 or self.left < 0:
            raise RefusedError("it is too large once unpacked")


def _goes_round(path: Path) -> bool:
    try:
        path.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def _set_time(path: Path, mtime: float) -> None:
    sane = mtime if 0 <= mtime <= LATEST else 0.0  # not a number fails both comparisons
    os.utime(path, (sane, sane), follow_symlinks=False)
