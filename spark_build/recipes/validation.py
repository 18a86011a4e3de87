"""Rules between the values of recipes, trains and targets, and between files.

Shapes are right here; single values may be unsound, which `fields` reports.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion

from spark_build.errors import Finding, problem
from spark_build.recipes.evaluation import CONSUMERS, minimum_cuda
from spark_build.recipes.model import (
    Audit,
    Build,
    Option,
    Pin,
    Recipe,
    Repair,
    Requires,
    Source,
    Target,
    Train,
    Variable,
    Variant,
    When,
)
from spark_build.recipes.toml_positions import Mistake, Path, Positions, version_of
from spark_build.text import did_you_mean

_NEEDED = {
    "git": ("url", "commit"),
    "archive": ("url", "sha256"),
    "sdist": ("project", "filename", "sha256"),
    "wheel": ("project", "filename", "sha256"),
}
_ALLOWED = {kind: set(keys) for kind, keys in _NEEDED.items()}
_ALLOWED["git"] |= {"tag", "submodules", "mirrors"}
_ALLOWED["archive"] |= {"mirrors"}
_KEYS = sorted(set().union(*_ALLOWED.values()))

# What a value may refer to; recipes/README.md explains each. Those with an argument: {need:llvm}.
PLACEHOLDERS = (
    "python",
    "pybind11_cmake_dir",
    "jobs",
    "cuda_home",
    "version",
    "label",
    "wheel_version",
    "prefix",
)
WITH_ARGUMENT = ("arch_list", "need", "version", "extra", "option")
_OF_A_TARGET = ("python", "pybind11_cmake_dir", "arch_list", "label")  # what a target decides
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
# Tables that only some kinds of recipe read.
_TABLES = {
    "cmake": ("cmake",),
    "scons": ("scons",),
    "prefix": ("repack", "assemble"),
    "preflight": ("pep517",),
}
_NO_WHEEL = {"preflight": ": no wheel is built"}


def recipe_findings(recipe: Recipe) -> Iterator[Mistake]:
    """Yield the mistakes between a recipe's values."""
    yield from _needs(recipe)
    yield from _kind(recipe)
    yield from _build(recipe)
    yield from _variables(recipe)
    yield from _options(recipe)
    yield from _conditions(recipe)
    yield from _features(recipe)
    yield from _audit(recipe.audit, recipe.requires)
    yield from _repair(recipe.repair, recipe.kind)
    package, libraries = recipe.preflight.package, recipe.preflight.libraries
    if libraries and not package.isidentifier():
        yield ("preflight",), "say with preflight.package what is to be imported"
    if recipe.pin:
        yield from _pin(("pin",), recipe.name, recipe.pin)


def train_findings(train: Train) -> Iterator[Mistake]:
    """Yield the mistakes in a train's pins."""
    for name, pin in train.components.items():
        yield from _pin(("components", name), name, pin)


def target_findings(target: Target) -> Iterator[Mistake]:
    """Yield the mistakes in the description of a machine."""
    if bool(target.cuda) != bool(target.cuda_architectures):
        have, lack = ("cuda", "cuda_architectures") if target.cuda else ("cuda_architectures", "cuda")
        yield (have,), f"{have} without {lack}: give both, or neither for a machine without CUDA"
    if bool(target.cores) != bool(target.memory_mib):
        have, lack = ("cores", "memory_mib") if target.cores else ("memory_mib", "cores")
        yield (have,), f"{have} without {lack}: give both, or neither where machines differ"


def _pin(path: Path, name: str, pin: Pin) -> Iterator[Mistake]:
    """Check a component's pin, in a train or in its own recipe."""
    if not pin.sources and not pin.unestablished:
        yield (
            (*path, "sources"),
            f"{name} has no source: pin one, or say in unestablished why there is none",
        )
    # The start of a commit is a version, too, as for Triton's LLVM.
    commits = [source.commit for source in pin.sources if source.kind == "git"]
    is_hash = len(pin.version) >= 7 and any(commit.startswith(pin.version) for commit in commits)
    if not is_hash and version_of(pin.version) is None:
        yield (*path, "version"), f"'{pin.version}' is no version"
    # Of several projects: a set that makes one prefix, in which each wheel has its own version.
    is_set = len({source.project for source in pin.sources if source.kind == "wheel"}) > 1
    seen: set[tuple[str, str]] = set()
    for index, source in enumerate(pin.sources):
        where: Path = (*path, "sources", index)
        yield from _source(where, source, "" if is_set else pin.version)
        if is_set and (source.project, source.platform) in seen:
            yield where, f"{source.project} is in this set already, for the same platform"
        seen.add((source.project, source.platform))
        for key in ("copy", "folder"):
            if getattr(source, key):
                yield (*where, key), f"'{key}' has a meaning in an extra source only"
    for extra, source in pin.extra_sources.items():
        yield from _source((*path, "extra_sources", extra), source, "")


