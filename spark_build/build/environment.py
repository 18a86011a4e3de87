"""Variables and dependencies of a build."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from spark_build import venv
from spark_build.build import keys
from spark_build.build.context import NOWHERE, Job, Outputs, Provided
from spark_build.errors import Hint, StageError, UsageError, ours, shell
from spark_build.events import Note
from spark_build.files import sha256_of
from spark_build.paths import path_given
from spark_build.probe import CUDA, SYSTEM_PATH, cuda_home
from spark_build.process import capture
from spark_build.recipes import evaluation
from spark_build.recipes.evaluation import fill_placeholders
from spark_build.recipes.model import Provision, Recipe, Step
from spark_build.text import digest
from spark_build.wheelhouse import store as stores

Values = Mapping[str, str | Callable[[], str]]


def values(job: Job, earlier: Mapping[str, Outputs], jobs: int) -> Values:
    """Return the values of the recipe's placeholders; `jobs`: for tools without jobserver support."""
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
    """Return a build's allow-listed environment with the recipe's variables filled in."""
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
        name: fill_placeholders(variable.value, known, where=f"recipes/{recipe.name}.toml: build.env.{name}")
        for name, variable in job.step.evaluated.env.items()
    }


def sandboxed(  # noqa: PLR0913 - what a sandbox shows, most of it with defaults
    job: Job,
    command: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    writable: Sequence[Path] = (),
    readable: Sequence[Path] = (),
    placed: Mapping[Path, Path] | None = None,
    *,
    network: bool | None = None,
) -> list[str]:
    """Return a command of the build as it is started: nothing to write but folders of its own, no network.

    placed: folders of ours -> where it sees them as well; None: as `job` says. network: None: as the recipe
    says.
    """
    from spark_build.build import sandbox  # a plan needs none

    chosen = sandbox.choose()
    if told := sandbox.warning(chosen):
        job.emit(Note(message=told))
    needs = [path for one in job.provided for path in (one.prefix, one.site) if path is not None]
    toolkit = [Path(one) for one in (toolkit_of(job),) if one]
    return sandbox.wrap(
        chosen,
        [job.seen(word) for word in command],
        env={name: job.seen(value) for name, value in env.items()},
        writable=[*job.writable, *writable],
        readable=[job.work, venv.python_of(job.environment), *toolkit, *needs, *readable],
        placed=job.places if placed is None else placed,
        cwd=Path(job.seen(str(cwd))),
        network=job.step.recipe.build.network if network is None else network,
    )


def library_folders(job: Job) -> list[Path]:
    """Return the folders of the needs' prefixes that hold their libraries."""
    prefixes = [one.prefix for one in job.provided if one.prefix is not None and one.site is None]
    return [prefix / name for prefix in prefixes for name in ("lib", "lib64") if (prefix / name).is_dir()]


def _pybind11_cmake_dir(job: Job) -> str:
    # Not by running its interpreter: the build may write to the environment, and this is outside the sandbox.
    pattern = "lib/python*/site-packages/pybind11/share/cmake/pybind11"
    found = next(job.environment.glob(pattern), None)
    if found is None:
        raise StageError(
            "the build environment has no pybind11, which an environment variable refers to",
            where=f"recipes/{job.step.recipe.name}.toml",
        )
    return str(found)


LOOK = """
import importlib.metadata as m, json, sys, sysconfig
try: dist = m.distribution(sys.argv[1])
except m.PackageNotFoundError: print("\\nnull"); raise SystemExit
record = next((str(f.locate()) for f in dist.files or [] if f.name == "RECORD"), "")
root = str(dist.locate_file(""))
print("\\n" + json.dumps({"version": dist.version, "record": record, "site": root}))
"""


