"""Audit rules for host code, packaging and files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from spark_build.errors import Severity
from spark_build.recipes.model import External, Target
from spark_build.wheels import model as wheels_model
from spark_build.wheels.elf import beside_library, leads_to, library_origin
from spark_build.wheels.model import DEVICE_MACHINES, Library, WheelFacts
from spark_build.wheels.payload import is_one_place


def external_libraries(facts: WheelFacts, expected: AuditExpectation) -> Iterator[Observation]:
    """Yield what would keep the loader from finding a library that another distribution brings."""
    if not expected.external:
        return
    unrequired: dict[str, list[str]] = {}
    unled: dict[str, list[tuple[str, str]]] = {}
    required = required_on(facts, platform=expected.platform, python=expected.python)
    own = inside(facts)
    for library in host_libraries(facts):
        for soname in library.needed:
            one = bringer(soname, expected.external)
            if one is None or soname in own:
                continue
            if not covers(required, one.distribution):
                unrequired.setdefault(one.distribution, []).append(soname)
            if not _leads(library, one.folder):
                unled.setdefault(one.folder, []).append((library.path, soname))
    if unrequired:
        lacking = [soname for sonames in unrequired.values() for soname in sonames]
        yield error(
            f"the wheel does not require {', '.join(unrequired)}: {few(lacking)} would be missing; "
            "add it to repair.requires"
        )
    for folder, pairs in unled.items():
        yield error(
            f"no RPATH of {few([path for path, _ in pairs])} leads to {folder}, where "
            f"{few([soname for _, soname in pairs])} will be: name the libraries in repair.rpath"
        )


def bringer(soname: str, external: tuple[External, ...]) -> External | None:
    """Return the first of these distributions that brings a library of this name."""
    for one in external:
        if any(fnmatchcase(soname, pattern) for pattern in one.libraries):
            return one
    return None


def required_on(facts: WheelFacts, *, platform: str, python: str) -> tuple[Requirement, ...]:
    """Return what a wheel requires on a platform ("linux-aarch64") and Python ("cp312"), without extras."""
    found = []
    for text in facts.requires:
        try:
            one = Requirement(text)
            if _counts_on(one, platform, python):
                found.append(one)
        except (InvalidRequirement, *_NO_ANSWER):  # the rule `requirements` tells of it
            continue
    return tuple(found)


# What evaluating a marker raises: an undefined comparison, a variable that metadata does not have.
_NO_ANSWER = (ValueError, LookupError)


def _counts_on(one: Requirement, platform: str, python: str) -> bool:
    """Return whether a requirement counts there without extras; raises _NO_ANSWER."""
    there = wheels_model.markers(Target(name="", summary="", platform=platform, python=python))
    return one.marker is None or one.marker.evaluate({**there, "extra": ""})


def covers(required: tuple[Requirement, ...], distribution: str) -> bool:
    """Return whether one of these requirements is for the distribution, with its extras."""
    wanted = Requirement(distribution)
    name = canonicalize_name(wanted.name)
    return any(canonicalize_name(one.name) == name and wanted.extras <= one.extras for one in required)


def _leads(library: Library, folder: str) -> bool:
    return any(leads_to(entry, library.path) == folder for entry in library.host.rpaths)


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditExpectation:
    """Expectations on the wheel from recipe, train and target."""

    distribution: str
    version: str
    platform: str  # linux-x86_64
    python: str  # cp311
    provided: tuple[str, ...]  # sonames from the driver, the toolkit or other wheels; wildcards allowed
    system_libraries: frozenset[str]  # sonames that every manylinux system has
    policies: Policies = field(default_factory=dict)  # symbol versions by platform tag
    external: tuple[External, ...] = ()  # distributions to be required that bring some of what is provided

    @property
    def machine(self) -> str:
        """The architecture of the platform: x86_64, aarch64."""
        return self.platform.partition("-")[2]


Observation = tuple[Severity, str]


# Platform tag -> kind of symbol -> versions that every system of that tag has.
Policies = Mapping[str, Mapping[str, frozenset[str]]]

_ANYBODYS = ("/run/spark-build/", "/tmp/", "/var/tmp/", "/dev/shm/")  # noqa: S108 - names to look for
_REMOVE = "remove it (repair.clean_rpath in a recipe, patchelf by hand), or build without it"
_EVERYWHERE = ("/usr/", "/opt/", "/lib/", "/lib64/")


def error(text: str) -> Observation:
    """Return an observation that blocks publishing."""
    return "error", text


def warning(text: str) -> Observation:
    """Return an observation that does not block publishing."""
    return "warning", text


def _symbol_versions(facts: WheelFacts, expected: AuditExpectation) -> Iterator[Observation]:
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


def best_platform_tag(facts: WheelFacts, policies: Policies) -> str:
    """Return the manylinux tag of the oldest systems that have every symbol version it needs, else ""."""
    own, libraries = inside(facts), host_libraries(facts)
    versions = {version for one in libraries for soname, version in one.host.versions if soname not in own}
    tags = [tag for tag in policies if re.match(r"manylinux_\d+_\d+_", tag)] if libraries else []
    for tag in sorted(tags, key=lambda tag: [int(number) for number in tag.split("_")[1:3]]):
        if not any(_above(version, policies[tag]) for version in versions):
            return tag
    return ""


def _above(version: str, policy: Mapping[str, frozenset[str]]) -> bool:
    kind, _, number = version.partition("_")
    return kind in policy and number not in policy[kind]


def stable_abi(facts: WheelFacts, _: AuditExpectation) -> Iterator[Observation]:
    """Yield symbols of the interpreter that the Python of an abi3 tag, or a later one, may lack."""
    pythons = [tag.split("-")[0] for tag in facts.filename_tags if tag.split("-")[1] == "abi3"]
    since = min((_minor(python) for python in pythons), default=None)
    if since is None:
        return
    for library in host_libraries(facts):
        added = {name: _added(name) for name in library.host.python_symbols}
        private = [name for name, minor in added.items() if minor is None]
        later = [(minor, name) for name, minor in added.items() if minor is not None and minor > since]
        if private:
            yield error(
                f"{library.path} uses {few(private)}, not in the stable ABI ({len(private)} such symbols), "
                "and the tag says abi3"
            )
        if later:
            newest = few([name for _, name in sorted(later, reverse=True)])
            yield error(
                f"{library.path} uses {newest}, in the stable ABI since Python 3.{max(later)[0]}, "
                f"and the tag says 3.{since}"
            )


def _minor(python: str) -> int:
    """Return 12 for cp312; for a tag without a minor version, the first Python with a stable ABI."""
    return int(python[3:]) if re.fullmatch(r"cp3\d+", python) else 2


def _added(name: str) -> int | None:
    """Return the Python 3 in which a symbol became part of the stable ABI; None for others."""
    from abi3info import DATAS, FUNCTIONS  # 30 ms to import, and few wheels are tagged abi3
    from abi3info.models import Symbol

    found = FUNCTIONS.get(Symbol(name)) or DATAS.get(Symbol(name))
    return found.added.minor if found else None


def _rpath(facts: WheelFacts, _: AuditExpectation) -> Iterator[Observation]:
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


def _build_paths(facts: WheelFacts, _: AuditExpectation) -> Iterator[Observation]:
    for library in facts.libraries:
        if library.host.leaks:
            yield warning(
                f"{library.path} holds {first(library.host.leaks)}, like a path of the build machine: "
                "compile with -ffile-prefix-map"
            )


def _executable_memory(facts: WheelFacts, _: AuditExpectation) -> Iterator[Observation]:
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


def _text_relocations(facts: WheelFacts, _: AuditExpectation) -> Iterator[Observation]:
    for library in host_libraries(facts):
        if library.host.text_relocations:
            yield error(
                f"{library.path} has text relocations, which hardened systems refuse: compile it with -fPIC"
            )


def _duplicates(facts: WheelFacts, _: AuditExpectation) -> Iterator[Observation]:
    for same in _groups(host_libraries(facts), lambda library: library.sha256):
        yield warning(f"{few([one.path for one in same])} are the same file: keep one")
    for same in _groups(host_libraries(facts), lambda library: library.host.soname):
        if len({one.sha256 for one in same}) > 1:
            yield warning(
                f"{few([one.path for one in same])} are all called {same[0].host.soname} (soname), and a "
                "process gets whichever it loads first: keep one"
            )


def _groups(libraries: list[Library], key: Callable[[Library], str]) -> list[list[Library]]:
    """Return libraries that have the same key, where there are several."""
    groups: dict[str, list[Library]] = {}
    for library in libraries:
        if key(library):
            groups.setdefault(key(library), []).append(library)
    return [group for group in groups.values() if len(group) > 1]


def inside(facts: WheelFacts) -> set[str]:
    """Return the names by which the wheel's own libraries are found."""
    return {
        name for one in facts.libraries for name in (one.path.rpartition("/")[2], one.host.soname) if name
    }


