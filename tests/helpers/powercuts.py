"""What a disk may hold after a power cut: the operations of a run are recorded, and left out in part.

The bytes of a file are sure once it was synced, a name once the folder was (a rename once either folder was).
Everything else may have reached the disk or not, each operation for itself: file systems that keep an order
lose less.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import itertools
import os
import random
import stat
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

Content = tuple[str, bytes, int]  # ("file", bytes, mode), ("link", target, 0), ("folder", b"", mode)


@dataclass(frozen=True)
class Operation:
    """names: (folder, name, what it leads to, 0 for nothing); content: of one file; synced: a file or folder."""

    names: tuple[tuple[int, str, int], ...] = ()
    content: tuple[int, Content] | None = None
    synced: int = 0


@dataclass
class Tree:
    """Files, links and folders by numbers of our own: inodes are used again. The top folder is 1."""

    names: dict[int, dict[str, int]] = field(default_factory=dict)
    content: dict[int, Content] = field(default_factory=dict)

    def after(self, operations: list[Operation]) -> Tree:
        """This tree with some operations done to it."""
        made = Tree({folder: dict(inside) for folder, inside in self.names.items()}, dict(self.content))
        for one in operations:
            for folder, name, leads_to in one.names:
                made.names.setdefault(folder, {}).pop(name, None)
                if leads_to:
                    made.names[folder][name] = leads_to
            if one.content:
                made.content[one.content[0]] = one.content[1]
        return made

    def paths(
        self, kinds: dict[int, Content], top: int = 1, above: str = ""
    ) -> Iterator[tuple[str, int, Content]]:
        """Everything below a folder, folders first; of what has no content yet, what `kinds` says it is."""
        for name, one in sorted(self.names.get(top, {}).items()):
            kind, data, mode = self.content.get(one) or (kinds[one][0], b"", kinds[one][2])
            if kind == "link":
                data = kinds[one][1]
            yield f"{above}{name}", one, (kind, data, mode)
            if kind == "folder":
                yield from self.paths(kinds, one, f"{above}{name}/")


class Recorder:
    """Notes what happens below a folder while it is `patched` in."""

    def __init__(self, top: Path) -> None:
        self.top = os.path.realpath(top)
        self.log: list[Operation] = []
        self.kinds: dict[int, Content] = {}  # what each number was last
        self._numbers: dict[int, int] = {}
        self._fresh = itertools.count(1)
        self._number(top, new=True)
        for folder, inner, files in os.walk(top):
            for name in (*inner, *files):
                self._named(folder, name)
        self.before = Tree().after([*self.log, *self._contents()])
        self.log = []

    def end(self) -> None:
        """Note what was written and never synced."""
        self.log += self._contents()

    def _contents(self) -> list[Operation]:
        paths = [f"{folder}/{name}" for folder, _, files in os.walk(self.top) for name in files]
        return [self._read(path) for path in paths if not os.path.islink(path)]  # noqa: PTH114 - strings, as below

    def _read(self, path: str) -> Operation:
        status = os.stat(path)  # noqa: PTH116
        number = self._numbers[status.st_ino]
        with _real_open(path, "rb") as file:
            self.kinds[number] = ("file", file.read(), stat.S_IMODE(status.st_mode))
        return Operation(content=(number, self.kinds[number]))

    def _number(self, path: str | Path, *, new: bool = False) -> int:
        status = os.lstat(path)
        if new or status.st_ino not in self._numbers:
            number = self._numbers[status.st_ino] = next(self._fresh)
            mode = stat.S_IMODE(status.st_mode)
            if stat.S_ISLNK(status.st_mode):
                self.kinds[number] = ("link", os.fsencode(os.readlink(path)), 0)  # noqa: PTH115
            else:
                self.kinds[number] = ("folder" if stat.S_ISDIR(status.st_mode) else "file", b"", mode)
        return self._numbers[status.st_ino]

    def _named(self, folder: str, name: str, *, new: bool = False) -> None:
        """A name leads to something now."""
        number = self._number(f"{folder}/{name}", new=new)
        self.log.append(Operation(names=((self._numbers[os.stat(folder).st_ino], name, number),)))  # noqa: PTH116

    def _place(self, path: Any, dir_fd: int | None) -> tuple[str, str] | None:
        """(Folder, name) of a path below the top, else None."""
        base = os.readlink(f"/proc/self/fd/{dir_fd}") if dir_fd is not None else os.getcwd()  # noqa: PTH115, PTH109
        folder, name = os.path.split(os.path.join(base, os.fsdecode(path)))  # noqa: PTH118
        folder = os.path.realpath(folder)
        return (folder, name) if f"{folder}/".startswith(f"{self.top}/") else None

    def made(self, path: Any, dir_fd: int | None, *, new: bool) -> None:
        """A file, folder or link was made."""
        if place := self._place(path, dir_fd):
            self._named(*place, new=new)

    def gone(self, path: Any, dir_fd: int | None, act: Callable[[], None]) -> None:
        """Do what takes a name away."""
        place = self._place(path, dir_fd)
        act()
        if place:
            self.log.append(Operation(names=((self._numbers[os.stat(place[0]).st_ino], place[1], 0),)))  # noqa: PTH116

    def renamed(self, source: Any, target: Any) -> None:
        """Rename it."""
        old, new = self._place(source, None), self._place(target, None)
        if old is None or new is None:
            _REAL["rename"](source, target)
            return
        path = "/".join(old)
        number = self._number(path)
        if self.kinds[number][0] == "file":
            self.log.append(self._read(path))
        _REAL["rename"](source, target)
        folders = [self._numbers[os.stat(place[0]).st_ino] for place in (old, new)]  # noqa: PTH116
        self.log.append(Operation(names=((folders[0], old[1], 0), (folders[1], new[1], number))))

    def synced(self, descriptor: int) -> None:
        """What was synced stays; that we do not wait for the disk changes nothing here."""
        path = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
        if f"{path}/".startswith(f"{self.top}/"):
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                self.log.append(self._read(path))
            self.log.append(Operation(synced=self._numbers[os.fstat(descriptor).st_ino]))

    @contextlib.contextmanager
    def patched(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        """Record during the block."""
        with patch.context() as here:
            for module, name, function in self._functions():
                here.setattr(module, name, function)
            yield
        self.end()

    def _functions(self) -> list[tuple[Any, str, Any]]:
        real = _REAL

        def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            real["mkdir"](path, mode, dir_fd=dir_fd)
            self.made(path, dir_fd, new=True)

        def symlink(source: Any, path: Any, *more: Any, dir_fd: int | None = None) -> None:
            real["symlink"](source, path, *more, dir_fd=dir_fd)
            self.made(path, dir_fd, new=True)

        def link(source: Any, path: Any, **more: Any) -> None:
            real["link"](source, path, **more)
            self.made(path, None, new=False)

        def unlink(path: Any, *, dir_fd: int | None = None) -> None:
            self.gone(path, dir_fd, lambda: real["unlink"](path, dir_fd=dir_fd))

        def rmdir(path: Any, *, dir_fd: int | None = None) -> None:
            self.gone(path, dir_fd, lambda: real["rmdir"](path, dir_fd=dir_fd))

        def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            new = flags & os.O_CREAT and dir_fd is None and not os.path.lexists(path)
            descriptor: int = real["open"](path, flags, mode, dir_fd=dir_fd)
            if new:
                self.made(path, None, new=True)
            return descriptor

        def file_opened(path: Any, mode: str = "r", *more: Any, **others: Any) -> Any:
            new = not isinstance(path, int) and set(mode) & set("wax") and not os.path.lexists(path)
            file = _real_open(path, mode, *more, **others)
            if new:
                self.made(path, None, new=True)
            return file

        ours = [(os, "mkdir", mkdir), (os, "symlink", symlink), (os, "link", link), (os, "unlink", unlink)]
        ours += [
            (os, "remove", unlink),
            (os, "rmdir", rmdir),
            (os, "open", opened),
            (os, "fsync", self.synced),
        ]
        ours += [(os, "rename", self.renamed), (os, "replace", self.renamed)]
        return [*ours, *((module, name, file_opened) for module, name in _OPENS)]


_real_open = io.open
_REAL: dict[str, Any] = {
    name: getattr(os, name) for name in ("mkdir", "symlink", "link", "unlink", "rmdir", "open", "rename")
}
_OPENS = ((builtins, "open"), (io, "open"), (tarfile, "bltn_open"))


def _is_sure(one: Operation, later: list[Operation]) -> bool:
    parts = {folder for folder, _, _ in one.names} or {one.content[0] if one.content else 0}
    return any(other.synced in parts for other in later)


def cuts(recorder: Recorder, every: int = 1) -> Iterator[tuple[bool, Tree]]:
    """(The run was over, what the disk holds): each state once.

    After every so many operations, and at the end: all that is not sure is lost, or nothing is, or one alone,
    or all but one; and some drawn ones.
    """
    drawn, seen, end = random.Random(7), set[int](), len(recorder.log)
    for at in (*range(0, end, every), end):
        done = recorder.log[:at]
        sure = [_is_sure(one, done[place + 1 :]) for place, one in enumerate(done)]
        open_ = [place for place, yes in enumerate(sure) if not yes and not done[place].synced]
        kept = [set[int](), set(open_), *({one} for one in open_), *(set(open_) - {one} for one in open_)]
        kept += [{one for one in open_ if drawn.random() < 0.5} for _ in range(4)]
        for chosen in kept:
            tree = recorder.before.after(
                [one for place, one in enumerate(done) if sure[place] or place in chosen]
            )
            key = hash(tuple(tree.paths(recorder.kinds)))
            if key not in seen:
                seen.add(key)
                yield at == end, tree


def write(tree: Tree, kinds: dict[int, Content], folder: Path) -> None:
    """Make the tree on a real file system."""
    folder.mkdir()
    first: dict[int, Path] = {}
    for name, number, (kind, data, mode) in tree.paths(kinds):
        path = folder / name
        if kind == "folder":
            path.mkdir()
        elif kind == "link":
            path.symlink_to(os.fsdecode(data))
        elif number in first:
            path.hardlink_to(first[number])
        else:
            path.write_bytes(data)
            path.chmod(mode)
            first[number] = path
