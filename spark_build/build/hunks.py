"""Unified diffs as values, and where in a file a hunk would fit best. Lines have no line end."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

NOWHERE = "/dev/null"
CANDIDATES = 24  # places that are looked at closely

_HEADER = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_ESCAPE = re.compile(r'\\([abtnvfr"\\]|[0-7]{3})')
_ESCAPED = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}


@dataclass(frozen=True, kw_only=True, slots=True)
class Hunk:
    """One place of a patch; `number` counts from 1 within its file, lines within the file too."""

    number: int
    old_start: int
    new_start: int
    lines: tuple[str, ...]  # each with its mark: " ", "-" or "+"

    @property
    def old(self) -> tuple[str, ...]:
        """What must be there: context and removed lines."""
        return tuple(line[1:] for line in self.lines if line[0] != "+")

    @property
    def new(self) -> tuple[str, ...]:
        """What is there afterwards: context and added lines."""
        return tuple(line[1:] for line in self.lines if line[0] != "-")


@dataclass(frozen=True, kw_only=True, slots=True)
class FilePatch:
    """What a patch does to one file; NOWHERE as `old` makes it, as `new` removes it."""

    old: str
    new: str
    hunks: tuple[Hunk, ...]

    @property
    def path(self) -> str:
        """The file to look at."""
        return self.new if self.old == NOWHERE else self.old


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a hunk fits best: the line it would begin at (from 1), and how alike it is, 0 to 1."""

    line: int
    similarity: float


def parse(text: str) -> tuple[FilePatch, ...]:
    """The files of a patch in git's format, with or without its extended headers."""
    found: list[FilePatch] = []
    reader = _Reader(text.split("\n"))
    while reader.more():
        line = reader.next()
        if line.startswith("diff --git "):
            found.append(_extended(reader, line))
        elif line.startswith("--- ") and reader.peek().startswith("+++ "):
            old, new = _side(line), _side(reader.next())
            found.append(FilePatch(old=old, new=new, hunks=_hunks(reader)))
    return tuple(found)


def touched(files: Sequence[FilePatch]) -> tuple[str, ...]:
    """Every path that a patch reads or writes, sorted."""
    return tuple(sorted({name for file in files for name in (file.old, file.new)} - {NOWHERE, ""}))


def nearest(lines: Sequence[str], wanted: Sequence[str], expected: int) -> Place | None:
    """Where `wanted` lies, or what comes closest to it; of equal places that nearest to line `expected`.

    None when there is nothing to compare.
    """
    if not lines or not wanted:
        return None
    width = min(len(wanted), len(lines))
    starts = range(len(lines) - width + 1)
    counts = _overlaps(lines, wanted, width)
    order = sorted(starts, key=lambda start: (-counts[start], abs(start + 1 - expected)))
    # Lines that were only edited count for nothing above, so the expected place is always looked at.
    around = [start for start in range(expected - 4, expected + 3) if start in starts]
    best = max(
        {*order[:CANDIDATES], *around},
        key=lambda start: (_alike(lines[start : start + width], wanted), -abs(start + 1 - expected), -start),
    )
    return Place(line=best + 1, similarity=_alike(lines[best : best + width], wanted))


