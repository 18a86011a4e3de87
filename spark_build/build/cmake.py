"""Configure, build with ninja, install into a prefix: for what is no Python package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from spark_build.build.backends import NOWHERE, Product, Runner
from spark_build.build.job import Job
from spark_build.errors import StageError
from spark_build.files import remove_tree
from spark_build.recipes.evaluation import fill


def build(job: Job, runner: Runner, values: Mapping[str, str | Callable[[], str]]) -> Product:
    """Leaves the prefix in job.prefix; StageError when a file that the recipe expects is missing."""
    recipe = job.step.recipe
    tree = job.source / ".spark-build"  # inside, so that an interrupted build is found and continued
    installed = f"{NOWHERE}/{recipe.name}"
    where = f"recipes/{recipe.name}.toml: cmake.define"
    defined = [
        f"-D{name}={fill(variable.value, values, where=f'{where}.{name}')}"
        for name, variable in recipe.cmake.define.items()
    ]
    # How many jobs is the jobserver's business: -j would switch it off.
    configure = ["cmake", "-G", "Ninja", "-S", str(job.source / recipe.cmake.source), "-B", str(tree)]
    runner([*configure, f"-DCMAKE_INSTALL_PREFIX={installed}", *defined], job.source, {})
    runner(["ninja", "-C", str(tree)], job.source, {})
    staging = job.work / "staging"
    remove_tree(staging)
    remove_tree(job.prefix)
    runner(["cmake", "--install", str(tree)], job.source, {"DESTDIR": str(staging)})
    made = Path(f"{staging}{installed}")
    if not made.is_dir():
        raise StageError(f"the install step put nothing under its prefix {installed}")
    made.rename(job.prefix)
    missing = [path for path in recipe.cmake.expect if not (job.prefix / path).exists()]
    if missing:
        raise StageError(
            f"the prefix lacks {', '.join(missing)}", where=f"recipes/{recipe.name}.toml: cmake.expect"
        )
    return Product(prefix=True)
