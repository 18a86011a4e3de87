"""Find Python interpreters; register Jupyter kernels."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shlex import quote

from packaging.tags import Tag, compatible_tags, cpython_tags, platform_tags
from packaging.utils import parse_wheel_filename

from spark_build import venv
from spark_build.errors import Hint, HostError, StoreError, UsageError, ours, shell
from spark_build.paths import path_given
from spark_build.process import capture, run
from spark_build.venv import clean_environment, find_uv
from spark_build.wheelhouse.generations import Generation
from spark_build.wheels.model import StoredWheel

# Says of the interpreter that runs it what PEP 508 markers ask for, and its ABI. Any Python 3 runs it.
_ASK = """
import json, os, platform, sys, sysconfig
info = sys.implementation.version
level = info.releaselevel
full = "%d.%d.%d" % info[:3] + ("" if level == "final" else level[0] + str(info.serial))
letters = {"cpython": "cp", "pypy": "pp", "graalpy": "graalpy"}
abi = letters.get(sys.implementation.name, sys.implementation.name) + "%d%d" % sys.version_info[:2]
print(json.dumps({
    "base": getattr(sys, "_base_executable", None) or sys.executable,
    "version": platform.python_version(),
    "abi": abi + ("t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""),
    "platform": sys.platform + "-" + platform.machine(),
    "markers": {
        "implementation_name": sys.implementation.name, "implementation_version": full,
        "os_name": os.name, "platform_machine": platform.machine(),
        "platform_release": platform.release(), "platform_system": platform.system(),
        "platform_version": platform.version(), "python_full_version": platform.python_version(),
        "platform_python_implementation": platform.python_implementation(),
        "python_version": ".".join(platform.python_version_tuple()[:2]), "sys_platform": sys.platform,
    },
}))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interpreter:
    """A Python on this machine, as it describes itself; `markers`: its environment markers."""

    path: str
    base: str  # the interpreter that environments are made from; another one when `path` is in one
    version: str  # 3.12.3
    abi: str  # cp312, cp313t, pp310
    platform: str  # linux-x86_64
    markers: Mapping[str, str]


@cache
def inspect(path: Path) -> Interpreter | None:
    """Return an interpreter's description of itself; None when it is no working Python 3."""
    said = capture([str(path), "-I", "-c", _ASK], env=clean_environment(), timeout=20)
    try:
        return Interpreter(path=str(path), **json.loads(said or ""))
    except (ValueError, TypeError):
        return None


def own() -> Interpreter:
    """Return the interpreter that runs this."""
    found = inspect(Path(sys.executable))
    assert found is not None
    return found


def find_interpreter(wanted: str) -> Interpreter:
    """Return the interpreter for --python: a path, a version such as 3.12, or a command."""
    if re.fullmatch(r"\d+\.\d+(\.\d+)?t?", wanted):
        for interpreter in known():
            if interpreter.version == wanted.removesuffix("t") or _short(interpreter.abi) == wanted:
                return interpreter
        raise UsageError(f"there is no Python {wanted} on this machine", hint=_there_are(tuple(known())))
    path = path_given(wanted, "--python")
    named = shutil.which(path) if wanted else None
    path = Path(named or path).absolute()
    found = inspect(path / "bin" / "python" if path.is_dir() else path)
    if found is None:
        raise UsageError(f"--python {wanted} is no Python 3 that runs", hint=_there_are(tuple(known())))
    return found


def _short(abi: str) -> str:
    """Return "3.12" for cp312 and "3.13t" for cp313t."""
    return re.sub(r"^cp(\d)", r"\1.", abi)


def known() -> Iterator[Interpreter]:
    """Yield this machine's interpreters, each once: on PATH, of pyenv, of uv."""
    seen = set()
    for path in _candidates():
        found = inspect(path)
        if found is not None and (real := os.path.realpath(found.base)) not in seen:
            seen.add(real)
            yield found


def _candidates() -> Iterator[Path]:
    yield Path(getattr(sys, "_base_executable", sys.executable))
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(root.glob("versions/*/bin/python"))
    listed = ["python", "list", "--only-installed", "--no-config", "--output-format=json"]
    # Where uv keeps its pythons is configured by variables, too; those that leave some out are not wanted.
    env = {name: value for name, value in os.environ.items() if name not in PREFERENCES}
    said = capture([find_uv() or "uv", *listed], timeout=60, env=env)
    with suppress(ValueError):
        yield from (Path(row["path"]) for row in json.loads(said or "[]") if row.get("path"))


def _there_are(found: Sequence[Interpreter]) -> str:
    return "there are " + ", ".join(f"{interpreter.version} ({interpreter.path})" for interpreter in found)


def refuse_other_abi(view: str, python: Interpreter, folder: Path | str) -> None:
    """Raise UsageError unless the interpreter has the view's ABI; names those that have it.

    folder: of the environment to be made.
    """
    abi = view.rpartition("-")[2]
    if python.abi == abi:
        return
    fitting = [interpreter for interpreter in known() if interpreter.abi == abi]
    others = ", ".join(f"{interpreter.path} ({interpreter.version})" for interpreter in fitting)
    told = f"the wheels of {view} are for {abi} (Python {_short(abi)}); {python.path} is {python.abi}"
    if fitting:
        raise UsageError(
            f"{told}; on this machine would do: {others}",
            hint=ours("env create", folder, "--python", fitting[0].path),
        )
    number = _short(abi)
    by_apt = ("sudo", "apt-get", "install", "-y", f"python{number}-venv")
    bring = shell("uv", "python", "install", number) if find_uv() else shell(*by_apt)
    raise UsageError(
        f"{told}; no Python on this machine would do",
        hint=Hint(bring, ours("env create", folder, "--python", number)),
    )


def refuse_unfit(wheels: Sequence[StoredWheel], python: Interpreter) -> None:
    """Raise HostError when a wheel cannot be installed for this interpreter."""
    fitting = _tags(python)
    for wheel in wheels:
        if fitting.isdisjoint(parse_wheel_filename(wheel.filename)[3]):
            raise HostError(
                f"{wheel.filename} is for another platform; this machine is {python.platform}",
                hint="import the wheels on a machine of that platform, and make the environment there",
            )


def _tags(python: Interpreter) -> frozenset[Tag]:
    """Return the wheel tags that installers accept on this machine: its glibc may be too old for a wheel."""
    version = tuple(int(part) for part in python.version.split(".")[:2])
    platforms = list(platform_tags())
    native = cpython_tags(version, abis=[python.abi], platforms=platforms)
    return frozenset((*native, *compatible_tags(version, interpreter=python.abi, platforms=platforms)))


# Of uv: whether a distribution's Pythons count, too.
PREFERENCES = {"UV_PYTHON_PREFERENCE", "UV_MANAGED_PYTHON", "UV_NO_MANAGED_PYTHON"}
PACKAGE = "ipykernel"


def refuse_without(generation: Generation) -> None:
    """Raise StoreError when the wheelhouse lacks ipykernel, without which a kernel cannot start."""
    if any(wheel.name == PACKAGE for wheel in generation.wheels):
        return
    fetch = f"pip download --only-binary=:all: --dest kernel {PACKAGE}"
    raise StoreError(
        f"--jupyter needs {PACKAGE} in the wheelhouse, and it is not there",
        where=str(generation.folder),
        hint=Hint(f"where there is a network: {fetch}; then: ", ours("wheelhouse import kernel")),
    )


def register_kernel(folder: Path) -> tuple[str, Path]:
    """Register the environment as a kernel of this user; returns its name and its kernel.json's folder."""
    kernels = _kernels_of(folder)
    name = re.sub(r"[^a-z0-9._-]+", "-", folder.name.lower()).strip("-") or "env"
    if _is_of_another(kernels / name, folder):
        name += "-" + hashlib.sha256(str(folder).encode()).hexdigest()[:6]
    shown = f"Python ({folder.name})"
    python = str(venv.python_of(folder))
    command = [python, "-m", PACKAGE, "install", "--user", "--name", name, "--display-name", shown]
    done = run(command, env=venv.clean_environment())
    if done.returncode != 0:
        raise HostError(
            f"{PACKAGE} cannot register the kernel: {done.output[-300:]}",
            hint=f"the environment itself is complete; by hand: {' '.join(map(quote, command))}",
        )
    return name, kernels / name


def _is_of_another(kernel: Path, folder: Path) -> bool:
    """Return whether another environment that is still there has this kernel."""
    try:
        python = Path(json.loads((kernel / "kernel.json").read_text())["argv"][0])
    except (OSError, ValueError, LookupError, TypeError):
        return False
    return python.parent != folder / "bin" and python.exists()


def _kernels_of(folder: Path) -> Path:
    """Return the folder of this user's kernels, as the environment's own jupyter_core reports it."""
    code = "from jupyter_core.paths import jupyter_data_dir; print(jupyter_data_dir())"
    said = capture([str(venv.python_of(folder)), "-c", code], env=venv.clean_environment())
    if not said:
        raise HostError("jupyter_core does not work in the environment", hint=ours("env check DIR"))
    return Path(said.strip(), "kernels")
