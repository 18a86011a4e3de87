"""Public torch wheels, as the build for a backend (cpu, cu130) that is wanted."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from spark_build import venv
from spark_build.errors import HostError, SourceError
from spark_build.events import Emit, Note
from spark_build.process import run
from spark_build.sources import simple_api
from spark_build.sources.pages import IndexFile
from spark_build.sources.simple_api import Indexes


def install(
    folder: Path, wanted: Sequence[str], backend: str, emit: Emit, log: BinaryIO, *, offline: bool = False
) -> None:
    """Install torch==X (first of `wanted`) and more: uv knows where builds for a backend are.

    Where that index does not answer, pip's own decides, after its size was said. Raises SourceError.
    """
    indexes = simple_api.configured().local() if offline else simple_api.configured()
    if not offline and not indexes.config.no_index and (uv := _uv()):
        index_url = indexes.config.index_url
        options = ["--default-index", index_url] if index_url else []
        where = ["--python", str(venv.python_of(folder)), "--torch-backend", backend]
        emit(Note(message=f"installing {' '.join(wanted)}, public wheels, the {backend} build"))
        quick = {"UV_HTTP_TIMEOUT": os.environ.get("UV_HTTP_TIMEOUT", "10"), "UV_HTTP_RETRIES": "1"}
        command = [*uv, "pip", "install", *where, *options, *wanted]
        if run(command, env=venv.clean_environment(quick), log=log).returncode == 0:
            return
        emit(Note(message=f"the index of {backend} builds does not answer; asking the one that pip uses"))
    emit(
        Note(
            message=announcement(wanted[0].partition("==")[0], wanted[0].partition("==")[2], indexes, backend)
        )
    )
    no_index = ["--no-index"] if offline else []
    done = venv.pip(folder, ["install", "--only-binary", ":all:", *no_index, *wanted], log=log)
    if done.returncode != 0:
        raise SourceError(
            f"cannot install the public wheels {' '.join(wanted)}",
            hint="put the wheels into a folder and set PIP_FIND_LINKS to it",
            log=log.name,
        )


def _uv() -> list[str]:
    if importlib.util.find_spec("uv") is not None:
        return [sys.executable, "-m", "uv"]
    found = shutil.which("uv")
    return [found] if found else []


def announcement(project: str, version: str, indexes: Indexes, backend: str) -> str:
    """What pip will download, and how large it is, before it does."""
    file = best_file(simple_api.files_of(project, indexes), version)
    if file is None:
        raise HostError(
            f"no wheel of {project} {version} for this Python ({platform.python_version()}) and machine",
            hint="put one into a folder and set PIP_FIND_LINKS to it, or choose another --train",
        )
    size = simple_api.size_of(file, indexes)
    text = f"installing {file.filename} ({'size unknown' if size is None else f'{size / 1e6:.0f} MB'})"
    if backend == "cpu" and "+cpu" not in file.filename and "%2Bcpu" not in file.filename:
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
