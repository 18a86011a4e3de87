"""Lint rules for recipes and trains."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Literal

from packaging.version import Version

from spark_build.errors import Finding, Place
from spark_build.recipes import evaluation
from spark_build.recipes.evaluation import evaluate, for_target, holds, minimum_cuda, patches_for, pin_hint
from spark_build.recipes.fields import PLATFORMS
from spark_build.recipes.lint_data import (
    ALWAYS,
    COMMON,
    DOWNLOADERS,
    FOLKLORE,
    LABEL_VARIABLE,
    LISTS,
    NEEDED_PATCHES,
    REQUIRES,
    TRITON_LLVM,
    WITH_CUDA,
    MustSet,
)
from spark_build.recipes.model import Pin, Recipe, Source, Target, Train, Variable
from spark_build.recipes.toml_positions import Path, Positions, allows, version_of
from spark_build.recipes.validation import all_variables, conditional, recipe_file
from spark_build.text import did_you_mean

# Where a remark holds: (train, target); empty: it does not depend on it.
_Context = tuple[str, str]


_Severity = Literal["error", "warning"]


def _found(severity: _Severity, file: str, path: Path, message: str, hint: str = "") -> Finding:
    """Return a finding on the value that `path` leads to in the TOML file."""
    return Finding("lint", severity, message, Place(file, key=path), hint)


def lint(
    recipes: Mapping[str, Recipe],
    trains: Mapping[str, Train],
    targets: Mapping[str, Target],
    texts: Mapping[str, str],
    problems: Iterable[Finding] = (),
) -> tuple[Finding, ...]:
    """Return all findings by file and line, with the problems that are known.

    `texts`: the files by display name, such as "recipes/trains/2.13.toml".
    """
    findings = {
        replace(one, place=one.place._replace(subject=_subject(one.place.file, ()))) for one in problems
    }
    seen: dict[Finding, set[_Context]] = {}
    for context, remark in _remarks(recipes, trains, targets):
        seen.setdefault(remark, set()).add(context)
    lines = cache(lambda file: Positions(texts.get(file, "")))
    for remark, contexts in seen.items():
        file, key = remark.place.file, remark.place.key
        message = remark.message + _where(contexts, trains, targets)
        place = Place(file, lines(file).line(key), _subject(file, key))
        findings.add(replace(remark, message=message, place=place))
    return tuple(sorted(findings, key=lambda one: (one.place[:2], one.severity, one.message)))


def _subject(file: str, path: Path) -> str:
    """Return the recipe that a finding is about; "" for targets and for trains as a whole."""
    folder, _, name = file.removesuffix(".toml").rpartition("/")
    if folder == "recipes":
        return name
    return str(path[1]) if len(path) > 1 and path[0] == "components" else ""


def _remarks(
    recipes: Mapping[str, Recipe], trains: Mapping[str, Train], targets: Mapping[str, Target]
) -> Iterator[tuple[_Context, Finding]]:
    nowhere = ("", "")
    for recipe in recipes.values():
        yield from ((nowhere, remark) for remark in recipe_remarks(recipe, trains.keys()))
        if recipe.pin is not None:
            found = pin_remarks(recipe_file(recipe.name), ("pin",), recipe.name, recipe.pin)
            yield from ((nowhere, remark) for remark in found)
    for train in trains.values():
        yield from ((nowhere, remark) for remark in train_remarks(train))
    for target in targets.values():
        yield from ((nowhere, remark) for remark in target_remarks(target))
    own = {name: recipe.pin for name, recipe in recipes.items() if recipe.pin is not None}
    for train in trains.values():
        whole = replace(train, components={**own, **train.components})
        for target in (one for each in targets.values() for one in _settled(each)):
            context = (train.name, target.name)
            for name, recipe in recipes.items():
                pin = whole.components.get(name)
                if pin is not None:
                    found = context_remarks(recipe, pin, target, whole)
                    yield from ((context, remark) for remark in found)
    yield from ((nowhere, remark) for remark in unused_extras(recipes, trains, targets))


def _settled(target: Target) -> tuple[Target, ...]:
    """Return the target itself, or one for each platform when it means this machine."""
    if target.platform != "host":
        return (target,)
    return tuple(replace(target, platform=platform) for platform in PLATFORMS)


def _where(contexts: set[_Context], trains: Mapping[str, Train], targets: Mapping[str, Target]) -> str:
    """Return the trains and targets that a remark is about, as far as that is informative."""
    if ("", "") in contexts:
        return ""
    held = {train for train, _ in contexts}, {target for _, target in contexts}
    with_cuda = {name for name, target in targets.items() if target.cuda_architectures}
    parts = [] if held[0] == set(trains) else [f"train {', '.join(sorted(held[0]))}"]
    if held[1] not in (set(targets), with_cuda):
        parts.append(f"target {', '.join(sorted(held[1]))}")
    return f" [{'; '.join(parts)}]" if parts else ""


# Variable: who reads it; torch's own CMake is the exception below.
_LISTS = {"TORCH_CUDA_ARCH_LIST": evaluation.CPP_EXTENSION, "FLASH_ATTN_CUDA_ARCHS": evaluation.FLASH_ATTN}

Placed = dict[str, tuple[Path, Variable]]


def context_remarks(recipe: Recipe, pin: Pin, target: Target, train: Train) -> Iterator[Finding]:
    """Yield the mistakes of a recipe for this target and train."""
    recipe = for_target(recipe, target, train)
    if recipe.requires.cuda and not target.cuda_architectures:
        return
    if target.platform not in recipe.requires.platforms:
        return
    env = settled(recipe, target, train)
    yield from _extras(recipe, pin, target, env)
    yield from _must_set(recipe, pin, env, ALWAYS)
    if not recipe.build.network:
        yield from _must_set(recipe, pin, env, DOWNLOADERS)
    yield from _required(recipe)
    if target.cuda_architectures:
        yield from _must_set(recipe, pin, env, (*WITH_CUDA, *(LISTS if recipe.requires.cuda else ())))
        yield from _lists(recipe, env)
        yield from _patches(recipe, pin, target, train, env)


def settled(recipe: Recipe, target: Target, train: Train) -> Placed:
    """Return the environment for this target and train, each variable with its place."""
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


def _extras(recipe: Recipe, pin: Pin, target: Target, env: Placed) -> Iterator[Finding]:
    """Check that {extra:NAME} names one of the pin's extra sources."""
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
                yield _found("error", recipe_file(recipe.name), path, say, hint)


