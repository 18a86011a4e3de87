"""Raw TOML tables: line numbers of values, access to them, and edits that keep the rest of a file."""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from spark_build.errors import RecipeError

Path = tuple[str | int, ...]

_KEY = r"""(?:[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
# The beginning of a header or a pair.
_STATEMENT = re.compile(rf"[ \t]*(?:\[|{_KEY}(?:[ \t]*\.[ \t]*{_KEY})*[ \t]*=)")
MOST_ATTEMPTS = 200  # to find the end of one statement, or of one element
MOST_TRIED = 1 << 20  # characters, to find all statements of a text and the elements of its arrays

MAX_TEXT = 256 << 10  # characters; the largest recipe has 18,000
MAX_DEPTH = 32
# tomllib's time grows with the square of a key's parts.
_PART = r"""\.[ \t]*+(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+"""
_LONG_KEY = re.compile(rf"{_PART}(?:{_PART}){{{MAX_DEPTH - 1},}}")  # a plain first character is found sooner


def read_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text; TOMLDecodeError when it is none, or more than anybody means.

    Numbers have 64 bits, as TOML promises to have at least; what is larger later fails somewhere else.
    """
    if len(text) > MAX_TEXT:
        raise tomllib.TOMLDecodeError(f"more than {MAX_TEXT:,} characters (at line 1, column 1)")
    found = _LONG_KEY.search(text)
    if found:
        line = text.count("\n", 0, found.start()) + 1
        raise tomllib.TOMLDecodeError(f"a key of more than {MAX_DEPTH} parts (at line {line}, column 1)")
    try:
        raw = tomllib.loads(text)
    except RecursionError as error:
        raise tomllib.TOMLDecodeError("nested too deeply (at line 1, column 1)") from error
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # Python reads no number of more than 4,300 digits
        raise tomllib.TOMLDecodeError("a number that is too large (at line 1, column 1)") from error
    _refuse_excess(raw)
    return raw


def _refuse_excess(raw: Mapping[str, Any]) -> None:
    pending: list[tuple[Any, int]] = [(raw, 0)]
    while pending:
        value, depth = pending.pop()
        if depth > 2 * MAX_DEPTH:
            raise tomllib.TOMLDecodeError("nested too deeply (at line 1, column 1)")
        for inner in value.values() if isinstance(value, dict) else value:
            if isinstance(inner, (dict, list)):
                pending.append((inner, depth + 1))
            elif isinstance(inner, int) and not -(1 << 63) <= inner < 1 << 63:
                raise tomllib.TOMLDecodeError("a number that is too large (at line 1, column 1)")


class Positions:
    """Line of each key in a TOML text; lines count from 1.

    Tables inside an array, or inside another array, are where the element of the outermost one begins.
    """

    def __init__(self, text: str) -> None:
        self._lines: dict[Path, int] = {}
        self._implied: set[Path] = set()  # seen only as a part of a longer header so far
        self._counts: dict[Path, int] = {}  # arrays of tables: elements so far
        self._attempts = _Attempts()
        table: Path = ()
        for line, statement, found in _statements(text, self._attempts):
            if statement.lstrip().startswith("["):
                table = self._header(found, line)
            else:
                self._pair(table, found, statement, line)

    def line(self, path: Path) -> int:
        """Return the line of a key path such as ("sources", 0, "sha256"), or of its nearest known parent."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)

    def _header(self, found: Any, line: int) -> Path:
        """Note [table] or [[array of tables]]; return the path of the keys below it."""
        path: Path = ()
        while True:
            ((part, found),) = found.items()
            path = (*path, part)
            if not found or isinstance(found, list):
                break
            if path not in self._lines:
                self._lines[path] = line
                self._implied.add(path)
            path = (*path, self._counts[path] - 1) if path in self._counts else path
        if path not in self._lines or path in self._implied:
            self._lines[path] = line
            self._implied.discard(path)
        if isinstance(found, list):
            self._counts[path] = self._counts.get(path, 0) + 1
            path = (*path, self._counts[path] - 1)
            self._lines[path] = line
        return path

    def _pair(self, path: Path, found: Mapping[str, Any], statement: str, line: int) -> None:
        """Note a key, the keys below it, and the elements of an array."""
        for key, value in found.items():
            self._lines.setdefault((*path, key), line)
            if isinstance(value, dict):
                self._pair((*path, key), value, statement, line)
            if isinstance(value, list):
                for index, row in enumerate(_rows_of_elements(statement, self._attempts)):
                    self._lines[*path, key, index] = line + row


class _Attempts:
    """Reads what may be whole, until MOST_TRIED characters were tried."""

    def __init__(self) -> None:
        self._left = MOST_TRIED

    def loads(self, text: str) -> dict[str, Any] | None:
        """Return the values, or None for what is not whole or one attempt too many."""
        self._left -= len(text)
        if self._left >= 0:
            with suppress(ValueError, RecursionError):
                return tomllib.loads(text)
        return None


def _statements(text: str, attempts: _Attempts) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield the line, the text and the value of each header and each pair; a broken text ends them early."""
    rows = re.findall(r"[^\n]*\n|[^\n]+", text)
    starts = [*(index for index, row in enumerate(rows) if _STATEMENT.match(row)), len(rows)]
    at = 0
    while at < len(starts) - 1:
        # What looks like a statement may be a line of a string or an array.
        for end in range(at + 1, min(len(starts), at + MOST_ATTEMPTS)):
            statement = "".join(rows[starts[at] : starts[end]])
            if (found := attempts.loads(statement)) is not None:
                yield starts[at] + 1, statement, found
                break
        else:
            return
        at = end


def _rows_of_elements(statement: str, attempts: _Attempts) -> list[int]:
    """Return for each element of an array in which row of its statement it begins."""
    begin = _STATEMENT.match(statement)
    found: list[int] = []
    if begin is None or not (bracket := re.match(r"[ \t]*\[", statement[begin.end() :])):
        return found
    pending, first = "", 0
    for row, text in enumerate(statement[begin.end() + bracket.end() :].splitlines(keepends=True)):
        pending += text
        for closing in ("\n]", ""):
            if (values := attempts.loads(f"x = [{pending}{closing}")) is not None:
                found += [first] * len(values["x"])
                pending, first = "", row + 1
                break
        if row - first > MOST_ATTEMPTS:
            break
    return found


_VALUE = r"""(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|\d+)"""


def set_value(text: str, path: Path, value: str | int, *, file: str = "") -> str:
    """Return the text with `value` at the key path, whose table must exist.

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
        f"cannot edit '{path[-1]}' here", where=where, hint=f"write {path[-1]} = {_written(value)}"
    )


def _get(raw: Any, path: Path) -> Any:
    for part in path:
        try:
            raw = raw[part]
        except (KeyError, IndexError):
            return None
    return raw


def _written(value: str | int) -> str:
    return str(value) if isinstance(value, int) else quote(value)


def _with(raw: dict[str, Any], path: Path, value: str | int) -> dict[str, Any]:
    changed = copy.deepcopy(raw)
    _get(changed, path[:-1])[path[-1]] = value
    return changed


def _candidates(text: str, path: Path, value: str | int, *, present: bool) -> Iterator[str]:
    """Yield edited texts, of which the first that parses to the right value is taken."""
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    first = Positions(text).line(path if present else path[:-1]) - 1
    key = str(path[-1])
    if present:
        pattern = re.compile(rf"""((?:\b|["']){re.escape(key)}["']?\s*=\s*){_VALUE}""")
        for found in pattern.finditer(text, starts[first], starts[first + 1]):
            yield text[: found.start()] + found[1] + _written(value) + text[found.end() :]
        return
    new = f"{key} = {_written(value)}"
    for index in range(first, len(lines)):  # behind the last line of the table, from its first on
        for brace in re.finditer(r"\s*\}", lines[index]):
            at = starts[index] + brace.start()
            yield f"{text[:at]}, {new}{text[at:]}"
        if index + 1 == len(lines) or re.match(r"\s*(#|\[|$)", lines[index + 1]):
            at = starts[index + 1]
            end = "" if text[:at].endswith("\n") else "\n"
            yield f"{text[:at]}{end}{new}\n{text[at:]}"


Mistake = tuple[Path, str]  # where, and what is wrong there


def version_of(text: str) -> Version | None:
    """Return a parsed version; None for invalid text."""
    try:
        return Version(text)
    except InvalidVersion:
        return None


def is_specifier(text: str) -> bool:
    """Return whether a text such as ">=2.9,<2.15" says which versions will do."""
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        return False
    return True


def allows(specifiers: str, version: Version) -> bool:
    """Return whether ">=2.9,<2.15" allows a version; pre-releases count, local labels do not."""
    return SpecifierSet(specifiers).contains(version, prereleases=True)


def quote(text: str) -> str:
    """Return a TOML basic string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\u{ord(found[0]):04x}", escaped) + '"'
