"""pip and uv, kept from everything but the wheels that they are handed."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from spark_build import venv
from spark_build.environments.model import InstallerName
from spark_build.errors import HostError, StoreError
from spark_build.process import capture, run
from spark_build.wheelhouse.generations import requirements
from spark_build.wheels.model import StoredWheel

SCRATCH = ".spark-build-"  # begins the name of what an interrupted installation may leave in an environment


def find_uv() -> str | None:
    """A uv that runs: on PATH, else the one installed beside spark-build."""
    for found in (shutil.which("uv"), str(Path(sys.executable).with_name("uv"))):
        if found and _runs(found):
            return found
    return None


@cache
def _runs(program: str) -> bool:
    """pyenv puts a uv on PATH that only says that no version with uv is selected."""
    return capture([program, "--version"], env=unconfigured(), timeout=20) is not None


def choose(wanted: str = "auto") -> InstallerName:
    """uv if there is one, else pip; HostError for a uv that is asked for and not there."""
    if wanted == "pip":
        return "pip"
    if find_uv() is not None:
        return "uv"
    if wanted == "uv":
        raise HostError("there is no uv on PATH", hint="pip install uv, or --installer pip")
    return "pip"


def unconfigured() -> dict[str, str]:
    """This process's environment without what configures pip and uv: no index of the user's has a say.

    pip's --isolated would still read PIP_CONFIG_FILE and the machine's file.
    """
    kept = {
        name: value
        for name, value in venv.clean_environment().items()
        if not name.upper().startswith(("PIP_", "UV_"))
    }
    return kept | {"PIP_CONFIG_FILE": os.devnull}


def fill(installer: InstallerName, folder: Path, source: Path, wheels: Sequence[StoredWheel]) -> None:
    """Install these wheels, which lie in `source`, into the environment: offline, hashes required."""
    if not wheels:
        return
    # Beside the packages, so that uv can link what it unpacked; never the user's cache.
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=folder) as scratch:
        listed = Path(scratch, "requirements.txt")
        listed.write_text(requirements(wheels))
        options = ["--no-index", "--find-links", str(source), "--no-deps", "--require-hashes"]
        done = run(
            [*_command(installer, folder, Path(scratch)), *options, "-r", str(listed)],
            cwd=folder,
            env=unconfigured(),
        )
    if done.returncode != 0:
        if os.strerror(errno.ENOSPC) in done.output:
            raise HostError(
                f"the disk is full ({folder})", hint="free some space, then the same command again"
            )
        raise StoreError(
            f"{installer} refuses the wheels: {reason(done.output)}",
            where=str(source),
            hint="spark-build wheelhouse list",
        )


def _command(installer: InstallerName, folder: Path, scratch: Path) -> list[str]:
    python = str(venv.python_of(folder))
    if installer == "uv":
        isolated = ["--no-config", "--offline", "--cache-dir", str(scratch / "cache"), "--no-progress"]
        return [find_uv() or "uv", "pip", "install", "--python", python, *isolated, "--no-build"]
    isolated = ["--disable-pip-version-check", "--no-input"]
    return [sys.executable, "-m", "pip", "--python", python, *isolated, "install", "--no-cache-dir"]


def reason(output: str) -> str:
    """What pip or uv gives as its reason, on one line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    first = next((at for at, line in enumerate(lines) if line.startswith(("error:", "\u00d7"))), 0)  # uv's
    return errors[0] if errors else " ".join(lines[first:])[:400]


def add_pip(folder: Path) -> None:
    """Give the user pip inside; from the interpreter's own bundle, without any index."""
    python = str(venv.python_of(folder))
    done = run([python, "-m", "ensurepip", "--upgrade"], env=unconfigured())
    if done.returncode != 0:
        raise HostError(
            "this Python cannot put pip into an environment (ensurepip failed)",
            hint="sudo apt-get install -y python3-venv, or use --without-pip",
        )
