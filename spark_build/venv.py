"""Virtual environments: created without pip, filled from outside by uv or our own pip."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

from packaging.utils import parse_wheel_filename

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
    """Return a uv that can be used: the one installed beside spark-build, else one on PATH."""
    for found in (str(Path(sys.executable).with_name("uv")), shutil.which("uv")):
        if found and _can_be_used(found):
            return found
    return None


# uv 0.10.0 and older write the entry points of a wheel that are named ../../x outside the environment (tried
# with 0.4.0, 0.5.9, 0.8.24, 0.10.0; 0.11.6, 0.12.0 and 0.13.9 refuse the wheel).
OLDEST_UV = (0, 11, 6)


@cache
def _can_be_used(program: str) -> bool:
    """Return whether this uv runs and is new enough; pyenv's may only say that no version has one."""
    if not os.access(program, os.X_OK):
        return False
    said = capture([program, "--version"], env=unconfigured(), timeout=20) or ""
    found = re.match(r"uv (\d+)\.(\d+)\.(\d+)", said)
    return found is not None and tuple(map(int, found.groups())) >= OLDEST_UV


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


def compile_packages(folder: Path) -> None:
    """Compile an environment's packages to bytecode, as pip does and uv does not; runs none of their code.

    A round of measuring writes no bytecode: without any, each would compile what it imports (3 s for torch).
    """
    packages = next(folder.glob("lib/python*/site-packages"))
    line = [str(python_of(folder)), "-I", "-S", "-m", "compileall", "-qq", "-j", "0", str(packages)]
    run(line, env=clean_environment())  # fails for files that are templates: they stay as they are


def requirement_of(wheel: Path) -> str:
    """Return a wheel's file as a requirement: of a bare path uv would read # and ${NAME}."""
    return f"{parse_wheel_filename(wheel.name)[0]} @ {wheel.absolute().as_uri()}"


def uv(
    folder: Path,
    arguments: Sequence[str],
    *,
    cache: Path | None = None,
    log: BinaryIO | None = None,
    pass_fds: Sequence[int] = (),
) -> Completed:
    """Run `uv pip` on the environment in `folder`: offline, without settings and without the user's cache.

    cache: a folder that several calls share, by default one of this call. With a new one uv starts the
    environment's Python, which runs each .pth file that is in it by then.
    """
    command, *more = arguments
    # Beside the packages, so that uv can link what it unpacked.
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=folder) as scratch:
        isolated = ["--no-config", "--offline", "--no-progress", "--cache-dir", str(cache or scratch)]
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


CONFLICT = "The conflict is caused by:"  # pip, before what it could not bring together


def error_in(output: str) -> str:
    """Return the reason that pip or uv prints, on one line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    of_uv = [at for at, line in enumerate(lines) if line.startswith(("error:", "\u00d7"))]
    if errors:
        start = lines.index(CONFLICT) + 1 if CONFLICT in lines else len(lines)
        wanted = takewhile(lambda line: not line.startswith(("Additionally", "To fix")), lines[start:])
        return "; ".join([errors[0], *wanted])
    return " ".join(lines[of_uv[0] :])[:400] if of_uv else " ".join(lines)[-400:]