def _source(path: Path, source: Source, version: str) -> Iterator[Mistake]:
    """Check that a source is pinned as its kind requires; a file is of this `version` unless ""."""
    kind = source.kind
    if kind == "local":
        yield (*path, "kind"), "a folder is no pinned source: name it with --source NAME=DIR"
        return
    for key in _NEEDED[kind]:
        # commit = "": `recipes pin` is to read it from the tag.
        if not getattr(source, key) and not (key == "commit" and source.tag):
            yield path, f"a source of kind {kind} needs '{key}'"
    if kind == "git" and not source.tag and not source.note:
        yield path, "a source of kind git needs 'tag' (or a 'note' that says why there is none)"
    for key in _KEYS:
        if getattr(source, key) and key not in _ALLOWED[kind]:
            yield (*path, key), f"'{key}' has no meaning in a source of kind {kind}"
    for index, mirror in enumerate(source.mirrors):
        if mirror == source.url or mirror in source.mirrors[:index]:
            yield (*path, "mirrors", index), f"the mirror '{mirror}' is named already"
    if kind in ("sdist", "wheel") and source.filename:
        yield from (((*path, "filename"), problem) for problem in _filename(source, version))


def _filename(source: Source, version: str) -> Iterator[str]:
    """Check that the file is of this project and version, which catches half an update of a pin."""
    filename = source.filename
    try:
        parse = parse_sdist_filename if source.kind == "sdist" else parse_wheel_filename
        found_name, found_version = parse(filename)[:2]
    except (InvalidSdistFilename, InvalidWheelFilename, InvalidVersion):
        yield f"'{filename}' is no file name of {'an sdist' if source.kind == 'sdist' else 'a wheel'}"
        return
    if source.project and canonicalize_name(source.project) != found_name:
        yield f"'{filename}' is no file of the project {source.project}"
    if version_of(version) not in (None, found_version):
        yield f"'{filename}' is version {found_version}, but the pin says {version}"


def _needs(recipe: Recipe) -> Iterator[Mistake]:
    names = [need.name for need in recipe.needs]
    for index, need in enumerate(recipe.needs):
        path: Path = ("needs", index, "name")
        if need.name == recipe.name:
            yield path, f"{need.name} cannot need itself"
        if need.name in names[:index]:
            yield path, f"the need '{need.name}' is listed twice"
        if not need.providers:
            say = f"the need '{need.name}' has no provider: store, public or path"
            yield ("needs", index, "providers"), say


def _kind(recipe: Recipe) -> Iterator[Mistake]:
    """Check that the recipe has the tables of its kind, and no others."""
    for table, kinds in _TABLES.items():
        value = getattr(recipe, table)
        if recipe.kind not in kinds and value != type(value)():
            why = _NO_WHEEL.get(table, "")
            yield (table,), f"[{table}] has no meaning in a recipe of kind {recipe.kind}{why}"
    if recipe.kind == "scons" and not recipe.scons.copy:
        yield ("kind",), "a recipe of kind scons needs [scons] copy: which files to take into the prefix"
    if recipe.kind == "assemble" and not recipe.prefix.copy:
        yield ("kind",), "a recipe of kind assemble needs [prefix] copy: which folders of the wheels to take"
    for key in ("unversioned", "stubs"):
        if recipe.kind == "repack" and getattr(recipe.prefix, key):
            yield ("prefix", key), f"prefix.{key} has no meaning in a recipe of kind repack"


def _build(recipe: Recipe) -> Iterator[Mistake]:
    """Check the requirements and variants of [build], and what it places in the source."""
    for path, part in _parts(recipe):
        names = [canonicalize_name(re.split(r"[^\w.-]", pin)[0]) for pin in part.requires]
        for index, name in enumerate(names):
            if name and name in names[:index]:
                yield (*path, "requires", index), f"{name} is pinned twice"
        if isinstance(part, Variant) and part.when == When():
            yield path, "a variant without a condition: say when, or move it to [build]"
    if recipe.build.any_target and recipe.kind not in ("cmake", "scons"):
        yield ("build", "any_target"), f"build.any_target has no meaning in a recipe of kind {recipe.kind}"
    for folder, variable in recipe.build.place.items():
        path = ("build", "place", folder)
        if not variable.why:
            yield (*path, "why"), f"say why something is placed at {folder}: name the file that reads it"
        if not re.fullmatch(r"\{extra:[^{}]+\}(/[^{}]*)?", variable.value):
            yield (*path, "value"), f"'{variable.value}' is no extra source: write {{extra:NAME}}"


