"""Virtual environments: created without pip, filled by our own pip from outside."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from spark_build.errors import StageError
from spark_build.process import Completed, run


def python_of(folder: Path) -> Path:
    """Return the interpreter of an environment."""
    return folder / "bin" / "python"


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment without variables that leak other Pythons into a child."""
    leaky = (
        "PYTHONPATH",
        "PYTHONHOME",
        "PYTHONSTARTUP",
        "VIRTUAL_ENV",
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_USER",
    )
    kept = {name: value for name, value in os.environ.items() if name not in leaky}
    return kept | {"PYTHONNOUSERSITE": "1", **(extra or {})}


def create(folder: Path, *, python: str = "", log: BinaryIO | None = None, clear: bool = True) -> None:
    """Make an environment from `python` (default: this one); `clear` removes what is in its place."""
    base = python or getattr(sys, "_base_executable", sys.executable)
    options = ["--clear", "--without-pip"] if clear else ["--without-pip"]
    done = run([base, "-m", "venv", *options, str(folder)], env=clean_environment(), log=log)
    if done.returncode != 0:
        raise StageError(
            f"cannot make a virtual environment in {folder}: {done.output[-300:]}",
            hint="spark-build doctor",
        )


def pip(
    folder: Path,
    arguments: Sequence[str],
    *,
    log: BinaryIO | None = None,
    pass_fds: Sequence[int] = (),
) -> Completed:
    """Run pip on the environment in `folder`; the user's own pip configuration applies."""
    command = [
        sys.executable, "-m", "pip", "--python", str(python_of(folder)),
        "--disable-pip-version-check", "--no-input", *arguments,
    ]  # fmt: skip
    return run(command, env=clean_environment(), log=log, pass_fds=pass_fds)
