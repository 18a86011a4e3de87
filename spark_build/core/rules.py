"""What must hold in a recipe, train or target beyond the shape of its tables.

These rules read the raw TOML tables and pass over values of a wrong type: those are reported by
core/parse.py, and a text with one kind of mistake should still be told of the other kind.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from spark_build.core.positions import Path

Finding = tuple[Path, str]  # where, and what is wrong there

PLATFORMS = ("linux-x86_64", "linux-aarch64")

# What an environment variable's value may refer to; recipes/README.md explains each.
PLACEHOLDERS = ("python", "pybind11_cmake_dir", "jobs", "cuda_home", "arch_list", "version", "label")

_NEEDED = {
    "git": ("url", "commit"),
    "archive": ("url", "sha256"),
    "sdist": ("project", "filename", "sha256"),
    "wheel": ("project", "filename", "sha256"),
}
_ALLOWED = {kind: {*keys, "kind", "platform", "note"} for kind, keys in _NEEDED.items()}
_ALLOWED["git"] |= {"tag", "submodules"}
_URL = re.compile(r"(https?|ssh|git|file)://\S+|/\S+")


def recipe_findings(raw: Mapping[str, Any]) -> Iterator[Finding]:
    """What is wrong with the values of a recipe."""
    yield from _name_rule(raw.get("name"), ("name",))
    build = _table(raw, "build")
    yield from _requirement_rules(build)
    for key in ("memory_per_job_mib", "core_minutes", "disk_mib"):
        amount = build.get(key, 1)
        if isinstance(amount, int | float) and not (math.isfinite(amount) and amount > 0):
            yield ("build", key), f"build.{key} must be more than 0"
    needs = [need.get("name") for _, need in _tables(raw, "needs")]
    for name, variable in _table(build, "env").items():
        yield from _variable_rules(name, variable, needs)
    yield from _need_rules(raw, needs)
    for index, patch in _tables(raw, "patches"):
        yield from _patch_rules(("patches", index), patch)
    for index, platform in enumerate(_list(_table(raw, "requires"), "platforms")):
        yield from _one_of(platform, PLATFORMS, ("requires", "platforms", index), "platform")
    for index, check in enumerate(_list(_table(raw, "verify"), "checks")):
        if isinstance(check, str) and not re.fullmatch("[a-z0-9_]+", check):
            yield ("verify", "checks", index), f"'{check}' is no name of a check: bench/checks/<name>.py"


def train_findings(raw: Mapping[str, Any]) -> Iterator[Finding]:
    """What is wrong with the pins of a train."""
    for name, version in _table(raw, "closure").items():
        yield from _name_rule(name, ("closure", name))
        yield from _version_rule(version, ("closure", name))
    for name, pin in _table(raw, "components").items():
        path: Path = ("components", name)
        yield from _name_rule(name, path)
        if not isinstance(pin, dict):
            continue
        sources = list(_tables(pin, "sources"))
        if pin.get("sources") == [] and not pin.get("unestablished"):
            yield (
                (*path, "sources"),
                f"{name} has no source: pin one, or say in unestablished why there is none",
            )
        commits = [str(source.get("commit", "")) for _, source in sources if source.get("kind") == "git"]
        if not _is_hash_version(pin.get("version"), commits):
            yield from _version_rule(pin.get("version"), (*path, "version"))
        for index, source in sources:
            yield from _source_rules((*path, "sources", index), source)
            yield from _filename_rule((*path, "sources", index), source, pin.get("version"))
        for extra, source in _table(pin, "extra_sources").items():
            if isinstance(source, dict):
                yield from _source_rules((*path, "extra_sources", extra), source)


def target_findings(raw: Mapping[str, Any]) -> Iterator[Finding]:
    """What is wrong with the description of a machine."""
    yield from _one_of(raw.get("platform"), (*PLATFORMS, "host"), ("platform",), "platform")
    python = raw.get("python")
    if isinstance(python, str) and not re.fullmatch(r"cp3\d+t?|host", python):
        yield ("python",), f"python must be like cp312, or host, not '{python}'"
    architectures = _list(raw, "cuda_architectures")
    for index, entry in enumerate(architectures):
        if isinstance(entry, str) and not re.fullmatch(r"\d{1,2}\.\d", entry):
            yield ("cuda_architectures", index), f"a CUDA architecture must be like 12.1, not '{entry}'"
    cuda = raw.get("cuda", "")
    if isinstance(cuda, str) and cuda and not re.fullmatch(r"\d+\.\d+", cuda):
        yield ("cuda",), f"cuda must be like 13.0, not '{cuda}'"
    if bool(cuda) != bool(architectures):
        have, lack = ("cuda", "cuda_architectures") if cuda else ("cuda_architectures", "cuda")
        yield (have,), f"{have} without {lack}: give both, or neither for a machine without CUDA"


def _source_rules(path: Path, source: Mapping[str, Any]) -> Iterator[Finding]:
    """Each kind of source has its own way to be pinned."""
    kind = source.get("kind")
    if kind not in _NEEDED:
        return
    for key in _NEEDED[kind]:
        if not source.get(key):
            yield path, f"a source of kind {kind} needs '{key}'"
    if kind == "git" and not source.get("tag") and not source.get("note"):
        yield path, "a source of kind git needs 'tag' (or a 'note' that says why there is none)"
    for key in source:
        if key not in _ALLOWED[kind] and key in {"tag", "submodules"}.union(*_NEEDED.values()):
            yield (*path, key), f"'{key}' has no meaning in a source of kind {kind}"
    yield from _digits_rule(source.get("sha256"), 64, (*path, "sha256"))
    yield from _digits_rule(source.get("commit"), 40, (*path, "commit"))
    yield from _one_of(source.get("platform") or None, PLATFORMS, (*path, "platform"), "platform")
    url = source.get("url")
    if isinstance(url, str) and url and not _URL.fullmatch(url):
        yield (
            (*path, "url"),
            f"url must start with https://, http://, ssh://, git://, file:// or /, not '{url}'",
        )


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
    if isinstance(version, str) and _version(version) not in (None, found_version):
        yield (*path, "filename"), f"'{filename}' is version {found_version}, but the pin says {version}"


def _requirement_rules(build: Mapping[str, Any]) -> Iterator[Finding]:
    seen: set[str] = set()
    for index, text in enumerate(_list(build, "requires")):
        path: Path = ("build", "requires", index)
        if not isinstance(text, str):
            continue
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            yield path, f"'{text}' is no requirement: write name==version"
            continue
        if not re.fullmatch(r"[A-Za-z0-9._-]+\s*==\s*[^,*;\s]+", text) or not _version(
            text.partition("==")[2]
        ):
            yield path, f"'{text}' is no exact pin: write {requirement.name}==version"
        name = canonicalize_name(requirement.name)
        if name in seen:
            yield path, f"{name} is pinned twice"
        seen.add(name)


def _variable_rules(name: str, variable: object, needs: list[Any]) -> Iterator[Finding]:
    path: Path = ("build", "env", name)
    if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
        yield path, f"'{name}' is no name of an environment variable"
    if not isinstance(variable, dict):
        return
    if variable.get("why") == "":
        yield (*path, "why"), f"say why {name} is set: name the file that reads it"
    value = variable.get("value")
    for placeholder in re.findall(r"\{([^{}]*)\}", value if isinstance(value, str) else ""):
        verb, _, other = placeholder.partition(":")
        known = verb in ("need", "version") if other else placeholder in PLACEHOLDERS
        if not known:
            options = ", ".join((*PLACEHOLDERS, "need:NAME", "version:NAME"))
            yield (*path, "value"), f"unknown placeholder {{{placeholder}}} (known: {options})"
        elif verb == "need" and other not in needs:
            yield (*path, "value"), f"{{{placeholder}}}: this recipe has no need '{other}'"


def _need_rules(raw: Mapping[str, Any], needs: list[Any]) -> Iterator[Finding]:
    for index, need in _tables(raw, "needs"):
        path, name = ("needs", index, "name"), need.get("name")
        yield from _name_rule(name, path)
        if name is not None and name == raw.get("name"):
            yield path, f"{name} cannot need itself"
        if name is not None and name in needs[:index]:
            yield path, f"the need '{name}' is listed twice"
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


def _name_rule(value: object, path: Path) -> Iterator[Finding]:
    if isinstance(value, str) and not re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", value):
        yield (
            path,
            f"the name '{value}' must be in lower case, words joined by '-': '{canonicalize_name(value)}'",
        )


def _version_rule(value: object, path: Path) -> Iterator[Finding]:
    if isinstance(value, str) and _version(value) is None:
        yield path, f"'{value}' is no version"


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _is_hash_version(version: object, commits: list[str]) -> bool:
    """Components without releases of their own (Triton's LLVM) go by the start of their commit."""
    return isinstance(version, str) and len(version) >= 7 and any(c.startswith(version) for c in commits)


def _one_of(value: object, options: tuple[str, ...], path: Path, what: str) -> Iterator[Finding]:
    if isinstance(value, str) and value not in options:
        yield path, f"{what} must be one of {', '.join(options)}, not '{value}'"


def _table(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = raw.get(key)
    return value if isinstance(value, dict) else {}


def _list(raw: Mapping[str, Any], key: str) -> list[Any]:
    value = raw.get(key)
    return value if isinstance(value, list) else []


def _tables(raw: Mapping[str, Any], key: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The tables of an array of tables, with their index."""
    for index, value in enumerate(_list(raw, key)):
        if isinstance(value, dict):
            yield index, value
