"""Build a wheel by the project's own PEP 517 backend, without isolation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path

from build import BuildBackendException, ProjectBuilder
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pyproject_hooks import BuildBackendWarning

from spark_build import venv
from spark_build.build.backends import Product, Runner
from spark_build.build.job import Job
from spark_build.errors import SparkBuildError, StageError


def build(job: Job, runner: Runner, _values: Mapping[str, str | Callable[[], str]]) -> Product:
    """Call the backend's hooks in the build environment."""

    def hook(
        cmd: Sequence[str], cwd: str | None = None, extra_environ: Mapping[str, str] | None = None
    ) -> None:
        runner(cmd, Path(cwd) if cwd else job.source, extra_environ or {})

    # The backend's warnings are in the log; pyproject-hooks would repeat them on our stderr.
    warnings.simplefilter("ignore", BuildBackendWarning)
    python = venv.python_of(job.environment)
    try:
        builder = ProjectBuilder(job.source, python_executable=str(python), runner=hook)
        _check_requirements(job, builder.build_system_requires | builder.get_requires_for_build("wheel"))
        return Product(wheel=Path(builder.build("wheel", job.dist)).name)
    except BuildBackendException as error:
        # The frontend wraps whatever our runner raised.
        if isinstance(error.exception, SparkBuildError):
            raise error.exception from error
        raise StageError(f"the build backend failed: {error}") from error


def _check_requirements(job: Job, wanted: set[str]) -> None:
    """The pins must meet what the project itself asks for: nothing is installed behind one's back."""
    sites = [*job.environment.glob("lib/python*/site-packages")]
    sites += [one.site for one in job.provided if one.site is not None]
    found = distributions(path=[str(site) for site in sites])
    have = {canonicalize_name(dist.name): dist.version for dist in found}
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
