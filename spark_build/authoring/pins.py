"""Write, check and move pins; find outdated ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from packaging.tags import Tag
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from spark_build.authoring.sdist_metadata import version_in
from spark_build.errors import Hint, RecipeError, SourceError, UsageError, ours
from spark_build.files import CHUNK, sha256_of, text_of, write_atomically
from spark_build.paths import Home
from spark_build.recipes.model import Pin, Recipe, Source, Train
from spark_build.recipes.parse import load_toml
from spark_build.recipes.toml_positions import set_value
from spark_build.sources import git_remote, http
from spark_build.sources.simple_api import IDENTITY, Indexes, IndexFile, configured, files_of, find, size_of
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
        """Yield all sources with their place in the file."""
        for index, source in enumerate(self.raw.get("sources", ())):
            yield (*self.keys, "sources", index), source
        for name, source in self.raw.get("extra_sources", {}).items():
            yield (*self.keys, "extra_sources", name), source


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Result for one source; state: pinned, ok, written, changed, or unknown with the reason."""

    recipe: str
    source: str
    state: str
    pinned: str = ""
    found: str = ""


@dataclass(slots=True)
class _Edits:
    """Changes by file, written together at the end."""

    texts: dict[Path, str] = field(default_factory=dict)

    def set(self, path: Path, keys: Keys, value: str | int) -> None:
        text = self.texts[path] if path in self.texts else path.read_bytes().decode()
        self.texts[path] = set_value(text, keys, value, file=str(path))

    def write(self) -> tuple[Path, ...]:
        """Write all changes and return the files."""
        changed = [path for path, text in self.texts.items() if text != path.read_bytes().decode()]
        for path in changed:
            write_atomically(path, self.texts[path])
        return tuple(changed)


def sites(home: Home, train: str | None, names: Sequence[str]) -> list[Site]:
    """Return the pins of a train (default: the default one), and the recipes' own that it lacks.

    Without names: where the user's own folders have pins, those only, not the shipped ones. Reads the
    files as they are: an unfinished pin is no recipe error here.
    """
    files = _files(home, "recipes/trains")
    raws = {name: _load(path) for name, path in files.items()}
    name = train or next((name for name, raw in raws.items() if raw.get("default") is True), "default")
    if name not in raws:
        raise UsageError(
            f"no train is named '{name}'{nearest(name, raws)}", hint=f"trains: {', '.join(raws)}"
        )
    components = raws[name].get("components", {})
    _need_shape(isinstance(components, dict), files[name], ("components",), "a table")
    found = {one: _site(one, files[name], ("components", one), pin) for one, pin in components.items()}
    for one, path in _files(home, "recipes").items():
        pin = _load(path).get("pin")
        if one not in found and isinstance(pin, dict):
            found[one] = _site(one, path, ("pin",), pin)
    for wanted in names:
        if wanted not in found:
            raise UsageError(
                f"train {name} has no pin of '{wanted}'{nearest(wanted, found)}", hint=ours("recipes list")
            )
    shipped = home.data[-1] / "recipes"
    own = [one for one, site in found.items() if not site.path.is_relative_to(shipped)]
    return [found[name] for name in sorted(names or own or found)]


def _site(recipe: str, path: Path, keys: Keys, raw: Any) -> Site:
    """Return a component's pin. Raises RecipeError where its tables are something else."""
    _need_shape(isinstance(raw, dict), path, keys, "a table")
    sources, extra = raw.get("sources", []), raw.get("extra_sources", {})
    is_list = isinstance(sources, list) and all(isinstance(source, dict) for source in sources)
    _need_shape(is_list, path, (*keys, "sources"), "an array of tables")
    is_table = isinstance(extra, dict) and all(isinstance(source, dict) for source in extra.values())
    _need_shape(is_table, path, (*keys, "extra_sources"), "a table of tables")
    return Site(recipe=recipe, path=path, keys=keys, raw=raw)


def _need_shape(is_right: bool, path: Path, keys: Keys, shape: str) -> None:
    if not is_right:
        raise RecipeError(f"{'.'.join(map(str, keys))} must be {shape}", where=str(path))


def chosen_by(home: Home, train: str | None, names: Sequence[str]) -> tuple[list[Site], list[str]]:
    """Return the pins that names mean, and whose locks: recipes, and trains, named or by their pins."""
    trains = [name for name in names if name.startswith("trains/")]
    known = _files(home, "recipes/trains")
    for name in (one.removeprefix("trains/") for one in trains):
        if name not in known:
            raise UsageError(f"no train is named '{name}'{nearest(name, known)}")
    if trains and len(trains) == len(names):
        return [], trains
    found = sites(home, train, [name for name in names if name not in trains])
    of_pins = {
        f"trains/{site.path.stem}" for site in found if site.path.parent.name == "trains" and not names
    }
    return found, [*(site.recipe for site in found), *trains, *sorted(of_pins)]


