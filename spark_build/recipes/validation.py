"""What must hold in a recipe, train or target beyond the shape of its tables.

These rules read the raw TOML tables and pass over values of a wrong type: those are reported by
recipes/parse.py, and a text with one kind of mistake should still be told of the other kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion

from spark_build.recipes.rawtables import (
    PLATFORMS,
    Finding,
    below,
    items,
    name_rule,
    one_of,
    platforms,
    table,
    tables,
    version_of,
)
from spark_build.recipes.rules_build import PLACEHOLDERS, build_findings
from spark_build.recipes.toml_positions import Path

__all__ = ["PLACEHOLDERS", "PLATFORMS", "Finding", "recipe_findings", "target_findings", "train_findings"]

_NEEDED = {
    "git": ("url", "commit"),
    "archive": ("url", "sha256"),
    "sdist": ("project", "filename", "sha256"),
    "wheel": ("project", "filename", "sha256"),
}
_ALLOWED = {kind: {*keys, "kind", "platform", "note"} for kind, keys in _NEEDED.items()}
_ALLOWED["git"] |= {"tag", "submodules", "mirrors"}
_ALLOWED["archive"] |= {"mirrors"}
_URL = re.compile(r"(https?|ssh|git|file)://\S+|/\S+")


def recipe_findings(raw: Mapping[str, Any]) -> Iterator[Finding]:
    """What is wrong with the values of a recipe."""
    yield from name_rule(raw.get("name"), ("name",))
    needs = [need.get("name") for _, need in tables(raw, "needs")]
    yield from build_findings(raw, needs)
    yield from _need_rules(raw, needs)
    if isinstance(raw.get("pin"), dict):
        yield from _pin_rules(("pin",), str(raw.get("name", "it")), raw["pin"])
    for index, patch in tables(raw, "patches"):
        yield from _patch_rules(("patches", index), patch)
    yield from platforms(table(raw, "requires"), ("requires",))
    for index, check in enumerate(items(table(raw, "verify"), "checks")):
        if isinstance(check, str) and not re.fullmatch("[a-z0-9_]+", check):
            yield ("verify", "checks", index), f"'{check}' is no name of a check: bench/checks/<name>.py"


def train_findings(raw: Mapping[str, Any]) -> Iterator[Finding]:
    """What is wrong with the pins of a train."""
    for name, version in table(raw, "closure").items():
        yield from name_rule(name, ("closure", name))
        yield from _version_rule(version, ("closure", name))
    for name, pin in table(raw, "components").items():
        path: Path = ("components", name)
        yield from name_rule(name, path)
        if isinstance(pin, dict):
            yield from _pin_rules(path, name, pin)


def target_findings(raw: Mapping[str, Any]) -> Iterator[Finding]:
    """What is wrong with the description of a machine."""
    yield from one_of(raw.get("platform"), (*PLATFORMS, "host"), ("platform",), "platform")
    python = raw.get("python")
    if isinstance(python, str) and not re.fullmatch(r"cp3\d+t?|host", python):
        yield ("python",), f"python must be like cp312, or host, not '{python}'"
    architectures = items(raw, "cuda_architectures")
    for index, entry in enumerate(architectures):
        if isinstance(entry, str) and not re.fullmatch(r"\d{1,2}\.\d", entry):
            yield ("cuda_architectures", index), f"a CUDA architecture must be like 12.1, not '{entry}'"
    cuda = raw.get("cuda", "")
    if isinstance(cuda, str) and cuda and not re.fullmatch(r"\d+\.\d+", cuda):
        yield ("cuda",), f"cuda must be like 13.0, not '{cuda}'"
    if bool(cuda) != bool(architectures):
        have, lack = ("cuda", "cuda_architectures") if cuda else ("cuda_architectures", "cuda")
        yield (have,), f"{have} without {lack}: give both, or neither for a machine without CUDA"


def _pin_rules(path: Path, name: str, pin: Mapping[str, Any]) -> Iterator[Finding]:
    """A component's pin: in a train, or in its own recipe."""
    sources = list(tables(pin, "sources"))
    if pin.get("sources") == [] and not pin.get("unestablished"):
        yield (
            (*path, "sources"),
            f"{name} has no source: pin one, or say in unestablished why there is none",
        )
    commits = [str(source.get("commit", "")) for _, source in sources if source.get("kind") == "git"]
    if not _is_hash_version(pin.get("version"), commits):
        yield from _version_rule(pin.get("version"), (*path, "version"))
    # Of several projects: a set that makes one prefix, in which each wheel has its own version.
    is_set = len({str(source.get("project")) for _, source in sources if source.get("kind") == "wheel"}) > 1
    seen: set[tuple[str, str]] = set()
    for index, source in sources:
        yield from _source_rules((*path, "sources", index), source)
        version = None if is_set else pin.get("version")
        yield from _filename_rule((*path, "sources", index), source, version)
        which = (str(source.get("project")), str(source.get("platform")))
        if is_set and which in seen:
            yield (*path, "sources", index), f"{which[0]} is in this set already, for the same platform"
        seen.add(which)
        for key in ("copy", "folder"):
            if key in source:
                yield (*path, "sources", index, key), f"'{key}' has a meaning in an extra source only"
    for extra, source in table(pin, "extra_sources").items():
        if isinstance(source, dict):
            where: Path = (*path, "extra_sources", extra)
            yield from _source_rules(where, source)
            yield from _filename_rule(where, source, None)
            yield from name_rule(source.get("folder") or None, (*where, "folder"))
            for inside, laid in table(source, "copy").items():
                yield from below(inside, (*where, "copy", inside), "the path in the source")
                yield from below(laid, (*where, "copy", inside), "the path in the folder")


