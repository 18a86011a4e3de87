"""What is known about Python interpreters, and about the environments that were made from a wheelhouse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from spark_build.wheels.model import StoredWheel

InstallerName = Literal["uv", "pip"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Interpreter:
    """A Python on this machine, as it describes itself. `markers`: what environment markers ask for."""

    path: str
    base: str  # the interpreter that environments are made from; another one when `path` is in one
    version: str  # 3.12.3
    abi: str  # cp312, cp313t, pp310
    platform: str  # linux-x86_64
    markers: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Installed:
    """A package that was put into an environment. `record`: sha256 of the RECORD that its installer left."""

    name: str
    version: str
    filename: str
    sha256: str
    key: str
    record: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """What an environment holds from the wheelhouse, and what it was asked for.

    unfinished: "" or the command that did not come to its end; then any of `doubtful` may be there in
    part, with `files` (relative to the environment) the ones that its installer was about to write.
    """

    view: str
    generation: int
    python: str  # cp312
    asked: tuple[str, ...]
    everything: bool  # all that is built here, beside what was asked for by name
    packages: tuple[Installed, ...]
    bundled: tuple[str, ...] = ()  # pip and what came with it
    unfinished: Literal["", "create", "update"] = ""
    doubtful: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Replacement:
    """One package whose wheel gives way to another, or to the same one anew."""

    before: str  # version that is there
    wheel: StoredWheel
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentChange:
    """What an update does to an environment."""

    added: tuple[StoredWheel, ...] = ()
    replaced: tuple[Replacement, ...] = ()
    removed: tuple[Installed, ...] = ()
    released: tuple[Installed, ...] = ()  # put in by us, replaced by the user: now the user's
    same: tuple[str, ...] = ()
    others: tuple[str, ...] = field(default=())  # "name version" of what the user added, which stays

    @property
    def installs(self) -> tuple[StoredWheel, ...]:
        """The wheels that an installer has to put in."""
        return (*self.added, *(one.wheel for one in self.replaced))

    @property
    def empty(self) -> bool:
        """Whether the environment already is as it should be."""
        return not (self.added or self.replaced or self.removed)


def merged(asked: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
    """What is asked for when `more` comes on top: a later wish about a package replaces the earlier."""
    wishes = {canonicalize_name(Requirement(text).name): text for text in (*asked, *more)}
    return tuple(wishes.values())
