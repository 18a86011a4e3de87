"""The rule of `recipes lint` on extra sources as a whole: each one is used for some target and train."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from spark_build.recipes.evaluation import evaluate
from spark_build.recipes.model import Pin, Recipe, Target, Train
from spark_build.recipes.rawtables import PLATFORMS
from spark_build.recipes.remark import Remark, recipe_file, train_file
from spark_build.recipes.toml_positions import Path


def unused_extras(
    recipes: Mapping[str, Recipe], trains: Mapping[str, Train], targets: Mapping[str, Target]
) -> Iterator[Remark]:
    """Yield an error for each extra source that no value of its recipe refers to, whatever the target."""
    machines = [replace(one, platform=platform) for one in targets.values() for platform in PLATFORMS]
    for name, recipe in recipes.items():
        for file, path, pin, held in _pins(name, recipe, trains):
            used: set[str] = set()
            for train in held:
                for machine in machines:
                    used |= evaluate(recipe, pin, machine, train).extra_sources.keys()
            for extra in pin.extra_sources.keys() - used if held and machines else ():
                called = pin.extra_sources[extra].folder or extra
                say = f"{name}: nothing uses the extra source {extra}: no value refers to {{extra:{called}}}"
                hint = "take it out, or refer to it in the recipe"
                yield Remark("error", file, (*path, "extra_sources", extra), say, hint)


def _pins(
    name: str, recipe: Recipe, trains: Mapping[str, Train]
) -> Iterator[tuple[str, Path, Pin, list[Train]]]:
    """Yield every pin of a recipe with its file, its place in it and the trains that it counts for."""
    for train in trains.values():
        if name in train.components:
            yield train_file(train.name), ("components", name), train.components[name], [train]
    if recipe.pin is not None:
        others = [train for train in trains.values() if name not in train.components]
        yield recipe_file(name), ("pin",), recipe.pin, others
