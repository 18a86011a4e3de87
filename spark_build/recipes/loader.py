"""Load all TOML files, report every mistake, and generate their JSON Schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import GenericAlias
from typing import Any, TypeVar

from packaging.utils import parse_wheel_filename

from spark_build.errors import Finding, Hint, RecipeError, UsageError, ours, problem
from spark_build.paths import Home
from spark_build.recipes.model import Recipe, Target, Train
from spark_build.recipes.parse import (
    Lock,
    joint_error,
    lock_file,
    normalized,
    parse_lock,
    parse_recipe,
    parse_target,
    parse_train,
)
from spark_build.recipes.toml_positions import Positions
from spark_build.recipes.validation import cross_check
from spark_build.text import nearest

T = TypeVar("T", Recipe, Train, Target)


@dataclass(frozen=True, kw_only=True, slots=True)
class Catalogue:
    """All recipes, trains and targets by name."""

    recipes: dict[str, Recipe]
    trains: dict[str, Train]
    targets: dict[str, Target]

    def recipe(self, name: str) -> Recipe:
        """Return the recipe of that name. Raises UsageError with similar names."""
        return _find(self.recipes, name, "recipe")

    def with_options(self, choices: Mapping[tuple[str, str], str]) -> Catalogue:
        """Return a catalogue whose recipes have these options, given as (recipe, option): value."""
        recipes = dict(self.recipes)
        for (name, option), value in choices.items():
            recipes[name] = _with_option(recipes.get(name) or self.recipe(name), option, value)
        return replace(self, recipes=recipes)

    def train(self, name: str | None = None) -> Train:
        """Return the train of that name, else the default one. Raises UsageError when there is none."""
        if name is None:
            # In the order of the folders, so that a user's own default comes before the shipped one.
            name = next((train.name for train in self.trains.values() if train.default), "default")
        return _find(self.trains, name, "train")

    def target(self, name: str) -> Target:
        """Return the target of that name; the caller resolves `auto`. Raises UsageError for another.

        `gb10-cp311` is gb10 with that Python in place of its file's.
        """
        base, _, python = name.rpartition("-")
        if name not in self.targets and base in self.targets and re.fullmatch(r"cp3\d+t?", python):
            return replace(self.targets[base], python=python)
        return _find(self.targets, name, "target")


def read_lock(home: Home, owner: str) -> Lock | None:
    """Return the lock of a recipe's build requirements, or of a train's closure ("trains/2.13"), or None.

    It counts only from the folder that the recipe comes from: a recipe of the same name elsewhere asks for
    other things. Raises RecipeError when it cannot be read.
    """
    base = next((one for one in home.data if (one / "recipes" / f"{owner}.toml").is_file()), None)
    path = base / lock_file(owner) if base else None
    if path is None or not path.exists():
        return None
    try:
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(
            f"{path} cannot be read: {error}", hint=Hint("delete it, then: ", ours("recipes pin"))
        ) from error
    return parse_lock(text, lock_file(owner))


def closure_locks(
    home: Home, train: Train, platform: str, recipes: Iterable[Recipe] = ()
) -> tuple[Lock, ...]:
    """Return which public wheels may complete a set of `recipes`: by the train, then by those that say more.

    The train's allows vendors' wheels that it pins itself, too. A pin that is in a lock without files allows
    none. Names that are in no pin are free. Raises RecipeError.
    """
    lock = _closure_lock(home, f"trains/{train.name}", train.closure)
    wheels, pins = {pin: dict(files) for pin, files in lock.wheels.items()}, dict(lock.pins)
    for source in (source for pin in train.components.values() for source in pin.sources):
        if source.kind == "wheel" and source.platform in ("", platform):
            name, version, *_ = parse_wheel_filename(source.filename)
            wheels.setdefault(f"{name}=={version}", {})[source.filename] = source.sha256
            pins.setdefault(name, str(version))
    more = (_closure_lock(home, one.name, one.closure) for one in recipes if one.closure)
    return (replace(lock, wheels=wheels, pins=pins), *more)


def closure_pins(locks: Sequence[Lock]) -> dict[str, str]:
    """Return which version each public wheel may have; where locks differ, the first decides."""
    return {name: version for lock in reversed(locks) for name, version in lock.pins.items()}


def _closure_lock(home: Home, owner: str, closure: Mapping[str, str]) -> Lock:
    lock = read_lock(home, owner)
    pins = dict(normalized(f"{name}=={version}").split("==") for name, version in closure.items())
    if lock is None:
        return Lock(file=f"recipes/{owner}.toml", wheels={}, owner=owner, pins=pins)
    locked = {f"{name}=={version}" for name, version in pins.items()}
    return replace(lock, wheels={pin: lock.wheels.get(pin, {}) for pin in locked}, owner=owner, pins=pins)


@dataclass(frozen=True, kw_only=True, slots=True)
class Files:
    """All TOML files as they are: the values of sound ones, texts by display name, all problems."""

    recipes: dict[str, Recipe] = field(default_factory=dict)
    trains: dict[str, Train] = field(default_factory=dict)
    targets: dict[str, Target] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    problems: list[Finding] = field(default_factory=list)


def load(data: Sequence[Path]) -> Catalogue:
    """Read every base's recipes/; the first file of a name wins. Raises RecipeError with all problems."""
    files = read_files(data)
    if files.problems:
        raise joint_error(files.problems)
    own = {name: recipe.pin for name, recipe in files.recipes.items() if recipe.pin is not None}
    # The recipes' own pins where a train lists none.
    trains = {
        name: replace(train, components={**own, **train.components}) for name, train in files.trains.items()
    }
    return Catalogue(recipes=files.recipes, trains=trains, targets=files.targets)


