"""Atomic writes and locks: neither a reader nor a crash meets half a file."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import math
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, BinaryIO

from spark_build.errors import GOES_ON, Hint, HostError, SparkBuildError, UnreadableError, UsageError, shell
from spark_build.process import leave, refuse_cancelled
from spark_build.reporting import reporter

# From 128 KiB on, malloc maps each piece anew, and its page faults cost more than hashing it.
CHUNK = 120 << 10
MOUNTS = Path("/proc/self/mountinfo")
_LOCAL = re.compile(r"nfs4? .*\b(nolock|local_lock=(all|flock))\b")
GONE = (errno.ENOENT, errno.ESTALE)  # ESTALE: of NFS, where another machine removed it
OWNER = "see who owns it: ls -ld; or choose another place with --root DIR or SPARK_BUILD_HOME=DIR"
LONGEST_NAME = 60  # characters of a name in a message
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # of NFS without its daemon, 9p, FUSE


def write_atomically(path: Path, data: bytes | str) -> None:
    """Write under a temporary name in the same folder, fsync, rename."""
    make_folder(path.parent)
    with replacing(path, mode=0o644, folder=path.parent, prefix=f".{path.name}.") as out:
        out.write(data.encode() if isinstance(data, str) else data)


@contextlib.contextmanager
def replacing(path: Path, *, mode: int, folder: Path, prefix: str) -> Iterator[IO[bytes]]:
    """Open a temporary file in `folder`, which is synced and takes the place of `path` at the end."""
    handle, temporary = tempfile.mkstemp(prefix=prefix, dir=folder)
    try:
        with os.fdopen(handle, "wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def text_of(file: Path, hint: str) -> str:
    """Return a UTF-8 file's text, without a byte order mark. Raises UsageError with `hint`."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"no text in UTF-8: {error.reason}", where=str(file), hint=hint) from error
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(file), hint=hint) from error