def host_libraries(facts: WheelFacts) -> list[Library]:
    """Return all but code for the GPU or the kernel."""
    return [library for library in facts.libraries if library.machine not in DEVICE_MACHINES]


def first(names: tuple[str, ...]) -> str:
    """Of a list that may not be complete, so that its length says nothing."""
    return names[0] + (" and others" if len(names) > 1 else "")


def few(names: tuple[str, ...] | list[str]) -> str:
    """Return the first few names."""
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


# Folders in site-packages that every second project would like to call its own.
_COMMON = re.compile(
    "benchmarks?|bin|build|data|docs?|etc|examples?|include|lib(64)?|scripts|share|src|tests?|tools|utils?"
)


def _dist_info(facts: WheelFacts, _: AuditExpectation) -> Iterator[Observation]:
    """pip takes the name from the folder and refuses a wheel whose file name says another one."""
    folder = facts.payload.dist_info
    name, version = folder.removesuffix(".dist-info").rpartition("-")[::2]
    if folder and (canonicalize_name(name) != facts.name or not _same(version, facts.version)):
        yield error(
            f"the folder {folder} is not that of {facts.name} {facts.version}, whose METADATA it holds: "
            "build again in a clean tree"
        )


def _same(one: str, other: str) -> bool:
    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return one == other


