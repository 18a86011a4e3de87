"""Mistakes that no single file shows: needs and pins without a recipe, circles, no default train."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

from spark_build.errors import Problem
from spark_build.recipes.model import Recipe, Train
from spark_build.recipes.toml_positions import Path, Positions
from spark_build.text import did_you_mean


def cross_check(
    recipes: Mapping[str, Recipe], trains: Mapping[str, Train], texts: Mapping[str, str]
) -> tuple[Problem, ...]:
    """All problems between files. `texts`: the files by display name, for the line numbers."""
    found = [*_needs_without_recipe(recipes), *_circle(recipes), *_pins_without_recipe(recipes, trains)]
    if trains and not any(train.default for train in trains.values()):
        found.append((f"recipes/trains/{min(trains)}.toml", ("default",), "no train is the default one"))
    return tuple(
        Problem(file=file, line=Positions(texts.get(file, "")).line(path), message=message)
        for file, path, message in found
    )


def _needs_without_recipe(recipes: Mapping[str, Recipe]) -> Iterator[tuple[str, Path, str]]:
    for name, recipe in recipes.items():
        for index, need in enumerate(recipe.needs):
            if need.name not in recipes:
                hint = did_you_mean(need.name, recipes.keys() - {name})
                yield _file(name), ("needs", index, "name"), f"no recipe is named '{need.name}'{hint}"


def _circle(recipes: Mapping[str, Recipe]) -> Iterator[tuple[str, Path, str]]:
    graph = {name: [need.name for need in recipe.needs] for name, recipe in recipes.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        # graphlib lists each one before the one that needs it; first and last are the same.
        circle = list(reversed(error.args[1]))
        path: Path = ("needs", graph[circle[0]].index(circle[1]), "name")
        yield _file(circle[0]), path, f"the needs go round in a circle: {' -> '.join(circle)}"


def _pins_without_recipe(
    recipes: Mapping[str, Recipe], trains: Mapping[str, Train]
) -> Iterator[tuple[str, Path, str]]:
    for train in trains.values():
        for name in train.components:
            if name not in recipes:
                hint = did_you_mean(name, recipes)
                file = f"recipes/trains/{train.name}.toml"
                yield file, ("components", name), f"no recipe is named '{name}'{hint}"


def _file(recipe: str) -> str:
    """The display name of a recipe's file: parse_recipe made sure that file and recipe agree."""
    return f"recipes/{recipe}.toml"