def read_files(data: Sequence[Path]) -> Files:
    """Read every base's recipes/ as `load` does. Raises RecipeError where there is no file at all."""
    files = Files()
    for base in data:
        _read(files, base, "recipes", parse_recipe, files.recipes)
        own_trains = dict(files.trains)
        _read(files, base, "recipes/trains", parse_train, files.trains)
        _check_defaults(files, files.trains.keys() - own_trains.keys())
        _read(files, base, "recipes/targets", parse_target, files.targets)
    if not files.texts:
        raise RecipeError(
            f"no recipes found in {', '.join(f'{base}/recipes' for base in data)}",
            hint="run in a checkout, or give one with --root DIR",
        )
    # Between files only when each is sound: else a broken file shows again as a missing recipe.
    if not files.problems:
        files.problems.extend(cross_check(files.recipes, files.trains, files.texts))
    return files


def _read(files: Files, base: Path, folder: str, parse: Callable[[str, str], T], into: dict[str, T]) -> None:
    """Parse <base>/<folder>/*.toml in the order of their names, without those read before."""
    for path in sorted((base / folder).glob("*.toml")):
        shown = f"{folder}/{path.name}"
        if shown in files.texts or path.name.startswith("."):
            continue
        try:
            text = path.read_bytes().decode()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            files.problems.append(problem(f"cannot be read: {why}", shown))
            files.texts[shown] = ""
            continue
        files.texts[shown] = text
        try:
            into[path.stem] = parse(text, shown)
        except RecipeError as error:
            files.problems.extend(error.problems)


def _check_defaults(files: Files, names: set[str]) -> None:
    """Check that a folder has at most one default train."""
    defaults = sorted(name for name in names if files.trains[name].default)
    for name in defaults[1:]:
        file = f"recipes/trains/{name}.toml"
        line = Positions(files.texts[file]).line(("default",))
        files.problems.append(problem(f"train {defaults[0]} is the default already", file, line))


def _with_option(recipe: Recipe, name: str, value: str) -> Recipe:
    option = recipe.options.get(name)
    if option is None:
        known = ", ".join(sorted(recipe.options)) or "none"
        raise UsageError(f"{recipe.name} has no option '{name}'", hint=f"options: {known}")
    if option.choices and value not in option.choices:
        choices = ", ".join(choice or "'' (empty)" for choice in option.choices)
        raise UsageError(f"--option {recipe.name}.{name}={value}: choose one of {choices}")
    return replace(recipe, options={**recipe.options, name: replace(option, value=value)})


def _find(known: Mapping[str, T], name: str, what: str) -> T:
    if name in known:
        return known[name]
    raise UsageError(
        f"no {what} is named '{name}'{nearest(name, known)}",
        hint=f"{what}s: {', '.join(sorted(known))}" if known else None,
    )


KINDS: dict[str, type] = {"recipe": Recipe, "train": Train, "target": Target}


def json_schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of "recipe", "train" or "target" files."""
    from pydantic import ConfigDict, TypeAdapter

    listed: Any = GenericAlias(list, (KINDS[kind],))  # the list hands its configuration to what is inside
    whole = TypeAdapter(listed, config=ConfigDict(extra="forbid")).json_schema()
    definitions = whole["$defs"]
    root = definitions.pop(whole["items"]["$ref"].rpartition("/")[2])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"spark-build {kind}",
        **{key: value for key, value in root.items() if key != "title"},
        "$defs": definitions,
    }


def schema_text(kind: str) -> str:
    """Return the schema as kept in recipes/schema/<kind>.schema.json."""
    return json.dumps(json_schema(kind), indent=2, sort_keys=True) + "\n"
