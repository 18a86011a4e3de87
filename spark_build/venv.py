"""Virtual environments: created without pip, filled from outside by uv or our own pip."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import BinaryIO

from spark_build.errors import StageError, ours
from spark_build.process import Completed, capture, run

SCRATCH = ".spark-build-"  # begins the name of what an interrupted installation may leave in an environment


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


def unconfigured() -> dict[str, str]:
    """Return the process's environment without pip's and uv's settings, so that no index is used.

    pip's --isolated would still read PIP_CONFIG_FILE and the machine's file.
    """
    kept = {
        name: value
        for name, value in clean_environment().items()
        if not name.upper().startswith(("PIP_", "UV_"))
    }
    return kept | {"PIP_CONFIG_FILE": os.devnull}


def find_uv() -> str | None:
    """Return a uv that runs: on PATH, else the one installed beside spark-build."""
    for found in (shutil.which("uv"), str(Path(sys.executable).with_name("uv"))):
        if found and _runs(found):
            return found
    return None


@cache
def _runs(program: str) -> bool:
    """Return whether this uv runs: pyenv's only says that no version with uv is selected."""
    return capture([program, "--version"], env=unconfigured(), timeout=20) is not None


def create(folder: Path, *, python: str = "", log: BinaryIO | None = None, clear: bool = True) -> None:
    """Make an environment from `python` (default: this one); `clear` removes what is in its place."""
    base = python or getattr(sys, "_base_executable", sys.executable)
    options = ["--clear", "--without-pip"] if clear else ["--without-pip"]
    done = run([base, "-m", "venv", *options, str(folder)], env=clean_environment(), log=log)
    if done.returncode != 0:
        raise StageError(
            f"cannot make a virtual environment in {folder}: {done.output[-300:]}",
            hint=ours("doctor"),
        )


def uv(
    folder: Path,
    arguments: Sequence[str],
    *,
    log: BinaryIO | None = None,
    pass_fds: Sequence[int] = (),
) -> Completed:
    """Run `uv pip` on the environment in `folder`: offline, without settings and without the user's cache."""
    command, *more = arguments
    # The cache beside the packages, so that uv can link what it unpacked.
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=folder) as scratch:
        isolated = ["--no-config", "--offline", "--no-progress", "--cache-dir", scratch]
        line = [find_uv() or "uv", "pip", command, "--python", str(python_of(folder)), *isolated, *more]
        return run(line, cwd=folder, env=unconfigured(), log=log, pass_fds=pass_fds)


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
