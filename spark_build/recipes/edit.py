"""Change one string in a TOML text and leave everything else as it stands: comments, order, spaces."""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Iterator
from typing import Any

from spark_build.authoring.scaffold import quote
from spark_build.errors import RecipeError
from spark_build.recipes.toml_positions import Path, Positions

_VALUE = r"""(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""


def set_string(text: str, path: Path, value: str, *, file: str = "") -> str:
    """The text with `value` at the key path; its table must be there, the key need not.

    Tries each place where the edit may belong and takes the one after which the text says exactly
    what it should. Raises RecipeError when there is none.
    """
    raw = tomllib.loads(text)
    wanted = _with(raw, path, value)
    if wanted == raw:
        return text
    for candidate in _candidates(text, path, value, present=_get(raw, path) is not None):
        try:
            if tomllib.loads(candidate) == wanted:
                return candidate
        except tomllib.TOMLDecodeError:
            continue
    where = f"{file}:{Positions(text).line(path)}" if file else None
    raise RecipeError(
        f"cannot edit '{path[-1]}' here", where=where, hint=f"write {path[-1]} = {quote(value)}"
    )


def _get(raw: Any, path: Path) -> Any:
    for part in path:
        try:
            raw = raw[part]
        except (KeyError, IndexError):
            return None
    return raw


def _with(raw: dict[str, Any], path: Path, value: str) -> dict[str, Any]:
    changed = copy.deepcopy(raw)
    _get(changed, path[:-1])[path[-1]] = value
    return changed


def _candidates(text: str, path: Path, value: str, *, present: bool) -> Iterator[str]:
    """Texts that may be the one wanted."""
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    first = Positions(text).line(path if present else path[:-1]) - 1
    key = str(path[-1])
    if present:
        pattern = re.compile(rf"""((?:\b|["']){re.escape(key)}["']?\s*=\s*){_VALUE}""")
        for found in pattern.finditer(text, starts[first], starts[first + 1]):
            yield text[: found.start()] + found[1] + quote(value) + text[found.end() :]
        return
    new = f"{key} = {quote(value)}"
    for index in range(first, len(lines)):  # behind the last line of the table, from its first on
        for brace in re.finditer(r"\s*\}", lines[index]):
            at = starts[index] + brace.start()
            yield f"{text[:at]}, {new}{text[at:]}"
        if index + 1 == len(lines) or re.match(r"\s*(#|\[|$)", lines[index + 1]):
            at = starts[index + 1]
            end = "" if text[:at].endswith("\n") else "\n"
            yield f"{text[:at]}{end}{new}\n{text[at:]}"
