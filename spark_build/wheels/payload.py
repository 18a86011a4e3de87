"""Sum up the files of a wheel: where installers put them, what runs at start-up, what collides."""

from __future__ import annotations

import re
import stat
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from spark_build.wheels.model import FileSize, Payload

LARGEST = 10
SHOWN = 20  # of each kind of oddity
_SITE = "site-packages"
# Where installers put what lies below .data; all other files go to site-packages.
SCHEMES = {"purelib": _SITE, "platlib": _SITE, "headers": "include", "scripts": "bin", "data": ""}
ENTRY_POINTS = "entry_points.txt"
# site-packages once more, by way of the environment's own folder.
_BY_DATA = re.compile(r"^(?:local/)?lib(?:64)?/python\d[^/]*/(?:site|dist)-packages/")
_PTH = re.compile(rf"{_SITE}/[^/]+\.pth")
_CUSTOMIZE = re.compile(rf"{_SITE}/(.+/)?(?:site|user)customize(?:\.[^/]+|/__init__\.[^/]+)")
_PARTS_OF_ENVIRONMENT = re.compile(
    r"pyvenv\.cfg|lib(?:64)?/python\d[^/]*/.+"
    r"|bin/(?:(?:de)?activate[^/]*|python[\d.]*[dmtw]*|pypy[\d.]*|(?:ba|da|z)?sh|pip[\d.]*)",
    re.IGNORECASE,
)
_OTHERS_INFO = re.compile(rf"{_SITE}/[^/]+\.(?:dist|egg)-info(?:/.*)?")
_LONGEST = 255  # bytes of a name
_SPECIAL = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ZipEntry:
    """An entry of the zip that is no folder; mode: Unix's, 0 where the zip has none."""

    name: str
    size: int
    packed: int
    mode: int


def is_telling(name: str, dist_info: str) -> bool:
    """Return whether `file_summary` wants to see the content of a file."""
    return name.endswith(".pth") or name == f"{dist_info}/{ENTRY_POINTS}"


def file_summary(entries: Sequence[ZipEntry], *, dist_info: str, texts: Mapping[str, bytes]) -> Payload:
    """Sum up the files; `texts`: the content of those that are telling, by name."""
    places = {one.name: installed_at(one.name) for one in entries}
    files = [FileSize(path=one.name, size=one.size, packed=one.packed) for one in entries]
    tops = {one.name.partition("/")[0] for one in entries if not _of_data(one.name)} - {dist_info}
    return Payload(
        dist_info=dist_info,
        files=len(files),
        unpacked=sum(one.size for one in files),
        packed=sum(one.packed for one in files),
        largest=tuple(sorted(files, key=lambda one: (-one.size, one.path))[:LARGEST]),
        collisions=_collisions(places),
        special=tuple(
            (one.name, _SPECIAL[stat.S_IFMT(one.mode)])
            for one in entries
            if stat.S_IFMT(one.mode) in _SPECIAL
        )[:SHOWN],
        writable=_few(one.name for one in entries if one.mode & stat.S_IWOTH),
        privileged=_few(one.name for one in entries if one.mode & (stat.S_ISUID | stat.S_ISGID)),
        tops=tuple(sorted(tops)),
        schemes=_few(name for name, place in places.items() if not place),
        startup=_few(_run_at_startup(places, texts)),
        intrusive=tuple(
            sorted([*_intrusions(places, dist_info), *_bad_commands(texts, dist_info)])[:SHOWN],
        ),
    )


def _of_data(name: str) -> bool:
    return name.partition("/")[0].endswith(".data")


def installed_at(name: str) -> str:
    """Return where an installer puts a file in an environment; "" where it knows no place."""
    if not _of_data(name):
        return f"{_SITE}/{name}"
    _, scheme, rest = (*name.split("/", 2), "", "")[:3]
    if not rest or scheme not in SCHEMES:
        return ""
    return _BY_DATA.sub(f"{_SITE}/", f"{SCHEMES[scheme]}/{rest}".lstrip("/"))