def _required(recipe: Recipe) -> Iterator[Finding]:
    """Check that the wheel's requirements have the train's versions."""
    for required in recipe.repair.requires:
        for text in re.findall(r"\{[^{}]*\}", required.requirement):
            say = f"{text} in '{required.requirement}': the train has no such version"
            hint = "pin it in the train, else the wheel is not finished"
            yield _found("warning", recipe_file(recipe.name), ("repair", "requires"), say, hint)


def _must_set(recipe: Recipe, pin: Pin, env: Placed, rows: Iterable[MustSet]) -> Iterator[Finding]:
    """Check that a build is told what it would otherwise get wrong, or download."""
    version = version_of(pin.version)
    if version is None:
        return
    for component, versions, names, pattern, otherwise, hint in rows:
        if recipe.name != component or not allows(versions, version):
            continue
        given = {name: env[name] for name in names.split() if name in env}
        if any(re.fullmatch(pattern, variable.value) for _, variable in given.values()):
            continue
        name, (path, variable) = next(iter(given.items()), (names.split()[0], (("build",), None)))
        have = "is not set" if variable is None else f"is '{variable.value}'"
        yield _found("error", recipe_file(component), path, f"{name} {have}: {otherwise}", hint)


def _consumer(recipe: Recipe, variable: str) -> str:
    own = recipe.name == "torch" and variable == "TORCH_CUDA_ARCH_LIST"
    return evaluation.TORCH if own else _LISTS[variable]


