"""Build the wheel by the project's own PEP 517 backend, in the build environment."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_build.core.placeholders import fill
from spark_build.errors import StageError
from spark_build.host import venv
from spark_build.host.files import remove_tree
from spark_build.host.job import Job, Outputs
from spark_build.host.probe import SYSTEM_PATH
from spark_build.host.run import capture
from spark_build.host.run import run as run_command
from spark_build.model.event import Progress

NAME = "build"
NINJA_STEP = re.compile(r"^\[(\d+)/(\d+)\] ")


def inputs(job: Job) -> Any:
    """Everything that decides the bytes."""
    return {"key": job.key}


def intact(job: Job, outputs: Outputs) -> bool:
    """The built wheel is still there."""
    return (job.dist / str(outputs["wheel"])).is_file()


def run(job: Job, earlier: Mapping[str, Outputs]) -> Outputs:
    """Call the backend's hooks; an interrupted ninja build goes on where it was."""
    from build import BuildBackendException, ProjectBuilder
    from pyproject_hooks import BuildBackendWarning

    remove_tree(job.dist)
    for folder in (job.dist, job.work / "home", job.work / "tmp"):
        folder.mkdir(parents=True, exist_ok=True)
    environment = _environment(job, int(earlier["patch"]["epoch"]))
    job.build_started.touch()

    def runner(
        cmd: Sequence[str], cwd: str | None = None, extra_environ: Mapping[str, str] | None = None
    ) -> None:
        done = run_command(
            cmd,
            cwd=Path(cwd) if cwd else None,
            env={**environment, **(extra_environ or {})},
            log=job.log,
            on_line=lambda line: _progress(job, line),
            keep=job.keep,
        )
        if done.returncode != 0:
            raise StageError(_first_error(done.output))

    python = venv.python_of(job.environment)
    # The backend's warnings are in the log; pyproject-hooks would repeat them on our stderr.
    warnings.simplefilter("ignore", BuildBackendWarning)
    builder = ProjectBuilder(job.source, python_executable=str(python), runner=runner)
    try:
        _check_requirements(job, builder.build_system_requires | builder.get_requires_for_build("wheel"))
        wheel = builder.build("wheel", job.dist)
    except BuildBackendException as error:
        raise StageError(f"the build backend failed: {error}") from error
    return {"wheel": Path(wheel).name}


def _progress(job: Job, line: str) -> None:
    step = NINJA_STEP.match(line)
    if step:
        name = job.step.recipe.name
        job.emit(Progress(recipe=name, stage=NAME, done=int(step.group(1)), total=int(step.group(2))))


def _first_error(output: str) -> str:
    """The line that says most about why a build failed."""
    lines = output.splitlines()
    telling = re.compile(r"\b(fatal error|error|Error|ERROR)\b.*:|: (fatal )?error|No space left")
    return next((line.strip() for line in lines if telling.search(line)), lines[-1] if lines else "no output")


def _environment(job: Job, epoch: int) -> dict[str, str]:
    """The allow-listed environment of a build, with the recipe's variables filled in."""
    flags = f"-ffile-prefix-map={job.work}=/build"
    base = {
        "PATH": f"{job.environment / 'bin'}:{SYSTEM_PATH}",
        "HOME": str(job.work / "home"),
        "TMPDIR": str(job.work / "tmp"),
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "PYTHONNOUSERSITE": "1",
        "SOURCE_DATE_EPOCH": str(epoch),
        # A backend that asks git for a version must not find the repository around the build tree.
        "GIT_CEILING_DIRECTORIES": str(job.work),
        "CFLAGS": flags,
        "CXXFLAGS": flags,
    }
    values: dict[str, str | Callable[[], str]] = {
        "jobs": str(job.jobs),
        "python": str(venv.python_of(job.environment)),
        "version": job.step.pin.version,
        "arch_list": ";".join(job.target.cuda_architectures),
        "cuda_home": "/usr/local/cuda",
        "pybind11_cmake_dir": lambda: _pybind11_cmake_dir(job),
    }
    recipe = job.step.recipe
    return base | {
        name: fill(variable.value, values, where=f"recipes/{recipe.name}.toml: build.env.{name}")
        for name, variable in recipe.build.env.items()
    }


def _pybind11_cmake_dir(job: Job) -> str:
    found = capture([str(venv.python_of(job.environment)), "-m", "pybind11", "--cmakedir"])
    if found is None:
        raise StageError(
            "the build environment has no pybind11, which an environment variable refers to",
            where=f"recipes/{job.step.recipe.name}.toml",
        )
    return found.strip()


def _check_requirements(job: Job, wanted: set[str]) -> None:
    """The pins must meet what the project itself asks for: nothing is installed behind one's back."""
    from importlib.metadata import distributions

    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    (site,) = job.environment.glob("lib/python*/site-packages")
    have = {canonicalize_name(dist.name): dist.version for dist in distributions(path=[str(site)])}
    unmet = []
    for requirement in map(Requirement, sorted(wanted)):
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        version = have.get(canonicalize_name(requirement.name))
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            unmet.append(f"{requirement} (have {version or 'none'})")
    if unmet:
        raise StageError(
            f"the project asks for {', '.join(unmet)}",
            where=f"recipes/{job.step.recipe.name}.toml",
            hint="mend build.requires in the recipe",
        )
