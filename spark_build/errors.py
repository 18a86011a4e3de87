"""Errors that a user can meet: what happened, where, and what to type next.

The exit codes are a contract (docs/exit-codes.md); one cause has one code.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, NamedTuple


@dataclass(frozen=True, slots=True)
class HintStep:
    """One line to type; only the command line knows how it is written.

    kind: "ours" (`words` are a command and its arguments, unquoted), "shell" (one word is a finished
    line, several are a command) or "again" (the command that failed).
    options: common options that a line of ours gives itself: ("--target", "gb10").
    elsewhere: it is typed on another machine, so none of this run's options are added.
    safe: a line of the system that `doctor --fix` may run once the user said yes.
    """

    kind: Literal["ours", "shell", "again"]
    words: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    elsewhere: bool = False
    safe: bool = False


AGAIN = HintStep("again")


def ours(command: str, *arguments: object, options: Sequence[str] = (), elsewhere: bool = False) -> HintStep:
    """Return a line of this program; `command` has the words of its name and fixed options."""
    return HintStep("ours", (*command.split(), *map(str, arguments)), tuple(options), elsewhere)


def shell(*words: object, safe: bool = False) -> HintStep:
    """Return a line of the system: a finished one, or a command of several words, which are quoted."""
    return HintStep("shell", tuple(map(str, words)), safe=safe)


def rm(folder: object) -> HintStep:
    """Return the line that removes a folder."""
    return shell("rm", "-r", folder)


def pip_install(*packages: str) -> HintStep:
    """Return the line that installs packages beside this program, whatever `pip` is on PATH."""
    return shell(sys.executable, "-m", "pip", "install", *packages)


@dataclass(frozen=True, slots=True, init=False)
class Hint:
    """The next thing to do: notes and steps in the order in which they are read.

    Between two steps stands ", then: "; a note brings its own punctuation.
    """

    parts: tuple[str | HintStep, ...]

    def __init__(self, *parts: str | HintStep | Hint) -> None:
        whole = (part.parts if isinstance(part, Hint) else (part,) for part in parts)
        object.__setattr__(self, "parts", tuple(chain.from_iterable(whole)))


Severity = Literal["ok", "info", "warning", "error"]


class Place(NamedTuple):
    """Place of a finding.

    line: from 1; 0 for the whole file. key: of a value in a TOML file whose line is not known yet.
    subject: the recipe or package that it concerns, where that is not the file itself.
    """

    file: str = ""
    line: int = 0
    subject: str = ""
    key: tuple[str | int, ...] = ()

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


NOWHERE = Place()


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding of a rule or check: in a wheel, a recipe, the store, an environment or the machine."""

    rule: str
    severity: Severity
    message: str
    place: Place = NOWHERE
    hint: Hint | HintStep | str = ""

    def __str__(self) -> str:
        place = f"{self.place}: " if self.place.file else ""
        return f"{place}{'warning: ' if self.severity == 'warning' else ''}{self.message}"


def problem(message: str, file: str, line: int = 0) -> Finding:
    """Return a mistake in an input file, which nothing is built from."""
    return Finding("input", "error", message, Place(file, line))


GOES_ON = Hint(AGAIN, ": it goes on where it stopped")
CHECK_NETWORK = Hint("check the network and `pip config list`, then ", AGAIN)


def as_hint(hint: Hint | HintStep | str | None) -> Hint | None:
    """Return a note or a single step as a hint; None for an empty one."""
    return hint if isinstance(hint, Hint) else Hint(hint) if hint else None


class SparkBuildError(Exception):
    """Base of all expected failures; anything else that escapes is a bug (exit 70)."""

    exit_code = 70

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        hint: Hint | HintStep | str | None = None,
        log: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.where = where  # "recipes/onnx.toml:15"
        self.hint = as_hint(hint)
        self.log = log  # path of the log that has the details

    @staticmethod
    def of_plain(raw: Any) -> SparkBuildError:
        """Return an error of the kind that its row names, else a SparkBuildError."""
        from spark_build.decoding import decoder  # not for --help

        named = globals().get(str(dict(raw).get("type")))
        kind = named if isinstance(named, type) and issubclass(named, SparkBuildError) else SparkBuildError
        # Journals of earlier versions have a text.
        parts = decoder(tuple[HintStep | str, ...] | str | None, newer=True)(raw.get("hint")) or ()
        hint = Hint(*([parts] if isinstance(parts, str) else parts)) if parts else None
        error: SparkBuildError = kind(str(raw.get("message", "")), where=raw.get("where"), hint=hint)
        error.log = raw.get("log")
        if isinstance(error, RecipeError):
            rows = decoder(tuple[dict[str, str | int], ...])(raw.get("problems", []))
            error.problems = tuple(
                problem(str(one.get("message")), str(one.get("file")), int(one.get("line", 0)))
                for one in rows
            )
        return error


class UsageError(SparkBuildError):
    """The command line asks for something that does not exist or contradicts itself."""

    exit_code = 2


class RecipeError(SparkBuildError):
    """A recipe, train or target file is wrong; `problems` holds all of them."""

    exit_code = 3

    def __init__(
        self,
        message: str,
        *,
        problems: Sequence[Finding] = (),
        where: str | None = None,
        hint: Hint | HintStep | str | None = None,
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.problems = tuple(problems)


class HostError(SparkBuildError):
    """The machine lacks something: a tool, a package, disk space, permission."""

    exit_code = 4


class SourceError(SparkBuildError):
    """A source cannot be fetched, or is not what was pinned."""

    exit_code = 5


class PatchError(SparkBuildError):
    """A patch does not apply to the source it is listed for."""

    exit_code = 6


class StageError(SparkBuildError):
    """A stage failed: environment, configure, compile."""

    exit_code = 7


class AuditError(SparkBuildError):
    """The result of a build may not be published."""

    exit_code = 8


class VerificationError(SparkBuildError):
    """Verification failed: a regression or a functional failure."""

    exit_code = 9


class StoreError(SparkBuildError):
    """The store or a wheelhouse view is damaged or cannot be written."""

    exit_code = 10


class UnreadableError(StoreError):
    """Something in the store or a view may not be read by this user: it may be sound."""

    exit_code = HostError.exit_code


class InconclusiveError(SparkBuildError):
    """A measurement allows no conclusion."""

    exit_code = 11


class NothingCheckedError(SparkBuildError):
    """A check found nothing to look at, or could reach none of it: neither success nor failure."""

    exit_code = 12


def joint_exit_code(errors: Sequence[SparkBuildError]) -> int:
    """Return 0 without errors, the common code when all agree, 1 when causes differ."""
    codes = {error.exit_code for error in errors}
    if not codes:
        return 0
    return codes.pop() if len(codes) == 1 else 1
