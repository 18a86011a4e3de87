"""The file inside an environment that says what was put in from which generation."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Any

from spark_build.environments.model import Installed, State
from spark_build.errors import StoreError, UsageError
from spark_build.files import write_atomically

NAME = "spark-build.json"
SCHEMA = 1


def write(folder: Path, state: State) -> None:
    """Keep a state; whole or not at all."""
    text = json.dumps({"schema": SCHEMA, **asdict(state)}, indent=1)
    write_atomically(folder / NAME, text + "\n")


def read(folder: Path) -> State:
    """The state of an environment that was made here; UsageError for any other folder."""
    try:
        raw: dict[str, Any] = json.loads((folder / NAME).read_text())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(
            f"{folder} was not made by `spark-build env create`: there is no {NAME} in it",
            hint="make a new one: spark-build env create DIR",
        ) from error
    except (OSError, ValueError) as error:
        raise _unreadable(folder, error) from error
    try:
        if raw.pop("schema") != SCHEMA:
            raise ValueError("written by a newer spark-build")
        raw |= {name: tuple(raw[name]) for name in ("asked", "bundled", "doubtful", "files")}
        return State(**{**raw, "packages": tuple(Installed(**row) for row in raw["packages"])})
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(folder, error) from error


def _unreadable(folder: Path, error: Exception) -> StoreError:
    return StoreError(
        f"what is known about this environment cannot be read: {error}",
        where=str(folder / NAME),
        hint=f"rm -r {quote(str(folder))}, then make it again",
    )


def is_unfinished_creation(folder: Path) -> bool:
    """Whether `env create` was killed in this folder."""
    try:
        return read(folder).unfinished == "create"
    except (UsageError, StoreError):
        return False


def exists(folder: Path) -> bool:
    """Whether an environment was made here, or begun."""
    return (folder / NAME).is_file()
