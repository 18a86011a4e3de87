"""Making an environment known to the user's Jupyter, by ipykernel's own command."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from shlex import quote

from spark_build import venv
from spark_build.errors import HostError, StoreError
from spark_build.process import capture, run
from spark_build.wheelhouse.generations import Generation

PACKAGE = "ipykernel"


def refuse_without(generation: Generation) -> None:
    """StoreError when the wheelhouse has no ipykernel: a kernel without it cannot start."""
    if any(wheel.name == PACKAGE for wheel in generation.wheels):
        return
    fetch = f"pip download --only-binary=:all: --dest kernel {PACKAGE}"
    raise StoreError(
        f"--jupyter needs {PACKAGE} in the wheelhouse, and it is not there",
        where=str(generation.folder),
        hint=f"where there is a network: {fetch}; then: spark-build wheelhouse import kernel",
    )


def register(folder: Path) -> tuple[str, Path]:
    """Register the environment as a kernel of this user's: (its name, the folder of its kernel.json)."""
    name = re.sub(r"[^a-z0-9._-]+", "-", folder.name.lower()).strip("-") or "env"
    done = _install(folder, name, check=True)
    if done is None:  # another environment of that name has it
        name += "-" + hashlib.sha256(str(folder).encode()).hexdigest()[:6]
        done = _install(folder, name, check=False)
    assert done is not None
    return name, done


def _install(folder: Path, name: str, *, check: bool) -> Path | None:
    """Where the kernel `name` now lies; None where (`check`) another environment's is."""
    place = _kernels_of(folder) / name
    try:
        known = json.loads((place / "kernel.json").read_text())["argv"][0]
    except (OSError, ValueError, LookupError, TypeError):
        known = ""
    if check and known and Path(known).parent != folder / "bin" and Path(known).exists():
        return None
    python = str(venv.python_of(folder))
    shown = f"Python ({folder.name})"
    command = [python, "-m", PACKAGE, "install", "--user", "--name", name, "--display-name", shown]
    done = run(command, env=venv.clean_environment())
    if done.returncode != 0:
        raise HostError(
            f"{PACKAGE} cannot register the kernel: {done.output[-300:]}",
            hint=f"the environment is whole; by hand: {' '.join(map(quote, command))}",
        )
    return place


def _kernels_of(folder: Path) -> Path:
    """Where this user's kernels are, as the environment's own jupyter_core sees it."""
    code = "from jupyter_core.paths import jupyter_data_dir; print(jupyter_data_dir())"
    said = capture([str(venv.python_of(folder)), "-c", code], env=venv.clean_environment())
    if not said:
        raise HostError("jupyter_core does not work in the environment", hint="spark-build env check DIR")
    return Path(said.strip(), "kernels")