def make_folder(path: Path) -> None:
    """Make a folder and its parents, durably; an existing one is fine.

    A synced file is lost all the same when the entry of a new folder above it never reached the disk.
    """
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Make renames inside a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """Call fsync on every regular file and folder below `path`, bottom up."""
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            # Plain strings: a view may hold ten thousand links, and pathlib would take most of the time.
            file = f"{folder}/{name}"
            if not os.path.islink(file):  # noqa: PTH114 - a string
                descriptor = os.open(file, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        sync_folder(Path(folder))


@contextlib.contextmanager
def atomic_directory(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that is synced and renamed to `folder` on success, removed on failure."""
    make_folder(folder.parent)
    temporary = Path(tempfile.mkdtemp(prefix=".tmp-", dir=folder.parent))
    try:
        yield temporary
        temporary.chmod(0o755)
        sync_tree(temporary)
        temporary.rename(folder)
        sync_folder(folder.parent)
    except BaseException:
        remove_tree(temporary)
        raise


def sha256_of(path: Path) -> str:
    """Return hex sha256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tail_of(path: Path, most: int, *, since: int = 0) -> bytes:
    """Return the last bytes of a file from position `since` on; none where it is missing."""
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        file.seek(max(since, path.stat().st_size - most))
        return file.read()


def copy_or_link(source: Path, destination: Path) -> None:
    """Make a hard link where the file system allows, else a copy with mode and times; follows links."""
    try:
        os.link(os.path.realpath(source), destination)
    except OSError:
        shutil.copyfile(source, destination)
        shutil.copystat(source, destination)


def copy_tree(
    source: Path,
    destination: Path,
    *,
    copy: Callable[[Path, Path], object] = shutil.copy2,
    without: str = "",
    existing: bool = False,
) -> None:
    """Copy a tree's folders, files and links; not what has the name `without`, nor pipes and sockets.

    Ends at the first error, such as a full disk: `shutil.copytree` goes on, and its error has no cause.
    existing: folders may be there.
    """
    destination.mkdir(parents=True, exist_ok=existing)
    for path in source.iterdir():
        copied = destination / path.name
        if path.name == without:
            continue
        if path.is_symlink():
            copied.symlink_to(path.readlink())
            shutil.copystat(path, copied, follow_symlinks=False)
        elif path.is_dir():
            copy_tree(path, copied, copy=copy, without=without, existing=existing)
        elif path.is_file():
            copy(path, copied)
    shutil.copystat(source, destination)


def read_made(path: Path, most: int) -> bytes:
    """Return the first `most` bytes of a file that a build may have put there.

    Raise OSError for anything but a regular file: a link could lead anywhere, a pipe would block.
    """
    with open_made(path) as file:
        return file.read(most)


def open_made(path: Path) -> BinaryIO:
    """Open a file as `read_made` does."""
    return _open_regular(str(path))


def open_below(folder: Path, *names: str) -> BinaryIO:
    """Open a file as `open_made` does; no folder on the way from `folder` may be a link either."""
    with contextlib.ExitStack() as opened:
        at = os.open(folder, os.O_DIRECTORY | os.O_CLOEXEC)
        opened.callback(os.close, at)
        for name in names[:-1]:
            at = os.open(name, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            opened.callback(os.close, at)
        return _open_regular(names[-1], at)


def _open_regular(path: str, at: int | None = None) -> BinaryIO:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return os.fdopen(descriptor, "rb")


def remove_tree(path: Path) -> None:
    """Remove a tree, read-only folders included; a missing one is fine, of a link only the link goes."""
    if path.is_symlink():
        path.unlink()
    for folder, _, _ in os.walk(path):
        with contextlib.suppress(OSError):
            Path(folder).chmod(0o755)
    shutil.rmtree(path, ignore_errors=True)


def remove_any(path: Path) -> None:
    """Remove a file, a link or a tree; a missing one is fine."""
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)


def remove_empty(*folders: Path) -> None:
    """Remove the empty ones of these folders, in this order."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def discard_tree(path: Path, trash: Path) -> None:
    """Move a tree into `trash` and delete it there in the background, at the lowest priority.

    A build tree has tens of thousands of files; on some disks deleting them takes as long as
    compiling did. What a killed deletion leaves goes with the next one.
    """
    if not path.exists():
        return
    trash.mkdir(parents=True, exist_ok=True)
    # One rename to a name of its own: whatever lies in the trash may go at any time, the trash never.
    path.rename(trash / f"{path.name}.{secrets.token_hex(8)}")
    leave(["nice", "-n", "19", "rm", "-rf", "--", *map(str, trash.iterdir())])


class LockTimeout(Exception):  # noqa: N818 - no error: somebody else is at work
    """Raised when a lock is held for too long by another process; names the holder."""


@contextlib.contextmanager
def locked(
    path: Path,
    *,
    purpose: str,
    waiting: Callable[[str], None] | None = None,
    shared: bool = False,
    timeout: float = math.inf,
) -> Iterator[int]:
    """Hold a lock on `path`, exclusive unless `shared`; yields its descriptor.

    Pass the descriptor on to children: the lock then lasts until the last of them is gone, so
    that a new run never meets compilers of a killed one. `waiting`, by default the reporter's, is told once
    who holds it.
    Raises LockTimeout after `timeout` seconds, HostError where the file system has no locks.
    """
    descriptor = _acquire(path, waiting, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, timeout)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{purpose} (process {os.getpid()})\n".encode(), 0)
        yield descriptor
    finally:
        # Closing, not unlocking: LOCK_UN would free the lock under a child that still holds it.
        os.close(descriptor)
        _tidy(path)


@functools.cache
def _tell_of_own_locks(device: int) -> None:
    """Say once where a lock says nothing to other machines: on sshfs, on NFS with local locks."""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in MOUNTS.read_text(errors="replace").splitlines() if MOUNTS.exists() else ():
        _, _, found, _, place, *more = line.split(" ")
        kind, _, options = more[more.index("-") + 1 :][:3]
        if found == number and (kind == "fuse.sshfs" or _LOCAL.search(f"{kind} {options}")):
            reporter().message(
                f"warning: locks of {kind} hold on this machine only: "
                f"let no other one write to {place} at the same time"
            )


def _tidy(path: Path) -> None:
    """Remove a lock file that nobody holds; processes that wait for it make a new one."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            # Fails while a child that outlived us, or the next process, holds it.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                path.unlink()
        finally:
            os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether the open file is still the one at `path`.

    On NFS names are remembered for a minute. To open a folder asks the server: for the lock, and for what
    stands beside it and is read under the lock.
    """
    try:
        with contextlib.suppress(PermissionError):  # one may write there and not read
            os.close(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError as error:
        if error.errno not in GONE:
            raise
        return False


def _lock_file(path: Path) -> int:
    """Open a lock. Where others may write, a link would lead to a file of the user's, which is emptied."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise _no_lock(path, "a link") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise _no_lock(path, "a link" if stat.S_ISREG(found.st_mode) else "no file")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _holder(descriptor: int) -> str:
    """Return who wrote their name into a lock."""
    try:
        said = os.pread(descriptor, 400, 0).decode(errors="replace").strip()
    except OSError:  # on NFS: they removed it just now
        said = ""
    return said or "another process"


def _no_lock(path: Path, what: str) -> HostError:
    return HostError(f"{what} is in the place of a lock", where=str(path), hint=shell("rm", path))


def _acquire(path: Path, waiting: Callable[[str], None] | None, kind: int, timeout: float) -> int:
    """Return a descriptor that holds the lock of the file now at `path`."""
    told = False
    deadline = time.monotonic() + timeout
    while True:
        refuse_cancelled()
        make_folder(path.parent)
        try:
            descriptor, holder = _try(path, kind)
        except OSError as error:
            if error.errno not in GONE:
                raise
            continue  # somebody removed it, or the empty folder, just now
        if not holder:
            _tell_of_own_locks(os.fstat(descriptor).st_dev)
            return descriptor
        if time.monotonic() >= deadline:
            raise LockTimeout(holder)
        if not told:
            (waiting or reporter().waiting)(holder)
            told = True
        time.sleep(0.1)


def _try(path: Path, kind: int) -> tuple[int, str]:
    """Return a descriptor of the lock now at `path`, and who else holds it. Raise OSError where it went."""
    descriptor = _lock_file(path)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        # The holder before may have removed the file between our open and our lock.
        if not _is_at(descriptor, path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    except BlockingIOError:
        holder = _holder(descriptor)
        os.close(descriptor)
        return descriptor, holder
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, OSError) and error.errno in NO_LOCKS:
            raise HostError(
                f"this file system has no locks: {error.strerror}",
                where=str(path),
                hint="mount it with locks, or choose another with --root DIR or SPARK_BUILD_HOME=DIR",
            ) from error
        raise
    return descriptor, ""


def unreadable(error: PermissionError) -> UnreadableError:
    """Return the error for a file of a root that another user has locked."""
    return UnreadableError(f"no permission ({error.filename}): {error.strerror}", hint=OWNER)


def from_os_error(error: OSError, *, typed: bool = False) -> SparkBuildError | None:
    """Return the error for an OSError that a user can fix; None for anything else.

    typed: whether a path in the way may be one that the command line names, not one that a build made.
    """
    path = Path(os.fsdecode(error.filename2 or error.filename or ""))
    place = f" ({path})" if path.name else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return HostError(f"the disk is full{place}", hint=Hint("free some space, then ", GOES_ON))
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return HostError(f"no permission{place}: {error.strerror}", hint=OWNER)
    if error.errno == errno.EIO:
        return HostError(f"the disk cannot be read or written{place}: {error.strerror}", hint=shell("dmesg"))
    if error.errno == errno.EFBIG:
        return HostError(
            f"the file system takes no file that large{place}",
            hint="export to a folder, or work on another file system; `ulimit -f` may be a limit, too",
        )
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return HostError(f"too many files are open{place}", hint=Hint("raise `ulimit -n`, then ", GOES_ON))
    kind = UsageError if typed else HostError
    if error.errno == errno.ENAMETOOLONG:
        longest = max(path.parts, key=len, default="")
        shown = longest if len(longest) <= LONGEST_NAME else f"{longest[:LONGEST_NAME]}..."
        shorter = "give a shorter one, or " if typed else ""
        return kind(
            f"a name is too long for the file system: {shown}",
            hint=f"{shorter}work in a folder with a shorter path, or on another file system, by --root DIR",
        )
    what, found = _obstacle(error.errno, path)
    if not what:
        return None
    moved = Hint("move it away, then ", GOES_ON)
    return kind(f"{what} ({found})", hint=Hint("name another place, or move it away") if typed else moved)


def _obstacle(number: int | None, path: Path) -> tuple[str, Path]:
    """Return what stands at a path, or on the way to it, where something else would have to be; and where."""
    with contextlib.suppress(OSError):  # what may not be looked at is not it
        for part in (*reversed(path.parents), path):
            if part.is_symlink() and not part.exists():
                return "a link leads nowhere", part
            if number in (errno.ENOTDIR, errno.EEXIST) and part.exists() and not part.is_dir():
                return "a file stands where a folder would have to be", part
    if number == errno.ELOOP:
        return "a link stands where a file would have to be", path
    if number == errno.EISDIR:
        return "a folder stands where a file would have to be", path
    return "", path