def fill_pins(chosen: Sequence[Site], *, sizes: bool = False) -> tuple[list[Row], tuple[Path, ...]]:
    """Write missing hashes and commits; returns a row for each source, and the files changed.

    Files get their size with the hash; sizes: also those that have a hash already, where a server says it.
    """
    edits, rows, asked = _Edits(), [], SourceLookup()
    for site in chosen:
        for keys, source in site.sources():
            kind = str(source.get("kind", ""))
            key = "commit" if kind == "git" else "sha256"
            named = _name(source)
            if source.get(key):
                if sizes and not source.get("size") and (size := asked.size(source)):
                    edits.set(site.path, (*keys, "size"), size)
                rows.append(Row(recipe=site.recipe, source=named, state="pinned", pinned=source[key]))
                continue
            try:
                value = asked.identity(source)
            except SourceError as error:
                rows.append(Row(recipe=site.recipe, source=named, state=f"unknown ({error.message})"))
                continue
            edits.set(site.path, (*keys, key), value)
            if size := asked.size({**source, key: value}):
                edits.set(site.path, (*keys, "size"), size)
            rows.append(Row(recipe=site.recipe, source=named, state="written", found=value))
    return rows, edits.write()


def check_pins(chosen: Sequence[Site]) -> list[Row]:
    """Compare the pins with what indexes announce and tags name now."""
    rows, asked = [], SourceLookup()
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


def move_pin(site: Site, version: str) -> tuple[list[Row], tuple[Path, ...]]:
    """Pin another version of all its sources, or of none. Raises SourceError when one lacks it."""
    new, old = _version(version), str(site.raw.get("version", ""))
    _refuse_set(site, version)
    edits, rows, asked = _Edits(), [], SourceLookup()
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


def _refuse_set(site: Site, version: str) -> None:
    """Raise UsageError for a set of wheels: each of its parts has its own version."""
    wheels = [one for one in site.raw.get("sources", ()) if one.get("kind") == "wheel"]
    projects = {str(wheel.get("project")) for wheel in wheels}
    if len(projects) < 2:
        return
    raise UsageError(
        f"{site.recipe} is a set of {len(projects)} projects' wheels, each with a version of its own: "
        f"--version cannot move it to {version}",
        hint=Hint(
            f"in {site.path} write the filenames that belong to {version} (the requirements of the set's "
            'own project and of the one that it is for say which) and sha256 = "", then: ',
            ours("recipes pin", site.recipe),
        ),
    )


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        raise UsageError(f"'{text}' is no version", hint="--version onnx=1.19.1") from None


def _name(source: Mapping[str, Any]) -> str:
    """Return a source's name for people."""
    if source.get("kind") == "git":
        return f"{source.get('url', '')}@{source.get('tag') or str(source.get('commit', ''))[:12]}"
    return str(source.get("filename") or source.get("url", ""))


def _files(home: Home, folder: str) -> dict[str, Path]:
    """Return the files of all data folders by name; the first of a name wins."""
    found: dict[str, Path] = {}
    for base in home.data:
        for path in sorted((base / folder).glob("*.toml")):
            found.setdefault(path.stem, path)
    return found


def _load(path: Path) -> dict[str, Any]:
    return load_toml(text_of(path, "recipes and trains are TOML"), str(path))


@dataclass(frozen=True, kw_only=True, slots=True)
class Age:
    """One component's age; state: current, outdated, ahead, or unknown with the reason."""

    recipe: str
    pinned: str
    newest: str
    source: str  # who was asked: index, git
    state: str


def ages(train: Train, recipes: Mapping[str, Recipe], names: Sequence[str]) -> list[Age]:
    """Return the ages of a train's components; unknown, with the reason, where nothing answers."""
    indexes = configured()
    return [_age(name, train.components[name], indexes, _released_as(recipes.get(name))) for name in names]


def _released_as(recipe: Recipe | None) -> str:
    """Return the name of a recipe's releases on an index; "" for what is never a wheel.

    A set of wheels goes by the vendor's name for the whole of it.
    """
    return recipe.distribution if recipe and recipe.kind != "cmake" else ""


