"""Rules of `recipes lint` on a recipe for one target and train: architectures, patches, extra sources."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from spark_build.build.plan import patches_for
from spark_build.recipes import archs
from spark_build.recipes.evaluation import for_target, holds
from spark_build.recipes.lint_data import DOWNLOADERS, FOLKLORE, NEEDED_PATCHES
from spark_build.recipes.model import Pin, Recipe, Target, Train, Variable
from spark_build.recipes.rawtables import allows, version_of
from spark_build.recipes.remark import Remark, Severity, recipe_file
from spark_build.recipes.toml_positions import Path

# Variable: who reads it; torch's own CMake is the exception below.
_LISTS = {"TORCH_CUDA_ARCH_LIST": archs.CPP_EXTENSION, "FLASH_ATTN_CUDA_ARCHS": archs.FLASH_ATTN}
_MUST_HAVE_LIST = {
    "torch": "TORCH_CUDA_ARCH_LIST",
    "torchvision": "TORCH_CUDA_ARCH_LIST",
    "torchaudio": "TORCH_CUDA_ARCH_LIST",
    "flash-attn": "FLASH_ATTN_CUDA_ARCHS",
}
# (component, variable, value, what happens otherwise)
_MUST_SET = (
    (
        "torchvision",
        "FORCE_CUDA",
        "1",
        "a build without a visible GPU has no CUDA operators, and says nothing",
    ),
)

Placed = dict[str, tuple[Path, Variable]]


def context_remarks(recipe: Recipe, pin: Pin, target: Target, train: Train) -> Iterator[Remark]:
    """What is wrong with a recipe for this target and train."""
    recipe = for_target(recipe, target, train)
    if recipe.requires.cuda and not target.cuda_architectures:
        return
    if target.platform not in recipe.requires.platforms:
        return
    env = settled(recipe, target, train)
    yield from _extras(recipe, pin, target, env)
    yield from _downloads(recipe, pin, env)
    if target.cuda_architectures:
        yield from _must_set(recipe, env)
        yield from _lists(recipe, target, env)
        yield from _patches(recipe, pin, target, train, env)


def settled(recipe: Recipe, target: Target, train: Train) -> Placed:
    """The environment of this target and train, each variable with the place it comes from."""
    listed: list[tuple[Path, Mapping[str, Variable]]] = [(("build",), recipe.build.env)]
    listed += [
        (("build", "variants", index), variant.env)
        for index, variant in enumerate(recipe.build.variants)
        if holds(variant.when, recipe, target, train)
    ]
    return {
        name: ((*path, "env", name), one)
        for path, env in listed
        for name, one in env.items()
        if holds(one.when, recipe, target, train)
    }


def _extras(recipe: Recipe, pin: Pin, target: Target, env: Placed) -> Iterator[Remark]:
    """{extra:NAME} must be among the pin's extra sources."""
    values = [((*path, "value"), one.value) for path, one in env.values()]
    values += [(("cmake", "define", name, "value"), one.value) for name, one in recipe.cmake.define.items()]
    values += [(("build", "place", name, "value"), one.value) for name, one in recipe.build.place.items()]
    names = {
        source.folder or name
        for name, source in pin.extra_sources.items()
        if source.platform in ("", target.platform)
    }
    for path, value in values:
        for name in re.findall(r"\{extra:([^{}]*)\}", value):
            if name not in names:
                say = f"{{extra:{name}}}: {recipe.name} {pin.version} has no extra source '{name}'"
                known = ", ".join(sorted(names))
                hint = f"known: {known}" if known else "add it to the train's extra_sources"
                yield Remark("error", recipe_file(recipe.name), path, say, hint)


def _must_set(recipe: Recipe, env: Placed) -> Iterator[Remark]:
    for component, name, value, otherwise in _MUST_SET:
        if recipe.name != component:
            continue
        path, variable = env.get(name, (("build",), None))
        if variable is None or variable.value != value:
            have = "is not set" if variable is None else f"is '{variable.value}'"
            say = f"{name} {have}: {otherwise}"
            yield Remark("error", recipe_file(component), path, say, f"set it to {value}")