def contains(lines: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether `wanted` is somewhere in the file, exactly."""
    width = len(wanted)
    return any(
        lines[start] == wanted[0] and tuple(lines[start : start + width]) == tuple(wanted)
        for start in range(len(lines) - width + 1 if wanted else 0)
    )


class _Reader:
    """Lines, one after the other."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._at = 0

    def more(self) -> bool:
        return self._at < len(self._lines)

    def peek(self) -> str:
        return self._lines[self._at] if self.more() else ""

    def next(self) -> str:
        self._at += 1
        return self._lines[self._at - 1]


def _extended(reader: _Reader, line: str) -> FilePatch:
    """A file with git's own header: renames, modes and binary changes may come without hunks."""
    old, new = _both(line.removeprefix("diff --git ").rstrip("\r"))
    hunks: tuple[Hunk, ...] = ()
    while reader.more() and not reader.peek().startswith("diff --git "):
        if reader.peek().startswith("--- ") and hunks:
            break  # the next file, without a header of its own
        line = reader.next().rstrip("\r")
        word, _, rest = line.partition(" ")
        if line.startswith(("rename from ", "copy from ")):
            old = _unquoted(rest.removeprefix("from "))
        elif line.startswith(("rename to ", "copy to ")):
            new = _unquoted(rest.removeprefix("to "))
        elif line.startswith("new file mode "):
            old = NOWHERE
        elif line.startswith("deleted file mode "):
            new = NOWHERE
        elif word == "---":
            old = _side(line)
        elif word == "+++":
            new = _side(line)
            hunks = _hunks(reader)
    return FilePatch(old=old, new=new, hunks=hunks)


def _hunks(reader: _Reader) -> tuple[Hunk, ...]:
    hunks: list[Hunk] = []
    while match := _HEADER.match(reader.peek()):
        reader.next()
        old, new = int(match[2] or 1), int(match[4] or 1)
        lines: list[str] = []
        while (old > 0 or new > 0) and reader.more():
            # Some editors strip the blank of an empty context line.
            line = reader.next() or " "
            if line[0] not in " +-\\":
                break
            if line[0] != "\\":
                lines.append(line)
            old -= line[0] in " -"
            new -= line[0] in " +"
        if reader.peek().startswith("\\"):
            reader.next()
        hunks.append(
            Hunk(number=len(hunks) + 1, old_start=int(match[1]), new_start=int(match[3]), lines=tuple(lines))
        )
    return tuple(hunks)


def _side(line: str) -> str:
    """The path of a "--- a/path" or "+++ b/path" line; a time may follow after a tab."""
    name = line[4:].rstrip("\r")
    quoted = _QUOTED.match(name)
    name = _unquoted(quoted[0]) if quoted else name.partition("\t")[0]
    return name if name == NOWHERE else _stripped(name)


def _both(names: str) -> tuple[str, str]:
    """Old and new path of "a/path b/path": equal, save in renames, which say them again."""
    if names.startswith('"'):
        end = _QUOTED.match(names)
        first = end[0] if end else names
        return _stripped(_unquoted(first)), _stripped(_unquoted(names[len(first) :].strip()))
    half = len(names) // 2
    return _stripped(names[:half]), _stripped(names[half + 1 :])


def _stripped(name: str) -> str:
    """Without its first folder, as `git apply` takes it."""
    return name.partition("/")[2]


def _unquoted(name: str) -> str:
    """A path as git prints it: in double quotes with C's escapes, if need be."""
    if not name.startswith('"'):
        return name

    def plain(match: re.Match[str]) -> bytes:
        return bytes([_ESCAPED[match[1]] if match[1] in _ESCAPED else int(match[1], 8)])

    inner = name[1:].removesuffix('"')
    out, at = b"", 0
    for match in _ESCAPE.finditer(inner):
        out += inner[at : match.start()].encode(errors="surrogateescape") + plain(match)
        at = match.end()
    return (out + inner[at:].encode(errors="surrogateescape")).decode(errors="surrogateescape")


def _overlaps(lines: Sequence[str], wanted: Sequence[str], width: int) -> list[int]:
    """For each window of `width` lines, how many of the wanted lines it has, in any order."""
    want = Counter(line.strip() for line in wanted if line.strip())
    have: Counter[str] = Counter()
    counts = []
    total = 0
    for at, line in enumerate(lines):
        key = line.strip()
        have[key] += 1
        total += have[key] <= want[key]
        if at >= width:
            gone = lines[at - width].strip()
            total -= have[gone] <= want[gone]
            have[gone] -= 1
        if at >= width - 1:
            counts.append(total)
    return counts


def _alike(window: Sequence[str], wanted: Sequence[str]) -> float:
    """How alike two pieces of text are: 1 only for equal ones."""
    if tuple(window) == tuple(wanted):
        return 1.0
    ratio = difflib.SequenceMatcher(None, "\n".join(window), "\n".join(wanted), autojunk=False).ratio()
    return min(ratio, 0.999)