def _age(name: str, pin: Pin, indexes: Indexes, distribution: str) -> Age:
    """Return a pin's age from the first source that answers, else from the distribution on the index."""
    sources = () if _is_set(pin.sources) else pin.sources
    asks: list[tuple[str, Callable[[], list[Version]]]] = [
        ("git" if source.kind == "git" else "index", partial(_offered, source, pin, indexes))
        for source in sources
    ]
    if distribution and not any(source.kind in ("sdist", "wheel") for source in sources):
        asks.append(("index", partial(_released, distribution, indexes)))
    reasons: list[str] = []
    for asked, offered in asks:
        try:
            newest = _newest(offered(), pin.version)
        except SourceError as error:
            reasons.append(error.message)
            continue
        return Age(
            recipe=name, pinned=pin.version, newest=str(newest), source=asked, state=_state(newest, pin)
        )
    state = f"unknown ({'; '.join(dict.fromkeys(reasons)) or 'it has no source'})"
    return Age(recipe=name, pinned=pin.version, newest="", source="", state=state)


def _is_set(sources: Iterable[Source]) -> bool:
    """Return whether a component is made of wheels of several projects, with their own versions."""
    return len({source.project for source in sources if source.kind == "wheel"}) > 1


def _released(distribution: str, indexes: Indexes) -> list[Version]:
    """Return the versions on the index, without those with a local label."""
    facts = [facts_of(file.filename, distribution) for file in files_of(distribution, indexes)]
    return [fact[0] for fact in facts if fact and not fact[0].local]


def _offered(source: Source, pin: Pin, indexes: Indexes) -> list[Version]:
    if source.kind in ("sdist", "wheel"):
        facts = [facts_of(file.filename, source.project) for file in files_of(source.project, indexes)]
        return [fact[0] for fact in facts if fact]
    if source.kind == "archive":
        raise SourceError("an archive's server lists no versions")
    before, found, after = source.tag.partition(pin.version)
    if not found:
        raise SourceError("it is pinned by a commit, not by a version's tag")
    tags = [
        tag for tag in git_remote.remote_tags(source.url) if tag.startswith(before) and tag.endswith(after)
    ]
    names = [tag[len(before) : len(tag) - len(after)] for tag in tags]
    return list(_versions(name for name in names if version_in(name) == name))


def _versions(names: Iterable[str]) -> Iterable[Version]:
    for name in names:
        try:
            yield Version(name)
        except InvalidVersion:
            continue


def _newest(offered: list[Version], pinned: str) -> Version:
    """Return the newest release; a pre-release only when there is nothing else or one is pinned."""
    if any(version.is_prerelease for version in _versions([pinned])):
        releases = offered
    else:
        releases = [version for version in offered if not version.is_prerelease] or offered
    if not releases:
        raise SourceError("no version of it is there")
    return max(releases)


def _state(newest: Version, pin: Pin) -> str:
    for pinned in _versions([pin.version]):
        if pinned == newest:
            return "current"
        return "outdated" if pinned < newest else "ahead"
    return "unknown (its pin is no version)"


def sha256_of_file(file: IndexFile, indexes: Indexes) -> str:
    """Return a file's sha256 as announced, else of its content, which is downloaded."""
    if file.sha256:
        return file.sha256
    return sha256_of_url(file.url, indexes)


def sha256_of_url(url: str, indexes: Indexes) -> str:
    """Return the sha256 of the content at a URL. Raises SourceError when it cannot be read."""
    if not http.is_remote(url):
        path = Path(http.path_of(url))
        if not path.is_file():
            raise SourceError(f"there is no file {path}")
        return sha256_of(path)
    digest = hashlib.sha256()
    try:
        with (
            http.Session(indexes.config) as session,
            session.ask("GET", url, headers=IDENTITY, stream=True) as answer,
        ):
            if not answer.ok:
                raise SourceError(f"{http.host_of(url)}: HTTP {answer.status_code} {answer.reason}".strip())
            for chunk in answer.raw.stream(CHUNK, decode_content=False):
                digest.update(chunk)
    except http.NETWORK_ERRORS as error:
        raise SourceError(f"{http.host_of(url)}: {http.network_reason(error)}") from error
    return digest.hexdigest()