def _lists(recipe: Recipe, env: Placed) -> Iterator[Finding]:
    """Check that architecture lists are made from the target, for their reader."""
    file = recipe_file(recipe.name)
    for name in sorted(_LISTS.keys() & env.keys() - FOLKLORE.get(recipe.name, {}).keys()):
        path, variable = env[name]
        consumer = _consumer(recipe, name)
        named = re.findall(r"\{arch_list:([^{}]*)\}", variable.value)
        for one in named:
            if one != consumer:
                say = f"{name} is read by {consumer}, not by {one}"
                yield _found("error", file, (*path, "value"), say, f"write {{arch_list:{consumer}}}")
        if not named:
            say = f"{name} is '{variable.value}', whatever the target is"
            yield _found("error", file, (*path, "value"), say, f"write {{arch_list:{consumer}}}")


def _effective(recipe: Recipe, target: Target, env: Placed) -> set[str]:
    """Return the architectures that a component is built for."""
    found: set[str] = set()
    for name in _LISTS.keys() & env.keys():
        value = env[name][1].value
        consumer = _consumer(recipe, name)
        filled = value.replace(
            f"{{arch_list:{consumer}}}", evaluation.arch_list(consumer, target.cuda_architectures)
        )
        found |= {re.sub(r"[af]?(\+PTX)?$", "", architecture) for architecture in re.split(r"[;, ]+", filled)}
    return found


def _patches(recipe: Recipe, pin: Pin, target: Target, train: Train, env: Placed) -> Iterator[Finding]:
    """Check for patches without which the result is wrong; a warning where the train lacks one knowingly."""
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
        severity: _Severity = "warning" if admitted else "error"
        yield _found(severity, recipe_file(component), ("patches",), f"{stake}: no patch for it", hint)


def _applies(condition: str, train: Train, built_for: set[str]) -> bool:
    match = re.fullmatch(r"([a-z-]+)([<>=~!].*)", condition)
    if match is None:
        return condition in built_for
    other = train.components.get(match[1])
    version = version_of(other.version) if other else None
    return version is not None and allows(match[2], version)


# A file's name, as the reason of a variable should have one.
_FILE = re.compile(
    r"[\w./+-]*\w\.(py|cmake|txt|toml|cfg|json|in|hpp?|cuh?|c|cc|cpp|sh|yml)\b|Makefile|meson\.build"
)


def recipe_remarks(recipe: Recipe, trains: Collection[str]) -> Iterator[Finding]:
    """Yield the mistakes of a recipe that hold for every train and target."""
    for path, variable in all_variables(recipe):
        if path[0] == "build":
            yield from _variable(recipe.name, path, str(path[-1]), variable)
            yield from _versions(recipe, path, variable)
    yield from _label(recipe)
    yield from _trains(recipe, trains)
    for index, patch in enumerate(recipe.patches):
        if patch.unverified:
            say = f"patch {patch.file} is unverified: {patch.unverified}"
            yield _found("warning", recipe_file(recipe.name), ("patches", index, "unverified"), say)


def _variable(component: str, path: Path, name: str, variable: Variable) -> Iterator[Finding]:
    file = recipe_file(component)
    instead = FOLKLORE.get(component, {}).get(name)
    if instead:
        yield _found("error", file, path, f"{name} is not read by {component}", f"use {instead}")
    elif name not in COMMON.split() and not _FILE.search(variable.why):
        say = f"the reason for {name} names no file that reads it"
        yield _found("warning", file, (*path, "why"), say, "such as: setup.py: what it does there")
    if "{cuda_home}" in variable.value:
        say = "{cuda_home} is a toolkit of the machine, which is not part of the build key"
        yield _found("warning", file, (*path, "value"), say, "add the need 'cuda' and write {need:cuda}")
    if name == "TORCH_NVCC_FLAGS" and "gencode" in variable.value:
        say = "-gencode in TORCH_NVCC_FLAGS compiles every file for one more architecture"
        yield _found("error", file, (*path, "value"), say, "use TORCH_CUDA_ARCH_LIST")