def locate(provision: Provision, store: Path, built: Mapping[str, str]) -> Provided:
    """Find a need; `built` has the build keys of those from the store."""
    if provision.provider == "public":
        return Provided(provision=provision, identity=keys.public_identity(provision))
    if provision.provider == "path":
        return _at_path(provision)
    entry = stores.read(store, built[provision.need])
    if entry is None:
        raise StageError(f"{provision.need} is not in the store", hint=ours("build", provision.need))
    identity = entry.content_digest if provision.coupling == "content" else f"store {entry.version}"
    wheel = entry.folder / entry.wheel.filename if entry.wheel else None
    return Provided(provision=provision, identity=identity, wheel=wheel, prefix=entry.prefix)


def to_come(provision: Provision, told: str) -> Provided:
    """Return a need as it will be in the store; `told`: its version, or content digest where that counts."""
    identity = told if provision.coupling == "content" else f"store {told}"
    return Provided(provision=provision, identity=identity)


def no_folder(need: str, where: str) -> UsageError:
    """Return the error of a folder that is to provide a need and is not there."""
    hint = f"store and public are words of their own; anything else is a folder: --provide {need}=DIR"
    return UsageError(f"--provide {need}={where}: there is no such folder", hint=hint)


def _at_path(provision: Provision) -> Provided:
    """Return an environment with the distribution in it, or a prefix."""
    path = path_given(provision.path, f"--provide {provision.need}").absolute()
    if not path.is_dir():
        raise no_folder(provision.need, provision.path)
    python = path / "bin" / "python"
    if not python.exists():
        return Provided(provision=provision, identity=_fingerprint(path), prefix=path)
    # Isolated: what lies in the current folder and in PYTHONPATH must not answer.
    said = (capture([str(python), "-I", "-c", LOOK, provision.distribution]) or "").splitlines()
    try:
        found = json.loads(said[-1])  # its .pth files may have printed something before
    except (LookupError, ValueError) as error:
        raise UsageError(
            f"--provide {provision.need}={provision.path}: its Python does not say what is in it",
            hint=Hint("see what it says: ", shell(python, "-I", "-c", "import importlib.metadata")),
        ) from error
    if found is None:
        raise UsageError(
            f"--provide {provision.need}={provision.path}: there is no {provision.distribution} in it",
            hint="give an environment that has it, or an install prefix",
        )
    record = sha256_of(Path(found["record"])) if found["record"] else ""
    identity = found["version"] if provision.coupling == "version" else f"{found['version']} {record}"
    return Provided(provision=provision, identity=identity, prefix=path, site=Path(found["site"]))


def _fingerprint(path: Path) -> str:
    """Return a fingerprint of a prefix from names, sizes and times: reading it all would take too long."""
    rows = []
    for file in sorted(path.rglob("*")):
        status = file.lstat()
        rows.append([str(file.relative_to(path)), status.st_size, status.st_mtime_ns])
    return f"path {digest(rows)}"


def machine_toolkit(recipe: Recipe) -> str:
    """Return the machine's CUDA toolkit for a recipe that wants CUDA and names no need for it.

    Recipes written before the toolkit was a recipe are like that. One that also builds without CUDA is
    newer, and its need for the toolkit is left out for such a target.
    """
    if not recipe.requires.cuda or recipe.requires.cpu or any(need.name == "cuda" for need in recipe.needs):
        return ""
    # Distributions have nvcc in /usr/bin, where the build finds it as well.
    on_path = shutil.which("nvcc", path=SYSTEM_PATH)
    return cuda_home(os.environ) or (str(Path(on_path).parents[1]) if on_path else CUDA)


def judgement_inputs_of(step: Step) -> dict[str, Any]:
    """Return the inputs by which a step's result is judged today."""
    return keys.judgement_inputs(step.recipe, step.evaluated, _policies())


@cache
def _policies() -> str:
    """Return the version of auditwheel, whose lists say what each platform tag may need."""
    package = find_spec("auditwheel")  # found, not imported
    origin = package.origin if package else None
    found = list(Path(origin).parents[1].glob("auditwheel-*.dist-info")) if origin else []
    if len(found) == 1:
        return found[0].stem.replace("-", " ")
    # Elsewhere than pip puts it; this import takes as long as a plan.
    from importlib.metadata import version

    return f"auditwheel {version('auditwheel')}"
