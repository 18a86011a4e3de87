"""Make or find the environments that are measured."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from spark_build.errors import HostError, UsageError
from spark_build.host import index, venv
from spark_build.host.files import locked, write_atomically
from spark_build.host.home import Home
from spark_build.host.index import Indexes, IndexFile
from spark_build.host.run import capture, run
from spark_build.model.event import Emit, Note
from spark_build.model.verification import Arm, Device

SCHEMA = 1
STAMP = "spark-build-arm.json"
VERSIONS = """
import importlib.metadata as m, json, sys
found = {}
for name in sys.argv[1:]:
    try: found[name] = m.version(name)
    except m.PackageNotFoundError: pass
print(json.dumps(found))
"""


def baseline_arm(home: Home, train: str, folder: Path, emit: Emit, *, device: Device = "cpu") -> Arm:
    """The public wheels of a train as an environment in `folder`; one with the same pins is reused.

    Raises UsageError for a train without a baseline, HostError or SourceError when the wheels
    cannot be had.
    """
    pins, backend = _baseline(home, train, device)
    key = {"schema": SCHEMA, "pins": pins, "device": device, "python": platform.python_version()}
    waiting = f"waiting for another run to finish {folder.name}"
    with locked(
        folder.with_name(f".{folder.name}.lock"),
        purpose="baseline",
        waiting=lambda _: emit(Note(message=waiting)),
    ):
        stamp = folder / STAMP
        if _read(stamp) != key or not venv.python_of(folder).exists():
            stamp.unlink(missing_ok=True)
            venv.create(folder)
            _fill(folder, pins, backend, device, emit)
            write_atomically(stamp, json.dumps(key))
    return environment_arm("public", folder, origin=f"public wheels pinned for train {train}")


def environment_arm(name: str, folder: Path, *, origin: str = "") -> Arm:
    """An existing environment; the baseline by role. Raises UsageError when it has no torch."""
    python = venv.python_of(folder)
    answer = capture([str(python), "-I", "-c", VERSIONS, "torch", "numpy"], env=venv.clean_environment())
    versions: dict[str, str] = json.loads(answer) if answer else {}
    if "torch" not in versions:
        raise UsageError(
            f"no environment with torch in {folder}", hint="give the folder of a virtual environment"
        )
    return Arm(
        name=name,
        role="baseline",
        python=str(python.absolute()),
        origin=origin or f"environment {folder}",
        versions=versions,
    )


def candidate(arm: Arm) -> Arm:
    """The same environment in the role of what is compared with the baseline."""
    return replace(arm, role="candidate")


def control_of(baseline: Arm) -> Arm:
    """The A/A control: the same environment once more under another name."""
    return replace(
        baseline, name=f"{baseline.name}-again", role="control", origin=f"A/A control: {baseline.name} again"
    )


def _baseline(home: Home, train: str, device: Device) -> tuple[dict[str, str], str]:
    file = home.find(f"bench/baseline/{train}.toml")
    if file is None:
        folders = [base / "bench" / "baseline" for base in home.data]
        known = sorted({each.stem for folder in folders for each in folder.glob("*.toml")})
        raise UsageError(f"no baseline for train {train}", hint=f"there are {', '.join(known) or 'none'}")
    raw = tomllib.loads(file.read_text())
    if raw.get("schema") != SCHEMA or raw.get("train") != train or "torch" not in raw.get("pins", {}):
        raise UsageError(
            "not a baseline of this schema", where=str(file), hint=f"schema = {SCHEMA}, train, [pins]"
        )
    return {name: str(version) for name, version in raw["pins"].items()}, str(raw["backend"][device])


def _read(stamp: Path) -> object:
    try:
        return json.loads(stamp.read_text())
    except (OSError, ValueError):
        return None


def _fill(folder: Path, pins: Mapping[str, str], backend: str, device: Device, emit: Emit) -> None:
    """Install the pins: uv knows where builds for a backend are; else pip's own index decides."""
    indexes = index.configured()
    wanted = [f"{name}=={version}" for name, version in pins.items()]
    with folder.with_name(f"{folder.name}.log").open("wb") as log:
        if not indexes.config.no_index and (uv := _uv()):
            index_url = indexes.config.index_url
            options = ["--default-index", index_url] if index_url else []
            command = [
                *uv,
                "pip",
                "install",
                "--python",
                str(venv.python_of(folder)),
                "--torch-backend",
                backend,
            ]
            emit(Note(message=f"installing {' '.join(wanted)} ({backend} build) as the public baseline"))
            quick = {"UV_HTTP_TIMEOUT": os.environ.get("UV_HTTP_TIMEOUT", "10"), "UV_HTTP_RETRIES": "1"}
            if run([*command, *options, *wanted], env=venv.clean_environment(quick), log=log).returncode == 0:
                return
            emit(Note(message=f"the index of {backend} builds does not answer; asking the one that pip uses"))
        emit(Note(message=announcement("torch", pins["torch"], indexes, device)))
        done = venv.pip(folder, ["install", "--only-binary", ":all:", *wanted], log=log)
    if done.returncode != 0:
        raise HostError(
            f"cannot install the public baseline {' '.join(wanted)}",
            hint="put the wheels into a folder and set PIP_FIND_LINKS to it",
            log=log.name,
        )


def _uv() -> list[str]:
    if importlib.util.find_spec("uv") is not None:
        return [sys.executable, "-m", "uv"]
    found = shutil.which("uv")
    return [found] if found else []


def announcement(project: str, version: str, indexes: Indexes, device: Device) -> str:
    """What pip will download, and how large it is, before it does."""
    file = best_file(index.files_of(project, indexes), version)
    if file is None:
        raise HostError(
            f"no wheel of {project} {version} for this Python ({platform.python_version()}) and machine",
            hint="put one into a folder and set PIP_FIND_LINKS to it, or choose another --train",
        )
    size = index.size_of(file, indexes)
    text = f"installing {file.filename} ({'size unknown' if size is None else f'{size / 1e6:.0f} MB'})"
    if device == "cpu" and "+cpu" not in file.filename and "%2Bcpu" not in file.filename:
        text += "; no build for processors only is offered, so several GB of CUDA libraries may come with it"
    return text


def best_file(files: Sequence[IndexFile], version: str) -> IndexFile | None:
    """The wheel that pip would take here for ==version: newest (local labels win), then best tags."""
    from packaging.specifiers import SpecifierSet
    from packaging.tags import sys_tags
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    wanted = SpecifierSet(f"=={version}", prereleases=True)
    order = {tag: place for place, tag in enumerate(sys_tags())}
    ranked = []
    for file in files:
        try:
            _, found, build, tags = parse_wheel_filename(file.filename)
        except InvalidWheelFilename:
            continue
        places = [order[tag] for tag in tags if tag in order]
        if places and found in wanted:
            ranked.append(((found, -min(places), build), file))
    return max(ranked, key=lambda pair: pair[0])[1] if ranked else None