def _versions(recipe: Recipe, path: Path, variable: Variable) -> Iterator[Finding]:
    """Check that {version:NAME} names a need: other versions may change without a rebuild."""
    needs = {need.name for need in recipe.needs}
    for name in re.findall(r"\{version:([^{}]*)\}", variable.value):
        if name not in needs:
            say = f"{{version:{name}}}: this recipe has no need '{name}'"
            yield _found("error", recipe_file(recipe.name), (*path, "value"), say, "add it to [[needs]]")


def _label(recipe: Recipe) -> Iterator[Finding]:
    """Check that a label that the wheel must carry reaches the build."""
    wanted = LABEL_VARIABLE.get(recipe.name)
    if wanted is None or "{label}" not in recipe.wheel.version:
        return
    found = recipe.build.env.get(wanted)
    if found is None or not re.search(r"\{(label|wheel_version)\}", found.value):
        path: Path = ("wheel", "version") if found is None else ("build", "env", wanted, "value")
        say = f"wheel.version wants the label, but {wanted} does not hand {{label}} to the build"
        yield _found("error", recipe_file(recipe.name), path, say)


def _trains(recipe: Recipe, trains: Collection[str]) -> Iterator[Finding]:
    """Check that conditions name trains that exist."""
    places: list[tuple[Path, tuple[str, ...]]] = [
        (("patches", index, "trains"), patch.trains) for index, patch in enumerate(recipe.patches)
    ]
    places += [((*path, "when", "trains"), part.when.trains) for path, part in conditional(recipe)]
    for path, names in places:
        for index, name in enumerate(names):
            if name not in trains:
                say = f"no train is named '{name}'{did_you_mean(name, trains)}"
                yield _found("error", recipe_file(recipe.name), (*path, index), say)


def train_remarks(train: Train) -> Iterator[Finding]:
    """Yield the mistakes of a train by itself."""
    for name, pin in train.components.items():
        yield from pin_remarks(train_file(train.name), ("components", name), name, pin)
    yield from _contradictions(train)
    yield from _llvm(train)


def target_remarks(target: Target) -> Iterator[Finding]:
    """Yield the mistakes of a target by itself."""
    file = f"recipes/targets/{target.name}.toml"
    for index, capability in enumerate(target.cuda_architectures):
        lowest = minimum_cuda(capability)
        if not lowest:
            path: Path = ("cuda_architectures", index)
            yield _found("error", file, path, f"{capability} is no architecture that is known here")
        elif target.cuda and Version(target.cuda) < Version(lowest):
            say = f"CUDA {target.cuda} cannot compile for {capability}"
            yield _found("error", file, ("cuda",), say, f"{lowest} or newer")


def pin_remarks(file: str, where: Path, name: str, pin: Pin) -> Iterator[Finding]:
    """Yield the mistakes of a pin, in a train or in a recipe."""
    for index, entry in enumerate(pin.unestablished):
        yield _found("warning", file, (*where, "unestablished", index), f"{name}: not established: {entry}")
    train = file.removeprefix("recipes/trains/").removesuffix(".toml") if "/trains/" in file else ""
    listed: list[tuple[Path, Source]] = [
        ((*where, "sources", index), source) for index, source in enumerate(pin.sources)
    ]
    listed += [((*where, "extra_sources", extra), source) for extra, source in pin.extra_sources.items()]
    for path, source in listed:
        if source.url.startswith(("/", "file:")):
            say = f"{name}: {source.url} is on this machine only"
            yield _found("warning", file, (*path, "url"), say, "others cannot build this train")
        if source.kind == "archive" and "/archive/" in source.url and "github.com" in source.url:
            say = f"{name}: GitHub makes this archive anew when it likes, and without submodules"
            yield _found(
                "warning", file, (*path, "url"), say, "use git with a commit, or a release's own file"
            )
        if not source.is_pinned:
            say = f"{name}: not established: {pin_hint(name, source, train)}"
            yield _found("warning", file, (*path, "commit"), say)
        if source.kind != "git" and not source.sha256:
            yield _found("error", file, path, f"{name}: a source without a sha256 is not pinned")