def _downloads(recipe: Recipe, pin: Pin, env: Placed) -> Iterator[Remark]:
    """A build that is known to download something by itself must be told not to."""
    version = version_of(pin.version)
    if recipe.build.network or version is None:
        return
    for component, versions, names, pattern, otherwise, hint in DOWNLOADERS:
        if recipe.name != component or not allows(versions, version):
            continue
        given = {name: env[name] for name in names.split() if name in env}
        if any(re.fullmatch(pattern, variable.value) for _, variable in given.values()):
            continue
        name, (path, variable) = next(iter(given.items()), (names.split()[0], (("build",), None)))
        have = "is not set" if variable is None else f"is '{variable.value}'"
        yield Remark("error", recipe_file(component), path, f"{name} {have}: {otherwise}", hint)


def _consumer(recipe: Recipe, variable: str) -> str:
    own = recipe.name == "torch" and variable == "TORCH_CUDA_ARCH_LIST"
    return archs.TORCH if own else _LISTS[variable]


def _lists(recipe: Recipe, target: Target, env: Placed) -> Iterator[Remark]:
    """Architecture lists: by placeholder for the right reader, or by hand and accepted by it."""
    file = recipe_file(recipe.name)
    wanted = _MUST_HAVE_LIST.get(recipe.name)
    if wanted and wanted not in env and recipe.requires.cuda:
        hint = f"set it to {{arch_list:{_consumer(recipe, wanted)}}}"
        yield Remark(
            "error", file, ("build",), f"{wanted} is not set: what is built for is left to a guess", hint
        )
    for name in sorted(_LISTS.keys() & env.keys() - FOLKLORE.get(recipe.name, {}).keys()):
        path, variable = env[name]
        consumer = _consumer(recipe, name)
        named = re.findall(r"\{arch_list:([^{}]*)\}", variable.value)
        for one in named:
            if one != consumer:
                say = f"{name} is read by {consumer}, not by {one}"
                yield Remark("error", file, (*path, "value"), say, f"write {{arch_list:{consumer}}}")
        if not named:
            for say in archs.rejected(consumer, variable.value):
                yield Remark("error", file, (*path, "value"), f"{name}: {say}")
            if not _covers(variable.value, target):
                say = f"{name} '{variable.value}' names nothing for {', '.join(target.cuda_architectures)}"
                yield Remark("warning", file, (*path, "value"), say, f"write {{arch_list:{consumer}}}")


def _covers(text: str, target: Target) -> bool:
    """Whether a list has something that runs on the target: the same major version, no higher minor one."""
    listed = [one.replace(".", "") for one in re.findall(r"\d+\.?\d", text)]
    wanted = [one.replace(".", "") for one in target.cuda_architectures]
    return any(have[:-1] == want[:-1] and have[-1] <= want[-1] for have in listed for want in wanted)


def _effective(recipe: Recipe, target: Target, env: Placed) -> set[str]:
    """The architectures that a component is built for."""
    found: set[str] = set()
    for name in _LISTS.keys() & env.keys():
        value = env[name][1].value
        consumer = _consumer(recipe, name)
        filled = value.replace(
            f"{{arch_list:{consumer}}}", archs.arch_list(consumer, target.cuda_architectures)
        )
        found |= {re.sub(r"[af]?(\+PTX)?$", "", one) for one in re.split(r"[;, ]+", filled)}
    return found


def _patches(recipe: Recipe, pin: Pin, target: Target, train: Train, env: Placed) -> Iterator[Remark]:
    """Patches without which the result is wrong; only a warning where the train says that one is lacking."""
    version = version_of(pin.version)
    have = [patch.file for patch in patches_for(recipe, train)]
    for component, versions, condition, wanted, stake in NEEDED_PATCHES:
        if recipe.name != component or version is None or not allows(versions, version):
            continue
        if not _applies(condition, train, _effective(recipe, target, env)):
            continue
        if any(re.search(wanted, file.rpartition("/")[2], re.IGNORECASE) for file in have):
            continue
        admitted = any("patch" in entry for entry in pin.unestablished)
        hint = "list one in [[patches]]"
        severity: Severity = "warning" if admitted else "error"
        yield Remark(severity, recipe_file(component), ("patches",), f"{stake}: no patch for it", hint)


def _applies(condition: str, train: Train, built_for: set[str]) -> bool:
    match = re.fullmatch(r"([a-z-]+)([<>=~!].*)", condition)
    if match is None:
        return condition in built_for
    other = train.components.get(match[1])
    version = version_of(other.version) if other else None
    return version is not None and allows(match[2], version)