def _source_rules(path: Path, source: Mapping[str, Any]) -> Iterator[Finding]:
    """Each kind of source has its own way to be pinned."""
    kind = source.get("kind")
    if kind == "local":
        yield (*path, "kind"), "a folder is no pinned source: name it with --source NAME=DIR"
    if kind not in _NEEDED:
        return
    for key in _NEEDED[kind]:
        if not source.get(key):
            yield path, f"a source of kind {kind} needs '{key}'"
    if kind == "git" and not source.get("tag") and not source.get("note"):
        yield path, "a source of kind git needs 'tag' (or a 'note' that says why there is none)"
    for key in source:
        if key not in _ALLOWED[kind] and key in {"tag", "submodules", "mirrors"}.union(*_NEEDED.values()):
            yield (*path, key), f"'{key}' has no meaning in a source of kind {kind}"
    yield from _digits_rule(source.get("sha256"), 64, (*path, "sha256"))
    yield from _digits_rule(source.get("commit"), 40, (*path, "commit"))
    yield from one_of(source.get("platform") or None, PLATFORMS, (*path, "platform"), "platform")
    yield from _url_rules(path, source)


def _url_rules(path: Path, source: Mapping[str, Any]) -> Iterator[Finding]:
    """The places of a source: each one an address, none of them twice."""
    listed = [((*path, "mirrors", index), place) for index, place in enumerate(items(source, "mirrors"))]
    seen: set[str] = set()
    for where, place in [((*path, "url"), source.get("url")), *listed]:
        if not isinstance(place, str) or (where[-1] == "url" and not place):
            continue
        what = "url" if where[-1] == "url" else "a mirror"
        if not _URL.fullmatch(place):
            yield (
                where,
                f"{what} must start with https://, http://, ssh://, git://, file:// or /, not '{place}'",
            )
        if place in seen:
            yield where, f"the mirror '{place}' is named already"
        seen.add(place)


def _filename_rule(path: Path, source: Mapping[str, Any], version: object) -> Iterator[Finding]:
    """The file must be of this project and version: a pin updated by half is caught here."""
    filename, project, kind = source.get("filename"), source.get("project"), source.get("kind")
    if kind not in ("sdist", "wheel") or not isinstance(filename, str) or not filename:
        return
    try:
        parse = parse_sdist_filename if kind == "sdist" else parse_wheel_filename
        found_name, found_version = parse(filename)[:2]
    except (InvalidSdistFilename, InvalidWheelFilename, InvalidVersion):
        yield (
            (*path, "filename"),
            f"'{filename}' is no file name of {'an sdist' if kind == 'sdist' else 'a wheel'}",
        )
        return
    if isinstance(project, str) and project and canonicalize_name(project) != found_name:
        yield (*path, "filename"), f"'{filename}' is no file of the project {project}"
    if isinstance(version, str) and version_of(version) not in (None, found_version):
        yield (*path, "filename"), f"'{filename}' is version {found_version}, but the pin says {version}"


def _need_rules(raw: Mapping[str, Any], needs: list[Any]) -> Iterator[Finding]:
    for index, need in tables(raw, "needs"):
        path, name = ("needs", index, "name"), need.get("name")
        yield from name_rule(name, path)
        if name is not None and name == raw.get("name"):
            yield path, f"{name} cannot need itself"
        if name is not None and name in needs[:index]:
            yield path, f"the need '{name}' is listed twice"
        yield from platforms(table(need, "when"), ("needs", index, "when"))
        if need.get("providers") == []:
            yield ("needs", index, "providers"), f"the need '{name}' has no provider: store, public or path"


def _patch_rules(path: Path, patch: Mapping[str, Any]) -> Iterator[Finding]:
    file = patch.get("file")
    if isinstance(file, str) and (not file or file.startswith("/") or ".." in file.split("/")):
        yield (*path, "file"), f"'{file}' must be a path below patches/"
    if patch.get("why") == "":
        yield (*path, "why"), "say why the patch exists"
    yield from _digits_rule(patch.get("sha256"), 64, (*path, "sha256"))


def _digits_rule(value: object, count: int, path: Path) -> Iterator[Finding]:
    if isinstance(value, str) and value and not re.fullmatch(f"[0-9a-f]{{{count}}}", value):
        yield path, f"{path[-1]} must be {count} hexadecimal digits in lower case"


def _version_rule(value: object, path: Path) -> Iterator[Finding]:
    if isinstance(value, str) and version_of(value) is None:
        yield path, f"'{value}' is no version"


def _is_hash_version(version: object, commits: list[str]) -> bool:
    """Components without releases of their own (Triton's LLVM) go by the start of their commit."""
    return isinstance(version, str) and len(version) >= 7 and any(c.startswith(version) for c in commits)
