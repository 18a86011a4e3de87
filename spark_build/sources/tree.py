"""A folder filled by something that is not trusted: nothing lands outside, no link is followed."""

from __future__ import annotations

import errno
import os
from pathlib import Path, PurePosixPath
from typing import Protocol

from spark_build.files import CHUNK

MAX_DEPTH = 200  # folders in each other; far more would exhaust whoever walks the tree
LATEST = 1 << 33  # seconds: times beyond (year 2242) are nonsense that some file systems refuse


class Readable(Protocol):
    """What a file's content is read from."""

    def read(self, size: int = ..., /) -> bytes:
        """At most `size` bytes; none at the end."""


class RefusedError(Exception):
    """The archive is not acceptable; the text says why."""


class Tree:
    """The folder that is filled; every path is checked, no link is ever followed."""

    def __init__(self, root: Path, max_bytes: int, max_entries: int) -> None:
        self.root = root
        self.left = max_bytes
        self.entries_left = max_entries
        self.times: dict[Path, float] = {}  # of folders, set at the end: filling them changes them
        self.links: list[Path] = []
        self.folders: set[Path] = {root}

    def place(self, name: str) -> Path:
        """Where an entry goes, its parents made; counts it."""
        self.entries_left -= 1
        if self.entries_left < 0:
            raise RefusedError("it has too many entries")
        path = self._inside(name)
        if path != self.root:
            self._make(path.parent)
        return path

    def folder(self, name: str, mtime: float) -> None:
        """A folder; one that exists is fine."""
        path = self.place(name)
        self._make(path)
        self.times[path] = mtime

    def file(self, name: str, content: Readable, size: int, mtime: float, *, executable: bool) -> None:
        """A regular file of exactly `size` bytes; of all permissions only executable survives."""
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
        """A symbolic link that stays inside, however long the chain that it is part of."""
        path = self._fresh(name)
        if not target or "\0" in target or target.startswith("/"):
            raise RefusedError(f"the link {name} leads out of it")
        path.symlink_to(target)
        self.links.append(path)
        _set_time(path, mtime)

    def hardlink(self, name: str, target: str) -> None:
        """A second name of a file that came earlier."""
        source = self._inside(target)
        real = not self._through_link(source) and source.is_file() and not source.is_symlink()
        if not real:
            raise RefusedError(f"the link {name} leads to no file in it")
        path = self._fresh(name, keep=source)
        if path != source:
            os.link(source, path, follow_symlinks=False)

    def finish(self) -> None:
        """Refuse links that lead out, now that all they could lead through is there; set times."""
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
        """A place with nothing in it; as in tar, the later of two entries of a name counts."""
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
