"""The proof that a generation installs: a real resolver, offline, from the generation's folder alone."""

from __future__ import annotations

import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from packaging.tags import Tag, sys_tags

from spark_build.environments import interpreters
from spark_build.environments.closure import pip_for, tags
from spark_build.environments.installers import choose, find_uv, reason, unconfigured
from spark_build.process import run
from spark_build.recipes.model import Target
from spark_build.wheelhouse import resolve
from spark_build.wheelhouse.generations import Generation
from spark_build.wheels.model import StoredWheel

HERE = f"{sys.platform}-{platform.machine()}"


def prove(generation: Generation, target: Target, *, installer: str = "auto") -> tuple[str, ...]:
    """What keeps the generation's wheels from being installed on the target; () when a resolver finds a way.

    uv resolves where there is one, else pip, both for any target from any machine. Asked for are the newest
    of all that is not public, together, and every older version alone.
    """
    tool = choose(installer)
    problems: list[str] = []
    for wheels in resolve.roots(generation.wheels):
        refusal = _resolve(generation.folder, wheels, target, tool)
        if refusal:
            markers = interpreters.own().markers if _is_here(target) else resolve.markers(target)
            plain = resolve.gaps(wheels, generation.wheels, markers, _tags(target))
            problems += plain or (f"{tool} says: {refusal}",)
    return tuple(dict.fromkeys(problems))


def _is_here(target: Target) -> bool:
    return (target.platform, target.python) == (HERE, interpreters.own().abi)


def _tags(target: Target) -> frozenset[Tag]:
    return frozenset(sys_tags()) if _is_here(target) else resolve.tags(target)


def _resolve(folder: Path, wheels: Sequence[StoredWheel], target: Target, tool: str) -> str:
    """Why the resolver finds no way to install these; "" when it finds one."""
    with tempfile.TemporaryDirectory() as scratch:
        wanted = Path(scratch, "requirements.in")
        wanted.write_text("".join(f"{wheel.name}=={wheel.version}\n" for wheel in wheels))
        command = (_uv if tool == "uv" else _pip)(target, Path(scratch))
        sources = ["--no-index", "--find-links", str(folder), "--only-binary", ":all:"]
        done = run([*command, *sources, *_file(tool, wanted)], cwd=Path(scratch), env=unconfigured())
    return "" if done.returncode == 0 else reason(done.output)


def _file(tool: str, wanted: Path) -> list[str]:
    return [str(wanted)] if tool == "uv" else ["-r", str(wanted)]


def _uv(target: Target, scratch: Path) -> list[str]:
    command = [find_uv() or "uv", "pip", "compile", "--quiet", "--no-config", "--offline", "--no-progress"]
    command += ["--cache-dir", str(scratch / "cache"), "--python", sys.executable, "--prerelease", "allow"]
    if _is_here(target):
        return command
    version = resolve.python_version(target)
    place = f"{resolve.machine_of(target)}-manylinux_2_{resolve.GLIBC_MINOR}"
    return [*command, "--python-version", version, "--python-platform", place]


def _pip(target: Target, scratch: Path) -> list[str]:
    foreign = None if _is_here(target) else target
    place = [*tags(target), "--target", str(scratch / "nowhere")] if foreign else []
    options = ["--dry-run", "--ignore-installed", "--quiet", "--pre"]
    return [*pip_for(foreign), "install", *options, *place]
