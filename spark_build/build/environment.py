"""What the commands of a build find around them: variables, and what placeholders stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from spark_build import venv
from spark_build.build.backends import NOWHERE
from spark_build.build.job import Job, Outputs
from spark_build.errors import StageError
from spark_build.probe import CUDA, SYSTEM_PATH, machine_toolkit
from spark_build.process import capture
from spark_build.recipes import evaluation
from spark_build.recipes.evaluation import fill

Values = Mapping[str, str | Callable[[], str]]


def values(job: Job, earlier: Mapping[str, Outputs], jobs: int) -> Values:
    """What the recipe's placeholders stand for; jobs: for tools that take no jobserver."""
    target = job.target
    found: dict[str, str | Callable[[], str]] = {
        "jobs": str(jobs),
        "python": str(venv.python_of(job.environment)),
        "version": job.step.pin.version,
        "wheel_version": job.step.evaluated.wheel_version,
        "label": job.step.evaluated.label,
        "prefix": f"{NOWHERE}/{job.step.recipe.name}",
        "cuda_home": toolkit_of(job) or CUDA,
        "pybind11_cmake_dir": lambda: _pybind11_cmake_dir(job),
    }
    for consumer in evaluation.CONSUMERS:
        found[f"arch_list:{consumer}"] = evaluation.arch_list(consumer, target.cuda_architectures)
    for one in job.provided:
        if one.prefix is not None:
            found[f"need:{one.provision.need}"] = str(one.prefix)
        found[f"version:{one.provision.need}"] = one.provision.version
    for name, path in earlier["patch"].get("extra", {}).items():
        found[f"extra:{name}"] = str(path)
    return found


def path_of(job: Job) -> str:
    """PATH of a build: its environment first, then the CUDA toolkit that it needs."""
    toolkit = toolkit_of(job)
    return ":".join([str(job.environment / "bin"), *([f"{toolkit}/bin"] if toolkit else []), SYSTEM_PATH])


def toolkit_of(job: Job) -> str:
    """Return the CUDA toolkit of a build: its need's prefix, else the machine's; empty without CUDA."""
    for one in job.provided:
        if one.provision.need == "cuda" and one.prefix is not None:
            return str(one.prefix)
    return machine_toolkit(job.step.recipe)


def variables(job: Job, known: Values, epoch: int) -> dict[str, str]:
    """The allow-listed environment of a build, with the recipe's variables filled in."""
    flags = " ".join([f"-ffile-prefix-map={job.work}=/build", *job.step.evaluated.compile_flags])
    base = {
        "PATH": path_of(job),
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
        name: fill(variable.value, known, where=f"recipes/{recipe.name}.toml: build.env.{name}")
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
