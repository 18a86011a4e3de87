"""Rules of `recipes lint` on a recipe alone: variables that nobody reads, versions that get lost."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator

from spark_build.recipes.lint_data import COMMON, FOLKLORE, LABEL_VARIABLE, READ
from spark_build.recipes.model import Recipe, Variable, When
from spark_build.recipes.remark import Remark, recipe_file
from spark_build.recipes.toml_positions import Path

# A file's name, as the reason of a variable should have one.
_FILE = re.compile(
    r"[\w./+-]*\w\.(py|cmake|txt|toml|cfg|json|in|hpp?|cuh?|c|cc|cpp|sh|yml)\b|Makefile|meson\.build"
)


def recipe_remarks(recipe: Recipe, trains: Collection[str]) -> Iterator[Remark]:
    """What is wrong with a recipe, whatever the train and target."""
    for path, name, variable in variables(recipe):
        yield from _variable(recipe.name, path, name, variable)
        yield from _versions(recipe, path, variable)
    yield from _label(recipe)
    yield from _build_number(recipe)
    yield from _threads(recipe)
    yield from _trains(recipe, trains)
    for index, patch in enumerate(recipe.patches):
        if patch.unverified:
            say = f"patch {patch.file} is unverified: {patch.unverified}"
            yield Remark("warning", recipe_file(recipe.name), ("patches", index, "unverified"), say)


def variables(recipe: Recipe) -> Iterator[tuple[Path, str, Variable]]:
    """Every environment variable, also those of variants, and where it stands."""
    for name, variable in recipe.build.env.items():
        yield ("build", "env", name), name, variable
    for index, variant in enumerate(recipe.build.variants):
        for name, variable in variant.env.items():
            yield ("build", "variants", index, "env", name), name, variable


def _variable(component: str, path: Path, name: str, variable: Variable) -> Iterator[Remark]:
    file = recipe_file(component)
    instead = FOLKLORE.get(component, {}).get(name)
    known = READ.get(component)
    if instead:
        yield Remark("error", file, path, f"{name} is not read by {component}", f"use {instead}")
    elif known is not None and name not in known and name not in COMMON:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        mean = f": did you mean '{near[0]}'?" if near else ""
        say = f"no file of {component} is known to read {name}{mean}"
        yield Remark("warning", file, path, say, "remove it, or name the file that reads it")
    elif known is None and name not in COMMON and not _FILE.search(variable.why):
        say = f"the reason for {name} names no file that reads it"
        yield Remark("warning", file, (*path, "why"), say, "such as: setup.py: what it does there")
    if "{cuda_home}" in variable.value:
        say = "{cuda_home} is a toolkit of the machine, which is not part of the build key"
        yield Remark("warning", file, (*path, "value"), say, "add the need 'cuda' and write {need:cuda}")
    if name == "TORCH_NVCC_FLAGS" and "gencode" in variable.value:
        say = "-gencode in TORCH_NVCC_FLAGS compiles every file for one more architecture"
        yield Remark("error", file, (*path, "value"), say, "use TORCH_CUDA_ARCH_LIST")


def _versions(recipe: Recipe, path: Path, variable: Variable) -> Iterator[Remark]:
    """{version:NAME} is filled in for needs: what is no need may change without a rebuild."""
    needs = {need.name for need in recipe.needs}
    for name in re.findall(r"\{version:([^{}]*)\}", variable.value):
        if name not in needs:
            say = f"{{version:{name}}}: this recipe has no need '{name}'"
            yield Remark("error", recipe_file(recipe.name), (*path, "value"), say, "add it to [[needs]]")


def _label(recipe: Recipe) -> Iterator[Remark]:
    """A label that the wheel must carry has to reach the build."""
    wanted = LABEL_VARIABLE.get(recipe.name)
    if wanted is None or "{label}" not in recipe.wheel.version:
        return
    found = recipe.build.env.get(wanted)
    if found is None or not re.search(r"\{(label|wheel_version)\}", found.value):
        path: Path = ("wheel", "version") if found is None else ("build", "env", wanted, "value")
        say = f"wheel.version wants the label, but {wanted} does not hand {{label}} to the build"
        yield Remark("error", recipe_file(recipe.name), path, say)


def _build_number(recipe: Recipe) -> Iterator[Remark]:
    """torch reads its version and its number together or not at all."""
    env = recipe.build.env
    version, number = env.get("PYTORCH_BUILD_VERSION"), env.get("PYTORCH_BUILD_NUMBER")
    if recipe.name != "torch" or version is None:
        return
    file = recipe_file(recipe.name)
    if number is None:
        path: Path = ("build", "env", "PYTORCH_BUILD_VERSION")
        say = "PYTORCH_BUILD_VERSION is read only together with PYTORCH_BUILD_NUMBER"
        yield Remark("error", file, path, say, "set the number to 1")
    elif not re.fullmatch(r"[01]", number.value):
        path = ("build", "env", "PYTORCH_BUILD_NUMBER", "value")
        say = f"PYTORCH_BUILD_NUMBER is '{number.value}': more than 1 appends .postN to the version"
        yield Remark("error", file, path, say, "write 1")


def _threads(recipe: Recipe) -> Iterator[Remark]:
    """What a job costs must count the threads that it starts."""
    threads = recipe.build.env.get("NVCC_THREADS")
    if threads and threads.value.isdigit() and int(threads.value) != recipe.build.threads_per_job:
        path: Path = ("build", "env", "NVCC_THREADS", "value")
        say = f"NVCC_THREADS is {threads.value}, but build.threads_per_job is {recipe.build.threads_per_job}"
        yield Remark("warning", recipe_file(recipe.name), path, say)


def _trains(recipe: Recipe, trains: Collection[str]) -> Iterator[Remark]:
    """A condition on a train that does not exist never holds."""
    places: list[tuple[Path, tuple[str, ...]]] = [
        (("patches", index, "trains"), patch.trains) for index, patch in enumerate(recipe.patches)
    ]
    whens: list[tuple[Path, When]] = [
        (("build", "variants", index, "when"), one.when) for index, one in enumerate(recipe.build.variants)
    ]
    whens += [(("features", index, "when"), one.when) for index, one in enumerate(recipe.features)]
    whens += [(("needs", index, "when"), one.when) for index, one in enumerate(recipe.needs)]
    whens += [((*path, "when"), variable.when) for path, _, variable in variables(recipe)]
    places += [((*path, "trains"), when.trains) for path, when in whens]
    for path, names in places:
        for index, name in enumerate(names):
            if name not in trains:
                near = difflib.get_close_matches(name, sorted(trains), n=1, cutoff=0.6)
                mean = f": did you mean '{near[0]}'?" if near else f" (known: {', '.join(sorted(trains))})"
                say = f"no train is named '{name}'{mean}"
                yield Remark("error", recipe_file(recipe.name), (*path, index), say)
