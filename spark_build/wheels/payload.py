"""What can be said of a wheel's files by their names, sizes and modes alone."""

from __future__ import annotations

import re
import stat
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spark_build.wheels.contents import FileSize, Payload

LARGEST = 10
SHOWN = 20  # of each kind of oddity
SCHEMES = frozenset({"purelib", "platlib", "headers", "scripts", "data"})
STARTUP = re.compile(r"[^/]+\.pth|[^/]+\.data/(?:purelib|platlib)/[^/]+\.pth")

# What site.py runs instead of adding it to sys.path.
_CODE = re.compile(rb"^import[ \t]", re.MULTILINE)
_SPECIAL = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """An entry of the zip that is no folder; mode: Unix's, 0 where the zip has none."""

    name: str
    size: int
    packed: int
    mode: int


def summary(entries: Sequence[Entry], *, dist_info: str, texts: Mapping[str, bytes]) -> Payload:
    """`texts`: the content of .pth files and of top_level.txt, by name."""
    data = f"{dist_info.removesuffix('.dist-info')}.data"
    files = [FileSize(path=one.name, size=one.size, packed=one.packed) for one in entries]
    tops = {one.name.partition("/")[0] for one in entries} - {dist_info, data}
    listed = texts.get(f"{dist_info}/top_level.txt", b"").decode(errors="replace").split()
    return Payload(
        dist_info=dist_info,
        files=len(files),
        unpacked=sum(one.size for one in files),
        packed=sum(one.packed for one in files),
        largest=tuple(sorted(files, key=lambda one: (-one.size, one.path))[:LARGEST]),
        collisions=_collisions([one.name for one in entries]),
        special=tuple(
            (one.name, _SPECIAL[stat.S_IFMT(one.mode)])
            for one in entries
            if stat.S_IFMT(one.mode) in _SPECIAL
        )[:SHOWN],
        writable=_few(one.name for one in entries if one.mode & stat.S_IWOTH),
        privileged=_few(one.name for one in entries if one.mode & (stat.S_ISUID | stat.S_ISGID)),
        denormal=_few(one.name for one in entries if unicodedata.normalize("NFC", one.name) != one.name),
        tops=tuple(sorted(tops)),
        declared=tuple(sorted({name.partition("/")[0] for name in listed})),
        schemes=_few(one.name for one in entries if _lost(one.name, data)),
        startup=_few(name for name, text in texts.items() if name.endswith(".pth") and _CODE.search(text)),
    )


def _few(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names))[:SHOWN])


def _lost(name: str, data: str) -> bool:
    """Whether the file lies in the .data folder where no scheme says what to do with it."""
    top, _, rest = name.partition("/")
    return top == data and (rest.partition("/")[0] not in SCHEMES or "/" not in rest)


def _collisions(names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Names that become one where case or Unicode form do not count, and files named like folders."""
    alike: dict[str, set[str]] = {}
    folders: set[str] = set()
    for name in names:
        parts = name.split("/")
        folders.update("/".join(parts[:depth]) for depth in range(1, min(len(parts), 64)))
        alike.setdefault(unicodedata.normalize("NFC", name).casefold(), set()).add(name)
    groups = [tuple(sorted(group)) for group in alike.values() if len(group) > 1]
    groups += [(name, f"{name}/") for name in set(names) & folders]
    return tuple(sorted(groups)[:SHOWN])
