"""Raw TOML tables: line numbers of values, access to them, and edits that keep the rest of a file."""

from __future__ import annotations

import copy
import re
import tomllib
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from spark_build.errors import RecipeError

Path = tuple[str | int, ...]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SPACE = re.compile(r"[ \t]*")
_SPACE_LINES = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SCALAR = re.compile(r"[^,\]}#\r\n]*")
_MULTILINE_END = {
    '"': re.compile(r'(?:[^\\"]|\\.|"(?!""))*"{3,5}', re.DOTALL),
    "'": re.compile(r".*?'{3,5}", re.DOTALL),
}
_STRING_END = {'"': re.compile(r'(?:[^\\"\n]|\\.)*"'), "'": re.compile(r"[^'\n]*'")}

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
    """Line of each key in a TOML text; lines count from 1."""

    def __init__(self, text: str) -> None:
        self._lines = _Scanner(text).scan()

    def line(self, path: Path) -> int:
        """Return the line of a key path such as ("sources", 0, "sha256"), or of its nearest known parent."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)


class _Scanner:
    """One pass over TOML; on invalid text it stops early with what it has."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self.lines: dict[Path, int] = {}
        self.implied: set[Path] = set()  # seen only as a part of a longer key so far
        self.counts: dict[Path, int] = {}  # arrays of tables: elements so far

    def scan(self) -> dict[Path, int]:
        table: Path = ()
        try:
            self.skip(_SPACE_LINES)
            while self.at < len(self.text):
                if self.text[self.at] == "[":
                    table = self.header()
                else:
                    self.pair(table)
                self.skip(_SPACE_LINES)
        except (_BrokenError, RecursionError):
            pass  # a broken text: what was found before the damage still helps
        return self.lines

    def skip(self, pattern: re.Pattern[str]) -> None:
        """Advance past what the pattern matches here."""
        match = pattern.match(self.text, self.at)
        if match is None:
            raise _BrokenError
        self.at = match.end()

    def eat(self, literal: str) -> bool:
        """Advance past `literal` if it is here."""
        found = self.text.startswith(literal, self.at)
        if found:
            self.at += len(literal)
        return found

    def note(self, path: Path, line: int, *, implied: bool = False) -> None:
        """Record the first mention of a key; a later full one replaces a mention in passing."""
        if path in self.lines and (implied or path not in self.implied):
            return
        self.lines[path] = line
        (self.implied.add if implied else self.implied.discard)(path)

    def here(self) -> int:
        return bisect_right(self.starts, self.at)

    def header(self) -> Path:
        """Read [table] or [[array of tables]]; returns the path of the keys below it."""
        line = self.here()
        array = self.eat("[[")
        if not array:
            self.eat("[")
        parts = self.key()
        if not self.eat("]]" if array else "]"):
            raise _BrokenError
        path: Path = ()
        for part in parts[:-1]:
            path = self.enter((*path, part), line)
        path = (*path, parts[-1])
        self.note(path, line)
        if array:
            self.counts[path] = self.counts.get(path, 0) + 1
            path = (*path, self.counts[path] - 1)
            self.note(path, line)
        return path

    def enter(self, path: Path, line: int) -> Path:
        """Return the path through a table; in an array of tables, its latest element."""
        self.note(path, line, implied=True)
        return (*path, self.counts[path] - 1) if path in self.counts else path

    def pair(self, table: Path) -> None:
        """Read one `key = value` below `table`."""
        line = self.here()
        path = table
        parts = self.key()
        for part in parts[:-1]:
            path = (*path, part)
            self.note(path, line, implied=True)
        path = (*path, parts[-1])
        self.note(path, line)
        if not self.eat("="):
            raise _BrokenError
        self.skip(_SPACE)
        self.value(path)

    def key(self) -> list[str]:
        """Read a bare, quoted or dotted key with the space around it."""
        parts: list[str] = []
        while True:
            self.skip(_SPACE)
            start = self.at
            quote = self.text[start : start + 1]
            if quote in _STRING_END:
                self.at += 1
                self.skip(_STRING_END[quote])
                parts.append(_unquote(self.text[start : self.at]))
            else:
                self.skip(_BARE_KEY)
                parts.append(self.text[start : self.at])
            self.skip(_SPACE)
            if not self.eat("."):
                return parts

    def value(self, path: Path) -> None:
        """Advance past a value and record its keys."""
        quote = self.text[self.at : self.at + 1]
        if quote in _STRING_END:
            multiline = self.eat(quote * 3)
            self.at += 0 if multiline else 1
            self.skip((_MULTILINE_END if multiline else _STRING_END)[quote])
        elif self.eat("["):
            self.array(path)
        elif self.eat("{"):
            self.inline_table(path)
        else:
            self.skip(_SCALAR)

    def array(self, path: Path) -> None:
        index = 0
        self.skip(_SPACE_LINES)
        while not self.eat("]"):
            self.note((*path, index), self.here())
            self.value((*path, index))
            index += 1
            self.skip(_SPACE_LINES)
            if not self.eat(",") and not self.text.startswith("]", self.at):
                raise _BrokenError
            self.skip(_SPACE_LINES)

    def inline_table(self, path: Path) -> None:
        self.skip(_SPACE_LINES)
        while not self.eat("}"):
            self.pair(path)
            self.skip(_SPACE_LINES)
            if not self.eat(",") and not self.text.startswith("}", self.at):
                raise _BrokenError
            self.skip(_SPACE_LINES)


class _BrokenError(Exception):
    """The text is invalid TOML from here on."""


def _unquote(token: str) -> str:
    """Return the key of a quoted token."""
    if "\\" not in token or token.startswith("'"):
        return token[1:-1]
    try:
        return str(tomllib.loads(f"key = {token}")["key"])
    except tomllib.TOMLDecodeError:
        raise _BrokenError from None


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
