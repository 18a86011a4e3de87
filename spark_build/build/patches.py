"""Applying patches, exactly or not at all, and saying what is in the way.

By `git apply`: offsets are fine, fuzz is not. Inside another repository's ignored folder it exits 0
and does nothing, hence the ceiling, and the comparison of the files afterwards.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal

from spark_build.build import hunks
from spark_build.build.hunks import FilePatch, Place
from spark_build.errors import PatchError
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
    """What a patch would do to a tree. `line` is the nearest matching place, 0 when there is none."""

    state: State
    detail: str = ""
    file: str = ""
    hunk: int = 0  # counts from 1 within the file; 0: not about one hunk
    line: int = 0
    similarity: float = 0.0


def located(patch: Patch, home: Home) -> Path:
    """The patch's file, with the content that its recipe names; else PatchError."""
    found = home.find(f"patches/{patch.file}")
    if found is None or sha256_of(found) != patch.sha256:
        state = "is missing" if found is None else "does not have the sha256 of its recipe"
        raise PatchError(f"patches/{patch.file} {state}", hint="spark-build recipes list")
    return found


def apply(patch: Path, tree: Path, ceiling: Path, log: BinaryIO | None) -> None:
    """Apply a patch to a tree; `ceiling`: above it no repository is looked for.

    Raises PatchError naming file, hunk and the nearest matching place; nothing is changed then.
    """
    state = check(patch, tree)
    if state.state != "applies":
        upstream = state.state == "already-upstream"
        raise PatchError(
            f"{patch.name} "
            + ("is in the source already" if upstream else f"does not apply: {state.detail}"),
            where=str(patch),
            hint="spark-build patches check",
        )
    paths = [file.path for file in _files(patch)] + [file.new for file in _files(patch)]
    before = {name: _fingerprint(tree / name) for name in paths if name != hunks.NOWHERE}
    done = _git_apply(patch, tree, ceiling, log=log)
    if done.returncode != 0:
        raise PatchError(f"{patch.name} does not apply: {_said(done)}", where=str(patch))
    unchanged = sorted(name for name, value in before.items() if _fingerprint(tree / name) == value)
    if unchanged:
        raise PatchError(f"{patch.name} changed nothing in {', '.join(unchanged)}", where=str(patch))


def check(patch: Path, tree: Path) -> PatchState:
    """What a patch would do to a tree, which is not changed."""
    files = _files(patch)
    if not files:
        return PatchState(state="does-not-apply", detail="it changes no file")
    with tempfile.TemporaryDirectory(prefix="spark-build-patch-") as scratch:
        copy = Path(scratch, "tree")
        problem = copy_touched(hunks.touched(files), tree, copy)
        if problem:
            return PatchState(state="does-not-apply", detail=problem)
        forward = _git_apply(patch, copy, Path(scratch), "--check")
        backward = _git_apply(patch, copy, Path(scratch), "--check", "--reverse")
        if backward.returncode == 0 and (forward.returncode != 0 or not _only_removes(files)):
            return PatchState(state="already-upstream", detail="its reverse applies")
        if forward.returncode == 0:
            return PatchState(state="applies")
        return _explain(files, copy, forward)


def copy_touched(paths: Iterable[str], tree: Path, copy: Path) -> str:
    """Copy those of the files that there are, links as links; a reason when one must not be looked at."""
    copy.mkdir(parents=True, exist_ok=True)
    for path in paths:
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts:
            return f"{path} lies outside the source"
        for parent in list(pure.parents)[:-1]:
            if (tree / parent).is_symlink():
                return f"{path} lies beyond the symbolic link {parent}"
        source, target = tree / path, copy / path
        if source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return ""


def _files(patch: Path) -> tuple[FilePatch, ...]:
    return hunks.parse(_text(patch))


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="surrogateescape")


def _only_removes(files: Sequence[FilePatch]) -> bool:
    """Whether both directions fitting means "not yet applied".

    With context on one side only, an insertion can be made twice, and a removal undone twice.
    """
    return any(len(hunk.old) > len(hunk.new) for file in files for hunk in file.hunks)


def _git_apply(
    patch: Path, tree: Path, ceiling: Path, *options: str, log: BinaryIO | None = None
) -> Completed:
    environment = {**scrubbed(), "GIT_CEILING_DIRECTORIES": str(ceiling.resolve())}
    args = ["git", "apply", "--verbose", "--whitespace=nowarn", *options, str(patch.absolute())]
    return run(args, cwd=tree, env=environment, log=log)


def _said(done: Completed) -> str:
    match = _ERROR.search(done.output)
    return match[1] if match else "git apply failed without a word"


def _explain(files: Sequence[FilePatch], tree: Path, done: Completed) -> PatchState:
    """Which hunk of which file does not fit, and where it would fit best."""
    match = _FAILED_AT.search(done.output)
    if match is None:
        said = _said(done)
        missing = next((file.path for file in files if said == f"{file.path}: No such file or directory"), "")
        detail = f"{missing} is not in the source" if missing else said
        return PatchState(state="does-not-apply", detail=detail, file=missing)
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
        return PatchState(state="does-not-apply", detail=_said(done), file=path)
    lines = _text(tree / path).split("\n")
    where = f"{path}: hunk {hunk.number} (line {start})"
    if hunk.new != hunk.old and hunks.contains(lines, hunk.new):
        detail = f"{where} is in the source already, other parts of the patch are not"
        return PatchState(state="does-not-apply", detail=detail, file=path, hunk=hunk.number)
    place = hunks.nearest(lines, hunk.old, start) or Place(line=0, similarity=0)
    said = f"nearest is line {place.line}, {int(place.similarity * 100)}% alike"
    if place.similarity == 1:  # to git, no context after a change means the end of the file
        said = f"line {place.line} does, but without context lines it only fits a file's first or last lines"
    return PatchState(
        state="does-not-apply",
        detail=f"{where} does not match; {said}",
        file=path,
        hunk=hunk.number,
        line=place.line,
        similarity=place.similarity,
    )


def _fingerprint(path: Path) -> str:
    """Kind, permissions and content of a file; "" when there is none."""
    if path.is_symlink():
        return f"link {path.readlink()}"
    return f"{path.stat().st_mode:o} {sha256_of(path)}" if path.is_file() else ""
