"""Line numbers for the keys of a TOML text: tomllib reads values but does not say where they stand."""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right

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


class Positions:
    """Where each key of a TOML text stands; lines count from 1."""

    def __init__(self, text: str) -> None:
        self._lines = _Scanner(text).scan()

    def line(self, path: Path) -> int:
        """The line of a key path such as ("sources", 0, "sha256"), else of its nearest known ancestor."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)


class _Scanner:
    """One pass over valid TOML; on anything else it stops early with what it has."""

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
        """Move behind what the pattern matches here."""
        match = pattern.match(self.text, self.at)
        if match is None:
            raise _BrokenError
        self.at = match.end()

    def eat(self, literal: str) -> bool:
        """Move behind `literal` when it stands here."""
        found = self.text.startswith(literal, self.at)
        if found:
            self.at += len(literal)
        return found

    def note(self, path: Path, line: int, *, implied: bool = False) -> None:
        """Remember the first mention; a later full mention is better than one in passing."""
        if path in self.lines and (implied or path not in self.implied):
            return
        self.lines[path] = line
        (self.implied.add if implied else self.implied.discard)(path)

    def here(self) -> int:
        return bisect_right(self.starts, self.at)

    def header(self) -> Path:
        """[table] or [[array of tables]]; gives the path that the keys below it belong to."""
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
        """A table on the way to another; in an array of tables, its latest element."""
        self.note(path, line, implied=True)
        return (*path, self.counts[path] - 1) if path in self.counts else path

    def pair(self, table: Path) -> None:
        """One `key = value` below `table`."""
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
        """A bare, quoted or dotted key, with the space around it."""
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
        """Move behind a value, noting what it contains."""
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
    """The text is no TOML from here on."""


def _unquote(token: str) -> str:
    """The key that a quoted token stands for."""
    if "\\" not in token or token.startswith("'"):
        return token[1:-1]
    try:
        return str(tomllib.loads(f"key = {token}")["key"])
    except tomllib.TOMLDecodeError:
        raise _BrokenError from None
