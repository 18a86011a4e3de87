"""Pins in the files of trains and recipes: fill in hashes, compare them, move to another version."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from spark_build.authoring.asking import Asked
from spark_build.errors import Problem, SourceError, UsageError
from spark_build.files import write_atomically
from spark_build.paths import Home
from spark_build.recipes.parse import joint_error
from spark_build.recipes.toml_positions import set_string
from spark_build.text import nearest

Keys = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """A component's pin in a file; `raw` is its table."""

    recipe: str
    path: Path
    keys: Keys
    raw: Mapping[str, Any]

    def sources(self) -> Iterator[tuple[Keys, Mapping[str, Any]]]:
        """All sources, with where they stand."""
        for index, source in enumerate(self.raw.get("sources", ())):
            yield (*self.keys, "sources", index), source
        for name, source in self.raw.get("extra_sources", {}).items():
            yield (*self.keys, "extra_sources", name), source


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What became of one source. state: pinned, ok, written, changed, unknown (reason)."""

    recipe: str
    source: str
    state: str
    pinned: str = ""
    found: str = ""


@dataclass(slots=True)
class _Edits:
    """Changes by file, written together at the end."""

    texts: dict[Path, str] = field(default_factory=dict)
    before: dict[Path, str] = field(default_factory=dict)

    def set(self, path: Path, keys: Keys, value: str) -> None:
        if path not in self.texts:
            self.texts[path] = self.before[path] = path.read_bytes().decode()
        self.texts[path] = set_string(self.texts[path], keys, value, file=str(path))

    def write(self) -> tuple[Path, ...]:
        """The files that changed."""
        changed = [path for path, text in self.texts.items() if text != self.before[path]]
        for path in changed:
            write_atomically(path, self.texts[path])
        return tuple(changed)


def sites(home: Home, train: str | None, names: Sequence[str]) -> list[Site]:
    """The pins of a train (default: the default one), and the recipes' own that it lacks.

    Reads the files as they are: an unfinished pin is no recipe error here.
    """
    files = _files(home, "recipes/trains")
    raws = {name: _load(path) for name, path in files.items()}
    name = train or next((name for name, raw in raws.items() if raw.get("default") is True), "default")
    if name not in raws:
        raise UsageError(
            f"no train is named '{name}'{nearest(name, raws)}", hint=f"trains: {', '.join(raws)}"
        )
    found = {
        one: Site(recipe=one, path=files[name], keys=("components", one), raw=pin)
        for one, pin in raws[name].get("components", {}).items()
    }
    for one, path in _files(home, "recipes").items():
        pin = _load(path).get("pin")
        if one not in found and isinstance(pin, dict):
            found[one] = Site(recipe=one, path=path, keys=("pin",), raw=pin)
    for one in names:
        if one not in found:
            raise UsageError(f"train {name} has no pin of '{one}'{nearest(one, found)}")
    return [found[one] for one in sorted(found) if not names or one in names]


def fill(chosen: Sequence[Site]) -> tuple[list[Row], tuple[Path, ...]]:
    """Write the hashes and commits that are missing: (what became of each source, files changed)."""
    edits, rows, asked = _Edits(), [], Asked()
    for site in chosen:
        for keys, source in site.sources():
            kind = str(source.get("kind", ""))
            key = "commit" if kind == "git" else "sha256"
            named = _name(source)
            if source.get(key):
                rows.append(Row(recipe=site.recipe, source=named, state="pinned", pinned=source[key]))
                continue
            try:
                value = asked.identity(source)
            except SourceError as error:
                rows.append(Row(recipe=site.recipe, source=named, state=f"unknown ({error.message})"))
                continue
            edits.set(site.path, (*keys, key), value)
            rows.append(Row(recipe=site.recipe, source=named, state="written", found=value))
    return rows, edits.write()


def check(chosen: Sequence[Site]) -> list[Row]:
    """Compare the pins with what indexes announce and repositories' tags name now."""
    rows, asked = [], Asked()
    for site in chosen:
        for _, source in site.sources():
            pinned = str(source.get("commit" if source.get("kind") == "git" else "sha256", ""))
            found = ""
            try:
                found = asked.announced(source)
                state = "ok" if found == pinned else "changed"
            except SourceError as error:
                state = f"unknown ({error.message})"
            rows.append(
                Row(recipe=site.recipe, source=_name(source), state=state, pinned=pinned, found=found)
            )
    return rows


def move(site: Site, version: str) -> tuple[list[Row], tuple[Path, ...]]:
    """Pin another version: all its sources, or nothing. Raises SourceError when one has none."""
    new, old = _version(version), str(site.raw.get("version", ""))
    edits, rows, asked = _Edits(), [], Asked()
    edits.set(site.path, (*site.keys, "version"), version)
    for index, source in enumerate(site.raw.get("sources", ())):
        changes = asked.moved(source, old, version, new)
        for key, value in changes.items():
            edits.set(site.path, (*site.keys, "sources", index, key), value)
        name = _name({**source, **changes})
        rows.append(
            Row(
                recipe=site.recipe,
                source=name,
                state="written",
                pinned=_name(source),
                found=changes.get("commit") or changes.get("sha256", ""),
            )
        )
    return rows, edits.write()


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        raise UsageError(f"'{text}' is no version", hint="--version onnx=1.19.1") from None


def _name(source: Mapping[str, Any]) -> str:
    """How a source is shown."""
    if source.get("kind") == "git":
        return f"{source.get('url', '')}@{source.get('tag') or str(source.get('commit', ''))[:12]}"
    return str(source.get("filename") or source.get("url", ""))


def _files(home: Home, folder: str) -> dict[str, Path]:
    """The files of all data folders by their names, the first of a name wins."""
    found: dict[str, Path] = {}
    for base in home.data:
        for path in sorted((base / folder).glob("*.toml")):
            found.setdefault(path.stem, path)
    return found


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise joint_error([Problem(file=str(path), line=0, message=f"not valid TOML: {error}")]) from error
