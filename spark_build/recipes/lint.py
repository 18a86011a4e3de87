"""`recipes lint`: everything that can be said of recipes, trains and targets without building."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from spark_build.errors import Problem, RecipeError
from spark_build.recipes.lint_context import context_remarks
from spark_build.recipes.lint_extras import unused_extras
from spark_build.recipes.lint_recipe import recipe_remarks
from spark_build.recipes.lint_train import pair_remarks, pin_remarks, target_remarks, train_remarks
from spark_build.recipes.model import Recipe, Target, Train
from spark_build.recipes.parse import parse_recipe, parse_target, parse_train
from spark_build.recipes.rawtables import PLATFORMS
from spark_build.recipes.remark import Remark, Severity, recipe_file
from spark_build.recipes.toml_positions import Path, Positions

# Where a remark holds: (train, target); empty: it does not depend on it.
_Context = tuple[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class LintFinding:
    """One finding with its place; `line` counts from 1, 0 when the whole file is meant."""

    severity: Severity
    file: str
    line: int
    message: str
    hint: str = ""
    recipe: str = ""  # whom it concerns

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        kind = "" if self.severity == "error" else "warning: "
        return f"{place}: {kind}{self.message}{f' ({self.hint})' if self.hint else ''}"


def lint_texts(texts: Mapping[str, str], problems: Iterable[Problem] = ()) -> tuple[LintFinding, ...]:
    """Problems that are known already, and the findings on all files that can be read.

    `texts`: the files by display name, such as "recipes/trains/2.13.toml".
    """
    recipes: dict[str, Recipe] = {}
    trains: dict[str, Train] = {}
    targets: dict[str, Target] = {}
    for file, text in texts.items():
        folder, _, name = file.removesuffix(".toml").rpartition("/")
        with suppress(RecipeError):  # among the problems
            if folder == "recipes":
                recipes[name] = parse_recipe(text, file)
            elif folder == "recipes/trains":
                trains[name] = parse_train(text, file)
            elif folder == "recipes/targets":
                targets[name] = parse_target(text, file)
    known = [
        LintFinding(
            severity="error",
            file=one.file,
            line=one.line,
            message=one.message,
            recipe=_subject(one.file, ()),
        )
        for one in problems
    ]
    return _ordered([*known, *lint(recipes, trains, targets, texts)])


def lint(
    recipes: Mapping[str, Recipe],
    trains: Mapping[str, Train],
    targets: Mapping[str, Target],
    texts: Mapping[str, str],
) -> tuple[LintFinding, ...]:
    """All findings, errors and warnings, by file and line. `texts`: the files by display name."""
    seen: dict[Remark, set[_Context]] = {}
    for context, remark in _remarks(recipes, trains, targets):
        seen.setdefault(remark, set()).add(context)
    positions = {file: Positions(text) for file, text in texts.items()}
    findings = {
        LintFinding(
            severity=remark.severity,
            file=remark.file,
            line=positions[remark.file].line(remark.path) if remark.file in positions else 0,
            message=remark.message + _where(contexts, trains, targets),
            hint=remark.hint,
            recipe=_subject(remark.file, remark.path),
        )
        for remark, contexts in seen.items()
    }
    return _ordered(findings)


def _ordered(findings: Iterable[LintFinding]) -> tuple[LintFinding, ...]:
    return tuple(sorted(findings, key=lambda one: (one.file, one.line, one.severity, one.message)))


def _subject(file: str, path: Path) -> str:
    """The recipe that a finding concerns; empty for targets and for trains as a whole."""
    folder, _, name = file.removesuffix(".toml").rpartition("/")
    if folder == "recipes":
        return name
    return str(path[1]) if len(path) > 1 and path[0] == "components" else ""


def _remarks(
    recipes: Mapping[str, Recipe], trains: Mapping[str, Train], targets: Mapping[str, Target]
) -> Iterator[tuple[_Context, Remark]]:
    nowhere = ("", "")
    for recipe in recipes.values():
        yield from ((nowhere, one) for one in recipe_remarks(recipe, trains.keys()))
        if recipe.pin is not None:
            found = pin_remarks(recipe_file(recipe.name), ("pin",), recipe.name, recipe.pin)
            yield from ((nowhere, one) for one in found)
    for train in trains.values():
        yield from ((nowhere, one) for one in train_remarks(train))
    for target in targets.values():
        yield from ((nowhere, one) for one in target_remarks(target))
    for train in trains.values():
        for target in (one for each in targets.values() for one in _settled(each)):
            context = (train.name, target.name)
            yield from ((context, one) for one in pair_remarks(train, target))
            for name, recipe in recipes.items():
                pin = train.components.get(name) or recipe.pin
                if pin is not None:
                    found = context_remarks(recipe, pin, target, train)
                    yield from ((context, one) for one in found)
    yield from ((nowhere, one) for one in unused_extras(recipes, trains, targets))


def _settled(target: Target) -> tuple[Target, ...]:
    """A target that means this machine stands for every platform."""
    if target.platform != "host":
        return (target,)
    return tuple(replace(target, platform=platform) for platform in PLATFORMS)


def _where(contexts: set[_Context], trains: Mapping[str, Train], targets: Mapping[str, Target]) -> str:
    """For which trains and targets a remark holds, as far as that says anything."""
    if ("", "") in contexts:
        return ""
    held = {train for train, _ in contexts}, {target for _, target in contexts}
    with_cuda = {name for name, target in targets.items() if target.cuda_architectures}
    parts = [] if held[0] == set(trains) else [f"train {', '.join(sorted(held[0]))}"]
    if held[1] not in (set(targets), with_cuda):
        parts.append(f"target {', '.join(sorted(held[1]))}")
    return f" [{'; '.join(parts)}]" if parts else ""