def _variables(recipe: Recipe) -> Iterator[Mistake]:
    """Check all variables: their reasons, their placeholders, their conditions."""
    needs = [need.name for need in recipe.needs]
    for path, variable in all_variables(recipe):
        if not variable.why:
            yield (*path, "why"), f"say why {path[-1]} is set: name the file that reads it"
        for placeholder in _PLACEHOLDER.findall(variable.value):
            if problem := _placeholder(placeholder, needs, recipe.options):
                yield (*path, "value"), problem
            elif recipe.build.any_target and placeholder.partition(":")[0] in _OF_A_TARGET:
                say = f"{{{placeholder}}} differs between targets, and build.any_target is set"
                yield (*path, "value"), say
        if path[0] != "build" and variable.when != When():
            what = "a CMake definition" if path[0] == "cmake" else "an argument of scons"
            yield (*path, "when"), f"{what} takes no condition"


def _placeholder(text: str, needs: Sequence[str], options: Mapping[str, Option]) -> str:
    """Return what is wrong with {text}; "" when nothing is."""
    verb, _, argument = text.partition(":")
    if argument and verb == "need" and argument not in needs:
        return f"{{{text}}}: this recipe has no need '{argument}'"
    if argument and verb == "option" and argument not in options:
        return f"{{{text}}}: {_unknown(argument, options)}"
    if verb == "arch_list" and argument not in CONSUMERS:
        return f"{{{text}}}: write {{arch_list:WHO}} for one of {', '.join(CONSUMERS)}"
    if verb in WITH_ARGUMENT if argument else text in PLACEHOLDERS:
        return ""
    known = ", ".join((*PLACEHOLDERS, *(f"{verb}:NAME" for verb in WITH_ARGUMENT)))
    return f"unknown placeholder {{{text}}} (known: {known})"


def _options(recipe: Recipe) -> Iterator[Mistake]:
    """Check the options, and the compiler flags, which may refer to nothing else."""
    for name, option in recipe.options.items():
        if not option.why:
            yield ("options", name, "why"), f"say what the option {name} decides"
        if option.choices and option.value not in option.choices:
            say = f"'{option.value}' is no choice of the option {name} ({_listed(option.choices)})"
            yield ("options", name, "value"), say
    for index, flag in enumerate(recipe.build.compile_flags):
        for placeholder in _PLACEHOLDER.findall(flag):
            verb, _, name = placeholder.partition(":")
            if verb != "option":
                problem = "compile_flags take only {option:NAME}"
            else:
                problem = _unknown(name, recipe.options) if name and name not in recipe.options else ""
            if problem:
                yield ("build", "compile_flags", index), f"{{{placeholder}}}: {problem}"
    if recipe.requires.cpu and not recipe.requires.cuda:
        yield ("requires", "cpu"), "requires.cpu has a meaning only with requires.cuda = true"


def _conditions(recipe: Recipe) -> Iterator[Mistake]:
    """Check that conditions refer to options and values that exist."""
    for path, part in conditional(recipe):
        for name, value in part.when.options.items():
            here: Path = (*path, "when", "options", name)
            option = recipe.options.get(name)
            if option is None:
                yield here, _unknown(name, recipe.options)
            elif option.choices and value not in option.choices:
                yield here, f"the option {name} is never '{value}' (choices: {_listed(option.choices)})"


def _features(recipe: Recipe) -> Iterator[Mistake]:
    seen = [(feature.name, feature.when) for feature in recipe.features]
    for index, feature in enumerate(seen):
        if feature in seen[:index]:
            yield ("features", index, "name"), f"the feature '{feature[0]}' is listed twice"


def _audit(audit: Audit, requires: Requires) -> Iterator[Mistake]:
    where: Path = ("audit", "host_only")
    if audit.host_only and audit.device:
        yield where, "audit.host_only says that there is no device code, audit.device asks for some"
    if audit.host_only and not requires.cuda:
        yield where, "audit.host_only has a meaning only with requires.cuda = true"
    for index, rule in enumerate(audit.device):
        path: Path = ("audit", "device", index)
        for text in rule.require:
            if text in rule.forbid:
                yield (*path, "forbid"), f"{text} is both required and forbidden"
        for number, text in enumerate(rule.architectures):
            if not minimum_cuda(text):
                yield (*path, "architectures", number), f"no capability is named '{text}': write 12.1"


