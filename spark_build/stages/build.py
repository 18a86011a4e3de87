"""Build in the build environment, the way the recipe's kind says."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spark_build.core import archs
from spark_build.core.diagnose import diagnose, last_command
from spark_build.core.features import Watch
from spark_build.core.placeholders import fill
from spark_build.errors import StageError
from spark_build.host import sandbox, venv
from spark_build.host.builders import NOWHERE, builder_for
from spark_build.host.files import remove_tree
from spark_build.host.job import Job, Outputs
from spark_build.host.probe import SYSTEM_PATH
from spark_build.host.run import capture
from spark_build.host.run import run as run_command
from spark_build.model.event import Note, Progress

NAME = "build"
NINJA_STEP = re.compile(r"^\[(\d+)/(\d+)\] ")
LOG_SIZE = 16 << 20  # bytes at the end of a log in which the first error is searched


def inputs(job: Job) -> Any:
    """Everything that decides the bytes."""
    return {"key": job.key}


def intact(job: Job, outputs: Outputs) -> bool:
    """The product is still there."""
    wheel, prefix = str(outputs["wheel"]), bool(outputs["prefix"])
    return (not wheel or (job.dist / wheel).is_file()) and (not prefix or job.prefix.is_dir())


def run(job: Job, earlier: Mapping[str, Outputs]) -> Outputs:
    """Run the builder; an interrupted ninja build goes on where it was."""
    remove_tree(job.dist)
    for folder in (job.dist, job.work / "home", job.work / "tmp"):
        folder.mkdir(parents=True, exist_ok=True)
    values = _values(job, earlier)
    environment = _environment(job, values, int(earlier["patch"]["epoch"]))
    job.build_started.touch()
    watch = Watch(job.step.evaluated.features)

    def runner(command: Sequence[str], cwd: Path, extra: Mapping[str, str]) -> None:
        done = run_command(
            _sandboxed(job, command, cwd),
            cwd=cwd,
            env={**environment, **extra},
            log=job.log,
            on_line=lambda line: _see(job, watch, line),
            keep=job.keep,
        )
        sandbox.refuse_unstarted(done)
        if done.returncode != 0:
            raise _first_error(job, done.output)

    product = builder_for(job.step.recipe.kind).build(job, runner, values)
    for feature in watch.unseen():
        job.log.write(f"warning: nothing was printed about the expected feature {feature.name}\n".encode())
    return {**asdict(product), "sandbox": _sandbox_mark(job)}


def _sandboxed(job: Job, command: Sequence[str], cwd: Path) -> list[str]:
    """A command of the build as it is started: nothing to write but the work tree, no network."""
    chosen = sandbox.choose()
    if told := sandbox.warning(chosen):
        job.emit(Note(message=told))
    needs = [path for one in job.provided for path in (one.prefix, one.site) if path is not None]
    return sandbox.wrap(
        chosen,
        command,
        work=job.work,
        readable=[venv.python_of(job.environment), *needs],
        cwd=cwd,
        network=job.step.recipe.build.network,
    )


def _sandbox_mark(job: Job) -> dict[str, str | bool]:
    """For the provenance: what kept the build in. Repacking executes nothing."""
    if job.step.recipe.kind == "repack":
        return {"kind": "not needed", "network": False}
    return sandbox.choose().mark(network=job.step.recipe.build.network)


def _see(job: Job, watch: Watch, line: str) -> None:
    """Each line of output: a compile step, or what the configure summary says of a feature."""
    step = NINJA_STEP.match(line)
    if step:
        name = job.step.recipe.name
        job.emit(Progress(recipe=name, stage=NAME, done=int(step.group(1)), total=int(step.group(2))))
    missing = watch.see(line)
    if missing is not None:
        raise StageError(str(missing), hint="install what it needs, or mend the recipe's features")


def _first_error(job: Job, output: str) -> StageError:
    """What says most about why the last command failed."""
    job.log.flush()
    with Path(job.log.name).open("rb") as log:
        log.seek(max(0, job.log.tell() - LOG_SIZE))
        found = diagnose(last_command(log.read().decode(errors="replace")))
    if found is None:
        return StageError((output.splitlines() or ["no output"])[-1])
    said = f"{found.error.rstrip('.')}. {found.explanation}" if found.explanation else found.error
    return StageError(said, where=found.place or None, hint=found.fix or None)


def _values(job: Job, earlier: Mapping[str, Outputs]) -> dict[str, str | Callable[[], str]]:
    """What the recipe's placeholders stand for."""
    target = job.target
    values: dict[str, str | Callable[[], str]] = {
        "jobs": str(job.jobs),
        "python": str(venv.python_of(job.environment)),
        "version": job.step.pin.version,
        "wheel_version": job.step.evaluated.wheel_version,
        "label": job.step.evaluated.label,
        "prefix": f"{NOWHERE}/{job.step.recipe.name}",
        "cuda_home": "/usr/local/cuda",
        "pybind11_cmake_dir": lambda: _pybind11_cmake_dir(job),
    }
    for consumer in archs.CONSUMERS:
        values[f"arch_list:{consumer}"] = archs.arch_list(consumer, target.cuda_architectures)
    for one in job.provided:
        if one.prefix is not None:
            values[f"need:{one.provision.need}"] = str(one.prefix)
        values[f"version:{one.provision.need}"] = one.provision.version
    for name, path in earlier["patch"].get("extra", {}).items():
        values[f"extra:{name}"] = str(path)
    return values


def _environment(job: Job, values: Mapping[str, str | Callable[[], str]], epoch: int) -> dict[str, str]:
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
    recipe = job.step.recipe
    return base | {
        name: fill(variable.value, values, where=f"recipes/{recipe.name}.toml: build.env.{name}")
        for name, variable in job.step.evaluated.env.items()
    }


def _pybind11_cmake_dir(job: Job) -> str:
    found = capture([str(venv.python_of(job.environment)), "-m", "pybind11", "--cmakedir"])
    if found is None:
        raise StageError(
            "the build environment has no pybind11, which an environment variable refers to",
            where=f"recipes/{job.step.recipe.name}.toml",
        )
    return found.strip()