def _entries(facts: WheelFacts, _: AuditExpectation) -> Iterator[Observation]:
    payload = facts.payload
    for name, kind in payload.special:
        yield error(f"{name} is {kind}, which no wheel may hold: put a file there")
    for name in payload.privileged:
        yield error(f"{name} would run with another user's rights (set-user-ID): chmod ug-s before packing")
    if payload.writable:
        yield warning(
            f"{first(payload.writable)} may be written by everybody where modes are kept: "
            "chmod o-w before packing"
        )


def _names(facts: WheelFacts, _: AuditExpectation) -> Iterator[Observation]:
    for group in facts.payload.collisions:
        if not is_one_place(group):
            yield error(f"{few(group)} are one name where case or Unicode form do not count: rename")


def _places(facts: WheelFacts, _: AuditExpectation) -> Iterator[Observation]:
    for group in facts.payload.collisions:
        if is_one_place(group):
            yield error(f"{few(group)} would be installed at one and the same place: rename")


def _site_packages(facts: WheelFacts, _: AuditExpectation) -> Iterator[Observation]:
    payload = facts.payload
    for name in payload.schemes:
        yield error(f"{name} lies below .data where no installer knows a place: use purelib, data, ...")
    for top in payload.tops:
        if _COMMON.fullmatch(top.partition(".")[0]):
            yield warning(
                f"{top} lands in site-packages under a name that others use too: leave it out of the wheel"
            )


def _startup(facts: WheelFacts, _: AuditExpectation) -> Iterator[Observation]:
    for name in facts.payload.startup:
        yield error(f"{name} runs code at every start of Python: leave it out")


def _environment(facts: WheelFacts, _: AuditExpectation) -> Iterator[Observation]:
    for name, wrong in facts.payload.intrusive:
        yield error(f"{name} {wrong}: leave it out")


def _requirements(facts: WheelFacts, expected: AuditExpectation) -> Iterator[Observation]:
    for text in facts.requires:
        try:
            _counts_on(Requirement(text), expected.platform, expected.python)
        except InvalidRequirement:
            yield error(f"Requires-Dist: {text} is no requirement: write name==version, as PEP 508 says")
        except _NO_ANSWER:
            yield error(f"Requires-Dist: {text} has a marker without an answer, and installers stop at it")


def _torch_pin(facts: WheelFacts, _: AuditExpectation) -> Iterator[Observation]:
    """Yield what is wrong with the requirement on torch: only the torch that was linked works."""
    own = inside(facts)
    linked = [
        library.path
        for library in host_libraries(facts)
        if any(
            library_origin(soname) == ("stack", "it comes with torch")
            for soname in library.needed
            if soname not in own
        )
    ]
    pins = [one for one in _parsed(facts.requires) if canonicalize_name(one.name) == "torch"]
    if linked and not pins:
        yield warning(
            f"{linked[0]} is linked with torch, and METADATA requires none: add Requires-Dist: torch"
        )
    for pin in pins:
        if linked and not _names_one_build(pin):
            yield warning(
                f"{linked[0]} is linked with one build of torch, and Requires-Dist: {pin} lets "
                "installers take another, public one: pin torch==VERSION+LABEL"
            )


def _parsed(requires: tuple[str, ...]) -> Iterator[Requirement]:
    """Yield the unconditional requirements; another rule reports broken ones."""
    for text in requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if "extra" not in str(requirement.marker or ""):
            yield requirement


def _names_one_build(requirement: Requirement) -> bool:
    return any(one.operator in ("==", "===") and "+" in one.version for one in requirement.specifier)


PACKAGING_RULES: tuple[tuple[str, Rule], ...] = (
    ("dist-info", _dist_info),
    ("entries", _entries),
    ("names", _names),
    ("places", _places),
    ("site-packages", _site_packages),
    ("startup-code", _startup),
    ("environment", _environment),
    ("requirements", _requirements),
    ("torch-pin", _torch_pin),
)


Rule = Callable[[WheelFacts, AuditExpectation], Iterator[Observation]]