def _run_at_startup(places: Mapping[str, str], texts: Mapping[str, bytes]) -> Iterator[str]:
    """Yield what site.py runs, or may: .pth files with code or hidden in .data, and what it imports."""
    paths = [name for name, place in places.items() if _PTH.fullmatch(place)]
    yield from (name for name in paths if _of_data(name) or _has_code(texts.get(name, b"")))
    for name, place in places.items():
        found = _CUSTOMIZE.fullmatch(place)
        # In a folder only a .pth file leads there.
        if found and (paths or not found[1]):
            yield name


def _has_code(text: bytes) -> bool:
    """Return whether site.py of any version executes a line: they end lines by different characters."""
    lines = text.decode(errors="replace").splitlines()
    return any(line.lstrip("\ufeff").startswith(("import ", "import\t")) for line in lines)


def _intrusions(places: Mapping[str, str], dist_info: str) -> Iterator[tuple[str, str]]:
    """Yield (file, what is wrong) for what would take the place of things that are not the wheel's."""
    for name, place in places.items():
        if _PARTS_OF_ENVIRONMENT.fullmatch(place) and not _is_pips(place, dist_info):
            yield name, f"would replace {place} of the environment"
        elif _OTHERS_INFO.fullmatch(place) and _of_data(name):
            yield name, "would pass for another distribution"
        elif not name.isprintable():
            yield name, "has a name with control characters"
        elif any(len(part.encode()) > _LONGEST for part in name.split("/")):
            yield name, f"has a name of more than {_LONGEST} bytes, which no file system takes"


def _is_pips(place: str, dist_info: str) -> bool:
    return place.startswith("bin/pip") and dist_info.startswith("pip-")


def commands(entry_points: bytes) -> list[str]:
    """Return the names of the commands that some installer makes of an entry_points.txt."""
    found, section = [], ""
    for line in map(str.strip, entry_points.decode(errors="replace").splitlines()):
        if line.startswith("["):
            section = line.strip("[] \t").lower()
        elif "=" in line and section in ("console_scripts", "gui_scripts") and line[0] != "#":
            found.append(line.partition("=")[0].strip())
    return found


def _bad_commands(texts: Mapping[str, bytes], dist_info: str) -> Iterator[tuple[str, str]]:
    """Yield (file, what is wrong) for commands that would lie elsewhere, replace something, or cannot be."""
    file = f"{dist_info}/{ENTRY_POINTS}"
    for name in commands(texts.get(file, b"")):
        if not name.isprintable() or "/" in name or "\\" in name or name in ("", ".", ".."):
            yield file, f"has a command that would lie outside of bin: {name!r:.80}"
        elif len(name.encode()) > _LONGEST:
            yield file, f"has a command with a name of more than {_LONGEST} bytes: {name:.40}..."
        elif _PARTS_OF_ENVIRONMENT.fullmatch(f"bin/{name}") and not _is_pips(f"bin/{name}", dist_info):
            yield file, f"has a command that would replace bin/{name} of the environment"


def _few(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names))[:SHOWN])


def _collisions(places: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """Return names that become one where case or Unicode form do not count, and files named like folders.

    What counts is where they are installed: a file and one of .data may become one, too. Those that are one
    on any system stand first, so that the others do not hide them.
    """
    alike: dict[str, set[str]] = {}
    folders: set[str] = set()
    for name, place in places.items():
        parts = (place or name).split("/")
        folders.update("/".join(parts[:depth]) for depth in range(1, min(len(parts), 64)))
        alike.setdefault(unicodedata.normalize("NFC", place or name).casefold(), set()).add(name)
    groups = [tuple(sorted(group)) for group in alike.values() if len(group) > 1]
    groups += [(name, f"{name}/") for name, place in places.items() if place in folders]
    return tuple(sorted(groups, key=lambda group: (not is_one_place(group), group))[:SHOWN])


def is_one_place(names: tuple[str, ...]) -> bool:
    """Return whether colliding names are one on any system: the same place, or a file and a folder."""
    return names[-1].endswith("/") or len({installed_at(name) or name for name in names}) < len(names)
