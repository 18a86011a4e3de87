"""Python interpreters, and environments made from a wheelhouse."""

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
    """A Python on this machine, as it describes itself; `markers`: its environment markers."""

    path: str
    base: str  # the interpreter that environments are made from; another one when `path` is in one
    version: str  # 3.12.3
    abi: str  # cp312, cp313t, pp310
    platform: str  # linux-x86_64
    markers: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Installed:
    """A package that was installed; `record`: sha256 of the RECORD that the installer left."""

    name: str
    version: str
    filename: str
    sha256: str
    key: str
    record: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Contents of an environment from the wheelhouse, and the packages that were asked for.

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
    """A package whose wheel is replaced by another, or reinstalled."""

    before: str  # version that is there
    wheel: StoredWheel
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentChange:
    """Changes that an update makes to an environment."""

    added: tuple[StoredWheel, ...] = ()
    replaced: tuple[Replacement, ...] = ()
    removed: tuple[Installed, ...] = ()
    released: tuple[Installed, ...] = ()  # put in by us, replaced by the user: now the user's
    same: tuple[str, ...] = ()
    others: tuple[str, ...] = field(default=())  # "name version" of what the user added, which stays

    @property
    def installs(self) -> tuple[StoredWheel, ...]:
        """Wheels to install."""
        return (*self.added, *(replacement.wheel for replacement in self.replaced))

    @property
    def empty(self) -> bool:
        """True when the environment is already as it should be."""
        return not (self.added or self.replaced or self.removed)


def merged(asked: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
    """Return both requests together; a later one for the same package replaces the earlier."""
    wishes = {canonicalize_name(Requirement(text).name): text for text in (*asked, *more)}
    return tuple(wishes.values())
