"""Make the build environment: exactly the pinned requirements and the needs, nothing else."""

from __future__ import annotations

import platform
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name, parse_wheel_filename

from spark_build import process, venv
from spark_build.build.context import Job, Outputs, Provided
from spark_build.environments import closure
from spark_build.errors import AGAIN, CHECK_NETWORK, Hint, HostError, SourceError, StageError, ours, rm
from spark_build.events import Note
from spark_build.files import remove_tree, sha256_of
from spark_build.recipes.loader import closure_pins

NAME = "environment"


def inputs(job: Job) -> Any:
    """Return pins, needs and interpreter."""
    return {
        "requires": sorted(job.step.evaluated.requires),
        "needs": [one.identity for one in job.provided],
        "python": sys.version,
    }


def intact(job: Job, outputs: Outputs) -> bool:
    """Return whether the environment's interpreter is still there; a system upgrade may remove it."""
    return not outputs["installed"] or venv.python_of(job.environment).exists()


def run(job: Job, earlier: Mapping[str, Outputs]) -> Outputs:
    """Create the environment, install only what was fetched, check that the pins agree."""
    if not job.step.recipe.is_compiled:
        return {"installed": []}  # nothing is executed: any machine can do it for any other
    here = f"{sys.platform}-{platform.machine()}"
    if job.target.platform != here:
        raise HostError(
            f"{job.target.name} wheels are built on {job.target.platform}; this is {here}",
            hint=f"run the same command on a {job.target.name}",
        )
    remove_tree(job.environment)
    venv.create(job.environment, log=job.log)
    with tempfile.TemporaryDirectory(prefix=venv.SCRATCH, dir=job.environment) as cache:
        return {"installed": _filled(job, earlier["fetch"]["requirements"], Path(cache))}


def _filled(job: Job, requirements: Sequence[str], cache: Path) -> list[dict[str, str]]:
    """Install the requirements, then the needs; `cache`: uv's, for as long as this takes."""
    changed = [path for path in map(Path, requirements) if sha256_of(path) != path.parent.name]
    if changed:
        raise SourceError(
            f"{changed[0].name} is not what was fetched any more",
            where=str(changed[0]),
            hint=Hint(rm(changed[0].parent), AGAIN),
        )
    installed = _install_files(job, requirements, cache)
    # Before the needs come: what those require at run time is none of this build's business.
    checked = venv.uv(job.environment, ["check"], cache=cache, log=job.log)
    if checked.returncode != 0:
        raise StageError(
            f"the recipe's build requirements contradict each other: {checked.output}",
            where=f"recipes/{job.step.recipe.name}.toml",
        )
    for one in job.provided:
        installed += _add_need(job, one, requirements, cache)
        sites = [one.site] if one.site else job.environment.glob("lib/python*/site-packages")
        if one.provision.need == "torch" and job.target.cuda_architectures and any(map(lacks_cuda, sites)):
            raise StageError(
                f"the torch that it would be compiled against is a build without CUDA ({one.provision})",
                hint=Hint(
                    "an index or PIP_FIND_LINKS offers +cpu wheels, or the wheel for this platform is one: ",
                    ours("build", job.step.recipe.name, options=("--provide", "torch=ENVIRONMENT")),
                    ", or torch=store",
                ),
            )
    return installed


def lacks_cuda(site: Path) -> bool:
    """Return whether the torch in this site-packages folder says that it is a build for processors only."""
    file = site / "torch" / "version.py"
    return file.is_file() and bool(re.search(r"(?m)^cuda\b[^=]*= *None", file.read_text()))


def _add_need(job: Job, need: Provided, requirements: Sequence[str], cache: Path) -> list[dict[str, str]]:
    """Make a need importable; a need coupled by version only is not needed to build."""
    if need.provision.coupling == "version":
        return []
    if need.site is not None:
        (site,) = job.environment.glob("lib/python*/site-packages")
        (site / f"provided-{need.provision.need}.pth").write_text(f"{need.site}\n")
    elif need.wheel is not None:
        return _install_files(job, [str(need.wheel)], cache)
    elif need.provision.provider == "public":
        return _add_public(job, need, requirements, cache)
    return []


def _add_public(job: Job, need: Provided, requirements: Sequence[str], cache: Path) -> list[dict[str, str]]:
    """Install a public wheel with what it requires, as locked; none of it is run on the way."""
    wanted = f"{need.provision.distribution}=={need.provision.version}"
    imported = [one for one in job.provided if one.provision.coupling != "version"]
    others = [one for one in imported if one.wheel is not None or one.site is not None]
    wheels = [*map(Path, requirements), *(one.wheel for one in others if one.wheel is not None)]
    pins = closure_pins(job.locks)
    job.emit(Note(message=f"installing {wanted} and what it requires, public wheels"))
    with tempfile.TemporaryDirectory(dir=job.work) as scratch:
        links = () if job.offline else None
        command = closure.download_command(
            wheels, pins, Path(scratch), locks=job.locks, wanted=[wanted], links=links
        )
        done = process.run(command, env=venv.clean_environment(), log=job.log, pass_fds=job.keep)
        if done.returncode != 0:
            raise SourceError(
                f"the build environment cannot be filled: {venv.error_in(done.output)}",
                hint=CHECK_NETWORK,
            )
        found = closure.held(Path(scratch), wheels, job.locks)
        # What this one requires never takes the place of another need.
        given = {canonicalize_name(one.provision.distribution) for one in others}
        chosen = [str(path) for path in found if parse_wheel_filename(path.name)[0] not in given]
        return _install_files(job, chosen, cache)


def _install_files(job: Job, wheels: Sequence[str], cache: Path) -> list[dict[str, str]]:
    """Install wheel files and nothing else; returns name, version and sha256 of each, for the provenance."""
    if not wheels:
        return []
    files = [venv.requirement_of(Path(wheel)) for wheel in wheels]
    options = ["install", "--no-deps", "--no-build", *files]
    done = venv.uv(job.environment, options, cache=cache, log=job.log, pass_fds=job.keep)
    if done.returncode != 0:
        raise SourceError(
            f"the build environment cannot be filled: {venv.error_in(done.output)}",
            hint=Hint("if the disk is full, free some space; then ", AGAIN),
        )
    found = []
    for path in map(Path, wheels):
        name, version, *_ = parse_wheel_filename(path.name)
        found.append({"name": name, "version": str(version), "sha256": sha256_of(path)})
    return found