def _repair(repair: Repair, kind: str) -> Iterator[Mistake]:
    """Check [repair], of which a wheel that is kept as it is, or none, can use little."""
    useful = {"repack": ("exclude",), "cmake": (), "scons": (), "assemble": ()}.get(kind)
    for key in Repair.__dataclass_fields__ if useful is not None else ():
        if useful is not None and key not in useful and getattr(repair, key):
            why = "the vendor's wheel is kept byte for byte" if kind == "repack" else "it makes no wheel"
            yield ("repair", key), f"repair.{key} has no meaning in a recipe of kind {kind}: {why}"
    for index, soname in enumerate(repair.exclude):
        if soname in repair.exclude[:index]:
            yield ("repair", "exclude", index), f"'{soname}' is excluded already"
    for index, external in enumerate(repair.external):
        if not external.libraries:
            path: Path = ("repair", "external", index, "libraries")
            yield path, "say which libraries it brings: libnccl.so.*"
    if repair.rpath and not repair.external:
        say = "repair.rpath leads to the folders of [[repair.external]], and there is none"
        yield ("repair", "rpath"), say


def _parts(recipe: Recipe) -> Iterator[tuple[Path, Build | Variant]]:
    yield ("build",), recipe.build
    yield from ((("build", "variants", index), part) for index, part in enumerate(recipe.build.variants))


def all_variables(recipe: Recipe) -> Iterator[tuple[Path, Variable]]:
    """Yield the variables of the environment, of CMake and of scons with their places."""
    for path, part in _parts(recipe):
        yield from (((*path, "env", name), variable) for name, variable in part.env.items())
    yield from ((("cmake", "define", name), variable) for name, variable in recipe.cmake.define.items())
    yield from ((("scons", "argument", name), variable) for name, variable in recipe.scons.argument.items())


def conditional(recipe: Recipe) -> Iterator[tuple[Path, Any]]:
    """Yield everything that may have a condition, with its place."""
    yield from (found for found in _parts(recipe) if isinstance(found[1], Variant))
    yield from (found for found in all_variables(recipe) if found[0][0] == "build")
    listed: tuple[tuple[Path, Sequence[Any]], ...] = (
        (("features",), recipe.features),
        (("needs",), recipe.needs),
        (("repair", "external"), recipe.repair.external),
        (("repair", "requires"), recipe.repair.requires),
        (("preflight", "libraries"), recipe.preflight.libraries),
    )
    for path, parts in listed:
        yield from (((*path, index), part) for index, part in enumerate(parts))


def _unknown(name: str, options: Mapping[str, Any]) -> str:
    return f"this recipe has no option '{name}' (options: {_listed(sorted(options)) or 'none'})"


def _listed(values: Sequence[str]) -> str:
    return ", ".join(value or "''" for value in values)


def cross_check(
    recipes: Mapping[str, Recipe], trains: Mapping[str, Train], texts: Mapping[str, str]
) -> tuple[Finding, ...]:
    """Return all problems between files. `texts`: the files by display name, for line numbers."""
    found = [*_needs_without_recipe(recipes), *_circle(recipes), *_pins_without_recipe(recipes, trains)]
    if trains and not any(train.default for train in trains.values()):
        found.append((f"recipes/trains/{min(trains)}.toml", ("default",), "no train is the default one"))
    return tuple(
        problem(message, file, Positions(texts.get(file, "")).line(path)) for file, path, message in found
    )


def _needs_without_recipe(recipes: Mapping[str, Recipe]) -> Iterator[tuple[str, Path, str]]:
    for name, recipe in recipes.items():
        for index, need in enumerate(recipe.needs):
            if need.name not in recipes:
                hint = did_you_mean(need.name, recipes.keys() - {name})
                yield recipe_file(name), ("needs", index, "name"), f"no recipe is named '{need.name}'{hint}"


def _circle(recipes: Mapping[str, Recipe]) -> Iterator[tuple[str, Path, str]]:
    graph = {name: [need.name for need in recipe.needs] for name, recipe in recipes.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        # graphlib lists each one before the one that needs it; first and last are the same.
        circle = list(reversed(error.args[1]))
        path: Path = ("needs", graph[circle[0]].index(circle[1]), "name")
        yield recipe_file(circle[0]), path, f"the needs go round in a circle: {' -> '.join(circle)}"


def _pins_without_recipe(
    recipes: Mapping[str, Recipe], trains: Mapping[str, Train]
) -> Iterator[tuple[str, Path, str]]:
    for train in trains.values():
        for name in train.components:
            if name not in recipes:
                hint = did_you_mean(name, recipes)
                file = f"recipes/trains/{train.name}.toml"
                yield file, ("components", name), f"no recipe is named '{name}'{hint}"


def recipe_file(name: str) -> str:
    """Return the display name of a recipe's file; parse_recipe checked that it is its name."""
    return f"recipes/{name}.toml"
