"""Rules about host code: what makes a library fail on another machine, or tell of the one it was built on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from spark_build.wheels.model import Library, WheelFacts

if TYPE_CHECKING:
    from spark_build.wheels.audit import Expected, Observation, Rule

# Platform tag -> kind of symbol -> versions that every system of that tag has.
Policies = Mapping[str, Mapping[str, frozenset[str]]]

_DEVICE = frozenset({"cuda", "amdgpu", "bpf"})
_ANYBODYS = ("/run/spark-build/", "/tmp/", "/var/tmp/", "/dev/shm/")  # noqa: S108 - names to look for
_REMOVE = "remove it (repair.clean_rpath in a recipe, patchelf by hand), or build without it"
_EVERYWHERE = ("/usr/", "/opt/", "/lib/", "/lib64/")


def error(text: str) -> Observation:
    """What blocks publishing."""
    return "error", text


def warning(text: str) -> Observation:
    """What does not."""
    return "warning", text


def _symbol_versions(facts: WheelFacts, expected: Expected) -> Iterator[Observation]:
    """auditwheel's policies: what a system of the platform tag may lack."""
    own = inside(facts)
    for tag in sorted({tag.rpartition("-")[2] for tag in facts.filename_tags}):
        policy = expected.policies.get(tag, {})
        for library in host_libraries(facts):
            above = [
                version
                for soname, version in library.host.versions
                if soname not in own and _above(version, policy)
            ]
            if above:
                yield error(
                    f"{library.path} needs {few(above)}, which a system of {tag} may lack: "
                    "let repair choose the tag, or build on an older system"
                )


def _above(version: str, policy: Mapping[str, frozenset[str]]) -> bool:
    kind, _, number = version.partition("_")
    return kind in policy and number not in policy[kind]


def _rpath(facts: WheelFacts, _: Expected) -> Iterator[Observation]:
    users: dict[str, list[str]] = {}
    for library in host_libraries(facts):
        for folder in library.host.rpaths:
            users.setdefault(folder, []).append(library.path)
    for folder, paths in users.items():
        if beside_library(folder):
            continue
        if folder.startswith(_ANYBODYS):
            yield error(
                f"the RPATH of {few(paths)} names {folder}, where a build was or anybody may write: "
                "use $ORIGIN, or set CMAKE_SKIP_RPATH"
            )
        elif folder.startswith(_EVERYWHERE):
            yield warning(
                f"the RPATH of {few(paths)} names {folder}, which is searched before the system's "
                f"own folders: {_REMOVE}"
            )
        elif folder.startswith("/"):
            # No error: some interpreters (pyenv's) tell every extension to look in their own folder.
            yield warning(
                f"the RPATH of {few(paths)} names {folder}, a folder of the machine that built it: {_REMOVE}"
            )
        else:
            yield error(
                f"the RPATH of {few(paths)} names {folder or 'an empty path'}, which is looked for in "
                "whatever folder a program runs: use $ORIGIN"
            )


def beside_library(folder: str) -> bool:
    """Whether an entry of an RPATH is relative to the file it stands in."""
    return bool(re.match(r"\$(ORIGIN\b|\{ORIGIN\})", folder))


def _build_paths(facts: WheelFacts, _: Expected) -> Iterator[Observation]:
    for library in facts.libraries:
        if library.host.leaks:
            yield warning(
                f"{library.path} holds {first(library.host.leaks)}, like a path of the build machine: "
                "compile with -ffile-prefix-map"
            )


def _executable_memory(facts: WheelFacts, _: Expected) -> Iterator[Observation]:
    for library in host_libraries(facts):
        if library.host.writable_code:
            yield error(
                f"{library.path} has a segment that is writable and executable: link it without --omagic (-N)"
            )
        if library.host.executable_stack:
            yield error(
                f"{library.path} wants an executable stack, or does not say that it needs none; glibc 2.41 "
                "refuses to load it: link with -z noexecstack"
            )


def _text_relocations(facts: WheelFacts, _: Expected) -> Iterator[Observation]:
    for library in host_libraries(facts):
        if library.host.text_relocations:
            yield error(
                f"{library.path} has text relocations, which hardened systems refuse: compile it with -fPIC"
            )


def _duplicates(facts: WheelFacts, _: Expected) -> Iterator[Observation]:
    for same in _groups(host_libraries(facts), lambda library: library.sha256):
        yield warning(f"{few([one.path for one in same])} are the same file: keep one")
    for same in _groups(host_libraries(facts), lambda library: library.host.soname):
        if len({one.sha256 for one in same}) > 1:
            yield warning(
                f"{few([one.path for one in same])} are all called {same[0].host.soname} (soname), and a "
                "process gets whichever it loads first: keep one"
            )


def _groups(libraries: list[Library], key: Callable[[Library], str]) -> list[list[Library]]:
    """Libraries that have the same key, where there are several."""
    groups: dict[str, list[Library]] = {}
    for library in libraries:
        if key(library):
            groups.setdefault(key(library), []).append(library)
    return [group for group in groups.values() if len(group) > 1]


def inside(facts: WheelFacts) -> set[str]:
    """The names by which the wheel's own libraries are found."""
    return {
        name for one in facts.libraries for name in (one.path.rpartition("/")[2], one.host.soname) if name
    }


def host_libraries(facts: WheelFacts) -> list[Library]:
    """All but code for the GPU or the kernel."""
    return [library for library in facts.libraries if library.machine not in _DEVICE]


def first(names: tuple[str, ...]) -> str:
    """Of a list that may not be complete, so that its length says nothing."""
    return names[0] + (" and others" if len(names) > 1 else "")


def few(names: tuple[str, ...] | list[str]) -> str:
    """The first few names."""
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - 3} more" if len(unique) > 3 else ""
    return ", ".join(unique[:3]) + more


HOST_RULES: tuple[tuple[str, Rule], ...] = (
    ("symbol-versions", _symbol_versions),
    ("rpath", _rpath),
    ("build-paths", _build_paths),
    ("executable-memory", _executable_memory),
    ("text-relocations", _text_relocations),
    ("duplicates", _duplicates),
)