class SourceLookup:
    """Indexes and repositories, each asked once."""

    def __init__(self) -> None:
        self._tags: dict[str, dict[str, str] | SourceError] = {}

    @cached_property
    def indexes(self) -> Indexes:
        """Package indexes of pip, read on first use."""
        return configured()

    def commit(self, url: str, tag: str) -> str:
        """Return the commit of a tag; a repository that did not answer is not asked again."""
        if url not in self._tags:
            try:
                self._tags[url] = git_remote.remote_tags(url)
            except SourceError as error:
                self._tags[url] = error
        known = self._tags[url]
        if isinstance(known, SourceError):
            raise known
        if tag not in known:
            raise SourceError(f"{url} has no tag '{tag}'{nearest(tag, known)}")
        return known[tag]

    def identity(self, source: Mapping[str, Any]) -> str:
        """Return what pins a source: its tag's commit, or its file's sha256."""
        if source.get("kind") in ("sdist", "wheel", "git"):
            return self.announced(source)
        return sha256_of_url(str(source.get("url", "")), self.indexes)

    def announced(self, source: Mapping[str, Any]) -> str:
        """Return like `identity`, but without downloading."""
        if source.get("kind") == "git":
            if not source.get("tag"):
                raise SourceError("it is pinned by a commit without a tag")
            return self.commit(str(source.get("url", "")), str(source["tag"]))
        if source.get("kind") in ("sdist", "wheel"):
            project, filename = str(source.get("project", "")), str(source.get("filename", ""))
            return sha256_of_file(find(project, filename, self.indexes), self.indexes)
        if http.is_remote(str(source.get("url", ""))):
            raise SourceError("no index announces the hash of an archive")
        return sha256_of_url(str(source.get("url", "")), self.indexes)

    def size(self, source: Mapping[str, Any]) -> int:
        """Return the bytes of a source's file as its server says; 0 where it does not, or for git."""
        if source.get("kind") == "git":
            return 0
        file = IndexFile(project="", filename="", url=str(source.get("url", "")))
        if source.get("kind") in ("sdist", "wheel"):
            project, filename = str(source.get("project", "")), str(source.get("filename", ""))
            try:
                file = find(project, filename, self.indexes, sha256=str(source.get("sha256", "")))
            except SourceError:
                return 0
        return size_of(file, self.indexes) or 0

    def moved(self, source: Mapping[str, Any], old: str, new: str, version: Version) -> dict[str, Any]:
        """Return the keys of a source that another version changes, with their new values."""
        changes: dict[str, Any] = self._moved(source, old, new, version)
        # The old file's size is the new one's in no case.
        sized = source.get("size") and source.get("kind") != "git"
        return {**changes, "size": self.size({**source, **changes})} if sized else changes

    def _moved(self, source: Mapping[str, Any], old: str, new: str, version: Version) -> dict[str, str]:
        kind = source.get("kind")
        if kind in ("sdist", "wheel"):
            file = self._file(source, version)
            return {"filename": file.filename, "sha256": sha256_of_file(file, self.indexes)}
        key = "tag" if kind == "git" else "url"
        place = str(source.get(key, ""))
        if not old or old not in place:
            raise SourceError(f"cannot tell the {key} of {new} from {place or 'a commit alone'}")
        place = place.replace(old, new)
        if kind == "git":
            return {"tag": place, "commit": self.commit(str(source.get("url", "")), place)}
        return {"url": place, "sha256": sha256_of_url(place, self.indexes)}

    def _file(self, source: Mapping[str, Any], version: Version) -> IndexFile:
        project, filename = str(source.get("project", "")), str(source.get("filename", ""))
        files = files_of(project, self.indexes)
        wanted = facts_of(filename, project)
        there = [(facts_of(file.filename, project), file) for file in files]
        fitting = [file for facts, file in there if facts and wanted and facts == (version, wanted[1])]
        if not fitting:
            same = sorted({facts[0] for facts, _ in there if facts and wanted and facts[1] == wanted[1]})
            some = ", ".join(str(one) for one in reversed(same[-8:]))
            like = f"such as {filename}" if source.get("kind") == "wheel" else "as an sdist"
            raise SourceError(f"there is no {project} {version} {like}", hint=f"there are {some or 'none'}")
        return fitting[0]


def facts_of(filename: str, project: str) -> tuple[Version, frozenset[Tag]] | None:
    """Return version and wheel tags (() for an sdist) of a project's file; None for any other file."""
    tags: frozenset[Tag] = frozenset()
    try:
        if filename.endswith(".whl"):
            name, version, _, tags = parse_wheel_filename(filename)
        else:
            name, version = parse_sdist_filename(filename)
    except (InvalidSdistFilename, InvalidWheelFilename, InvalidVersion):  # of a time before the rules
        return None
    # "cffi-1.0.2-2.tar.gz" would be version 2 of cffi-1-0-2.
    return (version, tags) if name == canonicalize_name(project) else None
