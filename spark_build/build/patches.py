"""Parse and apply patches."""

from __future__ import annotations

import codecs
import difflib
import re
import shutil
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal

from spark_build.errors import PatchError, ours
from spark_build.files import sha256_of
from spark_build.paths import Home
from spark_build.process import Completed, run
from spark_build.recipes.model import Patch
from spark_build.sources.git_remote import scrubbed

State = Literal["applies", "already-upstream", "does-not-apply"]

_FAILED_AT = re.compile(r"error: patch failed: (.+):(\d+)$", re.MULTILINE)
_ERROR = re.compile(r"^(?:error|fatal): (.+)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchState:
    """Effect of a patch on a tree; `detail`: which hunk does not fit, and where it would fit best."""

    state: State
    detail: str = ""


def located(patch: Patch, home: Home) -> Path:
    """Return the patch's file. Raises PatchError unless it has the content that its recipe records."""
    found = home.find(f"patches/{patch.file}")
    if found is None or sha256_of(found) != patch.sha256:
        state = "is missing" if found is None else "does not have the sha256 of its recipe"
        raise PatchError(f"patches/{patch.file} {state}", hint=ours("recipes list"))
    return found


def apply(patch: Path, tree: Path, log: BinaryIO | None) -> None:
    """Apply a patch to a tree.

    Raises PatchError naming file, hunk and the nearest matching place; nothing is changed then.
    """
    state = check(patch, tree)
    if state.state != "applies":
        upstream = state.state == "already-upstream"
        raise PatchError(
            f"{patch.name} "
            + ("is in the source already" if upstream else f"does not apply: {state.detail}"),
            where=str(patch),
            hint=ours("patches check"),
        )
    done = _git_apply(patch, tree, log=log)
    if done.returncode != 0:
        raise PatchError(f"{patch.name} does not apply: {_said(done)}", where=str(patch))


def check(patch: Path, tree: Path) -> PatchState:
    """Return what a patch would do to a tree, without changing it."""
    files = _files(patch)
    if not files:
        return PatchState(state="does-not-apply", detail="it changes no file")
    problem = next(filter(None, (_refused(path, tree) for path in touched_files(files))), "")
    if problem:
        return PatchState(state="does-not-apply", detail=problem)
    forward = _git_apply(patch, tree, "--check")
    backward = _git_apply(patch, tree, "--check", "--reverse")
    if backward.returncode == 0 and (forward.returncode != 0 or not _only_removes(files)):
        return PatchState(state="already-upstream", detail="its reverse applies")
    if forward.returncode == 0:
        return PatchState(state="applies")
    return PatchState(state="does-not-apply", detail=_explained(files, tree, forward))


def copy_touched(paths: Iterable[str], tree: Path, copy: Path) -> str:
    """Copy the files that exist, links as links; returns a reason when one must not be read."""
    copy.mkdir(parents=True, exist_ok=True)
    for path in paths:
        if problem := _refused(path, tree):
            return problem
        source, target = tree / path, copy / path
        if source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return ""


def _refused(path: str, tree: Path) -> str:
    """Return why a patch may not name this path; "" for one inside the tree."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts:
        return f"{path} lies outside the source"
    for parent in list(pure.parents)[:-1]:
        if (tree / parent).is_symlink():
            return f"{path} lies beyond the symbolic link {parent}"
    return ""


def _files(patch: Path) -> tuple[FilePatch, ...]:
    return parse_patch(_text(patch))


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="surrogateescape")


def _only_removes(files: Sequence[FilePatch]) -> bool:
    """Return whether a patch fits in both directions because it only removes.

    With context on one side only, an insertion can be made twice, and a removal undone twice.
    """
    return any(len(hunk.old) > len(hunk.new) for file in files for hunk in file.hunks)


def _git_apply(patch: Path, tree: Path, *options: str, log: BinaryIO | None = None) -> Completed:
    # In a repository around the tree git would skip what that one ignores, and report success.
    environment = {**scrubbed(), "GIT_CEILING_DIRECTORIES": str(tree.resolve().parent)}
    args = ["git", "apply", "--verbose", "--whitespace=nowarn", *options, str(patch.absolute())]
    return run(args, cwd=tree, env=environment, log=log)


def _said(done: Completed) -> str:
    match = _ERROR.search(done.output)
    return match[1] if match else "git apply failed without a word"


def _explained(files: Sequence[FilePatch], tree: Path, done: Completed) -> str:
    """Return which hunk of which file does not fit, and where it would fit best."""
    match = _FAILED_AT.search(done.output)
    if match is None:
        said = _said(done)
        missing = next((file.path for file in files if said == f"{file.path}: No such file or directory"), "")
        return f"{missing} is not in the source" if missing else said
    path, start = match[1], int(match[2])
    hunk = next(
        (
            hunk
            for file in files
            if path in (file.old, file.new)
            for hunk in file.hunks
            if hunk.old_start == start
        ),
        None,
    )
    if hunk is None or not (tree / path).is_file():
        return _said(done)
    lines = _text(tree / path).split("\n")
    where = f"{path}: hunk {hunk.number} (line {start})"
    if hunk.new != hunk.old and contains_lines(lines, hunk.new):
        return f"{where} is in the source already, other parts of the patch are not"
    place = nearest_place(lines, hunk.old, start) or HunkPlace(line=0, similarity=0)
    said = f"nearest is line {place.line}, {int(place.similarity * 100)}% alike"
    if place.similarity == 1:  # to git, no context after a change means the end of the file
        said = f"line {place.line} does, but without context lines it only fits a file's first or last lines"
    return f"{where} does not match; {said}"


NOWHERE = "/dev/null"
CANDIDATES = 24  # places that are looked at closely

_HEADER = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')


@dataclass(frozen=True, kw_only=True, slots=True)
class Hunk:
    """One hunk; `number` and lines count from 1 within their file."""

    number: int
    old_start: int
    lines: tuple[str, ...]  # each with its mark: " ", "-" or "+"

    @property
    def old(self) -> tuple[str, ...]:
        """Lines before: context and removed ones."""
        return tuple(line[1:] for line in self.lines if line[0] != "+")

    @property
    def new(self) -> tuple[str, ...]:
        """Lines after: context and added ones."""
        return tuple(line[1:] for line in self.lines if line[0] != "-")


@dataclass(frozen=True, kw_only=True, slots=True)
class FilePatch:
    """Changes to one file; NOWHERE as `old` creates it, as `new` deletes it."""

    old: str
    new: str
    hunks: tuple[Hunk, ...]

    @property
    def path(self) -> str:
        """File to look at."""
        return self.new if self.old == NOWHERE else self.old


@dataclass(frozen=True, kw_only=True, slots=True)
class HunkPlace:
    """Best place for a hunk: its first line (from 1) and its similarity, 0 to 1."""

    line: int
    similarity: float


def parse_patch(text: str) -> tuple[FilePatch, ...]:
    """Parse a patch in git's format, with or without extended headers."""
    found: list[FilePatch] = []
    lines = deque(text.split("\n"))
    while lines:
        line = lines.popleft()
        if line.startswith("diff --git "):
            found.append(_extended(lines, line))
        elif line.startswith("--- ") and _peek(lines).startswith("+++ "):
            old, new = _side(line), _side(lines.popleft())
            found.append(FilePatch(old=old, new=new, hunks=_hunks(lines)))
    return tuple(found)


def _peek(lines: deque[str]) -> str:
    return lines[0] if lines else ""


def touched_files(files: Sequence[FilePatch]) -> tuple[str, ...]:
    """Return every path that a patch reads or writes, sorted."""
    return tuple(sorted({name for file in files for name in (file.old, file.new)} - {NOWHERE, ""}))


def nearest_place(lines: Sequence[str], wanted: Sequence[str], expected: int) -> HunkPlace | None:
    """Return the best match of `wanted`; of equal ones the nearest to line `expected`.

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
    return HunkPlace(line=best + 1, similarity=_alike(lines[best : best + width], wanted))


def contains_lines(lines: Sequence[str], wanted: Sequence[str]) -> bool:
    """Return whether the file contains `wanted` exactly."""
    width = len(wanted)
    return any(
        lines[start] == wanted[0] and tuple(lines[start : start + width]) == tuple(wanted)
        for start in range(len(lines) - width + 1 if wanted else 0)
    )


def _extended(lines: deque[str], line: str) -> FilePatch:
    """Parse git's extended header: renames, modes and binary changes may lack hunks."""
    old, new = _both(line.removeprefix("diff --git ").rstrip("\r"))
    hunks: tuple[Hunk, ...] = ()
    while lines and not lines[0].startswith("diff --git "):
        if lines[0].startswith("--- ") and hunks:
            break  # the next file, without a header of its own
        line = lines.popleft().rstrip("\r")
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
            hunks = _hunks(lines)
    return FilePatch(old=old, new=new, hunks=hunks)


def _hunks(lines: deque[str]) -> tuple[Hunk, ...]:
    hunks: list[Hunk] = []
    while match := _HEADER.match(_peek(lines)):
        lines.popleft()
        old, new = int(match[2] or 1), int(match[4] or 1)
        own: list[str] = []
        while (old > 0 or new > 0) and lines:
            # Some editors strip the blank of an empty context line.
            line = lines.popleft() or " "
            if line[0] not in " +-\\":
                break
            if line[0] != "\\":
                own.append(line)
            old -= line[0] in " -"
            new -= line[0] in " +"
        if _peek(lines).startswith("\\"):
            lines.popleft()
        hunks.append(Hunk(number=len(hunks) + 1, old_start=int(match[1]), lines=tuple(own)))
    return tuple(hunks)


def _side(line: str) -> str:
    """Return the path of a "--- a/path" or "+++ b/path" line, which may have a time after a tab."""
    name = line[4:].rstrip("\r")
    quoted = _QUOTED.match(name)
    name = _unquoted(quoted[0]) if quoted else name.partition("\t")[0]
    return name if name == NOWHERE else _stripped(name)


def _both(names: str) -> tuple[str, str]:
    """Return old and new path of "a/path b/path", which are equal except in renames."""
    if names.startswith('"'):
        end = _QUOTED.match(names)
        first = end[0] if end else names
        return _stripped(_unquoted(first)), _stripped(_unquoted(names[len(first) :].strip()))
    half = len(names) // 2
    return _stripped(names[:half]), _stripped(names[half + 1 :])


def _stripped(name: str) -> str:
    """Return a path without its first folder, as `git apply` does."""
    return name.partition("/")[2]


def _unquoted(name: str) -> str:
    """Return a path that git may have quoted with C escapes."""
    if not name.startswith('"'):
        return name
    inner = name[1:].removesuffix('"').encode(errors="surrogateescape")
    try:
        return codecs.escape_decode(inner)[0].decode(errors="surrogateescape")
    except ValueError:
        return name


def _overlaps(lines: Sequence[str], wanted: Sequence[str], width: int) -> list[int]:
    """Return for each window of `width` lines the number of wanted lines in it, in any order."""
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
    """Return the similarity of two texts, 1 only for equal ones."""
    if tuple(window) == tuple(wanted):
        return 1.0
    ratio = difflib.SequenceMatcher(None, "\n".join(window), "\n".join(wanted), autojunk=False).ratio()
    return min(ratio, 0.999)
