"""One bare git repository that holds pinned commits. The only module that uses GitPython.

A mirror's refs/pinned/<commit>/<digest of the tag> appears after everything that the commit needs has
arrived, and only for a tag that led to it ("" is one, too): such a ref is what counts as "here".
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from spark_build.errors import HostError
from spark_build.sources.gitnet import scrubbed
from spark_build.sources.tree import Readable

if TYPE_CHECKING:
    from git.cmd import Git

T = TypeVar("T")
LINK, REGULAR, EXECUTABLE, REPOSITORY = "120000", "100644", "100755", "160000"  # modes in a tree

# What `git rev-parse --local-env-vars` prints, and what would change the objects that are seen.
_LOCAL = {
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_CONFIG", "GIT_CONFIG_PARAMETERS", "GIT_CONFIG_COUNT",
    "GIT_OBJECT_DIRECTORY", "GIT_DIR", "GIT_WORK_TREE", "GIT_IMPLICIT_WORK_TREE", "GIT_GRAFT_FILE",
    "GIT_INDEX_FILE", "GIT_REPLACE_REF_BASE", "GIT_PREFIX", "GIT_SHALLOW_FILE", "GIT_COMMON_DIR",
    "GIT_NAMESPACE", "GIT_DEFAULT_HASH", "GIT_TEMPLATE_DIR", "GIT_QUARANTINE_PATH",
    "GIT_INTERNAL_SUPER_PREFIX",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One line of a commit's tree."""

    mode: str
    name: str  # sha1
    size: int  # bytes; 0 for a repository
    path: str


class DamagedError(Exception):
    """The mirror lacks what it should have; the text is git's own line."""


def mark(commit: str, tag: str) -> str:
    """The ref that says: this commit is here, and this tag was seen to lead to it."""
    return f"refs/pinned/{commit}/{hashlib.sha256(tag.encode()).hexdigest()[:16]}"


class Mirror:
    """A bare repository, seen whatever the user's environment and settings say."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._git = _git(folder)
        self._content: _Content | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        if self._content is not None:
            self._content.close()
        self._git.clear_cache()  # ends the process that objects are read through

    def make(self) -> None:
        """Make the repository, or mend what a killed git left: its locks are nobody's, ours is held."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for pattern in ("*.lock", "refs/**/*.lock", "objects/pack/tmp_*", "objects/??/tmp_*"):
            for path in self.folder.glob(pattern):
                path.unlink(missing_ok=True)
        self._git.init("--bare", "--quiet", "--template=", "--object-format=sha1")

    def has(self, commit: str, tag: str) -> bool:
        """Whether a commit has completely arrived, and its tag led to it."""
        if not (self.folder / "HEAD").is_file():
            return False
        from git.exc import GitCommandError

        try:
            found = self._git.rev_parse("--verify", "--quiet", f"{mark(commit, tag)}^{{commit}}")
        except GitCommandError:
            return False
        return bool(found == commit)

    def keep(self, commit: str, tag: str) -> bool:
        """Mark a commit that is there; False when it is not."""
        from git.exc import GitCommandError

        try:
            self._git.update_ref(mark(commit, tag), f"{commit}^{{commit}}")
        except GitCommandError:
            return False
        return True

    def forget(self, commit: str, tag: str) -> None:
        """Remove the mark."""
        self._git.update_ref("-d", mark(commit, tag))

    def time(self, commit: str) -> int:
        """When a commit was made, in seconds since 1970."""
        return int(_reading(lambda: self._git.log("-1", "--format=%ct", commit, "--")))

    def entries(self, commit: str) -> list[Entry]:
        """The whole tree of a commit."""
        listed: bytes = _reading(
            lambda: self._git.ls_tree("-r", "-z", "-l", "--full-tree", commit, stdout_as_string=False)
        )
        entries = []
        for line in listed.split(b"\0")[:-1]:
            about, _, path = line.partition(b"\t")
            mode, _, name, size = about.decode().split()
            count = int(size) if size.isdecimal() else 0
            entries.append(Entry(mode=mode, name=name, size=count, path=os.fsdecode(path)))
        return entries

    def config(self, blob: str) -> dict[str, str]:
        """A file in git's format of settings (.gitmodules)."""
        listed: bytes = _reading(
            lambda: self._git.config("--blob", blob, "-z", "--list", stdout_as_string=False)
        )
        pairs = (os.fsdecode(pair).partition("\n") for pair in listed.split(b"\0")[:-1])
        return {key: value for key, _, value in pairs}

    def content(self, blob: str) -> Readable:
        """A file's content as the commit has it: not converted, not filtered. Valid until the next one."""
        _, _, size, stream = _reading(lambda: self._git.stream_object_data(blob))
        self._content = _Content(stream, size)
        return self._content


class _Content:
    """A file read from GitPython's git; one that ends early is damage, not an end."""

    def __init__(self, stream: Git.CatFileContentStream, size: int) -> None:
        self._stream: Git.CatFileContentStream | None = stream
        self._left = size

    def read(self, size: int = -1, /) -> bytes:
        block = self._stream.read(size) if self._stream is not None else b""
        self._left -= len(block)
        if not block and size and self._left > 0:
            raise DamagedError("an object ends early")
        return block

    def close(self) -> None:
        """Let go of the stream while its pipe is open: it reads its rest when it goes."""
        self._stream = None


def _git(folder: Path) -> Git:
    # GitPython hands the whole environment on, and nothing in this process wants these.
    for name in _LOCAL & os.environ.keys():
        del os.environ[name]
    try:
        from git.cmd import Git
    except ImportError as error:  # GitPython's way to say that there is no git
        raise HostError("git is not installed", hint="sudo apt-get install git") from error
    git = Git(folder)
    settings = {name: value for name, value in scrubbed().items() if name.startswith("GIT_")}
    git.update_environment(**settings, GIT_DIR=str(folder), GIT_NO_REPLACE_OBJECTS="1")
    return git


def _reading(read: Callable[[], T]) -> T:
    from git.exc import GitError

    try:
        return read()
    except (GitError, ValueError) as error:
        said = str(getattr(error, "stderr", "") or error).strip().splitlines()
        raise DamagedError(said[-1].strip() if said else "it is damaged") from error
