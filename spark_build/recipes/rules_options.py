"""What must hold in the options of a recipe and in the conditions on which its parts depend."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from spark_build.recipes.rawtables import Finding, items, platforms, table, tables
from spark_build.recipes.toml_positions import Path

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


def condition_findings(raw: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what is wrong with the conditions: platforms and options that do not exist."""
    options = table(raw, "options")
    for path, part in _conditional(raw):
        when = table(part, "when")
        yield from platforms(when, (*path, "when"))
        for name, value in table(when, "options").items():
            here: Path = (*path, "when", "options", name)
            choices = items(table(options, name), "choices")
            if name not in options:
                yield here, _unknown(name, options)
            elif choices and value not in choices:
                yield here, f"the option {name} is never '{value}' (choices: {_listed(choices)})"


def option_findings(raw: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what is wrong with the options and with the values that refer to them."""
    options, requires = table(raw, "options"), table(raw, "requires")
    for name, option in options.items():
        if isinstance(option, dict):
            yield from _option(name, option)
    for path, text in _values(raw):
        for placeholder in _PLACEHOLDER.findall(text):
            verb, _, name = placeholder.partition(":")
            if verb == "option" and name and name not in options:
                yield path, f"{{{placeholder}}}: {_unknown(name, options)}"
            elif verb != "option" and "compile_flags" in path:
                yield path, f"{{{placeholder}}}: compile_flags take only {{option:NAME}}"
    if requires.get("cpu") is True and requires.get("cuda") is not True:
        yield ("requires", "cpu"), "requires.cpu has a meaning only with requires.cuda = true"


def _option(name: str, option: Mapping[str, Any]) -> Iterator[Finding]:
    path: Path = ("options", name)
    if not re.fullmatch("[a-z][a-z0-9_]*", name):
        yield path, f"the name of the option '{name}' must be in lower case: letters, digits and '_'"
    if option.get("why") == "":
        yield (*path, "why"), f"say what the option {name} decides"
    value, choices = option.get("value"), items(option, "choices")
    if choices and value not in choices:
        yield (*path, "value"), f"'{value}' is no choice of the option {name} ({_listed(choices)})"


def _conditional(raw: Mapping[str, Any]) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield every table that may have a condition, with its place."""
    for path, part in _parts(raw):
        if path != ("build",):
            yield path, part
        for name, variable in table(part, "env").items():
            if isinstance(variable, dict):
                yield (*path, "env", name), variable
    for key in ("features", "needs"):
        for index, one in tables(raw, key):
            yield (key, index), one


def _values(raw: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield every text that may refer to an option, with its place."""
    found: list[tuple[Path, object]] = [
        (("build", "compile_flags", index), flag)
        for index, flag in enumerate(items(table(raw, "build"), "compile_flags"))
    ]
    tabled: list[tuple[Path, Mapping[str, Any]]] = [
        ((*path, "env"), table(part, "env")) for path, part in _parts(raw)
    ]
    tabled.append((("cmake", "define"), table(table(raw, "cmake"), "define")))
    found += [
        ((*path, name, "value"), variable.get("value"))
        for path, variables in tabled
        for name, variable in variables.items()
        if isinstance(variable, dict)
    ]
    yield from ((path, text) for path, text in found if isinstance(text, str))


def _parts(raw: Mapping[str, Any]) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    build = table(raw, "build")
    yield ("build",), build
    yield from ((("build", "variants", index), one) for index, one in tables(build, "variants"))


def _unknown(name: str, options: Mapping[str, Any]) -> str:
    return f"this recipe has no option '{name}' (options: {_listed(sorted(options)) or 'none'})"


def _listed(values: list[Any]) -> str:
    return ", ".join(str(one) or "''" for one in values)
