"""Check and apply patches with git."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal

from spark_build.errors import HostError, PatchError, ours
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
    """Effect of a patch on a tree; `detail`: which file and line does not fit."""

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
    """Apply a patch to a tree. Raises PatchError naming file and line; nothing is changed then."""
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
        raise PatchError(f"{patch.name} does not apply: {_said(done.output)}", where=str(patch))


def check(patch: Path, tree: Path) -> PatchState:
    """Return what a patch would do to a tree, without changing it."""
    try:
        paths, only_removes = _changes(patch)
    except PatchError as error:
        return PatchState(state="does-not-apply", detail=error.message)
    problem = next(filter(None, (_refused(path, tree) for path in sorted(paths))), "")
    if problem:
        return PatchState(state="does-not-apply", detail=problem)
    forward = _git_apply(patch, tree, "--check")
    backward = _git_apply(patch, tree, "--check", "--reverse")
    if backward.returncode == 0 and (forward.returncode != 0 or not only_removes):
        return PatchState(state="already-upstream", detail="its reverse applies")
    if forward.returncode == 0:
        return PatchState(state="applies")
    return PatchState(state="does-not-apply", detail=_said(forward.output))


def touched_files(patch: Path) -> frozenset[str]:
    """Return every path that a patch reads or writes. Raises PatchError for what is no patch."""
    return _changes(patch)[0]


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


def _changes(patch: Path) -> tuple[frozenset[str], bool]:
    """Return the paths before and after, and whether a patch fits both ways because it only removes.

    With context on one side only, an insertion can be made twice, and a removal undone twice. git counts by
    file, so a hunk that only removes beside one that adds as much is not told.
    """
    before, after = _counts(patch, "--reverse"), _counts(patch)
    only_removes = any(gone != "-" and int(gone) > int(come) for come, gone, _ in after)
    return frozenset(path for _, _, path in (*before, *after)), only_removes


def _counts(patch: Path, *options: str) -> list[list[str]]:
    """Return lines added, lines removed and the path that it has then, of each file; "-" for a binary one."""
    folder = patch.resolve().parent
    args = ["git", "apply", "--numstat", "-z", *options, str(patch.absolute())]
    try:
        done = subprocess.run(
            args, cwd=folder, env=_without_repository(folder), capture_output=True, check=False
        )
    except FileNotFoundError as error:
        raise HostError("cannot run git: it is not installed", hint=ours("doctor")) from error
    if done.returncode != 0:
        raise PatchError(_said(done.stderr.decode(errors="replace")))
    return [row.split("\t", 2) for row in os.fsdecode(done.stdout).split("\0") if row]


def _without_repository(folder: Path) -> dict[str, str]:
    # In a repository around it git would skip what it ignores, or has elsewhere, and report success.
    return {**scrubbed(), "GIT_CEILING_DIRECTORIES": str(folder.resolve().parent)}


def _git_apply(patch: Path, tree: Path, *options: str, log: BinaryIO | None = None) -> Completed:
    args = ["git", "apply", "--verbose", "--whitespace=nowarn", *options, str(patch.absolute())]
    return run(args, cwd=tree, env=_without_repository(tree), log=log)


def _said(output: str) -> str:
    """Return why git refuses a patch."""
    if failed := _FAILED_AT.search(output):
        return f"{failed[1]}: the hunk at line {failed[2]} does not match"
    match = _ERROR.search(output)
    return match[1] if match else "git apply failed without a word"