def _contradictions(train: Train) -> Iterator[Finding]:
    """Check that the wheels of one train accept each other."""
    pins = {name: pin.version for name, pin in train.components.items()}
    for component, versions, other, wanted, where in REQUIRES:
        version = version_of(pins.get(component, ""))
        have = pins.get(other) or train.closure.get(other)
        if version is None or not allows(versions, version) or have is None:
            continue
        found = version_of(have)
        if found is None or not allows(wanted, found):
            path: Path = ("components", other, "version") if other in pins else ("closure", other)
            say = f"{component} {version} requires {other}{wanted} ({where}), not {have}"
            yield _found("error", train_file(train.name), path, say)
    for name in train.closure.keys() & pins.keys():
        if version_of(train.closure[name]) != version_of(pins[name]):
            say = f"closure.{name} is {train.closure[name]}, components.{name} {pins[name]}"
            fix = "write the same version in both"
            yield _found("error", train_file(train.name), ("closure", name), say, fix)


def _llvm(train: Train) -> Iterator[Finding]:
    """Check that Triton gets the one LLVM commit that it is written against."""
    triton, llvm = train.components.get("triton"), train.components.get("llvm")
    commit = TRITON_LLVM.get(triton.version) if triton else None
    if triton is None or llvm is None or commit is None:
        return
    for index, source in enumerate(llvm.sources):
        if source.is_pinned and source.kind == "git" and source.commit != commit:
            path: Path = ("components", "llvm", "sources", index, "commit")
            say = f"triton {triton.version} is written against LLVM {commit[:12]}, not {source.commit[:12]}"
            yield _found("error", train_file(train.name), path, say, "see cmake/llvm-hash.txt at its tag")


def unused_extras(
    recipes: Mapping[str, Recipe], trains: Mapping[str, Train], targets: Mapping[str, Target]
) -> Iterator[Finding]:
    """Yield an error for each extra source that its recipe never refers to."""
    machines = [replace(target, platform=platform) for target in targets.values() for platform in PLATFORMS]
    for name, recipe in recipes.items():
        for file, path, pin, held in _pins(name, recipe, trains):
            used: set[str] = set()
            for train in held if pin.extra_sources else ():
                for machine in machines:
                    used |= evaluate(recipe, pin, machine, train).extra_sources.keys()
            for extra in pin.extra_sources.keys() - used if held and machines else ():
                called = pin.extra_sources[extra].folder or extra
                say = f"{name}: nothing uses the extra source {extra}: no value refers to {{extra:{called}}}"
                hint = "take it out, or refer to it in the recipe"
                yield _found("error", file, (*path, "extra_sources", extra), say, hint)


def _pins(
    name: str, recipe: Recipe, trains: Mapping[str, Train]
) -> Iterator[tuple[str, Path, Pin, list[Train]]]:
    """Yield every pin of a recipe with its file, its place and its trains."""
    for train in trains.values():
        if name in train.components:
            yield train_file(train.name), ("components", name), train.components[name], [train]
    if recipe.pin is not None:
        others = [train for train in trains.values() if name not in train.components]
        yield recipe_file(name), ("pin",), recipe.pin, others


def train_file(name: str) -> str:
    """Return the display name of a train's file."""
    return f"recipes/trains/{name}.toml"
